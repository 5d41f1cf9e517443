"""A host with one defect: stands between a client and a sound host, and breaks one thing.

    defective.py DEFECT HOST COMMAND
"""

import json
import os
import subprocess
import sys
import threading

DEFECT = sys.argv[1]
ROOT = "ahp-root://"
host = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
asked = {}  # methods of requests by their ids
kept = {}  # first snapshots by their channels
held = []  # lines that wait for another one
first = []  # methods that were asked for
client = []  # id of the client
spying = []  # channels that the client follows without its knowledge
lock = threading.Lock()


def is_defect(*names):
    return DEFECT in names


def send(line):
    with lock:
        sys.stdout.buffer.write(line if isinstance(line, bytes) else (json.dumps(line) + "\n").encode())
        sys.stdout.buffer.flush()


def to_host(line):
    """Returns the lines that the host gets for a line of the client."""
    if is_defect("dies-of-nesting") and line.count(b"[") > 1000:
        host.kill()
    if is_defect("cuts-lines"):
        return [line[:65536].rstrip(b"\n") + b"\n"]
    try:
        message = json.loads(line)
        method, params = message.get("method"), message.get("params") or {}
    except (ValueError, AttributeError, RecursionError):
        return [line]
    first.append(method)
    if "clientId" in params:
        client.append(params["clientId"])
    if "id" in message and method:
        asked[json.dumps(message["id"])] = method
    if method == "initialize" and is_defect("prefers-the-first"):
        known = [version for version in params["protocolVersions"] if version in ("1.0.0", "0.9.0")]
        params["protocolVersions"] = known[:1] or params["protocolVersions"]
    elif method == "initialize" and is_defect("takes-any-version"):
        asked[json.dumps(message["id"])] = params["protocolVersions"][0]
        params["protocolVersions"] = ["1.0.0"]
    elif method == "initialize" and is_defect("refuses-versions", "is-older"):
        params["protocolVersions"] = ["987.0.0"]
    elif method == "initialize" and is_defect("leaks-notices", "leaks-terminals"):
        # A client that does not follow the root channel does so without its knowledge.
        follows = params.setdefault("initialSubscriptions", [])
        if ROOT not in follows:
            follows.append(ROOT)
            spying.append(ROOT)
    elif method == "listSessions" and is_defect("has-no-last-page"):
        params.pop("cursor", None)
    elif method == "unsubscribe" and is_defect("stays-subscribed"):
        return []
    elif method == "unsubscribe" and is_defect("answers-notifications"):
        send({"jsonrpc": "2.0", "id": None, "result": None})
    elif method == "reconnect" and is_defect("replays-from-anywhere") and params["lastSeenServerSeq"] > 10**6:
        send({"jsonrpc": "2.0", "id": message["id"], "result": {"type": "replay", "actions": [], "missing": []}})
        return []
    return [(json.dumps(message) + "\n").encode()]


def of_answer(message):
    """Returns what the client gets for an answer of the host."""
    method, error, result = asked.get(json.dumps(message["id"])), message.get("error"), message.get("result")
    if error and error["code"] == -32601 and is_defect("wrong-code"):
        error["code"] = -32603
    elif error and error["code"] == -32005 and is_defect("is-older"):
        error["data"]["supportedVersions"] = ["0.8.0"]
    elif error and error["code"] == -32602 and is_defect("takes-bad-params"):
        return [{"jsonrpc": "2.0", "id": message["id"], "result": None}]
    elif method == "ping" and is_defect("answers-twice"):
        return [message, message]
    elif method == "ping" and is_defect("confuses-ids") and message["id"] == -7:
        message["id"] = 7
    elif method == "ping" and is_defect("merges-lines"):
        held.append(json.dumps(message))
        if len(held) < 2:
            return []
        line = " ".join(held).encode() + b"\n"
        held.clear()
        return [line]
    elif method == "initialize" and result and is_defect("is-no-object"):
        message["result"] = "done"
    elif method == "initialize" and result and is_defect("counts-ahead"):
        result["serverSeq"] += 1000
    elif DEFECT.startswith(f"{method}-answers-"):
        return [{"jsonrpc": "2.0", "id": message["id"], "result": json.loads(DEFECT.partition("-answers-")[2])}]
    elif method == "completions" and result and is_defect("counts-bytes"):
        result["items"] = [{"insertText": "x", "rangeStart": 5, "rangeEnd": 6, "attachment": {"type": "simple", "label": "x"}}]
    elif method == "initialize" and result and spying:
        result["snapshots"] = [it for it in result["snapshots"] if it["resource"] != ROOT]
    elif method == "listSessions" and result:
        return [of_list(message, result)]
    elif method == "987.0.0" and result:
        result["protocolVersion"] = method
    elif method == "reconnect" and result and is_defect("loses-replay"):
        result["actions"] = []
    elif method == "reconnect" and result and is_defect("misses-nothing"):
        result["missing"] = []
    elif method == "subscribe" and result and "snapshot" in result:
        state = result["snapshot"]["state"]
        if is_defect("stale-snapshot"):
            result["snapshot"]["state"] = kept.setdefault(result["snapshot"]["resource"], state)
        elif is_defect("forgets-texts") and "reconnect" in first and "turns" in state:
            for turn in state["turns"]:
                turn["responseParts"] = []
        elif is_defect("forgets-titles") and "reconnect" in first and "lifecycle" in state:
            state["title"] = "New Session"
    return [message]


def of_list(message, result):
    """Returns what the client gets for a list of sessions."""
    if is_defect("lists-nothing"):
        result["items"] = []
    if is_defect("lists-twice"):
        result["items"] *= 2
    if is_defect("has-no-last-page"):
        result["nextCursor"] = "again"
    if is_defect("has-one-page"):
        result.pop("nextCursor", None)
    for item in result["items"]:
        if is_defect("lists-nothing-of-sessions"):
            item.pop("title")
        if is_defect("lists-old-titles"):
            item["title"] = "New Session"
        if is_defect("lists-wrong-status"):
            item["status"] = 8
        if is_defect("lists-old-dates"):
            item["modifiedAt"] = item["createdAt"] = "2001-01-01T00:00:00.000Z"
        if is_defect("lists-no-dates"):
            item["createdAt"] = "long ago"
    return message


def of_notice(message):
    """Returns what the client gets for a notification about a session."""
    kind, params = message["method"], message["params"]
    if spying and not is_defect("leaks-notices"):
        return []
    if is_defect("announces-twice") and kind == "root/sessionAdded":
        return [message, message]
    if is_defect("announces-another") and kind == "root/sessionAdded":
        params["summary"]["createdAt"] = "2001-01-01T00:00:00.000Z"
    if is_defect("announces-nothing-of-it") and kind == "root/sessionAdded":
        params["summary"] = {"resource": params["summary"]["resource"]}
    if is_defect("removes-twice") and kind == "root/sessionRemoved":
        return [message, message]
    if kind == "root/sessionSummaryChanged":
        if is_defect("tells-no-changes"):
            return []
        if is_defect("tells-old-titles") and "title" in params["changes"]:
            params["changes"]["title"] = "New Session"
        if is_defect("tells-old-status"):
            params["changes"]["status"] = 8
        if is_defect("changes-providers"):
            params["changes"]["provider"] = "another"
    return [message]


def of_action(message):
    """Returns what the client gets for an action of the host."""
    params = message["params"]
    kind = params["action"]["type"]
    if kind == "session/titleChanged":
        if is_defect("drops-echo"):
            return []
        if is_defect("forgets-origin"):
            params.pop("origin", None)
        if is_defect("loses-characters"):
            params["action"]["title"] = params["action"]["title"].encode("ascii", "replace").decode()
    if is_defect("renumbers"):
        params["serverSeq"] = max(0, params["serverSeq"] - 3)
    if is_defect("takes-the-impossible"):
        params.pop("rejectionReason", None)
    if is_defect("drops-text") and kind == "chat/delta":
        return []
    if is_defect("repeats-text") and kind == "chat/delta":
        return [message, message]
    if is_defect("leaks-roots") and kind == "root/activeSessionsChanged":
        return [message, {**message, "params": {**params, "channel": "ahp-session:/anothers", "serverSeq": params["serverSeq"] + 1}}]
    if spying and is_defect("leaks-terminals") and kind == "root/terminalsChanged":
        for terminal in params["action"]["terminals"]:
            spy = {"jsonrpc": "2.0", "id": "spy", "method": "subscribe", "params": {"channel": terminal["resource"]}}
            host.stdin.write((json.dumps(spy) + "\n").encode())
            host.stdin.flush()
    if spying and params["channel"] == ROOT:
        return []
    if is_defect("ends-twice") and kind == "chat/turnComplete":
        return [message, message]
    if is_defect("drops-reading") and kind == "session/isReadChanged" and "origin" in params:
        return [message] if params["origin"]["clientId"] in client else []
    if is_defect("drops-watch") and kind == "resourceWatch/changed":
        return []
    if is_defect("reorders") and kind in ("chat/delta", "chat/responsePart"):
        held.append(message)
        return [] if len(held) < 2 else [held.pop(), held.pop()]
    return [message]


def client_to_host():
    for line in sys.stdin.buffer:
        for told in to_host(line):
            try:
                host.stdin.write(told)
                host.stdin.flush()
            except BrokenPipeError:
                return
    host.stdin.close()


threading.Thread(target=client_to_host, daemon=True).start()
for line in host.stdout:
    message = json.loads(line)
    if message.get("method") == "action":
        messages = of_action(message)
    elif message.get("id") == "spy":
        messages = []
    elif "method" not in message:
        messages = of_answer(message)
    else:
        messages = of_notice(message)
    for message in messages:
        send(message)
if is_defect("stays-up"):
    threading.Event().wait()
# The thread may be reading.
os._exit(host.wait())
