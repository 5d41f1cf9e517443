"""The host with one agent, and a client that watches what clients are shown."""

import base64
import json
import os
import queue
import shutil
import subprocess
import threading
import time
import urllib.parse
import uuid

from agents import filled

# How long one step may take before it has hung.
HUNG = 120
# How often it is looked whether a turn is to be cancelled about which nothing is said, in seconds.
LOOK_AGAIN = 0.05
# How long a host that was killed is outlived by its agent at most.
OUTLIVED = 15

ENDINGS = ("chat/turnComplete", "chat/turnCancelled", "chat/error")
COOKIE = "AHP_SIDECAR_TEST_AGENT"


class Turn:
    """What was told of a turn."""

    def __init__(self, name):
        self.name, self.texts, self.notices = name, {"markdown": "", "reasoning": ""}, []
        self.questions = []
        self.calls, self.usage, self.ending, self.begun, self.ended = {}, None, None, None, None

    @property
    def text(self):
        return self.texts["markdown"]

    @property
    def running(self):
        """The calls that wait for this client."""
        return [call for call in self.calls.values() if call.get("contributor") and call["told"][-1] in (
            "chat/toolCallReady", "chat/toolCallConfirmed") and (call.get("confirmed") or call.get("approved"))]

    @property
    def asked(self):
        return [call for call in self.calls.values() if call.get("options")]

    def hear(self, action, at):
        kind = action["type"]
        if kind == "chat/responsePart":
            part = action["part"]
            if part["kind"] in self.texts:
                self.say(part["kind"], part["content"], at)
            elif part["kind"] == "systemNotification":
                self.notices.append(part["content"])
        elif kind in ("chat/delta", "chat/reasoning"):
            self.say("markdown" if kind == "chat/delta" else "reasoning", action["content"], at)
        elif kind == "chat/inputRequested":
            self.questions.append(action["request"])
        elif kind == "chat/usage":
            self.usage = action["usage"]
        elif kind.startswith("chat/toolCall"):
            call = self.calls.setdefault(action["toolCallId"], {"told": []})
            call["told"].append(kind)
            call.update({name: value for name, value in action.items() if name != "type"})
            call.update(action.get("result", {}))
        elif kind in ENDINGS:
            self.ending, self.ended = action, at

    def say(self, kind, text, at):
        self.begun = self.begun or at
        self.texts[kind] += text

    def __str__(self):
        return f"{self.name}: {self.texts} {self.notices} {self.calls} {self.ending}"


class Chat:
    """A session of its own, in a folder of its own."""

    def __init__(self, host, name, *tools, adopts=None, work=None):
        self.host, self.name = host, name
        self.session = f"ahp-session:/{name}"
        encoded = base64.urlsafe_b64encode(self.session.encode()).decode().rstrip("=")
        self.channel = "ahp-chat://default/" + encoded
        self.work = work or os.path.join(host.folder, name)
        os.makedirs(self.work, exist_ok=bool(work))
        self.turns = 0
        host.ask("createSession", channel=self.session, provider=host.name,
                 workingDirectories=["file://" + self.work], **({"activeClient": self.client(tools)} if tools else {}),
                 **({"config": {"adoptSession": adopts}} if adopts else {}))
        self.follow()

    def follow(self):
        """Begins to hear of it, in a new life of the host too."""
        self.actions = self.host.actions[self.channel] = queue.Queue()
        self.host.actions[self.session] = self.actions
        self.state(), self.session_state()

    def state(self):
        return self.host.ask("subscribe", channel=self.channel)["snapshot"]["state"]

    def session_state(self):
        return self.host.ask("subscribe", channel=self.session)["snapshot"]["state"]

    def changed_in(self, turn):
        """The files that a turn has changed: what each was called below the session's folder, and its content before
        and behind, none where it was not there."""
        channel, began = f"{self.session}/changeset/turn/{turn.name}", time.monotonic()
        while (state := self.host.ask("subscribe", channel=channel)["snapshot"]["state"])["status"] == "computing":
            assert time.monotonic() < began + HUNG, state
            self.host.say(method="unsubscribe", params={"channel": channel})
            time.sleep(LOOK_AGAIN)
        assert state["status"] == "ready", state
        for file in state["files"]:
            sides = [file["edit"].get(side) for side in ("before", "after")]
            path = urllib.parse.unquote(next(side["uri"] for side in sides if side)).removeprefix("file://")
            yield os.path.relpath(path, self.work), [side and self.content(side["content"]["uri"]) for side in sides]

    def change(self, turn, operation):
        """Takes back what a turn has changed, or brings it back."""
        self.host.ask("invokeChangesetOperation", channel=f"{self.session}/changeset/turn/{turn.name}", operationId=operation)

    def content(self, uri):
        read = self.host.ask("resourceRead", channel=self.session, uri=uri)
        return base64.b64decode(read["data"]).decode() if read["encoding"] == "base64" else read["data"]

    def dispatch(self, channel=None, **action):
        params = {"channel": channel or self.channel, "clientSeq": 1, "action": action}
        self.host.say(method="dispatchAction", params=params)

    def begin(self, text, **more):
        self.turns += 1
        turn = Turn(f"t{self.turns}")
        self.dispatch(type="chat/turnStarted", turnId=turn.name, startedAt="2026-01-01T00:00:00Z",
                      message={"text": text, "origin": {"kind": "user"}, **more})
        return turn

    def turn(self, text, attachments=None, **doing):
        more = {"attachments": attachments} if attachments else {}
        return self.finish(self.begin(text, **more), **doing)

    def offer(self, *tools):
        """Offers tools of this client in the session."""
        self.dispatch(self.session, type="session/activeClientSet", activeClient=self.client(tools))

    def client(self, tools):
        return {"clientId": "real", "tools": tools}

    def finish(self, turn, allow=True, answer=None, cancel=None, carry_out=None):
        """Hears a turn to its end; what it asks to do is allowed this once, refused, or (None) not decided, and its
        questions are answered so. It is cancelled as soon as `cancel` says so of it. Its calls of this client's tools are
        carried out by `carry_out`."""
        silent_since = time.monotonic()
        while turn.ending is None:
            try:
                action = self.hear(turn, LOOK_AGAIN)
                silent_since = time.monotonic()
            except queue.Empty:
                assert time.monotonic() < silent_since + HUNG, f"hung: {turn}"
                action = {"type": None}
            if cancel and turn.ending is None and cancel(turn):
                self.dispatch(type="chat/turnCancelled", turnId=turn.name, duration=0)
                cancel = None
            elif action["type"] == "chat/toolCallReady" and action.get("options") and allow is not None:
                self.decide(turn, action, allow)
            elif carry_out and turn.running:
                for call in turn.running:
                    call["told"].append("carried out")
                    result = {"success": True, "pastTenseMessage": "Done", "content": [
                        {"type": "text", "text": carry_out(call["toolName"], call["toolInput"])}]}
                    self.dispatch(type="chat/toolCallComplete", turnId=turn.name, toolCallId=call["toolCallId"],
                                  result=result)
            elif action["type"] == "chat/inputRequested" and answer is not None:
                self.answer(action["request"], answer)
        self.judge(turn)
        return turn

    def hear_and_allow(self, turn):
        """The next action, if one comes soon; what is asked is allowed this once."""
        try:
            action = self.hear(turn, LOOK_AGAIN)
        except queue.Empty:
            return
        assert turn.ending is None, turn
        if action["type"] == "chat/toolCallReady" and action.get("options"):
            self.decide(turn, action, True)

    def finish_next(self, kind="user"):
        """Hears the turn that begins by itself to its end; its message is of this kind."""
        while True:
            action = self.hear(Turn(None))
            if action["type"] == "chat/turnStarted":
                assert action["message"]["origin"]["kind"] == kind, action
                return self.finish(Turn(action["turnId"]))

    def decide(self, turn, asks, allow):
        wanted = (lambda it: it["id"] == self.host.once) if allow else (lambda it: it["kind"] == "deny")
        option = next(filter(wanted, asks["options"]))
        self.dispatch(type="chat/toolCallConfirmed", turnId=turn.name, toolCallId=asks["toolCallId"],
                      approved=allow, selectedOptionId=option["id"])

    def answer(self, request, answer):
        """Chooses an answer where there is a choice of it."""
        answers = {}
        for question in request["questions"]:
            for option in question.get("options", []):
                if answer in (option["id"], option["label"]):
                    value = {"kind": "selected", "value": option["id"]}
                    answers[question["id"]] = {"state": "submitted", "value": value}
        assert answers, request
        self.dispatch(type="chat/inputCompleted", requestId=request["id"], response="accept", answers=answers)

    def hear(self, turn, timeout=HUNG):
        """The next action."""
        heard = self.actions.get(timeout=timeout)
        assert heard, "the host has ended"
        message, at = heard
        assert "rejectionReason" not in message, message
        action = message["action"]
        assert action["type"] != "session/creationFailed", action
        turn.hear(action, at)
        return action

    def judge(self, turn):
        """What must be so of every turn, whatever was said in it."""
        kept = next(kept for kept in self.state()["turns"] if kept["id"] == turn.name)
        text = "".join(part["content"] for part in kept["responseParts"] if part["kind"] == "markdown")
        assert text == turn.text, f"told {turn.text!r}, kept {text!r}"
        calls = [part["toolCall"] for part in kept["responseParts"] if part["kind"] == "toolCall"]
        assert [call["toolCallId"] for call in calls] == list(turn.calls), f"{calls} {turn}"
        for call in calls:
            assert call["status"] in ("completed", "cancelled"), call
            assert call["displayName"].strip() and call["toolName"].strip(), call
            assert call["invocationMessage"], call
        for call in turn.asked:
            kinds = {option["kind"] for option in call["options"]}
            assert kinds == {"approve", "deny"} and all(option["label"] for option in call["options"]), call


def surroundings(agent, folder, binaries, path, url):
    """The variables of an agent, and of its own terminal program."""
    home = os.path.join(folder, "home")
    return {"HOME": home, "PATH": path, **filled(agent.environment, url=url, home=home, bin=binaries)}


def configured(name, agent, folder, binaries, path, url, **more):
    """Gives an agent an empty home in the folder; gives back the host's configuration file with this agent alone."""
    home = os.path.join(folder, "home")
    os.makedirs(home)
    words = {"url": url, "home": home, "bin": binaries}
    for file, content in filled(agent.files, **words).items():
        file = os.path.join(home, file)
        os.makedirs(os.path.dirname(file), exist_ok=True)
        with open(file, "w") as opened:
            opened.write(content if isinstance(content, str) else json.dumps(content))
    command, *arguments = filled(agent.command, **words)
    environment = {**surroundings(agent, folder, binaries, path, url), **more}
    toml = [f"[agents.{name}]", f"command = {json.dumps(shutil.which(command, path=path))}",
            f"args = {json.dumps(arguments)}", "start_seconds = 90",
            *(["one_session = true"] if agent.one_session else []), f"[agents.{name}.env]",
            *(f"{key} = {json.dumps(value)}" for key, value in environment.items())]
    config = os.path.join(folder, "config.toml")
    with open(config, "w") as opened:
        opened.write("\n".join(toml))
    return config


class Host:
    """The host, with one agent that has an empty home."""

    def __init__(self, program, name, agent, folder, binaries, path, url, servers=None):
        """`servers` is given the folder, and gives back more of the configuration."""
        self.program, self.name, self.folder, self.cookie = program, name, folder, str(uuid.uuid4())
        self.once, self.binaries = agent.once, binaries
        self.environment = surroundings(agent, folder, binaries, path, url)
        shutil.rmtree(folder, ignore_errors=True)
        self.config = configured(name, agent, folder, binaries, path, url, **{COOKIE: self.cookie})
        if servers:
            with open(self.config, "a") as opened:
                opened.write(servers(folder))
        self.lives = 0
        self.start()

    def start(self):
        """A new life; chats have to be followed again."""
        self.lives += 1
        command = [self.program, "--exclusive", "--state-dir", os.path.join(self.folder, "state"), "--config", self.config,
                   "--log", "debug", "--on-eof", "exit"]
        self.actions, self.answers, self.asked = {}, queue.Queue(), 0
        with open(os.path.join(self.folder, f"log-{self.lives}.txt"), "w") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                                            text=True)
        reader = threading.Thread(target=self.read, args=(self.process.stdout, self.actions, self.answers))
        reader.daemon = True
        reader.start()
        self.ask("initialize", channel="ahp-root://", clientId="real", protocolVersions=["1.0.0"])

    def read(self, stdout, actions, answers):
        with open(os.path.join(self.folder, f"said-{self.lives}.jsonl"), "w") as record:
            for line in stdout:
                record.write(line)
                message = json.loads(line)
                if "id" in message:
                    answers.put(message)
                elif message.get("method") == "action" and message["params"]["channel"] in actions:
                    actions[message["params"]["channel"]].put((message["params"], time.monotonic()))
        for waiting in (*actions.values(), answers):
            waiting.put(None)

    def say(self, **message):
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self.process.stdin.flush()

    def ask(self, method, **params):
        self.asked += 1
        self.say(id=self.asked, method=method, params=params)
        answer = self.answers.get(timeout=HUNG)
        assert answer and answer["id"] == self.asked and "result" in answer, f"{method}: {answer}"
        return answer["result"]

    def end(self):
        """Ends it as its client does; nothing of the agent may be left then."""
        self.process.stdin.close()
        self.process.wait(timeout=HUNG)
        assert not self.left(), f"left behind: {self.left()}"

    def kill(self):
        """Ends it as nobody should; nothing of the agent may be left soon."""
        self.die("killed")

    def die(self, death):
        """Ends it in one of three ways; nothing of the agent may be left soon."""
        if death == "killed":
            self.process.kill()
        elif death == "asked to leave":
            self.process.terminate()
        else:
            self.process.stdin.close()
        self.process.wait(timeout=HUNG)
        if not self.process.stdin.closed:
            self.process.stdin.close()
        killed = time.monotonic()
        while self.left():
            assert time.monotonic() < killed + OUTLIVED, f"left behind: {self.left()}"
            time.sleep(0.1)

    def left(self):
        """The agent's processes, by what their environment says; only where that can be seen."""
        found = []
        for process in os.listdir("/proc") if os.path.isdir("/proc") else []:
            try:
                with open(f"/proc/{process}/environ", "rb") as environment:
                    if self.cookie.encode() in environment.read():
                        with open(f"/proc/{process}/cmdline", "rb") as command:
                            found.append((process, command.read().replace(b"\0", b" ").decode(errors="replace")))
            except OSError:
                pass  # no process, or gone meanwhile
        return found
