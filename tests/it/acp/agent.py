#!/usr/bin/env python3
"""An ACP agent for tests: what the user says is what it does, one step a line; see `STEPS`.

Needs nothing but Python 3. What it does when it is started is in its arguments: `--before-hello WHAT`, `--can
resume|load|replay-late|replay-with-answer|close|fork|nothing`, `--stubborn`, `--memory FILE` (what outlives the process: the sessions it
knows), `--goes-on STEPS` (what it does with a turn that was cut), `--notes FILE` (where it writes down what it is
asked), `--at METHOD=WHAT` (what it does when it is asked for that first, see `misbehave`), `--which NUMBER` (which of
all its processes does, as the notes count them), `--login in|out|refuse|outside` (it can be logged in to, and is or is not at
first), `--before-new SECONDS` (how long a new session takes), `--has options|older` (what its sessions can be
configured by, see `settings_of`), `--sets HOW` (how it takes a change, see `set_setting`), `--name NAME` (what it
calls itself), `--title TEXT` (for people; with escapes as in Python), `--way api-key|device|terminal` (more ways to log
in to it), `--door FILE` (a login by `device` is done when that is there; one `outside` when that is there at the start),
`--mcp always|once` (it starts the MCP servers that it is given, and asks for their tools when they change, or once),
`--refuses attachments|for-ever` (prompts that hold a picture fail, or all that follow one in its session, too),
`--says-login KIND` (it says by itself whether somebody is logged in), `--elsewhere FILE` (the sessions that it has from
its own terminal program, see `elsewhere`), `--shares-servers` (all sessions of a folder have the MCP servers that one
of them was given, the latest of each name, as in opencode).
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from select import select as wait_for_input

OPTIONS = argparse.Namespace()
LAST_ID = [0]
WAITING = []  # messages that came while something else was waited for
SESSIONS = {}
FORGOTTEN = {}  # how a prompt of the session is answered


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


INPUT = bytearray()  # read, but not heard yet


def is_heard_soon(seconds):
    """Tells whether there is a line within this time; Python's own buffer would hide one."""
    return b"\n" in INPUT or bool(wait_for_input([sys.stdin], [], [], seconds)[0])


def next_line():
    """Returns the next line, or nothing at the end."""
    searched = 0
    while (end := INPUT.find(b"\n", searched)) < 0:
        searched = len(INPUT)
        read = os.read(sys.stdin.fileno(), 1 << 16)
        if not read:
            return b""
        INPUT.extend(read)
    line = bytes(INPUT[: end + 1])
    del INPUT[: end + 1]
    return line


def listen():
    line = next_line()
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


def step_user(session, rest):
    """A message of the user that the client does not know: the words backwards, in two pieces."""
    said = rest[::-1]
    text(session, said[:4], "user_message_chunk")
    text(session, said[4:], "user_message_chunk")


def step_repeat(session, rest):
    """The prompt again, as a message of the user."""
    text(session, PROMPT[-1]["text"], "user_message_chunk")


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


def step_draw(session, rest):
    """A call that makes a picture of so many bytes, in base64."""
    call, size = rest.split()
    update(session, "tool_call", toolCallId=call, title="Drawing", kind="other", status="pending")
    picture = {"type": "image", "mimeType": "image/png", "data": "iVBO" * (int(size) // 4)}
    content = [{"type": "content", "content": picture}]
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


def step_permission(session, rest):
    """Asks exactly so, and says what was answered."""
    request = ask("session/request_permission", sessionId=session, **json.loads(rest))
    text(session, outcome_of(wait_for_answer(request)))


def step_ask_and_cancel_too(session, rest):
    """Asks, and withdraws its question when it is cancelled, although that answers it."""
    request = permission(session, rest, title="Too late", kind="execute")
    try:
        wait_for_answer(request)
    except Cancelled:
        say(method="$/cancel_request", params={"requestId": request})
        raise


def step_decision(session, rest):
    """Asks exactly so, and says the whole answer."""
    request = ask("session/request_permission", sessionId=session, **json.loads(rest))
    text(session, json.dumps(wait_for_answer(request)["result"]))


def step_request(session, rest):
    """Asks for whatever, and says what came of it."""
    answer = wait_for_answer(ask(rest, sessionId=session))
    text(session, str(answer.get("error", {}).get("code", answer)))


def step_notify(session, rest):
    say(method=rest, params={"sessionId": session})


def step_finish(session, rest):
    """Ends the turn; what follows is said when the client knows of the end."""
    say(id=CURRENT[0], result={"stopReason": "end_turn"})
    CURRENT[0] = None
    wait_until_ended(session)


def wait_until_ended(session):
    """Waits for the file with which the test says that it has heard the end of the turn."""
    told = os.path.join(SESSIONS[session][0], "turn-has-ended")
    while not os.path.exists(told):
        time.sleep(0.01)
    os.remove(told)


def step_duet(session, rest):
    """Waits for a prompt of another session, which it says, and answers both in turn."""
    text(session, "waits ")
    other = listen()
    for number in range(int(rest)):
        text(session, f"{number} ")
        text(other["params"]["sessionId"], f"{number} ")
    say(id=other["id"], result={"stopReason": "end_turn"})


def step_edit(session, rest):
    """Asks whether it may change a file, and then does: whole, some lines, or however it is told."""
    told = json.loads(rest)
    path = os.path.join(SESSIONS[session][0], told["path"])
    content = [{"type": "diff", "path": path, **sides} for sides in told["diffs"]]
    request = permission(session, "edit_1", title="Change a file", kind="edit", content=content)
    if outcome_of(wait_for_answer(request)) == "no":
        return
    with open(path, "w") as file:
        file.write(told["after"])
    update(session, "tool_call_update", toolCallId="edit_1", status="completed")


def step_ask_thrice(session, rest):
    """Three calls wait at once; their answers are told in the order in which they come."""
    requests = [permission(session, f"ask_{n}", title=f"Number {n}", kind="edit") for n in (1, 2, 3)]
    update(session, "tool_call_update", toolCallId="ask_2", status="in_progress")
    for _ in requests:
        answer = listen()
        number = requests.index(answer["id"]) + 1
        text(session, f"{number}: {outcome_of(answer)}; ")


def step_ask_thrice_and_hang(session, rest):
    """Three calls wait when the turn is cancelled; how they were answered is told in the next."""
    requests = [permission(session, f"ask_{n}", title=f"Number {n}", kind="edit") for n in (1, 2, 3)]
    ANSWERED.extend(outcome_of(wait_for_answer_only(request)) for request in requests)
    raise Cancelled


def wait_for_answer_only(request):
    while True:
        message = listen()
        if message.get("id") == request and "method" not in message:
            return message


def step_ask_and_finish(session, rest):
    """Asks, and does not wait for the answer."""
    permission(session, "ask_1", title="Too late", kind="edit")


def step_ask_and_withdraw(session, rest):
    request = permission(session, "ask_1", title="Never mind", kind="edit")
    say(method="$/cancel_request", params={"requestId": request})
    answer = wait_for_answer(request)
    text(session, f"code {answer['error']['code']}")


def step_forget(session, rest):
    """Drops the session, as agents do that keep one of them; it can be taken up again."""
    FORGOTTEN[session] = {"code": int(rest), "message": "no such session"}


def step_reject_and_end(session, rest):
    """Asks, and ends the turn as if it were cancelled when the answer is no."""
    answer = wait_for_answer(permission(session, "ask_1", title="Change a file", kind="edit"))
    if outcome_of(answer) == "no":
        raise End(result={"stopReason": "cancelled"})


def step_question(session, rest):
    """Asks the user, and says what the answer was."""
    answer = wait_for_answer(ask("elicitation/create", sessionId=session, **json.loads(rest)))
    text(session, json.dumps(answer.get("result", answer.get("error"))))


def step_question_of_prompt(session, rest):
    """Asks about the prompt instead of the session."""
    answer = wait_for_answer(ask("elicitation/create", requestId=CURRENT[0], **json.loads(rest)))
    text(session, json.dumps(answer.get("result")))


def step_questions(session, rest):
    """Asks two things at once, and says the answers in the order in which they come."""
    url = {"mode": "url", "message": "Open", "elicitationId": "e", "url": "https://example.org/"}
    form = {"mode": "form", "message": "Say", "requestedSchema": {"type": "object", "properties": {}}}
    asked = [ask("elicitation/create", sessionId=session, **what) for what in (url, form)]
    for _ in asked:
        answer = listen()
        text(session, f"{asked.index(answer['id']) + 1}: {answer['result']['action']}; ")


def step_question_and_withdraw(session, rest):
    request = ask("elicitation/create", sessionId=session, mode="url", message="x", url="https://x/", elicitationId="e")
    say(method="$/cancel_request", params={"requestId": request})
    text(session, f"code {wait_for_answer(request)['error']['code']}")


def step_question_and_hang(session, rest):
    """Asks, and tells in the next turn how it was answered."""
    request = ask("elicitation/create", sessionId=session, mode="url", message="x", url="https://x/", elicitationId="e")
    while True:
        message = listen()
        if message.get("id") == request and "method" not in message:
            ANSWERED.append(message["result"]["action"])
            raise Cancelled


def step_answered(session, rest):
    text(session, " ".join(ANSWERED))


def answered_between_turns(session):
    """Shows that what was asked behind the end of a turn was answered before the next one can begin."""
    update(session, "session_info_update", title=f"Answered behind turn {CURRENT[0]}")


ANSWERED = []


def step_can(session, rest):
    """What the client said that it can."""
    text(session, json.dumps(CLIENT[0]))


CLIENT = [None]


def said_of(answer):
    if "error" in answer:
        return f"error {answer['error']['code']}: {answer['error']['message']}"
    if "terminalId" in answer["result"]:
        TERMINAL[0] = answer["result"]["terminalId"]
    return json.dumps(answer["result"])


def begin_call(session, rest):
    method, params = rest.split(" ", 1)
    return ask(method, sessionId=session, **json.loads(params))


def step_call(session, rest):
    """Asks the host something, and says the answer, a line for each."""
    text(session, said_of(wait_for_answer(begin_call(session, rest))) + "\n")


def step_call_silently(session, rest):
    said_of(wait_for_answer(begin_call(session, rest)))


def step_write_long(session, rest):
    """Asks the host to write so many bytes, and says the answer."""
    path, size = rest.split()
    text(session, said_of(wait_for_answer(ask("fs/write_text_file", sessionId=session, path=path, content="x" * int(size)))))


def step_send_and_withdraw(session, rest):
    """Asks the host something, withdraws that in the same breath, and says the answer."""
    with together():
        request = begin_call(session, rest)
        say(method="$/cancel_request", params={"requestId": request})
    text(session, said_of(wait_for_answer(request)) + "\n")


def step_send(session, rest):
    """Asks the host something, and does not wait for the answer."""
    SENT.append(begin_call(session, rest))


def step_answers(session, rest):
    """Says the answers to what was sent, in the order in which they come: which it was, and the answer."""
    for _ in list(SENT):
        answer = next((message for message in WAITING if message.get("id") in SENT), None)
        if answer:
            WAITING.remove(answer)
        else:
            answer = listen()
        text(session, f"{SENT.index(answer['id'])}: {said_of(answer)}\n")
    SENT.clear()


def step_until_output(session, rest):
    """Waits until the terminal shows something."""
    while True:
        answer = wait_for_answer(ask("terminal/output", sessionId=session, terminalId=TERMINAL[0]))
        if rest in answer["result"]["output"]:
            return
        time.sleep(0.01)


def step_withdraw(session, rest):
    say(method="$/cancel_request", params={"requestId": SENT[-1]})


def step_late(session, rest):
    """Ends the turn, and asks the host something then; `late_answer` says the answer."""
    say(id=CURRENT[0], result={"stopReason": "end_turn"})
    wait_until_ended(session)
    LATE[0] = said_of(wait_for_answer(begin_call(session, rest)))
    answered_between_turns(session)
    raise End()


def step_late_answer(session, rest):
    text(session, LATE[0])


TERMINAL = ["none"]
SENT = []
LATE = [""]


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


def step_roar(session, rest):
    """Says more than can be heard, whatever it is told."""
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "and "}}
    line = {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "update": update}}
    lines = (json.dumps(line) + "\n") * 1000
    while True:
        write(lines)


def step_nag(session, rest):
    """Asks twice as many things that wait for somebody; all but a thousand must be refused at once."""
    asked = []
    url = {"mode": "url", "message": "x", "url": "https://x/", "elicitationId": "e"}
    for number in range(int(rest)):
        asked += [ask("elicitation/create", sessionId=session, **url), permission(session, f"nag_{number}", title="Nag")]
    refused = [listen() for _ in asked[1000:]]
    text(session, f"{sum('error' in answer for answer in refused)} of {len(asked)}")


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
    script = "ulimit -t 2; trap '' TERM INT HUP; while :; do sleep 0.1; done"
    subprocess.Popen(["/bin/sh", "-c", script], stdin=subprocess.DEVNULL)


# A test that fails must not leave anything for ever: all of them end by themselves after some minutes.
STUBBORN = ["/bin/sh", "-c", "trap '' TERM INT HUP; i=0; while [ $((i += 1)) -lt 3000 ]; do sleep 0.1; done"]
ADOPTER = """
import ctypes, subprocess, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
subprocess.run(["/bin/sh", "-c", 'setsid "$@" &', "sh", *sys.argv[2:], "adopted"])
time.sleep(300)
"""
HOPPER = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
until = time.monotonic() + 300
while time.monotonic() < until:
    if os.fork():
        os._exit(0)
    os.setsid()
    time.sleep(0.02)
"""


def step_leave(session, rest):
    """Starts what does not want to go, nor to be found, in every way; `LEFT` in `orphans.rs` has their names.

    `leave hopper` starts also what has another number, group and session every moment."""

    def start(*command, **how):
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, **how)

    def daemon(script, name):
        start("/bin/sh", "-c", script, "sh", *STUBBORN, name).wait()

    start(*STUBBORN, "child")
    start(*STUBBORN, "in-group", preexec_fn=os.setpgrp)
    start(*STUBBORN, "in-session", start_new_session=True)
    daemon('(setsid "$@" &) &', "daemon")
    daemon('nohup "$@" >/dev/null 2>&1 &', "background")
    start("/bin/sh", "-c", '"$@" & wait', "sh", *STUBBORN, "in-family", start_new_session=True)
    start(sys.executable, "-c", ADOPTER, "adopter", *STUBBORN)
    if rest == "hopper":
        start(sys.executable, "-c", HOPPER, "hopper", start_new_session=True)


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


def step_pair(session, rest):
    """Two messages on one line."""
    lines = []
    for words in rest.split("|"):
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": words}}
        params = {"sessionId": session, "update": update}
        lines.append(json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}))
    write(" ".join(lines) + "\n")


def step_last_folder(session, rest):
    """The last folder of its search path."""
    text(session, os.environ["PATH"].split(os.pathsep)[-1])


def step_variable(session, rest):
    """How long it is, so that it is not shown."""
    text(session, f"{len(os.environ.get(rest, ''))} characters")


def step_logout(session, rest):
    LOGGED_IN[0] = False
    os.environ.pop("AGENT_KEY", None)
    raise End(error=LOG_IN_FIRST)


def step_remembers(session, rest):
    text(session, " | ".join(SESSIONS[session]))


def step_prompt(session, rest):
    """Says back what it was told, block by block."""
    text(session, json.dumps(PROMPT))


PROMPT = []
SPOILED = set()


# How sessions are configured, and what was asked for, by session.
SETTINGS = {}
ASKED = {}
BOOLEANS = [False]
MODES = ["ask", "plan", "code", "locked", "autopilot"]


def select(name, current, values, **more):
    values = [{"value": it, "name": it.title(), "description": f"It is {it}"} for it in values]
    return {"id": name, "name": name.title(), "type": "select", "currentValue": current, "options": values, **more}


def options_of(session):
    """All of them: with the model `small` there is no effort."""
    now = SETTINGS[session]
    options = [
        select("mode", now["mode"], MODES, category="mode"),
        select("model", now["model"], ["large", "small"], category="model"),
    ]
    if now["model"] == "large":
        options.append(select("effort", now["effort"], ["low", "high"], category="thought_level"))
    theme = {"id": "theme", "name": "Theme", "type": "select", "currentValue": now["theme"]}
    theme["options"] = [
        {"group": "day", "name": "Day", "options": [{"value": "light", "name": "Light"}]},
        {"group": "night", "name": "Night", "options": [{"value": "dark", "name": "Dark"}]},
    ]
    options += [theme, {"id": "odd", "name": "Odd", "type": "dial", "currentValue": 7}, {"no": "option"}]
    if BOOLEANS[0]:
        options.append({"id": "brave", "name": "Brave", "type": "boolean", "currentValue": now["brave"]})
    return options


def settings_of(session):
    """What the answer says that begins a session or takes one up again."""
    if session not in SETTINGS:
        SETTINGS[session] = {"mode": "ask", "model": "large", "effort": "low", "theme": "light", "brave": False}
        ASKED[session] = []
    now, said = SETTINGS[session], {}
    if "options" in OPTIONS.has:
        said["configOptions"] = options_of(session)
    if "older" in OPTIONS.has:
        modes = [{"id": it, "name": it.title()} for it in MODES[:4]]
        said["modes"] = {"currentModeId": now["mode"], "availableModes": modes}
        models = [{"modelId": it, "name": it.title()} for it in ("large", "small")]
        said["models"] = {"currentModelId": now["model"], "availableModels": models}
    return said


def set_setting(session, name, value):
    """`silent`: never answers; `dies`: dies instead; `bare`: says nothing of what is so; `crossed`: says of the mode
    what it says of modes, before it answers; `mentions`: says nothing of what is so but the mode, before it answers;
    `stays`: takes nothing and says that it has; `asks`: asks the user something, before it answers."""
    now = SETTINGS[session]
    ASKED[session].append(f"{name}={json.dumps(value)}")
    if OPTIONS.sets == "silent":
        return None
    if OPTIONS.sets == "dies":
        os._exit(9)
    if name not in now or value == "locked" or name == "mode" and value not in MODES:
        return {"error": {"code": -32602, "message": f"Unknown value for {name}"}}
    if OPTIONS.sets != "stays":
        now[name] = value
    if value == "autopilot":
        now["brave"] = True
    if OPTIONS.sets == "asks":
        permission(session, "ask_1", title="Change a file", kind="edit")
    if OPTIONS.sets == "crossed" and name == "mode":
        update(session, "current_mode_update", currentModeId=value)
    if OPTIONS.sets == "mentions":
        update(session, "current_mode_update", currentModeId=now["mode"])
        return {"result": {}}
    if OPTIONS.sets == "bare":
        if name == "mode":
            text(session, f"[MODE_UPDATE] {value}")
        return {"result": {}}
    return {"result": {"configOptions": options_of(session)}}


def step_serve_logged_out(session, rest):
    """Is logged out, and serves other sessions until the test lets it go on."""
    LOGGED_IN[0] = False
    text(session, "serves")
    told = os.path.join(SESSIONS[session][0], "turn-has-ended")
    while not os.path.exists(told):
        if is_heard_soon(0.01):
            message = listen()
            if "id" in message and "method" in message:
                say(id=message["id"], **answer(message))
    os.remove(told)
    text(session, " and goes on")


def step_set_at_end(session, rest):
    """Serves other sessions and ignores a cancellation; answers changes of settings only once its input has ended."""
    late = []
    text(session, "serves")
    while line := next_line():
        message = json.loads(line)
        if message.get("method") == "session/set_config_option":
            late.append(message)
            text(session, f"holds {message['params']['configId']}")
        elif "id" in message and "method" in message:
            say(id=message["id"], **answer(message))
    for message in late:
        say(id=message["id"], **answer(message))
    sys.exit(0)


def step_asked(session, rest):
    """Says what was asked for since it last said so, and how its session is configured."""
    text(session, f"asked {' '.join(ASKED[session])}; is {json.dumps(SETTINGS[session])}")
    ASKED[session].clear()


def step_set(session, rest):
    """Changes a setting by itself."""
    name, value = rest.split(" ", 1)
    SETTINGS[session][name] = json.loads(value)
    if "options" in OPTIONS.has:
        update(session, "config_option_update", configOptions=options_of(session))
    else:
        update(session, "current_mode_update", currentModeId=SETTINGS[session]["mode"])


FOLDERS = {}


def step_where(session, rest):
    text(session, " ".join([SESSIONS[session][0], *FOLDERS[session]]))


def step_commands(session, rest):
    update(session, "available_commands_update", availableCommands=json.loads(rest))


class Server:
    """An MCP server that the session was given: what it answers, and the tools that it has said last."""

    def __init__(self, entry):
        self.entry, self.changed, self.tools, self.answers, self.last = entry, threading.Condition(), None, {}, 0
        environment = {**os.environ, **{it["name"]: it["value"] for it in entry["env"]}}
        self.process = subprocess.Popen([entry["command"], *entry["args"]], env=environment, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)
        threading.Thread(target=self.read, daemon=True).start()
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "agent.py", "version": "1"}}
        self.hello = self.wait(self.ask("initialize", hello))
        self.say(method="notifications/initialized")
        self.ask("tools/list", {})

    def say(self, **message):
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, method, params):
        with self.changed:
            self.last += 1
            self.say(id=self.last, method=method, params=params)
            return self.last

    def read(self):
        for line in self.process.stdout:
            message = json.loads(line)
            if message.get("method") == "notifications/tools/list_changed" and OPTIONS.mcp != "once":
                self.ask("tools/list", {})
            with self.changed:
                if "tools" in message.get("result", {}) and "content" not in message["result"]:
                    self.tools = message["result"]["tools"]
                elif "id" in message:
                    self.answers[message["id"]] = message
                self.changed.notify_all()
        with self.changed:
            self.answers[None] = {"error": {"message": "the server is gone"}}
            self.changed.notify_all()

    def wait(self, request):
        with self.changed:
            self.changed.wait_for(lambda: request in self.answers or None in self.answers)
            return self.answers.get(request) or self.answers[None]

    def wait_for_tools(self, is_so):
        with self.changed:
            self.changed.wait_for(lambda: self.tools is not None and is_so([tool["name"] for tool in self.tools]))


SERVERS = {}


def begin_server(session, params):
    for server in USED.pop(session, {}).values():
        server.process.stdin.close()
    IN_FOLDER.setdefault(params["cwd"], set()).add(session)
    sharing = IN_FOLDER[params["cwd"]] if OPTIONS.shares_servers else {session}
    given = {entry["name"]: entry for entry in params["mcpServers"] if entry["name"] != "ahpclient"}
    EVER_GIVEN.extend(given.values())
    for other in sharing:
        GIVEN[other] = {**GIVEN.get(other, {}), **given} if OPTIONS.shares_servers else given
    for entry in params["mcpServers"]:
        if entry["name"] != "ahpclient":
            continue
        ENTRIES.update(dict.fromkeys(sharing, entry))
        if OPTIONS.mcp:
            SERVERS.update(dict.fromkeys(sharing, Server(entry)))


# The other servers of each session, by name: as they were given, and those on stdio that were used.
GIVEN = {}
USED = {}
# All servers that any session was given.
EVER_GIVEN = []
# Sessions by their folder.
IN_FOLDER = {}


def post(entry, message):
    headers = {"Content-Type": "application/json", **{it["name"]: it["value"] for it in entry["headers"]}}
    request = urllib.request.Request(entry["url"], json.dumps({"jsonrpc": "2.0", "id": 1, **message}).encode(), headers)
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def step_given(session, rest):
    """Says the names of the servers that it was given, and how they are reached."""
    text(session, " ".join(f"{name}:{entry.get('type', 'stdio')}" for name, entry in sorted(GIVEN[session].items())))


def step_repeat(session, rest):
    """Writes to stderr all words in the environments that it was given for servers in any session."""
    for entry in EVER_GIVEN:
        for variable in entry.get("env", []):
            sys.stderr.write("".join(f"it was given {word}\n" for word in variable["value"].split(" ")))
    sys.stderr.flush()


def step_use(session, rest):
    """Calls a tool of a server, and says the result."""
    name, tool = rest.split(" ")
    entry, call = GIVEN[session][name], {"name": tool, "arguments": {}}
    if "url" in entry:
        answer = post(entry, {"method": "tools/call", "params": call})
    else:
        used = USED.setdefault(session, {})
        server = used[name] = used.get(name) or Server(entry)
        answer = server.wait(server.ask("tools/call", call))
    text(session, answer["result"]["content"][0]["text"] if "result" in answer else answer["error"]["message"])


def step_failed_server(session, rest):
    """Ends the turn, and tells then of a server that could not be started, as Codex does."""
    say(id=CURRENT[0], result={"stopReason": "end_turn"})
    wait_until_ended(session)
    content = [{"type": "content", "content": {"type": "text", "text": "it exited at once"}}]
    update(session, "tool_call", toolCallId=f"mcp_startup.{rest}", title="Start a server", status="failed", content=content)
    raise End()


ENTRIES = {}


def end_server(session):
    if session in SERVERS:
        SERVERS.pop(session).process.stdin.close()


def step_server(session, rest):
    """Says what it was given."""
    text(session, json.dumps(ENTRIES.get(session)))


def step_knows(session, rest):
    """Says the tools that it knows."""
    SERVERS[session].wait_for_tools(lambda names: True)
    text(session, json.dumps(SERVERS[session].tools))


def step_until_tool(session, rest):
    """Waits until it knows a tool."""
    SERVERS[session].wait_for_tools(lambda names: rest in names)


def step_until_no_tool(session, rest):
    SERVERS[session].wait_for_tools(lambda names: rest not in names)


def step_has_tool(session, rest):
    SERVERS[session].wait_for_tools(lambda names: True)
    text(session, str(rest in [tool["name"] for tool in SERVERS[session].tools]))


def account(session, how, call, tool, arguments):
    """Tells of a call of a client's tool as agents were seen to do; what comes with the call itself."""
    server = ENTRIES[session]["name"]
    wrapped = {"server": server, "tool": tool, "arguments": arguments}
    if how == "claude":
        name = f"mcp__{server}__{tool}"
        update(session, "tool_call", toolCallId=call, name=name, title=name, kind="other", status="pending", rawInput={})
        update(session, "tool_call_update", toolCallId=call, rawInput=arguments)
        return {"claudecode/toolUseId": call}
    if how == "codex":
        update(session, "tool_call", toolCallId=call, title=f"mcp.{server}.{tool}", kind="execute", status="in_progress",
               rawInput=wrapped)
        return {"callId": call}
    if how == "zed":
        update(session, "tool_call", toolCallId=call, title=f"Tool: {server}/{tool}", status="in_progress",
               rawInput=wrapped)
    if how == "opencode":
        update(session, "tool_call", toolCallId=call, title=f"{server}_{tool}", kind="other", status="pending",
               rawInput={})
        update(session, "tool_call_update", toolCallId=call, status="in_progress", rawInput=arguments)
    if how == "qwen":
        update(session, "tool_call", toolCallId=call, title=f"{tool} ({server} MCP Server): {{}}", kind="other",
               status="pending", rawInput={}, _meta={"toolName": f"mcp__{server}__{tool}"})
    return {}


def question_about(session, how, call, tool, arguments):
    server = ENTRIES[session]["name"]
    if how == "zed":
        raw = {"server_name": server, "request": {"message": "Allow it?"}}
        return permission(session, call, title="Approve MCP tool call", rawInput=raw)
    if how == "gemini":
        content = [{"type": "content", "content": {"type": "text", "text": json.dumps(arguments)}}]
        return permission(session, call, title=f"{tool} ({server} MCP Server)", kind="other", content=content)
    if how == "codex":
        return permission(session, call, kind="execute", status="pending")
    return permission(session, call, title=json.dumps(arguments), rawInput=arguments)


def content_of(answer):
    if "error" in answer:
        return answer["error"]["message"]
    said = " ".join(it.get("text", it["type"]) for it in answer["result"]["content"])
    return ("error: " if answer["result"]["isError"] else "") + said


def call_client(session, tool, arguments, meta):
    params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": 7, **meta}}
    return SERVERS[session].ask("tools/call", params)


def step_client(session, rest):
    """Has a client carry out a tool, and says what came of it: HOW it tells of that, TOOL, and what with."""
    how, tool, arguments = rest.split(" ", 2)
    CLIENT_CALLS[0] += 1
    call, arguments = f"call_{CLIENT_CALLS[0]}", json.loads(arguments)
    how, _, asks = how.partition("+")
    SERVERS[session].wait_for_tools(lambda names: True)
    meta = {} if how == "late" else account(session, how, call, tool, arguments)
    if asks and outcome_of(wait_for_answer(question_about(session, how, call, tool, arguments))) == "no":
        update(session, "tool_call_update", toolCallId=call, status="failed")
        return text(session, "was refused")
    request = call_client(session, tool, arguments, meta)
    if how == "late":
        LATE_CALL.append((session, "opencode", call, tool, arguments))
    answer = SERVERS[session].wait(request)
    if how == "late":
        account(*LATE_CALL.pop())
    if how != "silent":
        said = [{"type": "content", "content": {"type": "text", "text": content_of(answer)}}]
        update(session, "tool_call_update", toolCallId=call, status="completed", content=said, title="another title")
    text(session, f"got {content_of(answer)}")


def step_clients(session, rest):
    """Has clients carry out a tool several times at once, and says what came of it in order."""
    tool, *all = rest.split(" ")
    requests = []
    for number, arguments in enumerate(all):
        account(session, "opencode", f"many_{number}", tool, json.loads(arguments))
    for arguments in reversed(all):
        requests.append(call_client(session, tool, json.loads(arguments), {}))
    text(session, " ".join(content_of(SERVERS[session].wait(request)) for request in reversed(requests)))


def step_client_and_withdraw(session, rest):
    """Calls a tool, does not wait for what comes of it, and says so."""
    request = call_client(session, rest, {}, {})
    answer = wait_for_answer(permission(session, "ask_1", title="Wait for it", kind="edit"))
    SERVERS[session].say(method="notifications/cancelled", params={"requestId": request})
    # It goes another way than what is said here, and must be there before the turn is over.
    SERVERS[session].wait(SERVERS[session].ask("ping", {}))
    text(session, outcome_of(answer))


def step_client_strangers(session, rest):
    """Connects so often to where the tools of clients are, and does not say the token."""
    place = next(it["value"] for it in SERVERS[session].entry["env"] if it["name"] == "AHP_SIDECAR_TOOLS_SOCKET")
    for _ in range(int(rest)):
        STRANGERS.append(socket.socket(socket.AF_UNIX))
        STRANGERS[-1].connect(place)
    # It is let in behind them.
    SERVERS[session].wait(SERVERS[session].ask("ping", {}))


def step_client_nag(session, rest):
    """Calls a tool so often at once, and says what came of the last call."""
    tool, count = rest.split()
    requests = [call_client(session, tool, {"n": number}, {}) for number in range(int(count))]
    text(session, content_of(SERVERS[session].wait(requests[-1])))


def step_client_and_hang(session, rest):
    CLIENT_REQUESTS.append((session, call_client(session, rest, {}, {})))
    wait_for_cancel()


def step_client_answers(session, rest):
    """Says what came of the calls whose turns are over."""
    while CLIENT_REQUESTS:
        of, request = CLIENT_REQUESTS.pop(0)
        text(session, content_of(SERVERS[of].wait(request)))


def step_client_late(session, rest):
    """Ends the turn, and calls a tool then."""
    say(id=CURRENT[0], result={"stopReason": "end_turn"})
    wait_until_ended(session)
    request = call_client(session, rest, {}, {})
    SERVERS[session].wait(request)
    CLIENT_REQUESTS.append((session, request))
    answered_between_turns(session)
    raise End()


def step_mcp(session, rest):
    """Asks its server for whatever, and says the answer."""
    method, params = rest.split(" ", 1)
    answer = SERVERS[session].wait(SERVERS[session].ask(method, json.loads(params)))
    text(session, json.dumps({name: answer[name] for name in ("result", "error") if name in answer}))


CLIENT_CALLS = [0]
STRANGERS = []
CLIENT_REQUESTS = []
LATE_CALL = []


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
    """Ends the turn in the middle of a sentence, and goes on talking: at once, and when the client knows of the end."""
    talk_on(session, rest, lambda: wait_until_ended(session))


def step_soon_after(session, rest):
    """The same, but whether the turn is over when it goes on nobody knows."""
    talk_on(session, rest, lambda: time.sleep(0.05))


def talk_on(session, rest, wait):
    now, later = rest.split("|")
    with together():
        say(id=CURRENT[0], result={"stopReason": "end_turn"})
        text(session, now)
    wait()
    text(session, later)
    update(session, "tool_call_update", toolCallId="call_1", status="completed")
    update(session, "session_info_update", title="A late title")
    raise End()


def step_then(session, rest):
    """Ends the turn; the steps that follow are taken by itself, when the client knows of the end and so long after."""
    say(id=CURRENT[0], result={"stopReason": "end_turn"})
    CURRENT[0] = None
    wait_until_ended(session)
    time.sleep(float(rest or 0))


def step_at_once(session, rest):
    """Ends the turn and asks the host something, written together; says the answer in what follows by itself."""
    with together():
        say(id=CURRENT[0], result={"stopReason": "end_turn"})
        CURRENT[0] = None
        request = begin_call(session, rest)
    said = said_of(wait_for_answer(request))
    if "toolCallId" in rest:
        update(session, "tool_call_update", toolCallId="ask_1", status="completed")
    text(session, said)


def step_write(session, rest):
    """Writes a file itself, in a call that says so."""
    path, words = rest.split(" ", 1)
    update(session, "tool_call", toolCallId="write_1", title=f"Write {path}", kind="edit", status="in_progress")
    before = open(path).read() if os.path.exists(path) else None
    with open(path, "w") as file:
        file.write(words + "\n")
    content = [{"type": "diff", "path": path, "oldText": before, "newText": words + "\n"}]
    update(session, "tool_call_update", toolCallId="write_1", status="completed", content=content)


def step_background(session, rest):
    """Leaves a command running, in a call that is over at once."""
    input = {"command": rest, "is_background": True}
    update(session, "tool_call", toolCallId="shell_1", title=rest, kind="execute", status="pending", rawInput=input)
    content = [{"type": "content", "content": {"type": "text", "text": "It runs."}}]
    update(session, "tool_call_update", toolCallId="shell_1", status="completed", content=content)


def step_task_ends(session, rest):
    """Says that it has ended, as Qwen Code does."""
    task = {"taskId": "x", "status": "completed", "kind": "shell", "commandLabel": rest}
    text(session, "It has ended. ", _meta={"source": "background_notification", "backgroundTask": task})


def step_wait_for(session, rest):
    """Waits until a file is there."""
    while not os.path.exists(rest):
        time.sleep(0.01)


def step_steered(session, rest):
    """Takes in what the user adds meanwhile, or (`refuse`) does not, and says what it was."""
    while True:
        message = listen()
        if message.get("method") == "_session/steering":
            outcome = {"outcome": "promptRequired", "reason": "noRunningTurn"} if rest else {"outcome": "injected"}
            say(id=message["id"], result=outcome)
            return text(session, "" if rest else " ".join(block["text"] for block in message["params"]["prompt"]))
        WAITING.append(message)


def step_begin(session, rest):
    """Asks whether it may begin by itself, as Qwen Code does, and says the answer."""
    answer = wait_for_answer(ask("_qwencode/start_turn", sessionId=session, source=rest or "background_notification"))
    text(session, json.dumps(answer["result"]))


def step_done(session, rest):
    """Says that it is done with what it has begun, as Qwen Code does."""
    say(method="_qwencode/end_turn", params={"sessionId": session, "reason": "end_turn"})


def step_update_first(session, rest):
    """Updates the first session that there is, in which no turn runs."""
    say(method="session/update", params={"sessionId": next(iter(SESSIONS)), "update": json.loads(rest)})


COMMANDS = [
    {"name": "plan", "description": "Makes a plan", "input": {"hint": "what for"}},
    {"name": "clear", "description": "Forgets everything"},
    {"nameless": True},
]
CURRENT = [None]
STEPS = {name[5:]: step for name, step in globals().items() if name.startswith("step_")}


LOGGED_IN = [False]
LOG_IN_FIRST = {"code": -32000, "message": "Authentication required"}


MORE_WAYS = {
    "api-key": {"id": "api-key", "name": "API key", "_meta": {"api-key": {"provider": "test"}}},
    "device": {"id": "device", "name": "Device code"},
    "terminal": {"id": "terminal", "name": "Terminal", "description": "Run `agent login` in a terminal",
                 "_meta": {"terminal-auth": {"command": "agent", "args": ["login"]}}},
}


def log_in_by_device(request):
    """Shows a page and waits until the door is there, or nobody wants to be let in any more."""
    page = {"mode": "url", "message": "Enter the code AB-12 at", "url": "https://login.example/device"}
    answer = wait_for_answer(ask("elicitation/create", requestId=request, elicitationId="e", **page))
    assert answer["result"] == {"action": "accept"}, answer
    note(door=True)
    while not os.path.exists(OPTIONS.door):
        if is_heard_soon(0.01):
            message = listen()
            if message.get("method") == "$/cancel_request" and message["params"]["requestId"] == request:
                note(cancelled=True)
                return {"error": {"code": -32800, "message": "nobody wants to be let in"}}
            WAITING.append(message)
    LOGGED_IN[0] = True
    return {"result": {}}


def is_logged_in():
    return not OPTIONS.login or LOGGED_IN[0] or os.environ.get("AGENT_KEY", "").startswith("good")


def prompt(message):
    global PROMPT
    if not is_logged_in():
        return say(id=message["id"], error=LOG_IN_FIRST)
    session = message["params"]["sessionId"]
    if session in FORGOTTEN:
        return say(id=message["id"], error=FORGOTTEN[session])
    PROMPT = message["params"]["prompt"]
    if OPTIONS.refuses and any(it["type"] == "image" or "image" in it.get("mimeType", "") for it in PROMPT):
        SPOILED.add(session)
    if session in SPOILED:
        if OPTIONS.refuses == "attachments":
            SPOILED.remove(session)
        note(refused=session)
        update(session, "usage_update", used=0, size=100)
        why = "'file part media type image/png' functionality not supported."
        return say(id=message["id"], error={"code": -32603, "message": why})
    CURRENT[0] = message["id"]
    said = PROMPT[-1].get("text", "") if PROMPT else ""
    if OPTIONS.goes_on and any(it.get("text", "").startswith("You were interrupted") for it in PROMPT):
        said = OPTIONS.goes_on
    SESSIONS[session].append(said)
    remember()
    note(prompt=said)
    try:
        for line in said.splitlines():
            name, _, rest = line.partition(" ")
            rest = rest.replace("$CWD", SESSIONS[session][0]).replace("$TERMINAL", TERMINAL[0])
            if name in STEPS:
                STEPS[name](session, rest)
            else:
                text(session, line)
        answer = {"result": {"stopReason": "end_turn"}}
    except Cancelled:
        answer = {"result": {"stopReason": "cancelled"}}
    except End as end:
        answer = end.answer
    if answer and CURRENT[0] is not None:
        say(id=message["id"], **answer)


def remember():
    if OPTIONS.memory:
        with open(OPTIONS.memory + ".new", "w") as file:
            json.dump(SESSIONS, file)
        os.replace(OPTIONS.memory + ".new", OPTIONS.memory)


def elsewhere():
    """The sessions of the file, each with `id`, `cwd`, `title`, `updatedAt`, and `history`: its updates, or `die`, or
    `silence`, or a number of turns that are made up. Those with `hangs_at` stop at a place of the history, which they
    note. With `ignores_cwd` all sessions are listed, whatever folder is asked for."""
    if not OPTIONS.elsewhere:
        return {}
    with open(OPTIONS.elsewhere) as file:
        return {it["id"]: it for it in json.load(file)}


def list_sessions(params):
    """A page of two: those from elsewhere, and those that the client has begun."""
    if any(it.get("hangs_at") == "list" for it in elsewhere().values()):
        note(hangs="list")
        while True:
            time.sleep(60)
    all = list(elsewhere().values()) + [{"id": id, "cwd": said[0]} for id, said in SESSIONS.items() if id not in elsewhere()]
    if params.get("cwd") and not any(it.get("ignores_cwd") for it in elsewhere().values()):
        all = [it for it in all if it["cwd"] == params["cwd"]]
    start = int(params.get("cursor") or 0)
    shown = [
        {"sessionId": it["id"], **{name: it[name] for name in ("cwd", "title", "updatedAt") if name in it}}
        for it in all[start : start + 2]
    ]
    more = {"nextCursor": str(start + 2)} if start + 2 < len(all) else {}
    return {"result": {"sessions": shown, **more}}


def replay(session):
    hangs_at = elsewhere()[session].get("hangs_at")
    for place, what in enumerate(elsewhere()[session]["history"]):
        if place == hangs_at:
            note(hangs=place)
            what = "silence"
        if what == "die":
            sys.stderr.write("the history is broken\n")
            sys.stderr.flush()
            os._exit(9)
        if what == "silence":
            while True:
                time.sleep(60)
        if isinstance(what, int):
            with together():
                for number in range(what):
                    text(session, f"message {number}", "user_message_chunk")
                    text(session, f"answer {number} ".ljust(1000, "."))
        else:
            say(method="session/update", params={"sessionId": session, "update": what})


def note(**what):
    if OPTIONS.notes:
        with open(OPTIONS.notes, "a") as file:
            file.write(json.dumps({"process": os.getpid(), **what}) + "\n")


def misbehave(method, params):
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
    if what == "quote":
        return {"error": {"code": -32602, "message": f"No good: {json.dumps(params['mcpServers'])}"}}
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
        wrong = misbehave(method, params)
        if wrong is not None:
            return wrong
    if method == "initialize":
        if OPTIONS.before_hello == "silence":
            while True:
                listen()
        assert params["protocolVersion"] == 1, params
        CLIENT[0] = params["clientCapabilities"]
        offers = params["clientCapabilities"].get("session", {}).get("configOptions", {})
        BOOLEANS[0] = offers.get("boolean") == {}
        can = {"loadSession": "load" in OPTIONS.can, "promptCapabilities": {"image": True}}
        can["mcpCapabilities"] = {"http": "http" in OPTIONS.can}
        known = ("resume", "close", "fork", "list", "delete")
        can["sessionCapabilities"] = {name: {} for name in known if name in OPTIONS.can}
        if "providers" in OPTIONS.can:
            can["providers"] = {}
        if "logout" in OPTIONS.can:
            can["auth"] = {"logout": {}}
        if "directories" in OPTIONS.can:
            can["sessionCapabilities"]["additionalDirectories"] = {}
        methods = [
            {"id": "browser", "name": "Log in with a browser"},
            {"id": "key", "name": "Key", "type": "env_var", "vars": [{"name": "AGENT_KEY"}]},
        ]
        methods += [MORE_WAYS[way] for way in OPTIONS.way]
        version = 2 if OPTIONS.before_hello == "version" else 1
        info = {"name": OPTIONS.name, "title": OPTIONS.title.encode().decode("unicode_escape"), "version": "1"}
        meta = {"_meta": {"steering": {"supported": True}}} if "steer" in OPTIONS.can else {}
        hello = {**meta, "protocolVersion": version, "agentCapabilities": can, "agentInfo": info}
        return {"result": {**hello, "authMethods": methods if OPTIONS.login else []}}
    if method == "authenticate" and params["methodId"] == "api-key":
        key = params["_meta"]["api-key"]
        key = key if OPTIONS.name == "gemini-cli" else key["apiKey"]
        # As some do: on both pipes, and at a place where a long line is cut.
        sys.stderr.write(f"{'x' * 490}{key}\ngot the key {key}\n")
        sys.stderr.flush()
        LOGGED_IN[0] = key.startswith("good")
        failure = {"code": -32000, "message": "the key is no good", "data": {"key": key}}
        return {"result": {"key": key}} if LOGGED_IN[0] else {"error": failure}
    if method == "authenticate" and params["methodId"] == "device":
        return log_in_by_device(message["id"])
    if method == "authenticate":
        assert params["methodId"] == "browser", params
        if OPTIONS.login == "refuse":
            return {"error": {"code": -32603, "message": "the browser was closed"}}
        LOGGED_IN[0] = True
        return {"result": {}}
    if method.startswith("session/") and not is_logged_in():
        return {"error": LOG_IN_FIRST}
    if method == "session/new":
        if "no-session" in OPTIONS.can:
            return {"error": {"code": -32000, "message": "Authentication required"}}
        time.sleep(OPTIONS.before_new)
        if "ask-early" in OPTIONS.can:
            url = {"mode": "url", "message": "x", "url": "https://x/", "elicitationId": "e"}
            ANSWERED.append(wait_for_answer(ask("elicitation/create", requestId=message["id"], **url))["result"]["action"])
        session = f"session-{os.getpid()}-{len(SESSIONS)}"
        if "one-session" in OPTIONS.can:
            FORGOTTEN.update(dict.fromkeys(SESSIONS, {"code": -32603, "message": "another session has begun"}))
        SESSIONS[session] = [params["cwd"]]
        if "early" in OPTIONS.can:
            LATE[0] = said_of(wait_for_answer(begin_call(session, 'fs/read_text_file {"path":"/"}')))
        FOLDERS[session] = params.get("additionalDirectories", [])
        begin_server(session, params)
        if OPTIONS.says_login:
            say(method="_auth/status_update", params={"authStatus": {"kind": OPTIONS.says_login, "label": "Who knows"}})
        # Before anybody can know of it.
        update(session, "available_commands_update", availableCommands=COMMANDS)
        update(session, "session_info_update", title="An early title")
        return {"result": {"sessionId": session, **settings_of(session)}}
    if method == "session/fork":
        if params["sessionId"] not in SESSIONS or "refuse-forks" in OPTIONS.can:
            return {"error": {"code": -32602, "message": "this session cannot be forked"}}
        session = f"fork-{os.getpid()}-{len(SESSIONS)}"
        SESSIONS[session] = SESSIONS[params["sessionId"]] + ["forked"]
        FOLDERS[session] = params.get("additionalDirectories", [])
        begin_server(session, params)
        remember()
        for said in SESSIONS[session]:
            text(session, said, "user_message_chunk")
            text(session, "a replay that nobody may see")
        return {"result": {"sessionId": session, **settings_of(session)}}
    if method == "providers/set":
        note(provider=params)
        bad = {"code": -32602, "message": f"No such provider, with {json.dumps(params['headers'])}"}
        return {"error": bad} if params["providerId"] == "bad" else {"result": {}}
    if method == "session/list":
        return list_sessions(params)
    if method == "session/delete":
        note(deleted=params["sessionId"])
        return {"result": {}}
    if method == "logout":
        note(logged_out=True)
        LOGGED_IN[0] = False
        return {"result": {}}
    if method in ("session/load", "session/resume") and params["sessionId"] in elsewhere():
        session = params["sessionId"]
        note(**{method.removeprefix("session/"): session, "cwd": params["cwd"]})
        if method == "session/load":
            replay(session)
        SESSIONS.setdefault(session, [params["cwd"]])
    if method in ("session/load", "session/resume"):
        FOLDERS[params["sessionId"]] = params.get("additionalDirectories", [])
        if params["sessionId"] not in SESSIONS:
            return {"error": {"code": -32002, "message": "no such session"}}
        FORGOTTEN.pop(params["sessionId"], None)
        begin_server(params["sessionId"], params)
        if method == "session/load" and "early" in OPTIONS.can:
            LATE[0] = said_of(wait_for_answer(begin_call(params["sessionId"], 'fs/read_text_file {"path":"/"}')))
        if method == "session/load" and params["sessionId"] not in elsewhere():
            at_once = "replay-with-answer" in OPTIONS.can
            with together() if at_once else contextlib.nullcontext():
                if at_once or "replay-late" in OPTIONS.can:
                    say(id=message["id"], result={})
                for said in SESSIONS[params["sessionId"]]:
                    text(params["sessionId"], said, "user_message_chunk")
                    time.sleep(0 if at_once else 0.02)
                    text(params["sessionId"], "a replay that nobody may see")
            update(params["sessionId"], "available_commands_update", availableCommands=COMMANDS)
            # It was so once.
            update(params["sessionId"], "current_mode_update", currentModeId="code")
            if at_once or "replay-late" in OPTIONS.can:
                return None
        return {"result": settings_of(params["sessionId"])}
    if method == "session/set_config_option":
        if isinstance(params["value"], bool):
            assert params["type"] == "boolean", params
        return set_setting(params["sessionId"], params["configId"], params["value"])
    if method == "session/set_mode":
        return set_setting(params["sessionId"], "mode", params["modeId"])
    if method == "session/set_model":
        return set_setting(params["sessionId"], "model", params["modelId"])
    if method == "_session/steering":
        assert params["_meta"] == {"steering": {"idleBehavior": "promptRequired"}}, params
        return {"result": {"outcome": "promptRequired", "reason": "noRunningTurn"}}
    if method == "session/close":
        end_server(params["sessionId"])
        if params["sessionId"] in elsewhere():
            note(closed=params["sessionId"])
        return {"result": {}}
    return {"error": {"code": -32601, "message": "Method not found"}}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--before-hello", default="")
    parser.add_argument("--can", action="append", default=[])
    parser.add_argument("--stubborn", action="store_true")
    parser.add_argument("--memory")
    parser.add_argument("--before-new", type=float, default=0)
    parser.add_argument("--has", action="append", default=[])
    parser.add_argument("--sets", default="")
    parser.add_argument("--goes-on")
    parser.add_argument("--notes")
    parser.add_argument("--at", action="append", default=[])
    parser.add_argument("--which", type=int)
    parser.add_argument("--login")
    parser.add_argument("--mcp")
    parser.add_argument("--name", default="agent.py")
    parser.add_argument("--way", action="append", default=[])
    parser.add_argument("--door")
    parser.add_argument("--title", default="The tests' agent")
    parser.add_argument("--refuses")
    parser.add_argument("--says-login")
    parser.add_argument("--elsewhere")
    parser.add_argument("--shares-servers", action="store_true")
    parser.parse_args(namespace=OPTIONS)
    OPTIONS.at = dict(what.split("=") for what in OPTIONS.at)
    note(started=True)
    if OPTIONS.which:
        with open(OPTIONS.notes) as file:
            if sum("started" in json.loads(line) for line in file) != OPTIONS.which:
                OPTIONS.at = {}
    LOGGED_IN[0] = OPTIONS.login == "in" or OPTIONS.login == "outside" and os.path.exists(OPTIONS.door)
    if "AGENT_KEY" in os.environ:
        sys.stderr.write(f"the key is {os.environ['AGENT_KEY']}\n")
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
    if OPTIONS.before_hello.startswith("leave"):
        step_leave(None, OPTIONS.before_hello.removeprefix("leave").strip())
        while True:
            time.sleep(60)
    while True:
        message = hear()
        if message.get("method") == "session/prompt":
            prompt(message)
        elif "id" in message and "method" in message:
            said = answer(message)
            if said is not None:
                say(id=message["id"], **said)


if __name__ == "__main__":
    main()
