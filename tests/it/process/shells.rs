//! Shells in terminals, by the real program and a real shell.
//!
//! Owns: what only a terminal of the system's shows: the size that a program sees, its exit, and
//! its end with the host.
//! Never: depends on how what is printed is cut into actions.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use serde_json::{json, Value};

use super::terminal::{installed, make_home, Shell, TERMINAL};
use crate::support::{sidecar_on, skipped};

#[test]
fn shell_runs_in_a_terminal_until_it_exits() {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = Shell::opened(folder.path(), "a-shell-runs");
    shell.input("echo $((20+22)) $TERM; stty size; pwd\n");
    shell.until_shown("42 xterm-256color\r\n22 33\r\n/\r\n");
    shell.act(json!({ "type": "terminal/resized", "cols": 44, "rows": 11 }));
    // What is printed is text, wherever it is read: of half a character, the other half follows.
    shell.input("stty size; printf '\\303'; sleep 0.05; printf '\\244 \\377 end\\n'\n");
    shell.until_shown("11 44\r\nä \u{fffd} end\r\n");
    // More than is gathered, typed or told at once, and nothing is lost.
    shell.input("i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; echo all\"\" of it\n");
    shell.until_shown("all of it");
    let mut lines = shell.shown.split("line 0\r\n").nth(1).unwrap().split("\r\n");
    assert!((1..20_000).all(|number| lines.next() == Some(&format!("line {number}"))));
    // What a shell leaves running ends with it, also what has left its session.
    shell.input("setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 1; done' & exit 3\n");
    assert_eq!(shell.until_exited(), Some(3));
    shell.wait_for_processes(1);
    shell.dispose();
    shell.process.end();
    shell.process.rest();
    assert_eq!(shell.process.wait().code(), Some(0));
}

#[test]
fn killed_host_leaves_no_terminal_process_and_stores_no_terminal_content() {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = Shell::opened(folder.path(), "a-host-is-killed");
    let state = shell.ask("subscribe", json!({ "channel": "ahp-root://" }));
    let cursor = state["result"]["snapshot"]["fromSeq"].as_u64().unwrap();
    let stubborn = "sh -c 'trap \"\" TERM HUP INT; echo \"there $0\"; while :; do sleep 1; done'";
    shell.input(&format!("setsid {stubborn} one & {stubborn} two & echo hun\"\"ter2; {stubborn} three\n"));
    for text in ["there one", "there two", "there three", "hunter2"] {
        shell.until_shown(text);
    }
    shell.process.child.kill().unwrap();
    shell.process.wait();
    shell.wait_for_processes(0);
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        let kept = if path.is_file() { std::fs::read(&path).unwrap() } else { Vec::new() };
        assert!(memchr::memmem::find(&kept, b"hunter2").is_none(), "{}", path.display());
    }
    // Its client is told that it is gone.
    let mut shell = Shell::start(folder.path(), "the-host-after-it");
    let back = json!({ "channel": "ahp-root://", "clientId": "me", "lastSeenServerSeq": cursor,
        "subscriptions": ["ahp-root://", TERMINAL] });
    let answer = shell.ask("reconnect", back);
    let result = &answer["result"];
    assert_eq!((&result["type"], &result["missing"]), (&json!("replay"), &json!([TERMINAL])), "{result}");
    let last = result["actions"].as_array().unwrap().last().unwrap();
    assert_eq!(last["action"], json!({ "type": "root/terminalsChanged", "terminals": [] }));
}

#[test]
fn terminal_queries_are_answered_once_by_the_host() {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = Shell::opened(folder.path(), "a-program-asks");
    // What is answered is read without being shown, up to the last byte of it.
    let ask = |question: &str, answer: &str, last: &str| {
        format!(
            "stty raw -echo; printf 'ab{question}'; a=; while :; do c=$(dd bs=1 count=1 2>/dev/null); a=$a$c; [ \"$c\" = {last} ] && break; done; stty sane; \
             printf %s \"$a\" | od -An -c | tr -d ' \\n'; echo \" is {answer}\"\n"
        )
    };
    shell.input(&ask("\\r\\033[3C\\033[6n", "where", "R"));
    shell.until_shown(";4R is where");
    shell.input(&ask("\\033[c", "what", "c"));
    shell.until_shown("033[?62;22c is what");
    shell.input(&ask("\\033]11;?\\033\\\\", "behind", "'\\'"));
    shell.until_shown("033]11;rgb:1e1e/1e1e/1e1e033\\ is behind");
    assert!(!["\x1b[6n", "\x1b[c", "\x1b]11;?"].iter().any(|asked| shell.shown.contains(asked)));
    // Titles and directories are told.
    shell.input("printf '\\033]2;a title\\007\\033]7;file:///a%%20b\\007'\n");
    shell.until_action(|told| told["title"] == "a title");
    shell.until_action(|told| told["cwd"] == "file:///a%20b");
    // Without one it is the name of the program in front, when that prints nothing any more.
    shell.input("sleep 1000\n");
    if cfg!(target_os = "linux") {
        shell.until_action(|told| told["title"] == "sleep");
    }
}

#[test]
fn bash_integration_reports_command_lines_and_runs_user_files() {
    let Some(bash) = installed("bash") else { return };
    let (folder, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let rc = "PS1='<mine> '\nPROMPT_COMMAND='echo prompted $?'\nPS0='zero '\nalias hi='echo hello'\n[ -n \"$AHP_SIDECAR_SHELL_WORD\" ] && echo 'it leaks'\n";
    fs::write(home.path().join(".bashrc"), rc).unwrap();
    let mut shell = Shell::start_as(folder.path(), "bash-tells", bash, home.path()).open();
    shell.until_shown("<mine> ");
    shell.until_action(|told| told["type"] == "terminal/commandDetectionAvailable");
    let (line, code, shown) = shell.run("hi; false");
    assert_eq!((line.as_str(), code), ("hi; false", Some(1)));
    assert!(shown.contains("zero hello\r\n"), "{shown:?}");
    shell.until_shown("prompted 1\r\n");
    // More than one line, and what ends a sequence.
    let (line, code, _) = shell.run("cat <<'E'\rone; \\two\rE");
    assert_eq!((line.as_str(), code), ("cat <<'E'\none; \\two\nE", Some(0)));
    let (line, code, shown) = shell.run("(exit 7)");
    assert_eq!((line.as_str(), code), ("(exit 7)", Some(7)), "{shown:?}");
    let (line, _, _) = shell.run("printf 'a\\033b;c' > /dev/null");
    assert_eq!(line, "printf 'a\\033b;c' > /dev/null");
    // What is not to be remembered is not told, nor taken for what came before.
    shell.run("HISTCONTROL=ignoreboth");
    let (line, code, _) = shell.run(" true");
    assert_eq!((line.as_str(), code), ("", Some(0)));
    shell.run("HISTCONTROL=");
    assert_eq!(shell.run("true").0, "true");
    assert_eq!(shell.run("true").0, "true");
    // Directories are told as URIs.
    fs::create_dir(home.path().join("a b;ä")).unwrap();
    shell.run("cd ~/'a b;ä'");
    let told = shell.until_action(|told| told["cwd"].as_str().is_some_and(|cwd| cwd.ends_with("%A4")));
    assert!(told["cwd"].as_str().unwrap().ends_with("/a%20b%3B%C3%A4"), "{told}");
    // What a program prints is not taken for it, nor what another shell says inside; nobody there
    // knows the word.
    let before = shell.told.len();
    let (_, code, shown) = shell.run("printf '\\033]633;D;3\\007'; env | grep -c AHP_SIDECAR_SHELL; bash --norc -c 'echo $PROMPT_COMMAND'; false");
    let is_command =
        |told: &&Value| told["type"].as_str().is_some_and(|it| it.starts_with("terminal/command"));
    let told: Vec<_> = shell.told[before..].iter().filter(is_command).collect();
    assert_eq!((code, told.len()), (Some(1), 2), "{told:?}");
    assert!(shown.contains("\r\n0\r\n\r\n") || shown.contains("zero 0\r\n\r\n"), "{shown:?}");
    // A virtual environment changes the prompt and puts it back.
    shell.run("_OLD=$PS1; PS1=\"(venv) $PS1\"");
    shell.until_shown("(venv) <mine> ");
    let (_, _, shown) = shell.run("PS1=$_OLD; unset _OLD");
    assert!(!shown.contains("633"), "{shown:?}");
    assert!(!shell.shown.contains("it leaks") && !shell.shown.contains("\x1b]633"), "{:?}", shell.shown);
    shell.input("exit 3\r");
    shell.until_exited();
    let last = shell.told.last().unwrap();
    assert_eq!((&last["type"], last.get("exitCode")), (&json!("terminal/commandFinished"), None));
}

/// The exit code that is told of this line, which is typed once, whatever else is told meanwhile.
fn code_of(shell: &mut Shell, line: &str) -> Option<i64> {
    shell.enter(line);
    let begun = shell.until_action(|told| told["commandLine"] == line);
    let ended = shell.until_action(|told| {
        told["type"] == "terminal/commandFinished" && told["commandId"] == begun["commandId"]
    });
    ended["exitCode"].as_i64()
}

/// Paths that are not UTF-8 cannot be named in the scripts: then shells run as they are.
#[test]
fn shells_read_user_files_whatever_bytes_their_paths_have() {
    let name = OsStr::from_bytes(b"st\xffate");
    for (shell, file) in [("bash", ".bashrc"), ("zsh", ".zshrc")] {
        let Some(shell) = installed(shell) else { continue };
        let (folder, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(home.path().join(file), "PS1='<mi''ne> '; echo re''ad\n").unwrap();
        let mut shown = Shell::start_as(&folder.path().join(name), "odd-state", shell, home.path()).open();
        shown.until_shown("read\r\n");
    }
    let Some(zsh) = installed("zsh") else { return };
    let (folder, outer) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let users = outer.path().join(name);
    fs::create_dir(&users).unwrap();
    fs::write(users.join(".zshrc"), "PS1='<mi''ne> '; echo re''ad\n").unwrap();
    let mut command = sidecar_on(folder.path());
    command.env("ZDOTDIR", &users);
    let mut shown = Shell::start_by(command, "odd-zdotdir", zsh, outer.path()).open();
    shown.until_shown("read\r\n");
}

#[test]
fn bash_integration_survives_assignments_of_the_user() {
    let Some(bash) = installed("bash") else { return };
    let (folder, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    make_home(home.path());
    let mut shell = Shell::start_as(folder.path(), "bash-assigns", bash, home.path()).open();
    shell.until_prompted();
    // Before this release there is only one element.
    let (_, code, _) = shell.run("(( BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 501 ))");
    if code != Some(0) {
        return skipped("a bash that runs each element of PROMPT_COMMAND");
    }
    // A text sets the first element; what is there of the user's and works still does.
    assert_eq!(shell.run("PROMPT_COMMAND='echo text $?'").1, Some(0));
    shell.until("text 0\r\n");
    assert_eq!(shell.run("(exit 4)").1, Some(4));
    shell.until("text 4\r\n");
    // What is run first there may end in any way.
    assert_eq!(shell.run("PROMPT_COMMAND=\"false; $PROMPT_COMMAND\"").1, Some(0));
    assert_eq!(shell.run("(exit 5)").1, Some(5));
    shell.until("text 1\r\n");
    shell.until_prompted();
    // All of them at once: from the next line on.
    shell.enter("PROMPT_COMMAND=(true 'echo array $?')");
    shell.until_prompted();
    assert_eq!(code_of(&mut shell, "(exit 6)"), Some(6));
    shell.until("array 6\r\n");
    shell.until_prompted();
    shell.enter("unset PROMPT_COMMAND");
    shell.until_prompted();
    assert_eq!(code_of(&mut shell, "(exit 7)"), Some(7));
    // What is called before a line, and what changes how the scripts of ours are run.
    for changes in ["PS0=", "set -u", "IFS=0123456789", "set -e", "trap 'true' DEBUG"] {
        assert_eq!(shell.run(changes).1, Some(0));
        let (line, code, _) = shell.run("! true");
        assert_eq!((line.as_str(), code), ("! true", Some(1)), "{changes}");
    }
    // Another shell in its place says nothing, and is not taken for it.
    shell.enter("exec bash --norc");
    shell.enter("echo an\"\"other");
    shell.until("another\r\n");
    assert!(!shell.shown.contains("633;") && !shell.shown.contains("__ahp"), "{:?}", shell.shown);
}

#[test]
fn zsh_integration_survives_assignments_of_the_user() {
    let Some(zsh) = installed("zsh") else { return };
    let (folder, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(home.path().join(".zshrc"), "PS1='<mine> '\nunsetopt zle prompt_sp\n").unwrap();
    let mut shell = Shell::start_as(folder.path(), "zsh-assigns", zsh, home.path()).open();
    shell.until_prompted();
    shell.enter("precmd_functions=()");
    shell.until_prompted();
    assert_eq!(code_of(&mut shell, "(exit 4)"), Some(4));
    assert_eq!(shell.run("preexec_functions=()").1, Some(0));
    let (line, code, _) = shell.run("(exit 5)");
    assert_eq!((line.as_str(), code), ("(exit 5)", Some(5)));
    for changes in ["precmd() { echo mine $? }", "set -u", "IFS=0123456789", "PROMPT='<mine> '"] {
        assert_eq!(shell.run(changes).1, Some(0));
        assert_eq!(shell.run("(exit 6)").1, Some(6), "{changes}");
    }
    shell.until("mine 6\r\n");
}

#[test]
fn zsh_integration_reports_command_lines_and_runs_user_files() {
    let Some(zsh) = installed("zsh") else { return };
    let (folder, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(home.path().join(".zshenv"), "FROM_ENV=1\n").unwrap();
    let rc = "PS1='<mine> '\nunsetopt zle prompt_sp\nprecmd() { echo prompted $? $FROM_ENV }\nalias hi='echo hello'\n";
    fs::write(home.path().join(".zshrc"), rc).unwrap();
    let mut shell = Shell::start_as(folder.path(), "zsh-tells", zsh, home.path()).open();
    shell.until_shown("<mine> ");
    let (line, code, shown) = shell.run("hi; false");
    assert_eq!((line.as_str(), code), ("hi; false", Some(1)));
    assert!(shown.contains("hello\r\n"), "{shown:?}");
    shell.until_shown("prompted 1 1\r\n");
    assert_eq!(shell.run("echo 'a;\\b' ${ZDOTDIR-none}").0, "echo 'a;\\b' ${ZDOTDIR-none}");
    shell.until_shown(" none\r\n");
    shell.run("cd /tmp");
    shell.until_action(|told| told["cwd"] == "file:///tmp");
    assert_eq!(shell.run("(exit 7)").1, Some(7));
    assert_eq!(shell.run("env | grep -c AHP_SIDECAR_SHELL").1, Some(1));
    shell.run("setopt hist_ignore_space");
    let (line, code, _) = shell.run(" (exit 8)");
    assert_eq!((line.as_str(), code), ("", Some(8)), "the history does not keep it");
    assert!(!shell.shown.contains("\x1b]633"));
}

#[test]
fn fish_integration_reports_command_lines_and_runs_user_files() {
    let Some(fish) = installed("fish") else { return };
    let (folder, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let config = home.path().join(".config/fish");
    fs::create_dir_all(&config).unwrap();
    fs::write(
        config.join("config.fish"),
        "function fish_prompt; echo '<mine> '; end\nalias hi='echo hello'\n",
    )
    .unwrap();
    let mut shell = Shell::start_as(folder.path(), "fish-tells", fish, home.path()).open();
    shell.until_shown("<mine> ");
    let (line, code, shown) = shell.run("hi; false");
    assert_eq!((line.as_str(), code), ("hi; false", Some(1)), "{shown:?}");
    assert_eq!(shell.run("echo 'a;b' > /dev/null").0, "echo 'a;b' > /dev/null");
    shell.run("cd /tmp");
    shell.until_action(|told| told["cwd"] == "file:///tmp");
    assert_eq!(shell.run("env | grep -c AHP_SIDECAR_SHELL").1, Some(1));
    let (line, code, _) = shell.run(" false");
    assert_eq!((line.as_str(), code), ("", Some(1)), "the history does not keep it");
    assert!(!shell.shown.contains("\x1b]633"));
}

#[test]
fn long_command_line_is_truncated_and_its_report_is_not_shown() {
    for name in ["bash", "zsh", "fish"] {
        let Some(path) = installed(name) else { continue };
        let (folder, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        make_home(home.path());
        let mut shell = Shell::start_as(folder.path(), "a-long-line", path, home.path()).open();
        // Before that the system reads the line, which has no room for it; then it is pasted, which
        // no shell is slow with.
        shell.until_prompted();
        // Each of its characters is one that would end the sequence in which it is told.
        let line = format!(": '{}'", ";".repeat(16_100));
        let (told, code, _) = shell.run(&format!("\x1b[200~{line}\x1b[201~"));
        assert_eq!((told.as_str(), code), (&line[..16_000], Some(0)), "{name}");
        assert!(!shell.shown.contains("633;"), "{name}");
    }
}

#[test]
fn shell_redirected_to_a_file_still_reports_lines_without_leaking_the_nonce() {
    for (name, first, last) in [
        ("bash", "exec 2> ~/file", "exec 2> /dev/tty"),
        ("bash", "exec > ~/file 2>&1", "exec > /dev/tty 2>&1"),
        ("zsh", "exec > ~/file", "exec > /dev/tty"),
    ] {
        let Some(path) = installed(name) else { continue };
        let (folder, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        make_home(home.path());
        let mut shell = Shell::start_as(folder.path(), "a-file-instead", path, home.path()).open();
        shell.until_prompted();
        shell.enter(first);
        shell.until_action(|told| told["commandLine"] == first);
        assert_eq!(code_of(&mut shell, "(exit 4)"), Some(4), "{name}");
        assert_eq!(code_of(&mut shell, last), Some(0), "{name}");
        assert_eq!(code_of(&mut shell, "(exit 5)"), Some(5), "{name}");
        // Each mark that the host takes has the word behind the last semicolon.
        let file = String::from_utf8_lossy(&fs::read(home.path().join("file")).unwrap()).into_owned();
        let marks = file.split("\x1b]633;").skip(1).map(|mark| mark.split('\x07').next().unwrap());
        assert!(marks.clone().all(|mark| mark == "X"), "{name} {file:?}");
    }
}
