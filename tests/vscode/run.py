#!/usr/bin/env python3
"""Drives the real VS Code against the host: no network but for npm, PyPI and Debian's packages, no account.

    run.py HOST OFFICIAL FOLDER AGENTS [SCENE...]

HOST is the program; OFFICIAL is the official client (see official/); FOLDER is where VS Code's server is installed and keeps what it keeps, AGENTS where real agents
are installed; SCENEs choose among those of scenes.py. What was said and logged is in FOLDER/run afterwards, with
pictures of where each scene ended; a scene that fails says what was on the screen.
Skips, with a word, when something is not to be had.
"""

import json
import os
import sys

from server import chromium, code_server, extension, libraries, node_path  # makes the modules of tests/agents known
from agents import AGENTS
from installing import Missing, install

HERE = os.path.dirname(os.path.abspath(__file__))
# The real agent of the scenes.
REAL = "opencode"


def main():
    program, official, folder, agents, *scenes = sys.argv[1:]
    program, official, folder, agents = map(os.path.abspath, (program, official, folder, agents))
    try:
        path = node_path(os.path.join(agents, "npm"))
        installed = {
            "chromium": chromium(), "path": path, "server": code_server(os.path.join(folder, "code-server"), path),
            "official": official, "real": REAL, "binaries": install(os.path.join(agents, "npm", REAL), AGENTS[REAL].packages, path),
        }
        installed["extension"] = extension(program, os.path.join(folder, "example.vsix"))
        python = libraries(os.path.join(folder, "python"))
    except Missing as missing:
        print(f"skipped: {missing}")
        return
    play = [python, "-B", os.path.join(HERE, "play.py"), program, folder, json.dumps(installed), *scenes]
    sys.stdout.flush()
    os.execv(python, play)


if __name__ == "__main__":
    main()
