"""What `ahp-sidecar run` does with an agent: its answer, its permissions by rules, its summary and its status."""

import json
import os
import subprocess

from agents import filled
from client import HUNG, configured


class Runs:
    """Runs with one agent in a repository, each of which keeps nothing."""

    def __init__(self, program, name, agent, folder, binaries, path, url):
        self.program, self.name, self.agent, self.folder = program, name, agent, folder
        os.makedirs(folder)
        self.config = configured(name, agent, folder, binaries, path, url)
        self.work = os.path.join(folder, "work")
        os.makedirs(self.work)
        with open(os.path.join(self.work, "kept"), "w") as opened:
            opened.write("one\n")
        for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"]):
            subprocess.run(["git", "-C", self.work, *words], check=True)

    def all(self):
        """The scenes; each gives back what was seen."""
        if self.agent.fixed:
            scenes = (self.plays, self.plays_denied)
        else:
            scenes = (self.answers, self.refuses_a_model, self.denies, self.allows_a_command, self.denies_a_command,
                      self.allows_a_file, self.denies_a_file)
        for scene in scenes:
            seen = scene()
            if seen:
                yield f"run {seen}"

    # What a scene needs.

    def run(self, prompt, *flags):
        """A run; gives back its status, what it printed, what it complained of, and its summary."""
        summary = os.path.join(self.folder, "summary.json")
        command = [self.program, "run", prompt, "--ephemeral", "--config", self.config, "--dir", self.work,
                   "--timeout", str(HUNG), "--summary", summary, *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * HUNG, stdin=subprocess.DEVNULL)
        with open(summary) as opened:
            summary = json.load(opened)
        assert summary["exitStatus"] == done.returncode, (done, summary)
        return done.returncode, done.stdout, done.stderr, summary

    def call(self, tool, **words):
        name, arguments = tool
        return f"TOOL {name} {json.dumps(filled(arguments, **words))}"

    def path(self, name):
        return os.path.join(self.work, name)

    def has(self, name):
        return os.path.exists(self.path(name))

    def decided(self, ran, allowed):
        """What was asked and decided so; gives back the decisions. An agent that does not ask has none."""
        status, _, _, summary = ran
        decisions = summary["permissions"]
        assert all(decision["allowed"] == allowed for decision in decisions), ran
        assert bool(decisions) == bool(self.agent.once), ran
        assert status == (0 if allowed or not decisions else 11), ran
        return decisions

    # The scenes.

    def answers(self):
        status, out, err, summary = self.run("THINK a thought\nSAY hello from a run\\n", "--quiet")
        assert (status, out, err) == (0, "hello from a run\n", ""), (status, out, err)
        assert summary["answer"] == "hello from a run" and summary["result"] == "completed", summary
        assert summary["agent"] == self.name and len(summary["turns"]) == 1, summary
        return f"answers; usage {summary['usage']}"

    def refuses_a_model(self):
        status, out, err, _ = self.run("SAY never", "--model", "no-such-model")
        assert (status, out) == (2, "") and "--model: " in err, (status, out, err)
        return f"refuses a model: {err.strip()[:200]}"

    def denies(self):
        ran = self.run(self.call(self.agent.shell, command="touch refused"))
        decisions = self.decided(ran, False)
        assert self.has("refused") == (not decisions), ran
        return f"denies by default: {decisions[0]['kind']} {decisions[0]['command']!r}" if decisions else "does not ask"

    def allows_a_command(self):
        patch = os.path.join(self.folder, "patch")
        rule = "command=touch made"
        ran = self.run(self.call(self.agent.shell, command="touch made"), "--allow", rule, "--patch", patch)
        decisions = self.decided(ran, True)
        assert self.has("made"), ran
        with open(patch) as opened:
            assert "b/made" in opened.read(), ran
        assert [change["path"] for change in ran[3]["changes"]] == ["made"], ran
        return f"allows by `{rule}`: {[decision['command'] for decision in decisions]}" if decisions else None

    def denies_a_command(self):
        ran = self.run(self.call(self.agent.shell, command="ls && rm kept"), "--allow-all", "--deny", "command=rm")
        decisions = self.decided(ran, False)
        assert self.has("kept") == bool(decisions), ran
        return f"denies by `command=rm`: {decisions[0]['reason'] or 'it is in the line'}" if decisions else None

    def allows_a_file(self):
        rule = "kind=edit path=new"
        ran = self.run(self.call(self.agent.write, file=self.path("new"), new="neu"), "--allow", rule)
        decisions = self.decided(ran, True)
        assert self.has("new"), ran
        return f"allows by `{rule}`: {[decision['paths'] for decision in decisions]}" if decisions else None

    def denies_a_file(self):
        os.makedirs(self.path("ci"))
        flags = ["--allow-all", "--deny", "path=ci"]
        ran = self.run(self.call(self.agent.write, file=self.path("ci/new"), new="neu"), *flags)
        decisions = self.decided(ran, False)
        assert self.has("ci/new") == (not decisions), ran
        return f"denies by `{flags[-1]}`" if decisions else None

    def plays(self):
        status, out, _, summary = self.run("anything", "--allow", "kind=edit")
        assert status == 0 and out and [it["allowed"] for it in summary["permissions"]] == [True], (status, out, summary)
        return f"plays its scene, and is allowed: {summary['permissions'][0]['paths']}"

    def plays_denied(self):
        status, out, err, summary = self.run("anything", "--allow-all", "--deny", "kind=edit")
        assert status == 11 and out and "denied: " in err, (status, out, err, summary)
        return f"plays its scene, and is denied: {err.strip()[:120]}"
