"""Plays the scenes; started by run.py, with what it has installed."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import traceback

from playwright.sync_api import Error, sync_playwright

from server import Server  # makes the modules of tests/agents known
from agents import AGENTS
from client import configured
from host import Client, Host, Official
from scenes import SCENES, SERVER
from workbench import Window

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "agents", "fake_llm.py")
# An agent that is not there.
BROKEN = '\n[agents.broken]\ncommand = "/nowhere/an-agent"\ntitle = "Broken"\n'
# An MCP server of the operator, for the agents that take them.
SERVED = f"\n[mcp.local]\ncommand = {json.dumps(sys.executable)}\nargs = [{json.dumps(SERVER)}]\n"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]


class Stage:
    """What a scene has: the host, windows, and clients of another kind."""

    def __init__(self, host, browser, url, repository, program):
        self.host, self.browser, self.url, self.repository, self.program = host, browser, url, repository, program
        self.windows, self.over = [], contextlib.ExitStack()

    def window(self, agent=None, folder=None):
        """Opens a window on a folder, the repository unless another one is named; with an agent, chooses it."""
        window = Window(self.browser, f"{self.url}?folder={folder or self.repository}")
        self.windows.append(window)
        self.over.callback(window.close)
        if agent:
            window.choose(agent)
        return window

    def official(self, session, provider, text):
        """The official client, which makes a session and begins a turn in it."""
        official = Official(self.program, self.host, session, provider, self.repository, text)
        self.over.callback(official.close)
        return official

    def client(self):
        client = Client(self.host)
        self.over.callback(client.close)
        return client


def play(name, stage, pictures):
    """Plays a scene; gives back what went wrong."""
    wrong = None
    with stage.over:
        try:
            SCENES[name](stage)
        except (AssertionError, Error, OSError) as error:
            wrong = "".join(traceback.format_exception(error, limit=-4))
        for number, window in enumerate(stage.windows, 1):
            with contextlib.suppress(Error):
                window.page.screenshot(path=os.path.join(pictures, f"{name}-{number}.png"))
    return wrong


def prepared(folder):
    """An empty folder with a repository in it."""
    shutil.rmtree(folder, ignore_errors=True)
    repository = os.path.join(folder, "repository")
    os.makedirs(repository)
    os.makedirs(os.path.join(folder, "pictures"))
    with open(os.path.join(repository, "a.txt"), "w") as opened:
        opened.write("alpha\nbeta\ngamma\n")
    subprocess.run(["git", "init", "--quiet", repository], check=True)
    return repository


def main():
    program, folder, installed, *names = sys.argv[1:]
    installed, folder = json.loads(installed), os.path.join(folder, "run")
    unknown = [name for name in names if name not in SCENES]
    if unknown:
        sys.exit(f"no such scene: {', '.join(unknown)}; there are: {', '.join(SCENES)}")
    repository = prepared(folder)
    failed = []
    with contextlib.ExitStack() as over:
        model = subprocess.Popen([sys.executable, MODEL, "--port", "0"], stdout=subprocess.PIPE,
                                 stderr=subprocess.DEVNULL, text=True)
        over.callback(model.wait)
        over.callback(model.kill)
        real, path = installed["real"], os.pathsep.join([installed["binaries"], installed["path"]])
        config = configured(real, AGENTS[real], folder, installed["binaries"], path, json.loads(model.stdout.readline())["url"])
        with open(config) as opened:
            agents = opened.read()
        with open(config, "w") as opened:
            opened.write('client_mcp = "http"\n' + agents + BROKEN + SERVED)
        host = Host(program, folder, repository, config)
        over.callback(host.stop)
        server = Server(installed["server"], os.path.join(folder, "server"), installed["path"], host.tap.address,
                        host.token, installed["extension"])
        over.callback(server.stop)
        playwright = over.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=installed["chromium"], args=FLAGS)
        over.callback(browser.close)
        for name in names or SCENES:
            began = time.monotonic()
            wrong = play(name, Stage(host, browser, server.url, repository, installed["official"]), os.path.join(folder, "pictures"))
            print(f"{name}: {'FAILED' if wrong else 'ok'} ({time.monotonic() - began:.1f} s)", flush=True)
            if wrong:
                print(wrong, flush=True)
                failed.append(name)
    print(f"{len(names or SCENES) - len(failed)} scenes passed, {len(failed)} failed{': ' * bool(failed)}"
          f"{', '.join(failed)}; what was seen and said is in {folder}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
