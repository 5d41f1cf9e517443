#!/usr/bin/env python3
"""Runs real agents behind the host, against a scripted model: no network but for npm, no account.

    run.py HOST FOLDER [--runs] [NAME...]

HOST is the program, FOLDER is where the agents are installed and keep what they keep; NAMEs choose among them, `all`
is all; with `--runs`, only the command `run` is tried. What the host said and logged is in FOLDER/run/NAME afterwards.
Skips, with a word, when node, npm or a package is not to be had.
"""

import dataclasses
import json
import os
import queue
import shutil
import subprocess
import sys
import time

import example
from agents import AGENTS, USUAL
from client import Chat, Host
from installing import Missing, install, path_with_node
from runs import Runs
from scenes import Scenes
from servers import Servers

HERE = os.path.dirname(os.path.abspath(__file__))


def check(program, name, folder, path, url):
    """Runs the scenes of an agent; says how each was."""
    agent = AGENTS[name]
    binaries = install(os.path.join(folder, "npm", name), agent.packages, path)
    path = os.pathsep.join([binaries, path])
    host = Host(program, name, agent, os.path.join(folder, "run", name), binaries, path, url)
    try:
        started = time.monotonic()
        for seen in Scenes(host, agent, url, lambda *told, **more: Chat(host, *told, **more)).run():
            print(f"{name}: {seen} ({time.monotonic() - started:.1f} s)", flush=True)
            started = time.monotonic()
    finally:
        if not host.process.stdin.closed:
            host.process.stdin.close()
        host.process.wait()
    said = example.run(program, "SAY hello from the model", name, "--config", host.config, path=path)
    assert agent.fixed or "hello from the model" in said, said
    print(f"{name}: is checked: {checked(program, name, host.config)}", flush=True)
    assert not host.left(), f"left behind: {host.left()}"
    print(f"{name}: answers the example of the README ({time.monotonic() - started:.1f} s)", flush=True)


def check_runs(program, name, folder, path, url):
    """Has the command `run` run an agent; says how each run was."""
    agent, place = AGENTS[name], os.path.join(folder, "run", name + "-runs")
    binaries = install(os.path.join(folder, "npm", name), agent.packages, path)
    shutil.rmtree(place, ignore_errors=True)
    started = time.monotonic()
    for seen in Runs(program, name, agent, place, binaries, os.pathsep.join([binaries, path]), url).all():
        print(f"{name}: {seen} ({time.monotonic() - started:.1f} s)", flush=True)
        started = time.monotonic()


def check_servers(program, name, folder, path, url):
    """Gives an agent MCP servers; says how each scene was."""
    agent, place = AGENTS[name], os.path.join(folder, "run", name + "-servers")
    binaries = install(os.path.join(folder, "npm", name), agent.packages, path)
    started = time.monotonic()
    with Servers(program, name, agent, place, binaries, os.pathsep.join([binaries, path]), url) as servers:
        for seen in servers.all():
            print(f"{name}: {seen} ({time.monotonic() - started:.1f} s)", flush=True)
            started = time.monotonic()


def checked(program, name, config):
    """What `agents check` says of its modes, and whether it asks."""
    command = [program, "agents", "check", "--ephemeral", "--timeout", "300", "--config", config, name]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done
    lines = [line.strip() for line in done.stdout.splitlines()]
    return "; ".join(line for line in lines if line.startswith(("modes", "ASKS NOT")))


def log_in(program, name, folder, path, url):
    """Has an agent without its key be given one by a client; says how that was."""
    agent = AGENTS[name]
    way, lacks, files = agent.key
    environment = {key: value for key, value in agent.environment.items() if key not in lacks}
    agent = dataclasses.replace(agent, environment=environment, files={**agent.files, **files})
    binaries = os.path.join(folder, "npm", name, "node_modules", ".bin")
    path = os.pathsep.join([binaries, path])
    host = Host(program, name, agent, os.path.join(folder, "run", name + "-key"), binaries, path, url)
    try:
        missing = Chat(host, "missing")
        while missing.session_state()["lifecycle"] == "creating":
            time.sleep(0.1)
        error = missing.session_state()["creationError"]
        assert error["errorType"] == "authRequired", error
        resource = f"acp-login:/{name}/{way.replace('-', '%2D')}"
        host.ask("authenticate", channel="ahp-root://", resource=resource, token="sk-test")
        turn = Chat(host, "with-key").turn("SAY let in\\n")
        assert turn.ending["type"] == "chat/turnComplete" and "let in" in turn.text, turn
        print(f"{name}: works with a key that a client gives; without: {error['message'][:120]}", flush=True)
        host.end()
    finally:
        if not host.process.stdin.closed:
            host.process.stdin.close()
        host.process.wait()


def main():
    program, folder, *names = sys.argv[1:]
    only_runs = names[:1] == ["--runs"]
    names = names[1:] if only_runs else names
    names = list(AGENTS) if names == ["all"] else names or USUAL
    unknown = [name for name in names if name not in AGENTS]
    if unknown:
        sys.exit(f"no such agent: {', '.join(unknown)}; there are: {', '.join(AGENTS)}")
    program, folder = os.path.abspath(program), os.path.abspath(folder)
    try:
        path = path_with_node(os.path.join(folder, "npm"))
    except Missing as missing:
        print(f"skipped: {missing}")
        return
    failed = False
    for name in names:
        # A model for each, so that what it was asked is the agent's.
        model = subprocess.Popen([sys.executable, os.path.join(HERE, "fake_llm.py"), "--port", "0"],
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            url = json.loads(model.stdout.readline())["url"]
            if not only_runs:
                check(program, name, folder, path, url)
            check_runs(program, name, folder, path, url)
            if AGENTS[name].client_tool and not only_runs:
                check_servers(program, name, folder, path, url)
            if AGENTS[name].key and not only_runs:
                log_in(program, name, folder, path, url)
        except Missing as missing:
            print(f"{name}: skipped: {missing}", flush=True)
        except (AssertionError, queue.Empty) as error:
            print(f"{name}: FAILED: {type(error).__name__} {error}", flush=True)
            failed = True
        finally:
            model.kill()
            model.wait()
    sys.exit(failed)


if __name__ == "__main__":
    main()
