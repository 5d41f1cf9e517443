#!/usr/bin/env python3
"""Runs real agents behind the host, against a scripted model: no network but for npm, no account.

    run.py HOST FOLDER [NAME...]

HOST is the program, FOLDER is where the agents are installed and keep what they keep; NAMEs choose among them.
Skips, with a word, when node, npm or the packages are not to be had.
"""

import base64
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
import queue

HERE = os.path.dirname(os.path.abspath(__file__))
# How long one step may take before it has hung.
HUNG = 120

AGENTS = {
    "claude": {
        "package": "@agentclientprotocol/claude-agent-acp@0.100.0",
        "command": ["claude-agent-acp"],
        "environment": {
            "ANTHROPIC_BASE_URL": "{url}", "ANTHROPIC_AUTH_TOKEN": "x", "CLAUDE_CONFIG_DIR": "{home}/.claude",
            "IS_SANDBOX": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1", "ENABLE_TOOL_SEARCH": "false", "CLAUDE_CODE_MAX_RETRIES": "1",
        },
        "tool": 'TOOL Bash {"command":"touch made-by-claude; echo made","description":"d"}',
        "made": "made-by-claude",
    },
    "opencode": {
        "package": "opencode-ai@1.18.33",
        "command": ["opencode", "acp"],
        "environment": {
            "OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        },
        "files": {".config/opencode/opencode.json": {
            "model": "fake/fake-model", "small_model": "fake/fake-model", "share": "disabled", "autoupdate": False,
            "enabled_providers": ["fake"], "permission": {"edit": "ask", "bash": "ask"},
            "provider": {"fake": {
                "npm": "@ai-sdk/openai-compatible", "name": "Fake",
                "options": {"baseURL": "{url}/v1", "apiKey": "x"},
                "models": {"fake-model": {"name": "Fake model", "reasoning": True, "tool_call": True,
                                          "limit": {"context": 200000, "output": 8192}}}}},
        }},
        "tool": 'TOOL bash {"command":"touch made-by-opencode; echo made","description":"d"}',
        "made": "made-by-opencode",
    },
}


def skip(why):
    print(f"skipped: {why}")
    sys.exit(0)


def filled(value, **words):
    """A value with the words in its texts."""
    if isinstance(value, dict):
        return {name: filled(inner, **words) for name, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner, **words) for inner in value]
    if isinstance(value, str):
        for name, word in words.items():
            value = value.replace("{" + name + "}", word)
    return value


def install(folder, names):
    for tool in ("node", "npm"):
        if not shutil.which(tool):
            skip(f"{tool} is not installed")
    version = subprocess.run(["node", "--version"], capture_output=True, text=True).stdout
    packages = [AGENTS[name]["package"] for name in names]
    if int(re.match(r"v(\d+)", version).group(1)) < 22:
        arch = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
        packages.append(f"node-{sys.platform}-{arch}@24")
    os.makedirs(folder, exist_ok=True)
    mark = os.path.join(folder, "installed.json")
    if not os.path.exists(mark) or json.load(open(mark)) != packages:
        print("installing", *packages, flush=True)
        command = ["npm", "install", "--prefix", folder, "--no-audit", "--no-fund", *packages]
        # Their install scripts fetch the programs; older versions of npm know no such flag and run them anyway.
        done = subprocess.run([*command, "--dangerously-allow-all-scripts"], capture_output=True, text=True)
        if done.returncode:
            skip(f"npm cannot install them:\n{done.stderr}")
        json.dump(packages, open(mark, "w"))
    binaries = os.path.join(folder, "node_modules", ".bin")
    return os.pathsep.join([binaries, os.environ["PATH"]])


class Host:
    """The host with one agent, and one session in a folder of its own."""

    def __init__(self, program, name, folder, path, url):
        self.name, self.folder, self.program = name, folder, program
        self.home, self.work = os.path.join(folder, "home"), os.path.join(folder, "work")
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(self.home)
        os.makedirs(self.work)
        agent = filled(AGENTS[name], url=url, home=self.home)
        for file, content in agent.get("files", {}).items():
            file = os.path.join(self.home, file)
            os.makedirs(os.path.dirname(file), exist_ok=True)
            json.dump(content, open(file, "w"))
        command, *arguments = agent["command"]
        environment = {"HOME": self.home, "PATH": path, **agent["environment"]}
        toml = [f"[agents.{name}]", f"command = {json.dumps(shutil.which(command, path=path))}",
                f"args = {json.dumps(arguments)}", "start_seconds = 90", f"[agents.{name}.env]",
                *(f"{key} = {json.dumps(value)}" for key, value in environment.items())]
        self.config = os.path.join(folder, "config.toml")
        open(self.config, "w").write("\n".join(toml))
        self.session = "ahp-session:/real"
        encoded = base64.urlsafe_b64encode(self.session.encode()).decode().rstrip("=")
        self.chat = "ahp-chat://default/" + encoded
        self.turns = 0
        self.start()
        self.say(id=2, method="createSession", params={
            "channel": self.session, "provider": name, "workingDirectories": ["file://" + self.work]})
        self.subscribe()

    def start(self):
        command = [self.program, "--state-dir", os.path.join(self.folder, "state"), "--config", self.config,
                   "--log", "error", "--on-eof", "exit"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines = queue.Queue()
        threading.Thread(target=self.read, args=(self.process.stdout,), daemon=True).start()
        self.say(id=1, method="initialize", params={
            "channel": "ahp-root://", "clientId": "real", "protocolVersions": ["1.0.0"]})

    def read(self, stdout):
        for line in stdout:
            self.lines.put(json.loads(line))
        self.lines.put(None)

    def say(self, **message):
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self.process.stdin.flush()

    def subscribe(self):
        for channel in (self.session, self.chat):
            self.say(id=3, method="subscribe", params={"channel": channel})

    def dispatch(self, **action):
        self.say(method="dispatchAction", params={"channel": self.chat, "clientSeq": 1, "action": action})

    def actions(self):
        while True:
            message = self.lines.get(timeout=HUNG)
            assert message, "the host has ended"
            assert "error" not in message, message
            if message.get("method") == "action":
                assert "rejectionReason" not in message["params"], message
                yield message["params"]["action"]

    def turn(self, text, approve=True, cancel_at=None):
        """Runs a turn; gives back its text, its thoughts, its tool calls' results, and how it ended."""
        self.turns += 1
        turn = f"t{self.turns}"
        self.dispatch(type="chat/turnStarted", turnId=turn, startedAt="2026-01-01T00:00:00Z",
                      message={"text": text, "origin": {"kind": "user"}})
        said, kinds, results, asked = {"markdown": "", "reasoning": ""}, {}, [], []
        for action in self.actions():
            kind = action["type"]
            if kind == "chat/responsePart" and action["part"]["kind"] in said:
                said[action["part"]["kind"]] += action["part"]["content"]
            elif kind == "chat/delta":
                said["markdown"] += action["content"]
            elif kind == "chat/reasoning":
                said["reasoning"] += action["content"]
            elif kind == "chat/toolCallComplete":
                results.append(action["result"])
            elif kind == "chat/toolCallReady" and action.get("options"):
                asked.append(action)
                wanted = "approve" if approve else "deny"
                option = next(it for it in action["options"] if it["kind"] == wanted)
                self.dispatch(type="chat/toolCallConfirmed", turnId=turn, toolCallId=action["toolCallId"],
                              approved=approve, selectedOptionId=option["id"])
            elif kind in ("chat/turnComplete", "chat/turnCancelled", "chat/error"):
                return said["markdown"], said["reasoning"], results, asked, action
            elif kind == "session/creationFailed":
                raise AssertionError(action)
            if cancel_at and cancel_at in said["markdown"]:
                self.dispatch(type="chat/turnCancelled", turnId=turn, duration=0)
                cancel_at = None

    def end(self):
        self.process.stdin.close()
        self.process.wait(timeout=HUNG)


def check(host):
    agent = AGENTS[host.name]
    made = os.path.join(host.work, agent["made"])

    said, thought, _, _, end = host.turn("THINK a thought\nSAY hello")
    assert "hello" in said and "a thought" in thought and end["type"] == "chat/turnComplete", (said, thought, end)
    yield "says and thinks"

    said, *_ = host.turn("STREAM 50 40")
    numbers = [int(number) for number in re.findall(r"\b\d{6}\b", said)]
    assert numbers == sorted(set(numbers)) and len(numbers) == 50, said
    yield "streams each piece once"

    _, _, _, asked, _ = host.turn(agent["tool"], approve=False)
    assert asked and not os.path.exists(made), asked
    yield "asks, and does not do what is refused"

    _, _, results, asked, end = host.turn(agent["tool"])
    assert asked and os.path.exists(made) and any(result["success"] for result in results), (asked, results, end)
    yield "asks, and does what is allowed"

    *_, end = host.turn("STREAM 400 40 50", cancel_at="000003")
    assert end["type"] == "chat/turnCancelled", end
    said, *_ = host.turn("SAY after it")
    assert "after it" in said and "000399" not in said, said
    yield "is cancelled in the middle, and goes on"

    *_, end = host.turn("FAIL 400")
    said, *_ = host.turn("SAY well again")
    assert "well again" in said, said
    yield f"survives a failure of its model ({end['type']})"

    host.end()
    host.start()
    host.subscribe()
    said, *_ = host.turn("SAY I am back")
    assert said.count("I am back") == 1 and "after it" not in said, said
    yield "goes on after a restart, and tells nothing twice"


def main():
    program, folder, *names = sys.argv[1:]
    names = names or list(AGENTS)
    folder = os.path.abspath(folder)
    path = install(folder, names)
    model = subprocess.Popen([sys.executable, os.path.join(HERE, "fake_llm.py"), "--port", "0"],
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    failed = False
    try:
        url = json.loads(model.stdout.readline())["url"]
        for name in names:
            host = Host(os.path.abspath(program), name, os.path.join(folder, "run", name), path, url)
            started = time.time()
            try:
                for done in check(host):
                    print(f"{name}: {done} ({time.time() - started:.1f} s)", flush=True)
                    started = time.time()
            except (AssertionError, queue.Empty) as error:
                print(f"{name}: FAILED: {type(error).__name__} {error}", flush=True)
                failed = True
            host.process.stdin.close()
            host.process.wait(timeout=HUNG)
    finally:
        model.kill()
        model.wait()
    sys.exit(failed)


if __name__ == "__main__":
    main()
