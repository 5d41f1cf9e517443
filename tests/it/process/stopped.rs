//! A window in a terminal, as a job of a shell that can be stopped.
//!
//! Owns: for whom is what is typed, and what is printed meanwhile.
//! Never: depends on how long a shell takes to have a line.

use std::path::Path;

use super::terminal::{installed, make_home, Shell};
use crate::support::window_on;
use crate::windows::{check_no_leftovers, state};

/// Number of lines typed to the shell.
const LINES: usize = 6;

/// A shell, and a window in it that is served on this folder.
fn window_in_a_shell(bash: &Path, host: &Path, folder: &Path, cookie: &str) -> Shell {
    let home = host.join("home");
    std::fs::create_dir_all(&home).unwrap();
    make_home(&home);
    let mut shell = Shell::start_as(&host.join("shells"), cookie, bash, &home).open();
    shell.until_prompted();
    // A shell that leaves the terminal's mode alone: whoever reads next has the line that is typed
    // next.
    shell.enter("exec bash --norc --noediting -i");
    shell.until_prompted();
    shell.enter("stty -echo");
    shell.until_prompted();
    let command = window_on(folder);
    let words: Vec<_> = std::iter::once(command.get_program()).chain(command.get_args()).collect();
    let line: Vec<_> = words.iter().map(|word| word.to_str().unwrap()).collect();
    shell.enter(&line.join(" "));
    is_served(&mut shell, 1);
    shell
}

/// Checks that the window receives the typed request.
fn is_served(shell: &mut Shell, id: usize) {
    shell.enter(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping","params":{{}}}}"#));
    shell.until(&format!(r#""id":{id},"result":null"#));
}

#[test]
fn stopped_window_does_not_read_the_input_of_its_shell() {
    let Some(bash) = installed("bash") else { return };
    let (outer, folder) = state();
    let mut shell = window_in_a_shell(bash, outer.path(), &folder, "stopped-window");
    for round in 1..=2 {
        shell.input("\x1a");
        shell.until("Stopped");
        shell.until_prompted();
        for line in 0..LINES {
            shell.enter(&format!("echo round-{round}-$(({line} + 100))"));
            shell.until(&format!("round-{round}-{}", line + 100));
        }
        shell.until_prompted();
        // In the background it waits for the terminal, too.
        shell.enter("bg");
        for line in 0..LINES {
            shell.enter(&format!("echo behind-{round}-$(({line} + 100))"));
            shell.until(&format!("behind-{round}-{}", line + 100));
        }
        shell.enter("fg");
        is_served(&mut shell, round + 1);
    }
    // Its input ends as that of any job does.
    shell.input("\x04");
    shell.until_prompted();
    shell.enter("echo status-$?");
    shell.until("status-0");
    shell.dispose();
    check_no_leftovers(&folder);
}

#[test]
fn window_in_a_terminal_prints_all_output_before_it_exits() {
    let Some(bash) = installed("bash") else { return };
    let (outer, folder) = state();
    let mut shell = window_in_a_shell(bash, outer.path(), &folder, "printing-window");
    let said = [
        r#"{"jsonrpc":"2.0","id":5,"method":"initialize","params":{"clientId":"me","protocolVersions":["1.0.0"]}}"#,
        r#"{"jsonrpc":"2.0","id":6,"method":"createSession","params":{"channel":"ahp-session:/1"}}"#,
        r#"{"jsonrpc":"2.0","id":7,"method":"subscribe","params":{"channel":"ahp-chat://default/YWhwLXNlc3Npb246LzE"}}"#,
        r#"{"jsonrpc":"2.0","method":"dispatchAction","params":{"channel":"ahp-chat://default/YWhwLXNlc3Npb246LzE","clientSeq":1,"action":{"type":"chat/turnStarted","turnId":"t","message":{"text":"/stream 500 100 1","origin":{"kind":"user"}}}}}"#,
    ];
    for line in said {
        shell.enter(line);
    }
    shell.input("\x04");
    shell.until("chat/turnComplete");
    shell.until_prompted();
    shell.enter("echo status-$?");
    shell.until("status-0");
    shell.dispose();
    check_no_leftovers(&folder);
}
