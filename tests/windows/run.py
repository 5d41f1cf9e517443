"""Runs the program of Windows, under wine unless the system is Windows, and speaks to it over its pipes.

`run.py PROGRAM AGENT [GROUP …]`: ahp-sidecar.exe, agent.exe (agent.c), and names of test classes, or of
single tests (`Store.test_…`). WINE is the command that starts a program (`.ci/wine` makes one), WINDOWS_GIT the folder
of git.exe of a Git for Windows. Every wait is bounded, and waits for an event, not for a time.
"""
import base64
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
ON_WINDOWS = sys.platform == "win32"
WITHIN = 60  # seconds until something is taken to hang
STARTED_AT = "2026-01-01T00:00:00Z"
PROGRAM = AGENT = None


def started(program, *arguments, **options):
    command = [program, *map(str, arguments)]
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen(command if ON_WINDOWS else [os.environ["WINE"], *command], **options)


def own(path):
    """Returns a path as Windows spells it: wine has the whole disk as drive Z."""
    return str(path) if ON_WINDOWS else "Z:" + str(path).replace("/", "\\")


def uri(path):
    path = own(path)
    return "file:///" + path[0].lower() + path[1:].replace("\\", "/")


def chat_of(session):
    return "ahp-chat://default/" + base64.urlsafe_b64encode(session.encode()).decode().rstrip("=")


def processes(mark):
    """Returns the number of processes whose command line has a mark."""
    if ON_WINDOWS:
        query = f"(Get-CimInstance Win32_Process | Where-Object CommandLine -Match '{mark}$' | Measure-Object).Count"
        return int(subprocess.run(["powershell", "-Command", query], capture_output=True, timeout=WITHIN).stdout)
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += path.read_bytes().rstrip(b"\0").endswith(mark.encode())
        except OSError:
            pass  # It has ended.
    return found


class Host:
    """A host over its pipes. Its lines are read by a thread, so that no wait can hang.

    Its stderr is a file: under wine, each process that it starts gets that of the system below, and could keep it open.
    """

    def __init__(self, *arguments, **options):
        self.stderr = tempfile.TemporaryFile()
        self.process = started(PROGRAM, *arguments, stderr=self.stderr, **options)
        self.last, self.lines = 0, queue.Queue()
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def complaints(self):
        """Returns what was written to stderr until now, or until it had ended."""
        if not self.stderr.closed:
            self.stderr.seek(0)
            self.complained = self.stderr.read().decode(errors="replace")
        return self.complained

    def send(self, method, params, **more):
        message = {"jsonrpc": "2.0", "method": method, "params": params} | more
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def message(self):
        line = self.lines.get(timeout=WITHIN)
        assert line is not None, f"the host has ended: {self.complaints()}"
        return json.loads(line)

    def answer(self, method, **params):
        """Returns the whole response to a request."""
        self.last += 1
        self.send(method, {"channel": "ahp-root://"} | params, id=self.last)
        while (message := self.message()).get("id") != self.last:
            pass
        return message

    def ask(self, method, **params):
        answer = self.answer(method, **params)
        assert "result" in answer, answer
        return answer["result"]

    def initialize(self):
        return self.ask("initialize", clientId="test", protocolVersions=["1.0.0"])

    def begin(self, session="test:/1", **params):
        """Creates a session and subscribes to its chat."""
        self.ask("createSession", channel=session, **params)
        self.ask("subscribe", channel=chat_of(session))

    def start_turn(self, text, session="test:/1", turn="t"):
        self.send("dispatchAction", {"channel": chat_of(session), "clientSeq": 1, "action": {
            "type": "chat/turnStarted", "turnId": turn, "startedAt": STARTED_AT,
            "message": {"text": text, "origin": {"kind": "user"}}}})

    def cancel_turn(self, turn, session="test:/1"):
        self.send("dispatchAction", {"channel": chat_of(session), "clientSeq": 1, "action": {
            "type": "chat/turnCancelled", "turnId": turn}})

    def until(self, *kinds):
        """Returns the actions up to the first one of these kinds."""
        actions = []
        while not actions or actions[-1].get("type") not in kinds:
            actions.append(self.message().get("params", {}).get("action", {}))
        return actions

    def turn(self, text, session="test:/1", turn="t"):
        """Runs a turn to its end and returns the text of the answer."""
        self.start_turn(text, session, turn)
        actions = self.until("chat/turnComplete", "chat/error")
        assert actions[-1]["type"] == "chat/turnComplete", actions
        return "".join(action.get("part", action).get("content", "") for action in actions)

    def close(self):
        """Ends stdin; returns the exit status."""
        self.process.stdin.close()
        return self.wait()

    def kill(self):
        self.process.kill()
        self.wait()

    def wait(self):
        status = self.process.wait(WITHIN)
        self.reader.join(WITHIN)
        assert not self.reader.is_alive(), "something keeps stdout open"
        self.complaints()
        for file in (self.process.stdin, self.process.stdout, self.stderr):
            file.close()
        return status


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()

    def host(self, *arguments, **options):
        host = Host("--exclusive", *arguments, **{"cwd": self.folder} | options)
        self.addCleanup(lambda: host.process.poll() is None and host.kill())
        return host

    def with_agent(self, *arguments, **options):
        """Starts a host whose agent `a` is agent.exe, with a session."""
        line = " ".join([f'"{own(AGENT)}"', *arguments])
        host = self.host("--agent", f"a={line}", "--ephemeral", **options)
        host.initialize()
        host.begin(provider="a")
        return host

    def stored(self, **options):
        host = self.host("--state-dir", own(self.folder / "state"), **options)
        host.initialize()
        return host

    def run_program(self, *arguments, input="", variable=None):
        """Runs the program to its end; returns status, stdout and stderr. `variable` is one of its environment."""
        # wine has variables of folders of its own, so a program of its side sets them.
        words = [AGENT, "--with", "=".join(variable), own(PROGRAM)] if variable else [PROGRAM]
        process = started(*words, *arguments, cwd=self.folder)
        stdout, stderr = process.communicate(input.encode(), timeout=WITHIN)
        return process.returncode, stdout.decode(), stderr.decode()

    def wait_until(self, holds):
        end = time.monotonic() + WITHIN
        while not holds():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)


class Conversation(Case):
    def test_lines_of_the_readme_are_answered_byte_by_byte(self):
        lines = (ROOT / "fixtures/demo/short.txt").read_text().splitlines(keepends=True)
        sent, wanted = ("".join(line[2:] for line in lines if line.startswith(mark)) for mark in "><")
        wanted = wanted.replace("file:///", uri(self.folder))
        said = self.run_program("--deterministic", "--ephemeral", "--exclusive", input=sent)
        self.assertEqual(said, (0, wanted, ""))

    def test_version_and_help_are_printed(self):
        self.assertRegex(self.run_program("--version")[1], r"^ahp-sidecar \d+\.\d+\.\d+\n$")
        status, said, _ = self.run_program("help", "methods")
        self.assertEqual((status, "createSession" in said), (0, True))

    def test_client_that_closes_stdout_ends_the_host_at_the_next_message(self):
        process = started(PROGRAM, "--ephemeral", "--exclusive", cwd=self.folder)
        self.addCleanup(process.kill)
        line = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"channel":"ahp-root://"}}\n'
        process.stdin.write(line)
        process.stdin.flush()
        self.assertIn(b'"id":1', process.stdout.readline())
        process.stdout.close()
        process.stdin.write(line)
        process.stdin.flush()
        self.assertEqual(process.wait(WITHIN), 0)
        process.stdin.close()
        process.stderr.close()


class Store(Case):
    def listed(self):
        status, said, trouble = self.run_program("sessions", "list", "--state-dir", own(self.folder / "state"))
        self.assertEqual((status, trouble), (0, ""))
        return said

    def test_session_outlives_a_killed_host(self):
        host = self.stored()
        host.begin()
        self.assertEqual(host.turn("Hello there"), "Hello there")
        host.kill()
        self.assertIn("test:/1\tHello there\t", self.listed())
        host = self.stored()
        chat = host.ask("subscribe", channel=chat_of("test:/1"))["snapshot"]["state"]
        [turn] = chat["turns"]
        self.assertEqual(turn["responseParts"][0]["content"], "Hello there")
        self.assertEqual(host.close(), 0)

    def test_turn_of_a_killed_host_ends_once(self):
        host = self.stored()
        host.begin()
        host.start_turn("/say begun\n/hang")
        host.until("chat/responsePart")
        host.kill()
        host = self.stored()
        chat = host.ask("subscribe", channel=chat_of("test:/1"))["snapshot"]["state"]
        [turn] = chat["turns"]
        self.assertEqual((turn["responseParts"][0]["content"], turn["state"]), ("begun", "error"))
        self.assertNotIn("activeTurn", chat)
        self.assertEqual(host.close(), 0)

    def test_second_process_is_refused_while_the_first_one_lives(self):
        host = self.stored()
        state = own(self.folder / "state")
        status, said, trouble = self.run_program("--exclusive", "--state-dir", state)
        self.assertEqual((status, said), (3, ""))
        self.assertRegex(trouble, r"the state folder .*state is in use by another ahp-sidecar \(process \d+\): ")
        self.assertRegex(self.run_program("status", "--state-dir", state)[1], r"^process \d+ uses Z?.*state")
        self.assertEqual(host.close(), 0)
        self.assertEqual(self.run_program("--exclusive", "--state-dir", state)[0], 0)

    def test_default_folder_is_below_localappdata(self):
        local = self.folder / "local"
        self.assertEqual(self.run_program("--exclusive", variable=("LOCALAPPDATA", own(local)))[0], 0)
        self.assertTrue((local / "ahp-sidecar/sessions.sqlite").is_file())


class Orphans(Case):
    """Agents in their job: `children` are what an agent has started and left."""

    def test_killed_host_leaves_neither_agent_nor_its_children(self):
        mark = self.folder.name
        host = self.with_agent("--stubborn", mark)
        host.turn(f"child {mark}")
        self.assertEqual(processes(mark), 2)
        host.kill()
        self.wait_until(lambda: not processes(mark))

    def test_agent_exits_by_itself_when_its_stdin_ends(self):
        ended = self.folder / "ended"
        host = self.with_agent("--ended", f'"{own(ended)}"')
        host.turn("arguments")
        self.assertEqual(host.close(), 0)
        self.assertTrue(ended.exists())

    def test_stubborn_agent_ends_with_its_children_before_the_host(self):
        mark = self.folder.name
        host = self.with_agent("--stubborn", mark)
        host.turn(f"child {mark}")
        self.assertEqual(host.close(), 0)
        self.assertEqual(processes(mark), 0)


class Agents(Case):
    def test_command_line_is_split_by_the_rules_of_windows(self):
        host = self.with_agent(r'"b c"', r"d\e", r'"q\"x"', r'"f\\"', "''")
        wanted = ["b c", r"d\e", 'q"x', "f\\", "''", own(self.folder)]
        self.assertEqual(host.turn("arguments").split("\n"), wanted)
        self.assertEqual(host.close(), 0)

    def test_agent_has_no_console_window(self):
        host = self.with_agent()
        self.assertEqual(host.turn("console"), "no window")
        self.assertEqual(host.close(), 0)

    def test_name_is_searched_for_with_the_endings_of_programs(self):
        folder = self.folder / "bin ä"
        folder.mkdir()
        (folder / "shim.cmd").write_text(f'@"{own(AGENT)}" from-shim %*\r\n')
        # Neither can be started: the ending of one is not in PATHEXT, and the other has none.
        (folder / "shim.txt").write_text("")
        (folder / "shim").write_text("#!/bin/sh\n")
        environment = os.environ | {"PATH" if ON_WINDOWS else "WINEPATH": own(folder)}
        host = self.host("--ephemeral", "--agent", 'a=shim "x y" z', env=environment)
        host.initialize()
        host.begin(provider="a")
        self.assertEqual(host.turn("arguments").split("\n")[:3], ["from-shim", "x y", "z"])
        self.assertEqual(host.close(), 0)

    def test_check_names_what_is_missing(self):
        status, said, trouble = self.run_program("agents", "check", "--ephemeral", "--agent", "a=no-such-agent")
        self.assertEqual(status, 1, trouble)
        self.assertIn("no-such-agent", said)
        status, said, trouble = self.run_program("agents", "check", "--ephemeral", "--agent", f"a={own(AGENT)}")
        self.assertEqual((status, "Agent of Windows" in said), (0, True), said + trouble)

    def test_configuration_is_read_below_appdata(self):
        folder = self.folder / "roaming/ahp-sidecar"
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text(f"[agents.from-file]\ncommand = '{own(AGENT)}'\nargs = ['configured']\n")
        variable = ("APPDATA", own(self.folder / "roaming"))
        status, said, trouble = self.run_program("agents", "check", "from-file", "--ephemeral", variable=variable)
        self.assertEqual((status, trouble), (0, ""), said)
        self.assertIn("Agent of Windows", said)
        # The empty file of the system takes its place.
        status, said, _ = self.run_program("agents", "check", "--ephemeral", "--config", "NUL", variable=variable)
        self.assertNotIn("from-file", said)


class Files(Case):
    def setUp(self):
        super().setUp()
        self.work = self.folder / "work"
        self.work.mkdir()
        (self.work / "ä !.txt").write_text("text\r\n", newline="")
        self.host_of_work = self.host("--ephemeral")
        self.host_of_work.initialize()
        self.host_of_work.begin(workingDirectories=[uri(self.work)])
        self.ask, self.answer = self.host_of_work.ask, self.host_of_work.answer

    def tearDown(self):
        self.assertEqual(self.host_of_work.close(), 0)

    def test_drive_has_several_spellings(self):
        name, rest = "%C3%A4%20!.txt", uri(self.work)[len("file:///z:"):]
        for start in ("file:///z:", "file:///Z:", "file:///z%3A", "file:///Z%3a", "file://localhost/z:", "FILE:///z:"):
            read = self.ask("resourceRead", uri=f"{start}{rest}/{name}", encoding="utf-8")
            self.assertEqual(read["data"], "text\r\n", start)
        [entry] = self.ask("resourceList", uri=uri(self.work))["entries"]
        self.assertEqual(entry["name"], "ä !.txt")
        found = self.ask("resourceResolve", uri=f"file:///Z%3A{rest}/{name}")
        self.assertEqual(found["uri"], f"{uri(self.work)}/{name}")

    def test_what_windows_would_take_for_something_else_is_refused(self):
        for name in ("ä !.txt:stream", "NUL", "con.txt", "ä !.txt.", "..%5cwork%5cä !.txt", "a%3Fb"):
            answer = self.answer("resourceRead", uri=f"{uri(self.work)}/{name}")
            self.assertIn("error", answer, name)
        for other in ("file://server/share/x", "file:///tmp/x", "file:////server/share/x"):
            self.assertIn("error", self.answer("resourceRead", uri=other), other)

    def test_files_are_written_moved_copied_and_deleted(self):
        at = uri(self.work)
        data = base64.b64encode(b"new").decode()
        self.ask("resourceWrite", uri=f"{at}/new.txt", data=data, encoding="base64")
        self.ask("resourceWrite", uri=f"{at}/new.txt", data=data, encoding="base64")
        self.ask("resourceMkdir", uri=f"{at}/folder")
        self.ask("resourceMove", source=f"{at}/new.txt", destination=f"{at}/folder/moved.txt")
        self.ask("resourceCopy", source=f"{at}/folder", destination=f"{at}/copy")
        self.assertEqual((self.work / "copy/moved.txt").read_bytes(), b"new")
        self.ask("resourceDelete", uri=f"{at}/folder", recursive=True)
        self.assertEqual(sorted(path.name for path in self.work.iterdir()), ["copy", "ä !.txt"])

    def test_path_longer_than_260_units_is_used(self):
        at = self.work.joinpath(*["n" * 60] * 6)
        at.mkdir(parents=True)
        (at / "long.txt").write_text("long")
        read = self.ask("resourceRead", uri=f"{uri(at)}/long.txt", encoding="utf-8")
        self.assertEqual(read["data"], "long")
        data = base64.b64encode(b"longer").decode()
        self.ask("resourceWrite", uri=f"{uri(at)}/long.txt", data=data, encoding="base64")
        self.assertEqual((at / "long.txt").read_text(), "longer")

    def test_changes_of_a_watched_folder_are_sent(self):
        watch = self.ask("createResourceWatch", uri=uri(self.work), recursive=True)["channel"]
        self.ask("subscribe", channel=watch)
        (self.work / "later.txt").write_text("x")
        action = self.host_of_work.until("resourceWatch/changed")[-1]
        self.assertIn(f"{uri(self.work)}/later.txt", json.dumps(action))


class Listeners(Case):
    def test_client_joins_a_listener(self):
        server = started(PROGRAM, "serve", "--listen", "ws://127.0.0.1:0", "--no-token", "--ephemeral", cwd=self.folder)
        self.addCleanup(server.communicate)
        self.addCleanup(server.kill)
        said = server.stderr.readline().decode()
        self.assertRegex(said, r"^listening on ws://127\.0\.0\.1:\d+\r?\n$")
        host = Host("connect", said.split()[-1], cwd=self.folder)
        self.addCleanup(lambda: host.process.poll() is None and host.kill())
        host.initialize()
        host.begin()
        self.assertEqual(host.turn("Hello"), "Hello")
        self.assertEqual(host.close(), 0)


class Windows(Case):
    """Several processes on one state folder, which one host serves."""

    def window(self):
        state = own(self.folder / "state")
        host = Host("--state-dir", state, cwd=self.folder)
        self.addCleanup(lambda: host.process.poll() is None and host.kill())
        host.initialize()
        return host

    def host_process(self):
        _, said, _ = self.run_program("status", "--state-dir", own(self.folder / "state"))
        return re.match(r"process (\d+) ", said)[1]

    def is_free(self):
        return self.run_program("--exclusive", "--state-dir", own(self.folder / "state"))[0] == 0

    def test_second_window_goes_on_when_the_first_one_ends(self):
        one, two = self.window(), self.window()
        one.begin()
        self.assertEqual(one.turn("Hello"), "Hello")
        two.ask("subscribe", channel=chat_of("test:/1"))
        one.start_turn("/hang", turn="u")
        two.until("chat/turnStarted")
        host = self.host_process()
        self.assertEqual(one.close(), 0)
        two.cancel_turn("u")
        two.until("chat/turnCancelled")
        self.assertEqual(two.turn("And again", turn="v"), "And again")
        self.assertEqual(self.host_process(), host)
        self.assertEqual(two.close(), 0)
        self.wait_until(self.is_free)

    def test_killed_window_does_not_disturb_the_other_one(self):
        one = self.window()
        two = self.window()
        one.begin()
        one.start_turn("/hang")
        one.until("chat/turnStarted")
        one.kill()
        self.assertEqual(two.ask("subscribe", channel=chat_of("test:/1"))["snapshot"]["state"]["activeTurn"]["id"], "t")
        three = self.window()
        three.begin("test:/3")
        self.assertEqual(three.turn("Hello", "test:/3"), "Hello")
        two.cancel_turn("t")
        two.until("chat/turnCancelled")
        self.assertEqual((two.close(), three.close()), (0, 0))
        self.wait_until(self.is_free)

    def test_windows_of_a_killed_host_say_so_and_find_everything_again(self):
        one, two = self.window(), self.window()
        one.begin()
        self.assertEqual(one.turn("Hello"), "Hello")
        kill = ["taskkill", "/F", "/PID", self.host_process()]
        subprocess.run(kill if ON_WINDOWS else [os.environ["WINE"], *kill], capture_output=True, check=True)
        self.assertEqual((one.wait(), two.wait()), (5, 5))
        self.assertIn("start again, and send `reconnect`", one.complaints())
        again = self.window()
        [turn] = again.ask("subscribe", channel=chat_of("test:/1"))["snapshot"]["state"]["turns"]
        self.assertEqual(turn["responseParts"][0]["content"], "Hello")
        self.assertEqual(again.close(), 0)

    def test_windows_that_start_at_once_share_one_host(self):
        windows = [Host("--state-dir", own(self.folder / "state"), cwd=self.folder) for _ in range(4)]
        for window in windows:
            self.addCleanup(lambda host=window: host.process.poll() is None and host.kill())
        for window in windows:
            window.initialize()
        windows[0].begin()
        for window in windows[1:]:
            window.ask("subscribe", channel=chat_of("test:/1"))
        windows[0].start_turn("Hello")
        for window in windows:
            window.until("chat/turnComplete")
        self.assertEqual([window.close() for window in windows], [0] * 4)

    def test_input_and_output_beyond_the_size_of_a_pipe_arrive_whole(self):
        window = self.window()
        window.begin()
        text = "0123456789abcdef" * 20_000
        window.start_turn(text)
        window.process.stdin.close()  # before anything of the answer is read
        said = "".join(action.get("part", action).get("content", "") for action in window.until("chat/turnComplete"))
        self.assertEqual(said, text)
        self.assertEqual(window.wait(), 0)


class Changes(Case):
    """Changes of files by git. WINDOWS_GIT is not on the PATH of other tests."""

    def setUp(self):
        super().setUp()
        self.git = os.environ.get("WINDOWS_GIT")

    def environment(self):
        return os.environ | {"PATH" if ON_WINDOWS else "WINEPATH": own(self.git)}

    def test_status_says_that_git_is_missing(self):
        if ON_WINDOWS:
            self.skipTest("git may be on the PATH")
        said = self.run_program("status", "--state-dir", own(self.folder / "state"))[1]
        self.assertIn("git is not used: there is no program `git` on the host's PATH", said)

    def test_uncommitted_changes_are_shown_and_committed(self):
        if not self.git:
            self.skipTest("WINDOWS_GIT names no Git for Windows")
        if not (ON_WINDOWS or os.environ.get("WINE_LINKS")):
            self.skipTest("wine has no links between folders, by which git runs in a folder of the host's own")
        work = self.folder / "work"
        (work / "below").mkdir(parents=True)
        (work / "below/ä.txt").write_text("one\n")

        def git(*arguments):
            process = started(str(Path(self.git) / "git.exe"), *arguments, cwd=work, env=self.environment())
            said, trouble = process.communicate(timeout=WITHIN)
            self.assertEqual(process.returncode, 0, trouble)
            return said.decode()

        git("init")
        for setting in (("user.name", "A"), ("user.email", "a@example.org"), ("core.autocrlf", "true")):
            git("config", *setting)
        git("add", ".")
        git("commit", "--message", "one")
        # Packed refs are a file of their own, which git replaces.
        git("pack-refs", "--all")
        (work / "below/ä.txt").write_bytes(b"two\r\n")
        host = self.stored(env=self.environment())
        host.ask("createSession", channel="test:/1", workingDirectories=[uri(work)])
        host.ask("subscribe", channel="test:/1")
        host.until("session/changesetsChanged")
        channel = "test:/1/changeset/uncommitted"

        def shown():
            files = host.ask("subscribe", channel=channel)["snapshot"]["state"]["files"]
            host.ask("unsubscribe", channel=channel)
            return [(file["id"], file["edit"]["diff"]) for file in files]

        changed = [(uri(work / "below/ä.txt").replace("ä", "%C3%A4"), {"added": 1, "removed": 1})]
        self.wait_until(lambda: shown() == changed)
        host.ask("invokeChangesetOperation", channel=channel, operationId="commit", _meta={"message": "two"})
        self.wait_until(lambda: shown() == [])
        self.assertEqual(git("log", "--format=%s").split(), ["two", "one"])
        self.assertEqual(git("status", "--porcelain"), "")
        self.assertEqual(host.close(), 0)


class Terminals(Case):
    """Shells in pseudo consoles. agent.exe takes the place of PowerShell, and is the command prompt."""

    terminal = "ahp-terminal:/t"

    def setUp(self):
        super().setUp()
        programs = self.folder / "bin"
        programs.mkdir()
        (programs / "pwsh.exe").write_bytes(Path(AGENT).read_bytes())
        environment = os.environ | {"PATH" if ON_WINDOWS else "WINEPATH": own(programs)}
        self.shell_host = self.host("--ephemeral", env=environment)
        self.shell_host.initialize()
        self.shell_host.ask("createTerminal", channel=self.terminal, claim={"kind": "client", "clientId": "test"},
                            cwd=uri(self.folder), cols=100, rows=30)
        self.shell_host.ask("subscribe", channel=self.terminal)
        self.sent = 0

    def dispatch(self, kind, **members):
        self.sent += 1
        self.shell_host.send("dispatchAction", {"channel": self.terminal, "clientSeq": self.sent,
                                                "action": {"type": f"terminal/{kind}"} | members})

    def printed_behind(self, line, wanted):
        """Types a line; returns what is printed until `wanted` is."""
        self.dispatch("input", data=line + "\r")
        printed = ""
        while wanted not in printed:
            printed += self.shell_host.until("terminal/data")[-1]["data"]
        return printed

    def start_child(self, mark):
        """Starts a process without a console from the shell."""
        self.dispatch("input", data=f"{own(AGENT)} --child {mark}\r")
        self.wait_until(lambda: processes(mark) == 1)

    def exited(self):
        return self.shell_host.until("terminal/exited")[-1].get("exitCode")

    def test_shell_prints_takes_input_and_exits_with_a_code(self):
        # Typed text is echoed with its escape.
        self.printed_behind("echo he^llo", "hello")
        self.printed_behind("echo [%TERM_PROGRAM%]", "[ahp-sidecar]")
        self.printed_behind("echo [%CD%]", f"[{own(self.folder)}]")
        self.dispatch("input", data="exit 3\r")
        self.assertEqual(self.exited(), 3)
        self.assertEqual(self.shell_host.close(), 0)

    def test_program_sees_the_size_and_a_new_one(self):
        self.printed_behind(f"{own(AGENT)} --size", "size 100x30")
        self.dispatch("resized", cols=66, rows=20)
        # wine 8 takes a new size and does nothing.
        self.printed_behind(f"{own(AGENT)} --size", "size 66x20" if ON_WINDOWS else "size ")
        self.assertEqual(self.shell_host.close(), 0)

    def test_large_output_arrives_whole_and_in_order(self):
        printed = self.printed_behind("for /l %i in (1,1,2000) do @echo line%i.", "line2000.")
        self.assertEqual([int(line) for line in re.findall(r"line(\d+)\.", printed)], list(range(1, 2001)))
        self.assertEqual(self.shell_host.close(), 0)

    def test_disposed_terminal_leaves_no_process(self):
        mark = self.folder.name
        self.start_child(mark)
        self.shell_host.ask("disposeTerminal", channel=self.terminal)
        self.wait_until(lambda: not processes(mark))
        self.assertEqual(self.shell_host.close(), 0)

    def test_shell_that_exits_leaves_no_process(self):
        mark = self.folder.name
        self.start_child(mark)
        self.dispatch("input", data="exit\r")
        self.assertEqual(self.exited(), 0)
        self.wait_until(lambda: not processes(mark))
        self.assertEqual(self.shell_host.close(), 0)

    def test_host_that_leaves_ends_its_terminals_first(self):
        mark = self.folder.name
        self.start_child(mark)
        self.assertEqual(self.shell_host.close(), 0)
        self.wait_until(lambda: not processes(mark))

    def test_killed_host_leaves_no_process(self):
        mark = self.folder.name
        self.start_child(mark)
        self.shell_host.kill()
        self.wait_until(lambda: not processes(mark))

    def test_command_of_a_user_reaches_the_command_prompt_as_it_is(self):
        prompt = self.folder / "cmd.exe"
        prompt.write_bytes(Path(AGENT).read_bytes())
        # Without PowerShell on the PATH, the shell is the command prompt. wine sets both variables itself.
        words = [AGENT, "--with", f"COMSPEC={own(prompt)}", own(AGENT), "--with", f"PATH={own(self.folder)}", own(PROGRAM)]
        process = started(*words, "--exclusive", "--ephemeral", cwd=self.folder)
        turn = {"type": "chat/turnStarted", "turnId": "t", "startedAt": STARTED_AT,
                "message": {"text": '!echo "a  b" & exit 5', "origin": {"kind": "user"}}}
        sent = [("initialize", {"channel": "ahp-root://", "clientId": "test", "protocolVersions": ["1.0.0"]}),
                ("createSession", {"channel": "test:/1"}), ("subscribe", {"channel": chat_of("test:/1")})]
        lines = [{"jsonrpc": "2.0", "id": at, "method": method, "params": params}
                 for at, (method, params) in enumerate(sent)]
        lines.append({"jsonrpc": "2.0", "method": "dispatchAction",
                      "params": {"channel": chat_of("test:/1"), "clientSeq": 1, "action": turn}})
        said, trouble = process.communicate("".join(json.dumps(line) + "\n" for line in lines).encode(), timeout=WITHIN)
        self.assertEqual(process.returncode, 0, trouble)
        [done] = [line for line in said.decode().splitlines() if '"chat/toolCallComplete"' in line]
        self.assertIn(r'"text":"\"a  b\"', done)
        self.assertIn('"exitCode":5', done)


if __name__ == "__main__":
    PROGRAM, AGENT = (str(Path(path).resolve()) for path in sys.argv[1:3])
    unittest.main(argv=["run.py", *sys.argv[3:]], verbosity=2)
