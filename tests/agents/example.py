#!/usr/bin/env python3
"""Runs the TypeScript example of the README, as somebody would who has copied it.

    example.py HOST

With the agent `script`: a text, a permission, a question, and each ending. `run` is for any agent.
"""

import os
import subprocess
import sys
import tempfile

README = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "README.md")
# How long the example may take before it has hung.
HUNG = 120


def example():
    """The program, as JavaScript: it has no types that would have to be taken away. The other one needs a package."""
    with open(README) as readme:
        programs = [text.split("\n```\n")[0] for text in readme.read().split("\n```ts\n")[1:]]
        return next(program for program in programs if "from 'ahp-sidecar'" not in program)


def run(host, prompt, *arguments, path=os.environ["PATH"], status=0):
    """Runs the example with a message; gives back what it printed before it ended with this status."""
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "hello.mjs")
        with open(file, "w") as opened:
            opened.write(example())
        programs = os.path.dirname(os.path.abspath(host))
        environment = {"PATH": os.pathsep.join([programs, path]), "HOME": folder}
        if prompt is not None:
            environment["PROMPT"] = prompt
        done = subprocess.run(["node", file, *arguments], env=environment, cwd=folder, capture_output=True,
                              text=True, timeout=HUNG)
        # The log of the host is on stderr.
        assert done.returncode == status, done
        return done.stdout


def main():
    host = sys.argv[1]
    question = '/question [{"kind":"text","id":"name","message":"Who?","required":true}]'
    for prompt, printed, status in (
        (None, "Hello from an extension\n\n", 0),
        ("/think hm\n/say one\n/ask rm {}\n/say two", "onetwo\n\n", 0),
        (f"{question}\n/say on", "(cancelled)\n\non\n\n", 0),
        ("/say one\n/error no luck", "one\nno luck\n", 1),
        ("/die", None, 1),
        ("/nonsense", None, 1),
    ):
        said = run(host, prompt, status=status)
        assert said == printed if printed else len(said.strip()) > 10, (prompt, said)
    said = run(host, "hello", "nobody", status=1)
    assert "nobody" in said, said
    said = run(host, "hello", "broken", "--agent", "broken=false", status=1)
    assert "broken" in said, said
    # The host leaves without a word.
    run(host, "hello", "script", "--no-such-flag", status=2)
    print("the example of the README prints what it should")


if __name__ == "__main__":
    main()
