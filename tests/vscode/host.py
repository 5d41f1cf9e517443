"""The host that is tested, what is between it and VS Code, and another client of it."""

import base64
import contextlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import threading
import time

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.sync.server import serve

# How long the host may take to listen, and to answer, in seconds.
LIMIT = 60


class Host:
    """`ahp-sidecar serve` on a state folder; it can be killed and started again."""

    def __init__(self, program, folder, default_directory, config):
        self.program, self.folder, self.config = program, folder, config
        self.default_directory = default_directory
        self.token = secrets.token_urlsafe(32)
        self.token_file = os.path.join(folder, "token")
        with open(os.open(self.token_file, os.O_CREAT | os.O_WRONLY, 0o600), "w") as opened:
            opened.write(self.token)
        self.lives, self.state = 0, 0
        self.tap = Tap(os.path.join(folder, "frames.jsonl"))
        self.start()

    def start(self):
        self.lives += 1
        log = os.path.join(self.folder, f"log-{self.lives}.txt")
        command = [
            self.program, "serve", "--listen", "ws://127.0.0.1:0", "--token-file", self.token_file,
            "--state-dir", os.path.join(self.folder, f"state-{self.state}"), "--config", self.config,
            "--default-directory", self.default_directory, "--log", "debug",
        ]
        with open(log, "w") as opened:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=opened, stderr=opened)
        limit = time.monotonic() + LIMIT
        while True:
            with open(log) as opened:
                found = re.search(r"ws://127\.0\.0\.1:(\d+)", opened.read())
            if found:
                break
            assert self.process.poll() is None and time.monotonic() < limit, f"the host does not listen: see {log}"
            time.sleep(0.05)
        self.port = int(found.group(1))
        self.tap.port = self.port

    def kill(self):
        """What a crash is."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def forget(self):
        """Ends it, and starts it on an empty state folder."""
        self.kill()
        self.state += 1
        self.start()

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=LIMIT)
        self.tap.close()

    @contextlib.contextmanager
    def recorded(self, transcript):
        """Has `ahp-sidecar record` between VS Code and the host, for the connection that is opened meanwhile."""
        recorder = Recorder(self, transcript)
        self.tap.port = recorder.port
        try:
            yield
            assert recorder.ended.wait(LIMIT), "the recorded connection has not ended"
        finally:
            self.tap.port = self.port
            recorder.server.shutdown()

    def replayed(self, transcript):
        """Plays a transcript to a fresh host of the same configuration; returns the exit status and the report."""
        fresh = [self.program, "--ephemeral", "--config", self.config, "--default-directory", self.default_directory]
        done = subprocess.run([self.program, "replay", "--timeout", str(LIMIT), transcript, "--", *fresh],
                              capture_output=True, text=True, timeout=5 * LIMIT)
        return done.returncode, done.stdout + done.stderr


class Recorder:
    """Passes the messages of one WebSocket through the pipes of `ahp-sidecar record`."""

    def __init__(self, host, transcript):
        self.command = [host.program, "record", transcript, "--", f"ws://127.0.0.1:{host.port}"]
        self.environment = {**os.environ, "AHP_SIDECAR_TOKEN": host.token}
        self.ended = threading.Event()
        self.server = serve(self.record, "127.0.0.1", 0, max_size=None, compression=None)
        self.port = self.server.socket.getsockname()[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def record(self, client):
        process = subprocess.Popen(self.command, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        answers = threading.Thread(target=self.pass_back, args=(process, client), daemon=True)
        answers.start()
        for message in client:
            process.stdin.write(message.encode() + b"\n")
            process.stdin.flush()
        process.stdin.close()
        answers.join()
        process.wait(timeout=LIMIT)
        self.ended.set()

    def pass_back(self, process, client):
        with contextlib.suppress(ConnectionClosed):
            for line in process.stdout:
                client.send(line.decode().rstrip("\n"))
        process.stdout.read()


class Tap:
    """Passes bytes between VS Code's server and the host as they are, and notes the messages in them.

    It has one address while the host comes and goes under others, and can cut what is connected.
    """

    def __init__(self, file):
        self.port, self.open, self.log = None, [], open(file, "w")
        self.lock, self.began = threading.Lock(), time.monotonic()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        for number in range(1, 1 << 30):
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                host = socket.create_connection(("127.0.0.1", self.port))
            except OSError:
                client.close()
                continue
            self.open.append((client, host))
            self.note(number, "open")
            for source, sink, direction in ((client, host, "> host"), (host, client, "< host")):
                threading.Thread(target=self.pass_on, args=(number, source, sink, direction), daemon=True).start()

    def pass_on(self, number, source, sink, direction):
        frames = Frames()
        try:
            while data := source.recv(1 << 16):
                for message in frames.read(data):
                    self.note(number, direction, message)
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self.note(number, direction + " is over")

    def note(self, number, direction, message=None):
        with self.lock:
            if not self.log.closed:
                line = {"at": round(time.monotonic() - self.began, 3), "connection": number, "": direction}
                self.log.write(json.dumps({**line, **({"says": message} if message else {})}) + "\n")
                self.log.flush()

    def cut(self):
        """Ends what is connected, as a network does that is gone."""
        for pair in self.open:
            for end in pair:
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
        self.open = []

    def close(self):
        self.listener.close()
        self.cut()
        with self.lock:
            self.log.close()


class Frames:
    """The text messages in one direction of a WebSocket, which begins with an HTTP message."""

    def __init__(self):
        self.buffer, self.http, self.parts = b"", True, b""

    def read(self, data):
        self.buffer += data
        if self.http:
            head, end, rest = self.buffer.partition(b"\r\n\r\n")
            if not end:
                return
            self.http, self.buffer = False, rest
        while (frame := self.frame()) is not None:
            last, opcode, content = frame
            if opcode < 8:
                self.parts += content
                if last:
                    text, self.parts = self.parts.decode(errors="replace"), b""
                    try:
                        yield json.loads(text)
                    except ValueError:
                        yield text
            elif opcode == 8:
                yield {"close": int.from_bytes(content[:2], "big"), "why": content[2:].decode(errors="replace")}

    def frame(self):
        """Takes a whole frame off the buffer, if there is one."""
        head = self.buffer
        if len(head) < 2:
            return None
        masked, length, at = head[1] & 0x80, head[1] & 0x7F, 2
        wide = {126: 2, 127: 8}.get(length, 0)
        if len(head) < at + wide + (4 if masked else 0):
            return None
        if wide:
            length = int.from_bytes(head[at:at + wide], "big")
            at += wide
        mask = head[at:at + 4] if masked else b""
        at += len(mask)
        if len(head) < at + length:
            return None
        content = head[at:at + length]
        if mask:
            key = (mask * (length // 4 + 1))[:length]
            content = (int.from_bytes(content, "big") ^ int.from_bytes(key, "big")).to_bytes(length, "big")
        self.buffer = head[at + length:]
        return bool(head[0] & 0x80), head[0] & 0x0F, content


class Client:
    """A client of another kind, with the newest version of the protocol."""

    def __init__(self, host):
        self.socket = connect(f"ws://127.0.0.1:{host.port}/?tkn={host.token}", max_size=None)
        self.asked, self.heard = 0, []
        self.ask("initialize", channel="ahp-root://", clientId=secrets.token_hex(8), protocolVersions=["1.0.0"])

    def say(self, **message):
        self.socket.send(json.dumps({"jsonrpc": "2.0", **message}))

    def hear(self):
        message = json.loads(self.socket.recv(timeout=LIMIT))
        self.heard.append(message)
        return message

    def ask(self, method, **params):
        self.asked += 1
        self.say(id=self.asked, method=method, params=params)
        while (answer := self.hear()).get("id") != self.asked:
            pass
        assert "result" in answer, f"{method}: {answer}"
        return answer["result"]

    def dispatch(self, channel, **action):
        self.say(method="dispatchAction", params={"channel": channel, "clientSeq": 1, "action": action})

    def follow(self, session):
        """Gives back the session's chat, followed."""
        chat = "ahp-chat://default/" + base64.urlsafe_b64encode(session.encode()).decode().rstrip("=")
        self.state(chat)
        return chat

    def state(self, channel):
        """Follows a channel; gives back its state."""
        return self.ask("subscribe", channel=channel)["snapshot"]["state"]

    def changes(self, session, kind, operation, target=None):
        """Does something with what this changeset shows now: with all of it, or with one file."""
        channel = f"{session}/changeset/{kind}"
        while self.state(channel)["status"] != "ready":
            time.sleep(0.05)
        named = {"target": {"kind": "resource", "resource": target}} if target else {}
        return self.ask("invokeChangesetOperation", channel=channel, operationId=operation, **named)

    def titled(self, title):
        """The session of this title."""
        return next(one["resource"] for one in self.ask("listSessions", channel="ahp-root://")["items"]
                    if one["title"] == title)

    def allow(self, chat):
        """Allows what the chat's running turn asks for."""
        turn = self.state(chat)["activeTurn"]
        call = next(part["toolCall"] for part in turn["responseParts"] if part["kind"] == "toolCall")
        self.dispatch(chat, type="chat/toolCallConfirmed", turnId=turn["id"], toolCallId=call["toolCallId"],
                      approved=True, confirmed="user-action")

    def until(self, kind):
        """Hears until an action of this kind; gives it back."""
        while True:
            message = self.hear()
            action = message.get("params", {}).get("action", {})
            assert "rejectionReason" not in message.get("params", {}), message
            if action.get("type") == kind:
                return action

    def close(self):
        self.socket.close()


class Official:
    """The official Rust client, which has made a session and begun a turn in it."""

    def __init__(self, program, host, session, provider, directory, text):
        url = f"ws://127.0.0.1:{host.port}/?tkn={host.token}"
        self.process = subprocess.Popen([program, url, session, provider, directory, text], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def until(self, kind):
        """Hears until an action of this kind; gives it back."""
        for line in self.process.stdout:
            action = json.loads(line)
            if action["type"] == kind:
                return action
        raise AssertionError(f"the official client has ended before {kind}")

    def close(self):
        self.process.stdin.close()
        self.process.wait()
