"""What every agent is put through. A scene is told in one line when it is over."""

import base64
import json
import os
import re
import subprocess
import time
import urllib.parse
import urllib.request

from agents import filled
from client import HUNG
from installing import platform_name


# A picture of one pixel.
DOT = ("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")


class Scenes:
    def __init__(self, host, agent, url, chat):
        self.host, self.agent, self.url, self.chat = host, agent, url, chat
        self.main = chat("main")
        self.shown = set()

    def run(self):
        """The scenes, one after the other; each gives back what was seen."""
        for scene in (self.plays, self.plays_refused, self.plays_cancelled, self.goes_on_told_anew) \
                if self.agent.fixed else USUAL:
            seen = scene() if self.agent.fixed else scene(self)
            if seen:
                yield seen

    # What a scene needs.

    def call(self, tool, **words):
        """A line that makes the model call a tool."""
        name, arguments = tool
        return f"TOOL {name} {json.dumps(filled(arguments, **words))}"

    def path(self, name):
        return os.path.join(self.main.work, name)

    def read(self, name):
        with open(self.path(name)) as opened:
            return opened.read()

    def requests(self):
        """The sizes of what the model was asked, side jobs left out."""
        with urllib.request.urlopen(self.url + "/fake/requests") as answer:
            return [request["bytes"] for request in json.load(answer) if request.get("tools")]

    def last_bodies(self):
        """What the model was asked last, as text in which nothing is escaped."""
        with urllib.request.urlopen(self.url + "/fake/bodies") as answer:
            return json.dumps(json.load(answer), ensure_ascii=False)

    def see(self, what, seen):
        if seen:
            self.shown.add(what)

    def complete(self, turn):
        assert turn.ending["type"] == "chat/turnComplete", turn
        return turn

    # The scenes.

    def says(self):
        turn = self.complete(self.main.turn("THINK a thought\nSAY hello\\n"))
        assert turn.text.count("hello") == 1 and turn.texts["reasoning"].count("a thought") == 1, turn
        assert not turn.notices, turn
        self.first_request = self.requests()[0]
        return "says and thinks"

    def streams(self):
        turn = self.complete(self.main.turn("STREAM 500 40"))
        numbers = [int(number) for number in re.findall(r"\b\d{6}\b", turn.text)]
        assert numbers == list(range(500)), turn
        self.see("usage", turn.usage)
        return "streams each piece once"

    def refused(self):
        if not self.agent.once:
            return None
        turn = self.main.turn(self.call(self.agent.shell, command="touch refused"), allow=False)
        assert turn.asked and not os.path.exists(self.path("refused")), turn
        return f"asks, and does not do what is refused ({turn.ending['type']})"

    def commands(self):
        turn = self.complete(self.main.turn(self.call(self.agent.shell, command="printf 'made-%s\\n' it > made; cat made")))
        assert bool(turn.asked) == bool(self.agent.once), turn
        assert self.read("made") == "made-it\n" and any(call.get("success") for call in turn.calls.values()), turn
        self.see("output", any("made-it" in json.dumps(call.get("content")) for call in turn.calls.values()))
        return "runs a command"

    def edits(self):
        with open(self.path("poem"), "w") as opened:
            opened.write("one\ntwo\nthree\nfour\nfive\n")
        words = {"file": self.path("poem"), "old": "three", "new": "drei"}
        script = [self.call(tool, **words) for tool in (self.agent.read, self.agent.edit) if tool]
        turn = self.complete(self.main.turn("\n".join(script)))
        assert self.read("poem") == "one\ntwo\ndrei\nfour\nfive\n", turn
        self.see("change", any(self.is_change(call, "poem", "drei") for call in turn.calls.values()))

        turn = self.complete(self.main.turn(self.call(self.agent.write, file=self.path("new"), new="neu")))
        assert self.read("new") == "neu\n", turn
        assert not self.agent.once or turn.asked, turn
        return "changes a file, and makes one"

    def changes_a_repository(self):
        """What a turn has changed, by the agent's tools and by commands, is what its changeset shows."""
        chat = self.chat("repository")

        def git(*arguments):
            command = ["git", "-C", chat.work, "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
            return subprocess.run(command, check=True, capture_output=True, text=True).stdout

        for name in ("poem", "gone", "same"):
            with open(os.path.join(chat.work, name), "w") as opened:
                opened.write("one\ntwo\nthree\n")
        git("init", "-q")
        git("add", "-A")
        git("commit", "-q", "-m", "x")
        words = {"file": os.path.join(chat.work, "poem"), "old": "three", "new": "drei"}
        script = [self.call(tool, **words) for tool in (self.agent.read, self.agent.edit) if tool]
        script.append(self.call(self.agent.shell, command="mkdir -p new; printf made > new/made; rm gone"))
        turn = self.complete(chat.turn("\n".join(script)))
        changed = self.changed(chat.work, git)
        assert set(changed) == {"poem", "gone", "new/made"}, changed
        shown = {name: tuple(sides) for name, sides in chat.changed_in(turn)}
        assert shown == changed, f"shown: {shown}, in the folder: {changed}"
        chat.change(turn, "discard-changes")
        assert not self.changed(chat.work, git), self.changed(chat.work, git)
        chat.change(turn, "restore-changes")
        assert self.changed(chat.work, git) == changed, self.changed(chat.work, git)
        return "changes a repository by tools and by commands: all of it is shown, taken back, and brought back"

    def changed(self, folder, git):
        """What git says is not committed in the folder: each file by its name, as committed and as it is there."""
        changed = {}
        for line in git("status", "--porcelain", "-uall").splitlines():
            name = line[3:]
            path = os.path.join(folder, name)
            before = git("show", f"HEAD:{name}") if line[:2] != "??" else None
            changed[name] = (before, open(path).read() if os.path.exists(path) else None)
        return changed

    def goes_on_by_itself(self):
        """A command that it has left running ends, and it goes on: in a turn of its own, whose changes are taken back."""
        if not self.agent.background:
            return None
        chat = self.chat("background")
        path = os.path.join(chat.work, "built")
        subprocess.run(["git", "init", "-q", chat.work], check=True)
        # Then it has said which modes it has.
        self.complete(chat.turn("SAY hello"))
        chat.dispatch(chat.session, type="session/configChanged", config={"mode": self.agent.unasked})
        later = [self.call(self.agent.write, file=path, new="neu"), "SAY all done"]
        script = [self.call(self.agent.background, command="sleep 1; echo built"), "SAY it builds"]
        turn = self.complete(chat.turn("\n".join(script + ["LATER " + line for line in later])))
        assert "it builds" in turn.text and "all done" not in turn.text, turn
        began = time.monotonic()
        own = self.complete(chat.finish_next(kind="systemNotification"))
        took = time.monotonic() - began
        assert "all done" in own.text and not own.asked, own
        assert any(call.get("success") for call in own.calls.values()), own
        assert dict(chat.changed_in(own)) == {"built": [None, "neu\n"]}, dict(chat.changed_in(own))
        chat.change(own, "discard-changes")
        assert not os.path.exists(path)
        assert not chat.state().get("backgroundWork"), chat.state()
        turn = self.complete(chat.turn("SAY and still here"))
        assert turn.text == "and still here", turn
        return f"goes on by itself when a command in the background has ended: its turn is seen, and taken back ({took:.1f} s)"

    def makes_a_file(self):
        # Some agents do without the host where a folder is behind a link.
        assert os.path.realpath(self.main.work) == self.main.work, self.main.work
        name = "a new file \u00e4.txt"
        turn = self.complete(self.main.turn(self.call(self.agent.write, file=self.path(name), new="neu")))
        assert self.read(name) == "neu\n", turn
        return "makes a file with a space in its name, in a plain folder"

    def is_given_a_file(self):
        name = "look at \u00e4 this.txt"
        with open(self.path(name), "w") as opened:
            opened.write("what-it-holds\n")
        uri = "file://" + urllib.parse.quote(self.path(name))
        attachment = {"type": "resource", "label": name, "uri": uri, "contentType": "text/plain"}
        self.complete(self.main.turn("SAY seen\\n", attachments=[attachment]))
        asked = self.last_bodies()
        assert self.path(name) in asked or "what-it-holds" in asked, uri
        held = "its content" if "what-it-holds" in asked else "its path"
        return f"is given a file with a space in its name: its model sees {held}"

    def is_given_what_is_in_no_file(self):
        """Bytes that no model reads, and a text that was not saved: the conversation goes on."""
        chat = self.chat("attachments")
        contents = {"blob.bin": b"\xff\xfe\x00\x01", "Untitled-1": b"what-is-not-saved"}
        kinds = {"blob.bin": "application/octet-stream", "Untitled-1": "text/plain"}
        attachments = [{"type": "embeddedResource", "label": name, "contentType": kinds[name],
                        "data": base64.b64encode(content).decode()} for name, content in contents.items()]
        turn = self.complete(chat.turn("SAY given\\n", attachments=attachments))
        assert turn.text.count("given") == 1, turn
        asked = self.last_bodies()
        assert "Untitled-1" in asked and "what-is-not-saved" in asked and "attachment:///Untitled" not in asked, turn
        turn = self.complete(chat.turn("SAY still good\\n"))
        assert turn.text.count("still good") == 1 and not turn.notices, turn
        return "is given bytes and a text that are in no file, and goes on"

    def is_given_a_picture(self):
        """Whether the model takes it or not, the turn is done, and the conversation goes on."""
        chat = self.chat("picture")
        self.complete(chat.turn("SAY before\\n"))
        picture = {"type": "embeddedResource", "label": "dot.png", "contentType": "image/png", "data": DOT}
        turn = self.complete(chat.turn("SAY looked\\n", attachments=[picture]))
        assert turn.text.count("looked") == 1, turn
        after = self.complete(chat.turn("SAY after\\n"))
        assert after.text.count("after") == 1, after
        return f"is given a picture, and goes on{': ' + turn.notices[0] if turn.notices else ''}"

    def sums_up(self):
        if not self.agent.compacts:
            return None
        chat = self.chat("long")
        self.complete(chat.turn("SAY much\\n"))
        turn = self.complete(chat.turn(self.agent.compacts))
        assert len(turn.notices) == 1, turn.notices
        return "sums up what was said, and says so once"

    def refused_edit(self):
        if not self.agent.once:
            return None
        write = self.call(self.agent.write, file=self.path("refused"), new="neu")
        turn = self.main.turn(write, allow=False)
        assert turn.asked and not os.path.exists(self.path("refused")), turn
        return f"does not make a file when that is refused ({turn.ending['type']})"

    def asks_the_user(self):
        if not self.agent.question:
            return None
        ask = self.call(self.agent.question, question="Which one?", answer="this-one")
        turn = self.complete(self.main.turn(ask, answer="this-one"))
        assert "Which one?" in json.dumps(turn.questions) and "this-one" in turn.text, turn
        return "asks the user, and is answered"

    def uses_a_clients_tool(self):
        """A tool of a client is offered from the beginning, and another one comes later."""
        schema = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
        look, see = ({"name": name, "description": f"To {name}.", "inputSchema": schema} for name in ("look", "see"))
        chat = self.chat("tools", look)
        if not self.agent.client_tool:
            self.complete(chat.turn("SAY hello"))
            told = (chat.session_state().get("_meta") or {}).get("acp.clientTools", {}).get(chat.channel)
            assert told and told["tools"] == ["look"], told
            return f"is not reached by a client's tools, which is said: {told['why']}"
        asks = [self.client_tool(chat, "look", "the beginning")]
        if self.agent.hears_of_late_tools:
            chat.offer(look, see)
            # Some do not ask for them again, and are given this time.
            time.sleep(2)
            asks.append(self.client_tool(chat, "see", "the end"))
        turn = chat.turn(self.call((self.agent.client_tool, {"at": "once"})), cancel=lambda turn: turn.running)
        assert turn.ending["type"] == "chat/turnCancelled", turn
        turn = self.complete(chat.turn("SAY still well"))
        assert turn.text.count("still well") == 1, turn
        return f"has a client carry out its tools ({'asks' if all(asks) else 'does not ask'}), and is cancelled in that"

    def keeps_tools_of_clients_apart(self):
        """Two sessions of one folder, each with a client's tool of the same name."""
        if not self.agent.client_tool:
            return None
        look = {"name": "look", "description": "To look.", "inputSchema": {"type": "object", "properties": {"at": {"type": "string"}}}}
        one = self.chat("apart", look)
        self.complete(one.turn("SAY hello"))
        two = self.chat("apart-too", look, work=one.work)
        self.complete(two.turn("SAY hello"))
        for chat in (one, two, one):
            script = self.call((self.agent.client_tool, {"at": "it"})) + "\nSAY it said {result}"
            turn = self.complete(chat.turn(script, carry_out=lambda *_: f"done in {chat.name}."))
            assert f"done in {chat.name}." in turn.text, turn
        return "has each call of a client's tool carried out in its own session"

    def client_tool(self, chat, name, at):
        """The agent calls a client's tool; whether it asks before."""
        tool = self.agent.client_tool.replace("look", name)
        script = self.call((tool, {"at": at})) + "\nSAY it said {result}"
        turn = self.complete(chat.turn(script, carry_out=lambda name, input: f"{name} at {at}"))
        own = [call for call in turn.calls.values() if name in json.dumps(call)]
        assert len(own) == 1 and json.loads(own[0]["toolInput"]) == {"at": at}, turn
        assert own[0]["contributor"]["clientId"] == "real" and own[0]["success"], turn
        assert f"{name} at {at}" in turn.text, turn
        return bool(own[0].get("options"))

    def is_change(self, call, file, text):
        """A change is shown, as text or as a file."""
        for content in call.get("content") or []:
            if content["type"] == "text" and re.search(r"^\+.*" + text, content["text"], re.M):
                return True
            if content["type"] == "fileEdit" and file in json.dumps(content):
                return True
        return False

    def cancelled(self):
        turn = self.main.turn("STREAM 400 40 50", cancel=lambda turn: "000003" in turn.text)
        assert turn.ending["type"] == "chat/turnCancelled" and "000399" not in turn.text, turn
        turn = self.complete(self.main.turn("SAY after it\\n"))
        assert turn.text.count("after it") == 1 and "0000" not in turn.text, turn
        return "is cancelled in the middle, and goes on"

    def cancelled_silent(self):
        asked = len(self.requests())
        turn = self.main.turn("HANG 100\nSAY too late", cancel=lambda turn: len(self.requests()) > asked)
        assert turn.ending["type"] == "chat/turnCancelled" and not turn.text, turn
        turn = self.complete(self.main.turn("SAY not hung"))
        assert turn.text == "not hung", turn
        return "is cancelled while its model is silent, and goes on"

    def cancelled_asking(self):
        if not self.agent.once:
            return None
        command = self.call(self.agent.shell, command="touch cancelled")
        turn = self.main.turn(command, allow=None, cancel=lambda turn: turn.asked)
        assert turn.ending["type"] == "chat/turnCancelled" and not os.path.exists(self.path("cancelled")), turn
        turn = self.complete(self.main.turn("SAY still there\\n"))
        assert turn.text.count("still there") == 1, turn
        return "is cancelled while it asks, and goes on"

    def cancelled_running(self):
        command = self.call(self.agent.shell, command="touch running; sleep 60; echo late")
        turn = self.main.turn(command, cancel=lambda turn: os.path.exists(self.path("running")))
        assert turn.ending["type"] == "chat/turnCancelled", turn
        turn = self.complete(self.main.turn("SAY quick again"))
        assert turn.text == "quick again" and not turn.calls, turn
        return "is cancelled while a command runs, and goes on"

    def steered(self):
        turn = self.main.begin("STREAM 20 40 50")
        self.main.dispatch(type="chat/pendingMessageSet", kind="steering", id="more",
                           message={"text": "SAY and more", "origin": {"kind": "user"}})
        turn = self.complete(self.main.finish(turn))
        if self.agent.steers:
            assert "and more" in turn.text and turn.notices == ["The user added: SAY and more"], turn
            return "takes in what is added while it works"
        assert len(re.findall(r"\b\d{6}\b", turn.text)) == 20 and "more" not in turn.text, turn
        turn = self.complete(self.main.finish_next())
        assert turn.text.strip() == "and more", turn
        return "is told next what is added while it works"

    def retries(self):
        turn = self.complete(self.main.turn("FAIL 500 1\nSAY once more"))
        assert turn.text.count("once more") == 1, turn
        assert not self.agent.tells_of_retries or turn.text.strip() == "once more" and turn.notices, turn
        return "gets over a failure of its model"

    def fails(self):
        turn = self.main.turn("FAIL 400")
        assert turn.ending["type"] == self.agent.failure, turn
        said = turn.text.strip() or turn.ending.get("part", {}).get("error", {}).get("message", "")
        assert bool(said) == self.agent.admits, turn
        turn = self.complete(self.main.turn("SAY well again\\n"))
        assert turn.text.count("well again") == 1, turn
        return f"survives a failure of its model, and says: {' '.join(said.split())[:80] or 'nothing'}"

    def two_at_once(self):
        other = self.chat("other")
        self.complete(other.turn("SAY here"))
        chats = {"left": self.main, "right": other}
        turns = {side: chat.begin(f"SAY {side}\\n\nSTREAM 30 40 100") for side, chat in chats.items()}
        for side, chat in chats.items():
            turn = self.complete(chat.finish(turns[side]))
            assert re.findall(r"left|right", turn.text) == [side], turn
            assert [int(n) for n in re.findall(r"\b\d{6}\b", turn.text)] == list(range(30)), turn
        assert max(turn.begun for turn in turns.values()) < min(turn.ended for turn in turns.values()), "in turn"
        return "works in two sessions at once"

    def configured(self):
        config = self.main.session_state().get("config") or {}
        modes = config.get("schema", {}).get("properties", {}).get("mode", {}).get("enum", [])
        plan = next((mode for mode in modes if mode.endswith("plan")), None)
        if plan is None:
            return None
        for mode in (plan, config["values"]["mode"]):
            self.main.dispatch(self.main.session, type="session/configChanged", config={"mode": mode})
            turn = self.complete(self.main.turn("Like this:\nSAY in this mode"))
            assert turn.text.count("in this mode") == 1 and "MODE_UPDATE" not in turn.text, turn
            assert self.main.session_state()["config"]["values"]["mode"] == mode, mode
        return "changes its mode, and back"

    def titled(self):
        title = self.main.session_state()["title"]
        self.see("title", "THINK" not in title)

    def goes_on(self):
        asked = len(self.requests())
        self.host.end()
        self.host.start()
        self.main.follow()
        turn = self.complete(self.main.turn("SAY I am back\\n"))
        assert turn.text.count("I am back") == 1 and "still there" not in turn.text, turn
        assert self.agent.remembers is None or self.agent.remembers != bool(turn.notices), turn
        # All that was streamed is told to the model again.
        grown = max(self.requests()[asked:]) - self.first_request
        assert grown > 500 * 40, f"the model was told {grown} bytes of what had been said"
        return "goes on after a restart, remembers, and tells nothing twice"

    def adopted(self):
        """A session of the agent's own terminal program is listed, and goes on here with its history."""
        if not self.agent.terminal:
            return None
        work = self.path("terminal")
        os.makedirs(work)
        subprocess.run(
            filled(list(self.agent.terminal), bin=self.host.binaries, platform=platform_name(), word="elsewhere"),
            cwd=work, env={**os.environ, **self.host.environment, "PWD": work}, check=True, timeout=HUNG,
            stdin=subprocess.DEVNULL, capture_output=True)
        params = {"channel": "ahp-root://", "provider": self.host.name, "property": "adoptSession"}
        listed = self.host.ask("sessionConfigCompletions", workingDirectory="file://" + work, **params)["items"]
        assert len(listed) == 1, listed
        chat = self.chat("adopted", adopts=listed[0]["value"], work=work)
        turns = chat.state()["turns"]
        assert len(turns) == 1 and "elsewhere" in turns[0]["message"]["text"], turns
        parts = {part["kind"]: part.get("content") for part in turns[0]["responseParts"]}
        assert "elsewhere it was" in parts["markdown"].replace('"', ""), turns
        assert "begun outside of this host" in parts["systemNotification"], turns
        turn = self.complete(chat.turn("SAY and here\\n"))
        assert "and here" in turn.text and not turn.notices, turn
        assert "elsewhere" in self.last_bodies(), "the model was told nothing of before"
        listed = self.host.ask("sessionConfigCompletions", workingDirectory="file://" + work, **params)["items"]
        assert not listed, listed
        return "is gone on with in a session of its own terminal program"

    def is_cut(self):
        turn = self.main.begin("STREAM 400 40 50")
        while "000003" not in turn.text:
            self.main.hear(turn)
        self.host.kill()
        self.host.start()
        self.main.follow()
        kept = self.main.state()["turns"][-1]
        assert kept["id"] == turn.name and kept["state"] == "error", kept
        turn = self.complete(self.main.turn("SAY even now\\n"))
        assert turn.text.count("even now") == 1, turn
        return "does not outlive a host that is killed, and goes on with the next"

    def gets_away(self):
        """What gets away from its group, its session and its parent outlives no death of the host."""
        if not os.path.isdir("/proc"):
            return None
        for death in ("killed", "asked to leave", "told no more"):
            mark = self.path("away")
            away = f"setsid sleep 4321 >/dev/null 2>&1 & nohup sleep 4322 >/dev/null 2>&1 & "\
                   f"(setsid sleep 4323 >/dev/null 2>&1 &) ; touch {mark}; sleep 4324"
            turn = self.main.begin(self.call(self.agent.shell, command=away))
            begun = time.monotonic()
            while not os.path.exists(mark):
                self.main.hear_and_allow(turn)
                assert time.monotonic() < begun + HUNG, turn
            found = [number for number in (4321, 4322, 4323) if self.runs(f"sleep {number}")]
            self.host.die(death)
            os.remove(mark)
            self.host.start()
            self.main.follow()
            assert found, "nothing got away"
        return f"leaves nothing behind that got away, however its host dies ({len(found)} of 3 ran)"

    def runs(self, command):
        return any(command in line for _, line in self.host.left())

    def ends(self):
        self.host.end()
        assert self.shown == self.agent.shows, f"shown: {sorted(self.shown)}"
        return f"leaves no process behind; shows: {', '.join(sorted(self.shown)) or 'nothing special'}"

    # The scenes of an agent that plays one of its own.

    def plays(self):
        for _ in range(2):
            turn = self.complete(self.main.turn("Anything"))
            assert len(turn.asked) == 1 and len(turn.calls) == 2 and turn.text, turn
            assert all(call.get("success") for call in turn.calls.values()), turn
        return "plays its scene twice, its calls named alike"

    def plays_refused(self):
        turn = self.complete(self.main.turn("Anything", allow=False))
        assert turn.asked and not turn.asked[0].get("success"), turn
        return "asks, and is refused"

    def plays_cancelled(self):
        turn = self.main.turn("Anything", allow=None, cancel=lambda turn: turn.asked)
        assert turn.ending["type"] == "chat/turnCancelled", turn
        return "is cancelled while it asks"

    def goes_on_told_anew(self):
        self.host.end()
        self.host.start()
        self.main.follow()
        turn = self.complete(self.main.turn("Anything"))
        assert len(turn.notices) == 1, turn
        self.host.end()
        return "goes on after a restart, and leaves no process behind"


USUAL = [
    Scenes.says, Scenes.streams, Scenes.refused, Scenes.commands, Scenes.edits, Scenes.changes_a_repository, Scenes.goes_on_by_itself,
    Scenes.makes_a_file,
    Scenes.is_given_a_file, Scenes.is_given_what_is_in_no_file, Scenes.is_given_a_picture, Scenes.refused_edit,
    Scenes.asks_the_user, Scenes.uses_a_clients_tool, Scenes.keeps_tools_of_clients_apart, Scenes.steered, Scenes.cancelled, Scenes.cancelled_silent, Scenes.cancelled_asking,
    Scenes.cancelled_running, Scenes.fails, Scenes.retries, Scenes.sums_up, Scenes.two_at_once, Scenes.configured, Scenes.titled,
    Scenes.adopted, Scenes.goes_on, Scenes.is_cut, Scenes.gets_away, Scenes.ends,
]
