#!/usr/bin/env python3
"""An ACP agent for tests: what the user says is what it does, one step a line; see `STEPS`.

Needs nothing but Python 3. What it does when it is started is in its arguments: `--before-hello WHAT`, `--can
resume|load|close|nothing`, `--stubborn`, `--memory FILE` (what outlives the process: the sessions it knows),
`--notes FILE` (where it writes down what it is asked), `--at METHOD=WHAT` (what it does when it is asked for that
first, see `misbehave`), `--which NUMBER` (which of all its processes does, as the notes count them).
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time

OPTIONS = argparse.Namespace()
LAST_ID = [0]
WAITING = []  # messages that came while something else was waited for
SESSIONS = {}


TOGETHER = [0]


def write(text):
    sys.stdout.buffer.write(text if isinstance(text, bytes) else text.encode())
    if not TOGETHER[0]:
        sys.stdout.buffer.flush()


@contextlib.contextmanager
def together():
    """What is said meanwhile is written at once."""
    TOGETHER[0] += 1
    yield
    TOGETHER[0] -= 1
    write("")


def say(**message):
    write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")


def update(session, what, /, **fields):
    say(method="session/update", params={"sessionId": session, "update": {"sessionUpdate": what, **fields}})


def text(session, words, kind="agent_message_chunk", **fields):
    update(session, kind, content={"type": "text", "text": words}, **fields)


def hear():
    if WAITING:
        return WAITING.pop(0)
    return listen()


def listen():
    line = sys.stdin.buffer.readline()
    if not line:
        if OPTIONS.stubborn:
            while True:
                time.sleep(60)
        sys.exit(0)
    return json.loads(line)


class Cancelled(Exception):
    pass


def wait_for_answer(request):
    """The answer to a request of ours; what else comes meanwhile is kept."""
    while True:
        message = listen()
        if message.get("id") == request and "method" not in message:
            return message
        if message.get("method") == "session/cancel":
            return wait_for_answer_then_cancel(request)
        WAITING.append(message)


def wait_for_answer_then_cancel(request):
    raise Cancelled


def ask(method, **params):
    LAST_ID[0] += 1
    say(id=LAST_ID[0], method=method, params=params)
    return LAST_ID[0]


def permission(session, call, options=None, **fields):
    options = options or [
        {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
        {"optionId": "yes/project", "name": "Always here", "kind": "allow_always"},
        {"optionId": "yes/user", "name": "Always", "kind": "allow_always"},
        {"optionId": "no", "name": "No", "kind": "reject_once"},
    ]
    return ask("session/request_permission", sessionId=session, options=options, toolCall={"toolCallId": call, **fields})


def wait_for_cancel():
    while True:
        message = listen()
        if message.get("method") == "session/cancel":
            raise Cancelled
        if "method" not in message:
            continue
        WAITING.append(message)


def outcome_of(answer):
    outcome = answer.get("result", {}).get("outcome", {})
    return outcome.get("optionId", outcome.get("outcome", "error"))


def step_say(session, rest):
    text(session, rest)


def step_message(session, rest):
    name, words = rest.split(" ", 1)
    text(session, words, messageId=name)


def step_think(session, rest):
    text(session, rest, "agent_thought_chunk")


def step_block(session, rest):
    update(session, "agent_message_chunk", content=json.loads(rest))


def step_update(session, rest):
    say(method="session/update", params={"sessionId": session, "update": json.loads(rest)})


def step_update_other(session, rest):
    text("nobody-knows-this-session", rest)


def step_raw(session, rest):
    write(rest.encode().decode("unicode_escape").encode("latin-1"))


def step_junk(session, rest):
    write(b"y" * int(rest) + b"\n")


def step_lines(session, rest):
    for number in range(int(rest)):
        write(f"not a message {number}\n")


def step_stream(session, rest):
    count, size = map(int, rest.split())
    for number in range(count):
        text(session, ("%09d " % number).ljust(size, "."))


def step_words(session, rest):
    """A message of one word, said so many times."""
    word, count = rest.split()
    for _ in range(int(count)):
        text(session, word + " ", messageId=word)


def step_tool(session, rest):
    call = rest or "call_1"
    update(session, "tool_call", toolCallId=call, title="Reading", kind="read", status="pending")
    update(session, "tool_call_update", toolCallId=call, status="in_progress", rawInput={"path": "/x"})
    content = [{"type": "content", "content": {"type": "text", "text": "some"}}]
    update(session, "tool_call_update", toolCallId=call, content=content)
    content = [{"type": "content", "content": {"type": "text", "text": "some more"}}]
    update(session, "tool_call_update", toolCallId=call, status="completed", content=content)


def step_tool_left_open(session, rest):
    update(session, "tool_call", toolCallId=rest, title="Running", kind="execute", status="in_progress")


def step_ask(session, rest):
    """A call that is announced by its permission only."""
    request = permission(session, "ask_1", title="Change a file", kind="edit", rawInput={"n": 1})
    answer = wait_for_answer(request)
    text(session, f"answered {outcome_of(answer)}")
    if outcome_of(answer).startswith("yes"):
        diff = {"type": "diff", "path": "/x", "oldText": "a\n", "newText": "b\n"}
        update(session, "tool_call_update", toolCallId="ask_1", status="completed", content=[diff])


def step_ask_thrice(session, rest):
    """Three calls wait at once; their answers are told in the order in which they come."""
    requests = [permission(session, f"ask_{n}", title=f"Number {n}", kind="edit") for n in (1, 2, 3)]
    update(session, "tool_call_update", toolCallId="ask_2", status="in_progress")
    for _ in requests:
        answer = listen()
        number = requests.index(answer["id"]) + 1
        text(session, f"{number}: {outcome_of(answer)}; ")


def step_ask_and_finish(session, rest):
    """Asks, and does not wait for the answer."""
    permission(session, "ask_1", title="Too late", kind="edit")


def step_ask_and_withdraw(session, rest):
    request = permission(session, "ask_1", title="Never mind", kind="edit")
    say(method="$/cancel_request", params={"requestId": request})
    answer = wait_for_answer(request)
    text(session, f"code {answer['error']['code']}")


def step_sleep(session, rest):
    time.sleep(float(rest))


def step_hang(session, rest):
    wait_for_cancel()


def step_deaf(session, rest):
    """Hears nothing any more, not even a cancellation."""
    while True:
        time.sleep(60)


def step_chatty(session, rest):
    """Goes on talking, whatever it is told."""
    while True:
        text(session, "and ")
        time.sleep(0.01)


def step_stderr(session, rest):
    sys.stderr.write(rest + "\n")
    sys.stderr.flush()


def step_flood_stderr(session, rest):
    sys.stderr.write("z" * 99 + "\n" + ("z" * 99 + "\n") * int(rest))
    sys.stderr.flush()


def step_die(session, rest):
    sys.stdout.flush()
    os._exit(int(rest or 1))


def step_kill(session, rest):
    os.kill(os.getpid(), signal.SIGKILL)


def step_half(session, rest):
    write(b'{"jsonrpc":"2.0","method":"session/upd')
    os._exit(0)


def step_close_stdout(session, rest):
    sys.stdout.flush()
    os.close(1)
    time.sleep(60)


def step_child(session, rest):
    """A grandchild that does not want to go."""
    script = "trap '' TERM INT HUP; while :; do sleep 0.1; done"
    subprocess.Popen(["/bin/sh", "-c", script], stdin=subprocess.DEVNULL)


def step_note(session, rest):
    """Leaves word that it has got so far."""
    note(note=rest)


def step_uncancelled(session, rest):
    """Waits to be cancelled, and takes no notice."""
    try:
        wait_for_cancel()
    except Cancelled:
        pass


def step_freeze(session, rest):
    """Does nothing any more, and does not even end when it is asked to: `me`, or `all` of its group."""
    if rest == "all":
        os.killpg(0, signal.SIGSTOP)
    else:
        os.kill(os.getpid(), signal.SIGSTOP)


def step_kill_parent(session, rest):
    """Whoever has started it: its guard, or a wrapper."""
    os.kill(os.getppid(), signal.SIGKILL)


def step_kill_group(session, rest):
    os.killpg(0, signal.SIGKILL)


def step_close_stdin(session, rest):
    os.close(0)


def step_bad_text(session, rest):
    """Text that is not all text."""
    line = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": rest + "@@"}}
    line = {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "update": line}}
    write(json.dumps(line).encode().replace(b"@@", b"\xff\xfe") + b"\n")


def step_answer(session, rest):
    """Answers the prompt with whatever it is told to, once or more, and does not say that it is done."""
    with together():
        for answer in rest.split(" | "):
            say(id=CURRENT[0], **json.loads(answer))
            text(session, "late")
    raise End()


def step_last_words(session, rest):
    """Answers the prompt, says this, and is gone."""
    with together():
        say(id=CURRENT[0], result={"stopReason": "end_turn"})
        text(session, rest)
    os._exit(3)


def step_ask_for_ever(session, rest):
    """Asks what nobody knows, and reads no answer."""
    request = json.dumps({"jsonrpc": "2.0", "id": "x" * (1 << 20), "method": "craft/something"}) + "\n"
    while True:
        write(request)


def step_remembers(session, rest):
    text(session, " | ".join(SESSIONS[session]))


def step_prompt(session, rest):
    """Says back what it was told, block by block."""
    text(session, json.dumps(PROMPT))


PROMPT = []


class End(Exception):
    def __init__(self, **answer):
        self.answer = answer


def step_end(session, rest):
    raise End(result={"stopReason": rest})


def step_error(session, rest):
    code, message = rest.split(" ", 1)
    raise End(error={"code": int(code), "message": message})


def step_usage(session, rest):
    raise End(result={"stopReason": "end_turn", "usage": json.loads(rest)})


def step_after(session, rest):
    """Ends the turn in the middle of a sentence, and goes on talking: at once, and later."""
    now, later = rest.split("|")
    with together():
        say(id=CURRENT[0], result={"stopReason": "end_turn"})
        text(session, now)
    time.sleep(0.5)
    text(session, later)
    update(session, "tool_call_update", toolCallId="call_1", status="completed")
    update(session, "session_info_update", title="A late title")
    raise End()


CURRENT = [None]
STEPS = {name[5:]: step for name, step in globals().items() if name.startswith("step_")}


def prompt(message):
    global PROMPT
    session = message["params"]["sessionId"]
    PROMPT = message["params"]["prompt"]
    CURRENT[0] = message["id"]
    said = PROMPT[-1].get("text", "") if PROMPT else ""
    SESSIONS[session].append(said)
    remember()
    note(prompt=said)
    try:
        for line in said.splitlines():
            name, _, rest = line.partition(" ")
            if name in STEPS:
                STEPS[name](session, rest)
            else:
                text(session, line)
        answer = {"result": {"stopReason": "end_turn"}}
    except Cancelled:
        answer = {"result": {"stopReason": "cancelled"}}
    except End as end:
        answer = end.answer
    if answer:
        say(id=message["id"], **answer)


def remember():
    if OPTIONS.memory:
        with open(OPTIONS.memory + ".new", "w") as file:
            json.dump(SESSIONS, file)
        os.replace(OPTIONS.memory + ".new", OPTIONS.memory)


def note(**what):
    if OPTIONS.notes:
        with open(OPTIONS.notes, "a") as file:
            file.write(json.dumps({"process": os.getpid(), **what}) + "\n")


def misbehave(method):
    """What is answered to a request that something is to go wrong with; None when nothing is."""
    what = OPTIONS.at.pop(method, None)
    if what == "die":
        sys.stderr.write("something went wrong\n")
        sys.stderr.flush()
        os._exit(9)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "silence":
        while True:
            time.sleep(60)
    if what == "half":
        write(b'{"jsonrpc":"2.0","id":')
        os._exit(0)
    if what == "close":
        os.close(1)
        time.sleep(60)
    if what == "error":
        return {"error": {"code": -32603, "message": "Something went wrong"}}
    if what == "bad-error":
        return {"error": "Something went wrong"}
    if what == "wrong":
        return {"result": {"something": "else"}}
    if what == "nothing":
        return {}
    return None


def answer(message):
    method, params = message.get("method"), message.get("params", {})
    if method in OPTIONS.at:
        wrong = misbehave(method)
        if wrong is not None:
            return wrong
    if method == "initialize":
        if OPTIONS.before_hello == "silence":
            while True:
                listen()
        assert params["protocolVersion"] == 1, params
        can = {"loadSession": "load" in OPTIONS.can, "promptCapabilities": {"image": True}}
        can["sessionCapabilities"] = {name: {} for name in ("resume", "close") if name in OPTIONS.can}
        version = 2 if OPTIONS.before_hello == "version" else 1
        return {"result": {"protocolVersion": version, "agentCapabilities": can}}
    if method == "session/new":
        if "no-session" in OPTIONS.can:
            return {"error": {"code": -32000, "message": "Authentication required"}}
        session = f"session-{os.getpid()}-{len(SESSIONS)}"
        SESSIONS[session] = [params["cwd"]]
        # Before anybody can know of it.
        update(session, "available_commands_update", availableCommands=[])
        update(session, "session_info_update", title="An early title")
        return {"result": {"sessionId": session}}
    if method in ("session/load", "session/resume"):
        if params["sessionId"] not in SESSIONS:
            return {"error": {"code": -32002, "message": "no such session"}}
        if method == "session/load":
            for said in SESSIONS[params["sessionId"]]:
                text(params["sessionId"], said, "user_message_chunk")
                text(params["sessionId"], "a replay that nobody may see")
        return {"result": {}}
    if method == "session/close":
        return {"result": {}}
    return {"error": {"code": -32601, "message": "Method not found"}}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--before-hello", default="")
    parser.add_argument("--can", action="append", default=[])
    parser.add_argument("--stubborn", action="store_true")
    parser.add_argument("--memory")
    parser.add_argument("--notes")
    parser.add_argument("--at", action="append", default=[])
    parser.add_argument("--which", type=int)
    parser.parse_args(namespace=OPTIONS)
    OPTIONS.at = dict(what.split("=") for what in OPTIONS.at)
    note(started=True)
    if OPTIONS.which:
        with open(OPTIONS.notes) as file:
            if sum("started" in json.loads(line) for line in file) != OPTIONS.which:
                OPTIONS.at = {}
    if OPTIONS.stubborn:
        for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(name, signal.SIG_IGN)
    if OPTIONS.memory and os.path.exists(OPTIONS.memory):
        with open(OPTIONS.memory) as file:
            SESSIONS.update(json.load(file))
    if OPTIONS.before_hello == "junk":
        for _ in range(3):
            write("Welcome to the agent!\n\n\x1b[2K\x1b[1G")
    if OPTIONS.before_hello == "only-junk":
        write("Usage: agent [OPTIONS]\n")
        sys.exit(2)
    if OPTIONS.before_hello == "die":
        sys.stderr.write("there is no model\n")
        sys.exit(5)
    while True:
        message = hear()
        if message.get("method") == "session/prompt":
            prompt(message)
        elif "id" in message and "method" in message:
            say(id=message["id"], **answer(message))


if __name__ == "__main__":
    main()
