#!/usr/bin/env python3
"""An ACP agent for tests: what the user says is what it does, one step a line; see `STEPS`.

Needs nothing but Python 3. What it does when it is started is in its arguments: `--before-hello WHAT`, `--can
resume|load|replay-late|close|nothing`, `--stubborn`, `--memory FILE` (what outlives the process: the sessions it knows).
"""

import argparse
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
FORGOTTEN = {}  # how a prompt of the session is answered


def write(text):
    sys.stdout.buffer.write(text if isinstance(text, bytes) else text.encode())
    sys.stdout.buffer.flush()


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


def step_ask_and_cancel_too(session, rest):
    """Asks, and withdraws its question when it is cancelled, although that answers it."""
    request = permission(session, rest, title="Too late", kind="execute")
    try:
        wait_for_answer(request)
    except Cancelled:
        say(method="$/cancel_request", params={"requestId": request})
        raise


def step_request(session, rest):
    """Asks for whatever, and says what came of it."""
    answer = wait_for_answer(ask(rest, sessionId=session))
    text(session, str(answer.get("error", {}).get("code", answer)))


def step_notify(session, rest):
    say(method=rest, params={"sessionId": session})


def step_finish(session, rest):
    """Ends the turn; what follows is said so much later."""
    say(id=CURRENT[0], result={"stopReason": "end_turn"})
    CURRENT[0] = None
    time.sleep(float(rest))


def step_duet(session, rest):
    """Waits for a prompt of another session, and answers both in turn."""
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


def step_permission(session, rest):
    """Asks like this, and says the answer."""
    answer = wait_for_answer(ask("session/request_permission", sessionId=session, **json.loads(rest)))
    text(session, outcome_of(answer))


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


def step_question_between_turns(session, rest):
    """Asks after the turn; how it was answered is told in the next."""
    say(id=CURRENT[0], result={"stopReason": "end_turn"})
    request = ask("elicitation/create", sessionId=session, mode="url", message="x", url="https://x/", elicitationId="e")
    ANSWERED.append(wait_for_answer(request)["result"]["action"])
    raise End()


ANSWERED = []


def step_can(session, rest):
    """What the client said that it can."""
    text(session, json.dumps(CLIENT[0]))


CLIENT = [None]


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
    """Ends the turn, and then goes on talking."""
    say(id=CURRENT[0], result={"stopReason": "end_turn"})
    text(session, rest)
    update(session, "tool_call_update", toolCallId="call_1", status="completed")
    update(session, "session_info_update", title="A late title")
    raise End()


def step_after_update(session, rest):
    """Ends the turn, and then updates."""
    say(id=CURRENT[0], result={"stopReason": "end_turn"})
    step_update(session, rest)
    raise End()


CURRENT = [None]
STEPS = {name[5:]: step for name, step in globals().items() if name.startswith("step_")}


def prompt(message):
    global PROMPT
    session = message["params"]["sessionId"]
    if session in FORGOTTEN:
        return say(id=message["id"], error=FORGOTTEN[session])
    PROMPT = message["params"]["prompt"]
    CURRENT[0] = message["id"]
    said = PROMPT[-1].get("text", "") if PROMPT else ""
    SESSIONS[session].append(said)
    remember()
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
    if answer and CURRENT[0] is not None:
        say(id=message["id"], **answer)


def remember():
    if OPTIONS.memory:
        with open(OPTIONS.memory, "w") as file:
            json.dump(SESSIONS, file)


def answer(message):
    method, params = message.get("method"), message.get("params", {})
    if method == "initialize":
        if OPTIONS.before_hello == "silence":
            while True:
                listen()
        assert params["protocolVersion"] == 1, params
        CLIENT[0] = params["clientCapabilities"]
        can = {"loadSession": "load" in OPTIONS.can, "promptCapabilities": {"image": True}}
        can["sessionCapabilities"] = {name: {} for name in ("resume", "close") if name in OPTIONS.can}
        version = 2 if OPTIONS.before_hello == "version" else 1
        return {"result": {"protocolVersion": version, "agentCapabilities": can}}
    if method == "session/new":
        if "no-session" in OPTIONS.can:
            return {"error": {"code": -32000, "message": "Authentication required"}}
        if "ask-early" in OPTIONS.can:
            url = {"mode": "url", "message": "x", "url": "https://x/", "elicitationId": "e"}
            ANSWERED.append(wait_for_answer(ask("elicitation/create", requestId=message["id"], **url))["result"]["action"])
        session = f"session-{os.getpid()}-{len(SESSIONS)}"
        if "one-session" in OPTIONS.can:
            FORGOTTEN.update(dict.fromkeys(SESSIONS, {"code": -32603, "message": "another session has begun"}))
        SESSIONS[session] = [params["cwd"]]
        # Before anybody can know of it.
        update(session, "available_commands_update", availableCommands=[])
        update(session, "session_info_update", title="An early title")
        return {"result": {"sessionId": session}}
    if method in ("session/load", "session/resume"):
        if params["sessionId"] not in SESSIONS:
            return {"error": {"code": -32002, "message": "no such session"}}
        FORGOTTEN.pop(params["sessionId"], None)
        if method == "session/load":
            if "replay-late" in OPTIONS.can:
                say(id=message["id"], result={})
            for said in SESSIONS[params["sessionId"]]:
                text(params["sessionId"], said, "user_message_chunk")
                time.sleep(0.02)
                text(params["sessionId"], "a replay that nobody may see")
            if "replay-late" in OPTIONS.can:
                return None
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
    parser.parse_args(namespace=OPTIONS)
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
            answered = answer(message)
            if answered:
                say(id=message["id"], **answered)


if __name__ == "__main__":
    main()
