"""What somebody does with VS Code and this host, and what must be on the screen then.

Each scene is a function of a stage (run.py): it opens its own windows and makes its own sessions, which it tells apart
by what their first message says, since that is their title.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

from workbench import DIFF, INPUT, OUTPUT, PERMISSION, SESSION

SCENES = {}
# A small MCP server.
SERVER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "it", "acp", "mcp_server.py")


def scene(act):
    SCENES[act.__name__] = act
    return act


def question(**more):
    return {"id": more["message"], "required": True, **more}


def ask(*questions):
    return "/question " + json.dumps(questions, separators=(",", ":"))


def options(*labels):
    return [{"id": label.lower(), "label": label} for label in labels]


@scene
def choose_an_agent_and_a_model(stage):
    window = stage.window("Script")
    models = window.models()
    assert models[0] and models[0] in models[1:], f"the models are {models}"


@scene
def send_and_read(stage):
    window = stage.window("Script")
    window.send("/say send and read\n/think a thought\n/tool look {\"at\":\"this\"}\n/say the end")
    window.responds("send and read", "the end")
    window.idle()
    window.lists("send and read", "Completed")


@scene
def a_recorded_conversation_replays(stage):
    # The host to which it is replayed has no sessions either.
    stage.host.forget()
    # A folder outside of any repository: the host scans one on its own, at its own pace.
    folder = stage.over.enter_context(tempfile.TemporaryDirectory())
    transcript = os.path.join(os.path.dirname(stage.repository), "conversation.txt")
    with stage.host.recorded(transcript):
        window = stage.window("Script", folder=folder)
        window.send("/say recorded\n/ask allow {\"this\":1}\n" +
                    ask(question(kind="single-select", message="Which?", options=options("Apple", "Pear")),
                        question(kind="text", message="Why?")) + "\n/say chosen")
        window.press("Allow once")
        window.answer("Which?", choices=["Pear"])
        window.answer("Why?", "because")
        window.submit()
        window.responds("chosen")
        window.idle()
        window.send("/think again\n/tool look {\"at\":\"this\"}\n/say the end")
        window.responds("the end")
        window.idle()
        window.lists("recorded", "Completed")
        window.close()
    with open(transcript) as opened:
        spoken = opened.read()
    for said in ("> {", "chat/toolCallConfirmed", "chat/inputCompleted", "the end"):
        assert said in spoken, f"`{said}` is not in {transcript}"
    status, report = stage.host.replayed(transcript)
    assert status == 0, report
    # A host that says something else is noticed.
    with open(transcript, "w") as opened:
        opened.write(spoken.replace("the end", "another end", spoken.count("the end") - 1))
    status, report = stage.host.replayed(transcript)
    assert status == 20 and "another end" in report, report


@scene
def a_session_works_in_the_folder_of_its_window(stage):
    # Sent before VS Code has made a session ahead, too.
    window = stage.window()
    window.choose("Script")
    window.send("/say works there")
    window.responds("works there")
    client = stage.client()
    session = client.titled("/say works there")
    assert client.state(session)["workingDirectories"] == ["file://" + stage.repository], session


@scene
def messages_of_one_turn_are_apart(stage):
    window = stage.window("Script")
    window.send("/say apart\n/say of it")
    window.responds("of it")
    assert "apartof" not in window.response(), window.response()


@scene
def stream_and_cancel(stage):
    window = stage.window("Script")
    window.send("/stream 1000000 10 20")
    lengths = set()

    def grows():
        lengths.add(len(window.response()))
        return len(lengths) > 3

    window.until("a response that grows", grows)
    window.cancel()
    window.idle()
    assert "0123456789" in window.response()
    window.send("/say and on")
    window.responds("and on")


@scene
def allow_and_refuse(stage):
    window = stage.window("Script")
    window.send("/ask allow {\"this\":1}\n/say first done\n/ask refuse {\"that\":2}\n/say second done")
    window.press("Allow once")
    window.responds("first done")
    window.press("Reject")
    window.responds("second done")
    window.idle()
    window.lists('/ask allow {"this":1}', "Completed")


@scene
def an_agent_goes_on_by_itself(stage):
    window = stage.window("Script")
    window.send("/say goes on\n/later 1500 /say by itself\\n/ask rm {\"this\":1}\\n/say all done")
    window.responds("goes on")
    window.shows("The agent continues by itself.")
    window.responds("by itself")
    window.press("Allow once")
    window.responds("all done")
    window.idle()
    window.send("/say and then")
    window.responds("and then")


@scene
def answer_each_kind_of_question(stage):
    window = stage.window("Script")
    window.send(ask(question(kind="number", message="How many?"),
                    question(kind="integer", message="How many whole?"),
                    question(kind="single-select", message="Which?", options=options("Apple", "Pear")),
                    question(kind="single-select", message="Which else?", options=options("Apple", "Pear")),
                    question(kind="multi-select", message="Which ones?", options=options("Red", "Green", "Blue")),
                    question(kind="boolean", message="Really?"),
                    question(kind="text", message="Why?")) + "\n/say all answered")
    window.answer("How many?", "2.5")
    window.answer("How many whole?", "7")
    window.answer("Which?", choices=["Pear"])
    window.answer("Which else?", "Quince")
    window.answer("Which ones?", choices=["Red", "Blue"])
    window.answer("Really?", choices=["False"])
    window.answer("Why?", "because of it")
    window.submit()
    window.responds("all answered")
    response = window.response()
    for said in ("2.5", "7", "pear", "Quince", "red", "blue", "false", "because of it"):
        assert said in response, f"`{said}` is not in {response}"


@scene
def a_number_that_is_none_is_asked_again(stage):
    window = stage.window("Script")
    window.send(ask(question(kind="number", message="Asked again?")) + "\n/say answered at last")
    window.answer("Asked again?", "nine")
    window.submit()
    window.until("the question with what was answered to it being gone",
                 lambda: "nine" not in [field.input_value() for field in window.page.locator(
                     ".chat-question-carousel-container input.input").all()])
    window.answer("Asked again?", "9")
    window.submit()
    window.responds("answered at last")


@scene
def steer(stage):
    window = stage.window("Script")
    window.send("/say steer\n/hang")
    window.responds("steer")
    window.send("to the left")
    # The script says it back.
    window.responds("to the left")
    window.cancel()
    window.idle()


@scene
def queue(stage):
    window = stage.window("Script")
    window.send("/say queue\n/hang")
    window.responds("queue")
    window.send("the next one", key="Alt+Enter")
    window.shows("the next one")
    window.running()
    window.cancel()
    window.responds("the next one")
    window.idle()


@scene
def fail_and_try_again(stage):
    window = stage.window("Script")
    window.send("/say fail\n/error-resumable it is broken\n/say it is whole")
    window.responds("it is broken")
    window.press("Try Again")
    window.responds("it is whole")
    window.idle()


@scene
def an_agent_that_does_not_start_says_why(stage):
    window = stage.window("Broken")
    window.send("say anything")
    window.responds("not installed")
    window.idle()


@scene
def rename(stage):
    window = stage.window("Script")
    window.send("/say to be renamed")
    window.responds("to be renamed")
    window.idle()
    window.rename("/say to be renamed", "Another name")
    window.lists("Another name")
    window.reload()
    window.lists("Another name")


@scene
def a_window_that_is_only_opened_leaves_nothing(stage):
    window = stage.window("Script")
    window.reload()
    window.choose("Script")
    window.send("/say the only row")
    window.responds("the only row")
    window.idle()
    window.lists("the only row", "Completed")
    rows = window.sessions()
    assert not any("New Session" in row for row in rows), rows
    assert sum("the only row" in row for row in rows) == 1, rows


@scene
def load_the_window_anew_in_mid_turn(stage):
    window = stage.window("Script")
    window.send("/say loaded anew\n/hang")
    window.responds("loaded anew")
    window.reload()
    window.open("loaded anew")
    window.responds("loaded anew")
    window.cancel()
    window.idle()


@scene
def a_permission_waits_while_the_window_is_loaded_anew(stage):
    window = stage.window("Script")
    window.send("/say asked anew\n/ask further\n/say to the end")
    window.until("the permission", lambda: "Allow once" in window.chat())
    window.reload()
    window.open("asked anew")
    window.press("Allow once")
    window.responds("to the end")
    window.idle()


@scene
def the_host_is_killed_in_mid_turn(stage):
    window = stage.window("Script")
    window.send("/say killed\n/hang")
    window.responds("killed")
    stage.host.kill()
    stage.host.start()
    window.until("the end of the turn by an error", lambda: "ended during the turn" in window.response())
    assert "killed" in window.response(), window.response()
    window.idle()
    window.send("/say it goes on")
    window.responds("it goes on")


@scene
def a_host_that_has_forgotten_everything_is_spoken_to_again(stage):
    window = stage.window("Script")
    window.send("/say forgotten")
    window.responds("forgotten")
    window.idle()
    stage.host.forget()
    window.choose("Script")
    window.send("/say a new life")
    window.responds("a new life")
    window.lists("/say a new life", "Completed")


@scene
def what_ended_while_the_network_was_gone_is_shown(stage):
    window = stage.window("Script")
    window.send("/say network\n/ask further\n/say it is over")
    window.responds("network")
    window.until("that it waits, in the list of sessions",
                 lambda: "Input needed" in window.text(f"{SESSION}:has-text('/say network')"))
    client = stage.client()
    chat = client.follow(client.titled("/say network"))
    stage.host.tap.cut()
    client.allow(chat)
    client.until("chat/turnComplete")
    window.responds("it is over")
    window.lists("/say network", "Completed")


@scene
def two_windows_on_one_session(stage):
    first, second = stage.window("Script"), stage.window()
    first.send("/say two windows\n/ask both\n/say seen by both")
    first.responds("two windows")
    second.open("two windows")
    second.responds("two windows")
    second.press("Allow once")
    for window in (first, second):
        window.responds("seen by both")
        window.idle()
    second.send("/say from the other one")
    for window in (first, second):
        window.responds("from the other one")
    first.rename("/say two windows", "Two panes")
    second.lists("Two panes")


@scene
def a_session_of_another_client_is_shown(stage):
    window = stage.window()
    client = stage.official("ahp-session:/made-elsewhere", "script",
                            "/say made elsewhere\n/ask here\n/say answered here")
    window.open("made elsewhere")
    window.responds("made elsewhere")
    window.press("Allow once")
    window.responds("answered here")
    client.until("chat/turnComplete")
    window.send("/say written here")
    window.responds("written here")
    assert client.until("chat/turnStarted")["message"]["text"] == "/say written here"


@scene
def a_real_agent_edits_a_file(stage):
    window = stage.window("opencode")
    file = os.path.join(stage.repository, "edited.txt")
    with open(file, "w") as opened:
        opened.write("alpha\nbeta\ngamma\n")
    edit = {"filePath": file, "oldString": "beta", "newString": "delta"}
    window.send("SAY edits a file\nTOOL edit " + json.dumps(edit))
    window.until("the file's name in the permission", lambda: "edited.txt" in window.text(PERMISSION))
    assert "1 file changed" in window.text(PERMISSION), window.text(PERMISSION)
    window.page.locator(f"{PERMISSION} .codicon-diff-multiple").last.click()
    window.shows_texts(DIFF, "alpha", "beta", "delta")
    window.press("Allow")
    window.responds("The tool said")
    window.idle()
    with open(file) as opened:
        assert opened.read() == "alpha\ndelta\ngamma\n"
    window.reload()
    window.open("edits a file")
    window.responds("The tool said")
    assert "edited.txt" in window.chat(), window.chat()


@scene
def a_real_agent_runs_a_command(stage):
    window = stage.window("opencode")
    window.send('SAY runs a command\nTOOL bash {"command":"echo from the $((40+2)) shell","description":"Says it"}')
    window.until("the command", lambda: "echo from the" in window.chat())
    window.press("Allow")
    window.responds("from the 42 shell")
    window.idle()
    # VS Code says settings of its own with each session.
    assert "did not accept" not in window.chat(), window.chat()
    assert window.models()[0] not in ("", "Default"), window.models()


@scene
def servers_of_the_host_are_shown_and_switched(stage):
    window = stage.window("opencode")

    def call(*wanted):
        window.send("TOOL local_length {}\nSAY it said {result}")
        window.responds(*wanted)
        window.idle()

    call("it said a key of 0")
    window.server("local", ["Running"], "Disable (Session)")
    window.server("local", ["Disabled"], None)
    client = stage.client()
    session = client.titled("TOOL local_length {}")
    of_session = lambda: next(one for one in client.state(session)["customizations"] if one["name"] == "local")
    assert of_session()["enablement"] == [{"kind": "session", "enabled": False}], of_session()
    call("no tool 'local_length'")
    window.server("local", ["Disabled"], "Enable (Session)")
    call("it said a key of 0")
    # What is decided for the workspace holds in its next session, but not where the session has a decision of its own.
    window.server("local", ["Running"], "Disable (Workspace)")
    window.server("local", ["Running"], None)
    other = stage.window("opencode")
    other.send("SAY the next one\nTOOL local_length {}")
    other.responds("no tool 'local_length'")
    other.idle()
    other.server("local", ["Disabled"], "Enable (Workspace)")
    other.send("SAY once more\nTOOL local_length {}")
    other.responds("a key of 0")
    other.idle()


@scene
def a_server_of_the_workspace_reaches_the_agent(stage):
    # VS Code publishes its own servers as a plugin, whose files it serves itself.
    port = os.path.join(stage.over.enter_context(tempfile.TemporaryDirectory()), "port")
    served = subprocess.Popen([sys.executable, SERVER, "--http", port])
    stage.over.callback(served.wait)
    stage.over.callback(served.kill)
    while not os.path.exists(port):
        assert served.poll() is None
        time.sleep(0.05)
    with open(port) as opened:
        servers = {"servers": {"brush": {"type": "http", "url": f"http://127.0.0.1:{opened.read()}/mcp"}}}
    folder = os.path.join(stage.repository, ".vscode")
    os.makedirs(folder)
    stage.over.callback(shutil.rmtree, folder)
    with open(os.path.join(folder, "mcp.json"), "w") as opened:
        json.dump(servers, opened)
    window = stage.window("opencode")
    window.send("SAY paints")
    window.responds("paints")
    window.idle()
    window.send("TOOL brush_length {}\nSAY it said {result}")
    window.responds("it said a key of 0")
    window.idle()
    window.server("brush", ["Running"], None)


@scene
def a_file_is_offered_and_attached(stage):
    window = stage.window("Script")
    client = stage.client()
    for mark in "#@":
        window.complete(f"see {mark}a", "a.txt")
        window.until("the file's name in the message", lambda: f"{mark}a.txt" in window.text(INPUT))
        window.send_typed()
        window.responds(f"see {mark}a.txt")
        window.idle()
    turns = client.state(client.follow(client.titled("see #a.txt")))["turns"]
    file = "file://" + os.path.join(stage.repository, "a.txt")
    assert [turn["message"]["attachments"][0]["uri"] for turn in turns] == [file, file], turns


@scene
def what_a_turn_has_changed_is_shown_and_opened(stage):
    window = stage.window("Script")
    window.send("/say changes files\n/files a.txt=changed-here new.txt=three\n/say changed them")
    window.responds("changed them")
    window.idle()
    window.shows_difference("2 files changed", "a.txt", "alpha", "changed-here")
    stage.host.kill()
    stage.host.start()
    window.reload()
    window.open("changes files")
    window.responds("changed them")
    window.shows_difference("2 files changed", "a.txt", "alpha", "changed-here")


def git(stage, *arguments):
    """Runs git in the folder, as a user who has said who that is."""
    command = ["git", "-C", stage.repository, "-c", "user.name=Ada", "-c", "user.email=ada@example.org", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def changes_all(stage, name):
    """A session that has changed what was committed, by a tool and by commands; gives back both sides of each file."""
    lines = f"of {name}\ntwo\nthree\n"
    for file in ("away", "made", "shell"):
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(stage.repository, f"{file}.txt"))
    for file in ("kept", "gone", "moved"):
        with open(os.path.join(stage.repository, f"{file}.txt"), "w") as opened:
            opened.write(f"{file} {lines}")
    git(stage, "add", "--all")
    git(stage, "commit", "--quiet", "--message", name)
    window = stage.window("Script")
    commands = "rm gone.txt; mv moved.txt away.txt; echo by a command > shell.txt"
    window.send(f"/say {name}\n/files kept.txt=by-a-tool made.txt=new\n/pty {commands}\n/say done with it")
    window.responds("done with it")
    window.idle()
    window.changed("5 Files +3 -6")
    return window, {
        "kept.txt": (f"kept {lines}", "by-a-tool\n"), "made.txt": ("", "new\n"), "gone.txt": (f"gone {lines}", ""),
        "away.txt": (f"moved {lines}", f"moved {lines}"), "shell.txt": ("", "by a command\n"),
    }


@scene
def all_that_is_changed_is_shown_and_opened(stage):
    window, changes = changes_all(stage, "changes all")
    window.opens_changes(changes)
    window.reload()
    window.open("changes all")
    window.changed("5 Files +3 -6")
    window.opens_changes(changes)
    stage.host.kill()
    stage.host.start()
    window.reload()
    window.open("changes all")
    window.changed("5 Files +3 -6")
    window.opens_changes(changes)
    # By somebody's own hand, while the list is open.
    with open(os.path.join(stage.repository, "kept.txt"), "w") as opened:
        opened.write("by hand\nand more\n")
    window.changed("5 Files +4 -6")
    window.opens_changes({**changes, "kept.txt": (changes["kept.txt"][0], "by hand\nand more\n")})
    window.open_changed("kept.txt", "by hand")


@scene
def what_another_client_takes_back_and_commits_is_shown(stage):
    window, changes = changes_all(stage, "takes back")
    client = stage.client()
    session = client.titled("/say takes back")
    kept = os.path.join(stage.repository, "kept.txt")
    client.changes(session, "uncommitted", "discard-changes", "file://" + kept)
    window.changed("4 Files +2 -3")
    with open(kept) as opened:
        assert opened.read() == changes.pop("kept.txt")[0]
    window.opens_changes(changes)
    client.changes(session, "uncommitted", "discard-changes")
    window.changed()
    assert not git(stage, "status", "--porcelain"), git(stage, "status", "--porcelain")
    client.changes(session, "uncommitted", "restore-changes")
    window.changed("4 Files +2 -3")
    window.opens_changes(changes)
    git(stage, "config", "user.name", "Ada")
    git(stage, "config", "user.email", "ada@example.org")
    client.changes(session, "uncommitted", "commit")
    window.changed()
    assert git(stage, "log", "-1", "--format=%an: %B").strip() == "Ada: /say takes back", git(stage, "log", "-1")
    assert not git(stage, "status", "--porcelain"), git(stage, "status", "--porcelain")


@scene
def a_restored_checkpoint_takes_back_what_calls_have_changed(stage):
    window, changes = changes_all(stage, "goes back")
    by_command = os.path.join(stage.repository, "by-command.txt")
    window.send("/files later.txt=later made.txt=again kept.txt=\n/pty echo x > by-command.txt\n/say changed later")
    window.responds("changed later")
    window.idle()
    window.changed("7 Files +4 -6")
    window.restore()
    # What commands have changed is not known to it.
    window.changed("6 Files +4 -6")
    window.opens_changes({**changes, "by-command.txt": ("", "x\n")})
    window.send("/say another way")
    window.responds("another way")
    window.idle()
    assert "changed later" not in window.chat(), window.chat()
    # The host can take it back as well, but does not do so by itself.
    client = stage.client()
    client.changes(client.titled("/say goes back"), "session", "discard-changes", "file://" + by_command)
    window.changed("5 Files +3 -6")
    window.opens_changes(changes)


@scene
def a_comment_that_is_attached_is_shown(stage):
    window, _ = changes_all(stage, "comments")
    client = stage.client()
    session = client.titled("/say comments")
    comments, chat = f"{session}/annotations", client.follow(session)
    line = {"line": 0, "character": 0}
    comment = {"id": "c", "origin": {"session": session}, "resource": f"file://{stage.repository}/kept.txt",
               "range": {"start": line, "end": line}, "resolved": False, "entries": [{"id": "e", "text": "Why so?"}]}
    client.dispatch(comments, type="annotations/set", annotation=comment)
    attached = {"type": "annotations", "label": "1 comment", "resource": comments, "annotationIds": ["c"]}
    client.dispatch(chat, type="chat/turnStarted", turnId="commented", message={
        "text": "/say it is seen", "origin": {"kind": "user"}, "attachments": [attached]})
    client.until("chat/turnComplete")
    window.responds("it is seen")
    window.shows("1 comment")
    window.reload()
    window.open("comments")
    window.responds("it is seen")
    window.shows("1 comment")
    assert client.state(comments)["annotations"] == [comment], client.state(comments)


@scene
def what_an_agent_runs_is_a_terminal_to_type_into(stage):
    window = stage.window("Script")
    window.send("/say runs a program\n/pty read word; echo it was $word\n/say it is over")
    window.open_terminal()
    window.type_into_terminal("typed-here")
    window.responds("it is over")
    window.idle()
    client = stage.client()
    chat = client.follow(client.titled("/say runs a program"))
    assert "it was typed-here" in json.dumps(client.state(chat)["turns"]), client.state(chat)


@scene
def a_terminal_of_the_host_is_opened(stage):
    window = stage.window("Script")
    window.send("/say opens the panel\n/pty read word; echo it was $word\n/say closed")
    # Its button is where terminals are.
    window.open_terminal()
    window.new_terminal("Agent Host (Local)")
    written = os.path.join(stage.repository, "from-terminal.txt")
    window.type_into_terminal(f"echo $((40+2)) > {written}")
    window.until("what was typed being done", lambda: os.path.exists(written) and open(written).read() == "42\n")
    client = stage.client()
    terminals = client.state("ahp-root://")["terminals"]
    assert [one["lifecycle"]["status"] for one in terminals] == ["running"], terminals
    window.type_into_terminal("exit")
    # VS Code disposes of it when its shell has ended: what is told first may be that it is gone.
    is_running = lambda one: one["lifecycle"]["status"] == "running"
    while any(map(is_running, client.until("root/terminalsChanged")["terminals"])):
        pass
    window.cancel()
    window.idle()


@scene
def an_extension_carries_the_program(stage):
    window = stage.window()
    for message in ("/say first", "/say second"):
        window.command("AHP Sidecar Example: Ask an agent", "Message to the agent", message)
        window.shows_texts(OUTPUT, f"> {message}\n{message.removeprefix('/say ')}")
