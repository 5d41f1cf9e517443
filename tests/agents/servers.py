"""MCP servers of the operator, on stdio and over HTTP, with a real agent: it calls their tools, sees them switched off
and on, and goes on when they crash. The servers are those of the tests."""

import json
import os
import subprocess
import sys
import time
import urllib.request

from client import HUNG, LOOK_AGAIN, Chat, Host

SERVER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "it", "acp", "mcp_server.py")
# What each server has as its key; it tells how long that is.
KEYS = {"local": "c0ffee-of-local-1", "remote": "7ea-of-remote-22"}


class Servers:
    """A session of an agent with two servers; to be closed."""

    def __init__(self, program, name, agent, folder, binaries, path, url):
        self.agent, self.folder, self.url = agent, folder, url
        self.host = self.remote = None
        self.arguments = program, name, agent, folder, binaries, path, url

    def __enter__(self):
        self.host = Host(*self.arguments, servers=self.sections)
        self.chat = Chat(self.host, "servers")
        return self

    def __exit__(self, *_):
        for process in (self.remote, self.host and self.host.process):
            if process:
                process.kill()
                process.wait()

    def sections(self, folder):
        """Starts the server that is reached over HTTP; gives back the sections of the configuration for both."""
        self.port = os.path.join(folder, "port")
        self.start_remote()
        for name, key in KEYS.items():
            with open(os.path.join(folder, name + ".key"), "w") as opened:
                opened.write(key)
        return f"""
[mcp.local]
command = {json.dumps(sys.executable)}
args = [{json.dumps(SERVER)}]
env = {{ KEY = {{ file = "local.key" }} }}

[mcp.remote]
url = "http://127.0.0.1:{self.read_port()}/mcp"
type = "http"
headers = {{ KEY = {{ file = "remote.key" }} }}
"""

    def start_remote(self, *port):
        self.remote = subprocess.Popen([sys.executable, SERVER, "--http", self.port, *port])

    def read_port(self):
        begun = time.monotonic()
        while not os.path.exists(self.port):
            assert time.monotonic() < begun + HUNG and self.remote.poll() is None
            time.sleep(LOOK_AGAIN)
        with open(self.port) as opened:
            return opened.read()

    def all(self):
        """The scenes; each gives back what was seen."""
        for scene in (self.calls, self.switches, self.crashes, self.hides_keys):
            yield scene()

    # What a scene needs.

    def call(self, server, tool="length"):
        """The agent calls a tool of a server; gives back the turn."""
        name = self.agent.client_tool.replace("ahpclient", server).replace("look", tool)
        turn = self.chat.turn(f"TOOL {name} {{}}\nSAY it said {{result}}")
        assert turn.ending["type"] == "chat/turnComplete", turn
        return turn

    def check_calls(self, *servers):
        for server in servers:
            turn = self.call(server)
            assert f"a key of {len(KEYS[server])}" in turn.text, turn
            assert [call.get("success") for call in turn.calls.values()][-1], turn

    def tools(self):
        """The names of the tools that the model was told of last."""
        with urllib.request.urlopen(self.url + "/fake/requests") as answer:
            return json.dumps([request["tools"] for request in json.load(answer) if request.get("tools")][-1])

    def states(self):
        shown = self.chat.session_state()["customizations"]
        return {it["name"]: it["state"]["kind"] for it in shown if it["type"] == "mcpServer"}

    def switch(self, server, enabled):
        self.chat.dispatch(self.chat.session, type="session/customizationToggled", id=f"mcp:{server}",
                           enablement=[{"kind": "session", "enabled": enabled}])
        begun, wanted = time.monotonic(), "ready" if enabled else "stopped"
        while self.states()[server] != wanted:
            assert time.monotonic() < begun + HUNG, self.states()
            time.sleep(LOOK_AGAIN)

    # The scenes.

    def calls(self):
        self.check_calls("local", "remote")
        assert self.states() == {"local": "ready", "remote": "ready"}, self.states()
        return "calls tools of servers on stdio and over HTTP, each with its key"

    def switches(self):
        if not self.agent.switches_servers:
            return self.switches_for_the_next()
        for server, other in (("local", "remote"), ("remote", "local")):
            self.switch(server, False)
            turn = self.call(server)
            assert "a key of" not in turn.text, turn
            if not self.agent.client_tool.startswith("!"):
                assert server not in self.tools() and other in self.tools(), self.tools()
            self.check_calls(other)
            self.switch(server, True)
            self.check_calls(server)
        return "sees each of its servers switched off and on while it goes on"

    def switches_for_the_next(self):
        self.chat.dispatch(self.chat.session, type="session/customizationToggled", id="mcp:local",
                           enablement=[{"kind": "global", "enabled": False}])
        self.check_calls("local", "remote")
        self.chat = Chat(self.host, "next")
        turn = self.call("local")
        assert "a key of" not in turn.text, turn
        self.check_calls("remote")
        assert self.states() == {"local": "stopped", "remote": "ready"}, self.states()
        self.chat.dispatch(self.chat.session, type="session/customizationToggled", id="mcp:local",
                           enablement=[{"kind": "global", "enabled": True}])
        self.chat = Chat(self.host, "third")
        self.check_calls("local")
        return "sees its servers switched off and on from its next session on"

    def crashes(self):
        turn = self.call("local", "crash")
        assert not any(call.get("success") for call in turn.calls.values()), turn
        self.check_calls("remote")
        self.remote.kill()
        self.remote.wait()
        turn = self.call("remote")
        assert "a key of" not in turn.text, turn
        self.start_remote(self.read_port())
        turn = self.chat.turn("SAY still well")
        assert turn.ending["type"] == "chat/turnComplete" and turn.text.count("still well") == 1, turn
        if self.agent.switches_servers:
            self.switch("local", False)
            self.switch("local", True)
            self.check_calls("local")
        return "goes on when its servers crash"

    def hides_keys(self):
        """No key is in what the host has said, logged or kept. The agent has them."""
        self.host.end()
        for folder, inner, names in os.walk(self.folder):
            if "home" in inner:
                inner.remove("home")
            for name in names:
                if not name.endswith(".key"):
                    with open(os.path.join(folder, name), "rb") as opened:
                        content = opened.read()
                    assert not any(key.encode() in content for key in KEYS.values()), os.path.join(folder, name)
        return "leaves no key of a server behind, and no process"
