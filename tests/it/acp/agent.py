#!/usr/bin/env python3
"""An ACP agent for tests: what the user says is what it does, one step a line; see `STEPS`.

Needs nothing but Python 3. What it does when it is started is in its arguments: `--before-hello WHAT`, `--can
resume|load|close|nothing`, `--stubborn`, `--memory FILE` (what outlives the process: the sessions it knows),
`--goes-on STEPS` (what it does with a turn that was cut), `--before-new SECONDS` (how long a new session takes), `--has options|older` (what its sessions can be configured
by, see `settings_of`), `--sets HOW` (how it takes a change, see `set_setting`).
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


def step_remembers(session, rest):
    text(session, " | ".join(SESSIONS[session]))


def step_prompt(session, rest):
    """Says back what it was told, block by block."""
    text(session, json.dumps(PROMPT))


PROMPT = []


# How sessions are configured, and what was asked for, by session.
SETTINGS = {}
ASKED = {}
BOOLEANS = [False]


def select(name, current, values, **more):
    values = [{"value": it, "name": it.title(), "description": f"It is {it}"} for it in values]
    return {"id": name, "name": name.title(), "type": "select", "currentValue": current, "options": values, **more}


def options_of(session):
    """All of them: with the model `small` there is no effort."""
    now = SETTINGS[session]
    options = [
        select("mode", now["mode"], ["ask", "plan", "code", "locked", "autopilot"], category="mode"),
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
        modes = [{"id": it, "name": it.title()} for it in ("ask", "plan", "code", "locked")]
        said["modes"] = {"currentModeId": now["mode"], "availableModes": modes}
        models = [{"modelId": it, "name": it.title()} for it in ("large", "small")]
        said["models"] = {"currentModelId": now["model"], "availableModels": models}
    return said


def set_setting(session, name, value):
    """`silent`: never answers; `dies`: dies instead; `bare`: says nothing of what is so; `crossed`: says of the mode
    what it says of modes, before it answers; `mentions`: says nothing of what is so but the mode, before it answers;
    `stays`: takes nothing and says that it has."""
    now = SETTINGS[session]
    ASKED[session].append(f"{name}={json.dumps(value)}")
    if OPTIONS.sets == "silent":
        return None
    if OPTIONS.sets == "dies":
        os._exit(9)
    if name not in now or value == "locked":
        return {"error": {"code": -32602, "message": f"Unknown value for {name}"}}
    if OPTIONS.sets != "stays":
        now[name] = value
    if value == "autopilot":
        now["brave"] = True
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


COMMANDS = [
    {"name": "plan", "description": "Makes a plan", "input": {"hint": "what for"}},
    {"name": "clear", "description": "Forgets everything"},
    {"nameless": True},
]
CURRENT = [None]
STEPS = {name[5:]: step for name, step in globals().items() if name.startswith("step_")}


def prompt(message):
    global PROMPT
    session = message["params"]["sessionId"]
    PROMPT = message["params"]["prompt"]
    CURRENT[0] = message["id"]
    said = PROMPT[-1].get("text", "") if PROMPT else ""
    if OPTIONS.goes_on and PROMPT[0].get("text", "").startswith("You were interrupted"):
        said = OPTIONS.goes_on
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
    if answer:
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
        offers = params["clientCapabilities"].get("session", {}).get("configOptions", {})
        BOOLEANS[0] = offers.get("boolean") == {}
        can = {"loadSession": "load" in OPTIONS.can, "promptCapabilities": {"image": True}}
        can["sessionCapabilities"] = {name: {} for name in ("resume", "close") if name in OPTIONS.can}
        if "directories" in OPTIONS.can:
            can["sessionCapabilities"]["additionalDirectories"] = {}
        version = 2 if OPTIONS.before_hello == "version" else 1
        info = {"name": "agent.py", "title": "The tests' agent", "version": "1"}
        return {"result": {"protocolVersion": version, "agentCapabilities": can, "agentInfo": info}}
    if method == "session/new":
        if "no-session" in OPTIONS.can:
            return {"error": {"code": -32000, "message": "Authentication required"}}
        time.sleep(OPTIONS.before_new)
        session = f"session-{os.getpid()}-{len(SESSIONS)}"
        SESSIONS[session] = [params["cwd"]]
        FOLDERS[session] = params.get("additionalDirectories", [])
        # Before anybody can know of it.
        update(session, "available_commands_update", availableCommands=COMMANDS)
        update(session, "session_info_update", title="An early title")
        return {"result": {"sessionId": session, **settings_of(session)}}
    if method in ("session/load", "session/resume"):
        FOLDERS[params["sessionId"]] = params.get("additionalDirectories", [])
        if params["sessionId"] not in SESSIONS:
            return {"error": {"code": -32002, "message": "no such session"}}
        if method == "session/load":
            for said in SESSIONS[params["sessionId"]]:
                text(params["sessionId"], said, "user_message_chunk")
                text(params["sessionId"], "a replay that nobody may see")
            update(params["sessionId"], "available_commands_update", availableCommands=COMMANDS)
            # It was so once.
            update(params["sessionId"], "current_mode_update", currentModeId="code")
        return {"result": settings_of(params["sessionId"])}
    if method == "session/set_config_option":
        if isinstance(params["value"], bool):
            assert params["type"] == "boolean", params
        return set_setting(params["sessionId"], params["configId"], params["value"])
    if method == "session/set_mode":
        return set_setting(params["sessionId"], "mode", params["modeId"])
    if method == "session/set_model":
        return set_setting(params["sessionId"], "model", params["modelId"])
    if method == "session/close":
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
            said = answer(message)
            if said is not None:
                say(id=message["id"], **said)


if __name__ == "__main__":
    main()
