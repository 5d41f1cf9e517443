//! Programs of every kind in the terminals of every shell: none hangs, none is left, and nothing of
//! what they print is lost.
//!
//! Owns: a table of what people do in terminals, and going through it with each shell, in a
//! terminal of its own each time. After each, what a client was told leads to what whoever asks now
//! is told, and no process is left but the host.
//! Never: tests what a program or a shell does beyond that it is the one that was asked for.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::terminal::{installed, make_home, Shell};
use crate::support::skipped;

/// Number of lines in the file that a pager shows.
const LINES: usize = 1000;

/// Bytes printed at once.
const MUCH_BYTES: usize = 1 << 20;

/// Bytes printed by the largest test, unless `TERMINAL_BYTES` is set.
const VERY_MUCH_BYTES: usize = 8 << 20;

/// Bytes read of an endless output before its program is interrupted.
const ENDLESS_BYTES: usize = 1 << 20;

/// Number of resizes in each shell, unless `TERMINAL_RESIZES` is set, and in the plainest one.
const RESIZES: usize = 1_000;
const MANY_RESIZES: usize = 10_000;

/// One shell, and where its programs work.
struct Stage {
    shell: Shell,
    name: &'static str,
    place: PathBuf,
}

impl Stage {
    /// Tells whether the shell reports its commands.
    fn tells_commands(&self) -> bool {
        self.name != "dash"
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.join(name)
    }

    /// Returns the number of command lines reported.
    fn lines_run(&self) -> usize {
        self.shell.told.iter().filter(|told| told["type"] == "terminal/commandExecuted").count()
    }

    /// How the line has ended that was run last: the code that was told.
    fn last_code(&self) -> Option<i64> {
        let finished = self.shell.told.iter().rev().find(|told| told["type"] == "terminal/commandFinished");
        finished.and_then(|told| told["exitCode"].as_i64())
    }
}

/// Scenario in a terminal whose shell waits for a line.
type Scene = fn(&mut Stage);

/// Scenarios: the programs that each needs, its name, and its function.
const SCENES: [(&[&str], &str, Scene); 16] = [
    (&["vim"], "vim", an_editor),
    (&["less"], "less", a_pager),
    (&["top"], "top", redrawing_program),
    (&["python3"], "python", an_interpreter),
    (&[], "shell", a_shell_inside),
    (&["script"], "elsewhere", a_shell_in_a_terminal_inside),
    (&[], "heredoc", here_document),
    (&[], "lines", a_command_of_several_lines),
    (&[], "exec", a_program_in_the_place_of_the_shell),
    (&[], "background", a_job_in_the_background),
    (&["setsid"], "stubborn", stubborn_programs),
    (&["yes"], "yes", endless_output),
    (&[], "much", a_file_of_many_lines),
    (&[], "garbage", binary_output),
    (&[], "halves", characters_in_two_halves),
    (&[], "resizes", |stage| resize(stage, asked_for("TERMINAL_RESIZES", RESIZES))),
];

fn an_editor(stage: &mut Stage) {
    let shell = &mut stage.shell;
    shell.enter("vim -u NONE -i NONE -n -N note");
    shell.until("\x1b[?1049h");
    shell.until("[New");
    shell.input("ihello ä\x1b");
    shell.input(":wq\r");
    shell.until("\x1b[?1049l");
    shell.until_prompted();
    assert_eq!(fs::read_to_string(stage.path("note")).unwrap(), "hello ä\n");
}

fn a_pager(stage: &mut Stage) {
    let lines: String = (1..=LINES).map(|line| format!("line {line}\n")).collect();
    fs::write(stage.path("lines"), lines).unwrap();
    let shell = &mut stage.shell;
    shell.enter("less lines");
    shell.until("line 7");
    shell.input("G");
    shell.until(&format!("line {LINES}"));
    shell.input("q");
    shell.until_prompted();
}

fn redrawing_program(stage: &mut Stage) {
    let shell = &mut stage.shell;
    shell.enter("top");
    shell.until("load average");
    shell.input("q");
    shell.until_prompted();
}

fn an_interpreter(stage: &mut Stage) {
    let shell = &mut stage.shell;
    shell.enter("python3 -q");
    shell.until(">>> ");
    shell.enter("print('é', 6*7)");
    shell.until("é 42\r\n");
    shell.until(">>> ");
    shell.enter("exit(3)");
    shell.until_prompted();
}

fn a_shell_inside(stage: &mut Stage) {
    let before = stage.lines_run();
    let shell = &mut stage.shell;
    shell.enter("sh");
    shell.until_prompted();
    shell.enter("echo in\"\"ner");
    shell.until("inner\r\n");
    shell.until_prompted();
    shell.enter("exit 4");
    shell.until_prompted();
    if stage.tells_commands() {
        // What the other shell runs is part of what the one prints that runs it.
        assert_eq!((stage.lines_run() - before, stage.last_code()), (1, Some(4)));
    }
}

/// As by `ssh`: what is inside has a terminal of its own, and the one outside passes everything on.
fn a_shell_in_a_terminal_inside(stage: &mut Stage) {
    let shell = &mut stage.shell;
    shell.enter("script -qc \"PS1='in''side: ' sh\" /dev/null");
    shell.until("inside: ");
    shell.enter("stty size; echo el\"\"sewhere");
    shell.until("24 80\r\nelsewhere\r\n");
    shell.until("inside: ");
    shell.enter("exit");
    shell.until_prompted();
}

fn here_document(stage: &mut Stage) {
    let before = stage.lines_run();
    let shell = &mut stage.shell;
    if stage.name == "fish" {
        // It has no such thing, but texts of several lines.
        shell.enter("echo 'one'\" 2\r\ntwo\"");
    } else {
        shell.enter("cat <<E\rone $((1 + 1))\rtwo\rE");
    }
    shell.until("one 2\r\n");
    shell.until("two\r\n");
    shell.until_prompted();
    if stage.tells_commands() {
        assert_eq!(stage.lines_run() - before, 1);
    }
}

fn a_command_of_several_lines(stage: &mut Stage) {
    let before = stage.lines_run();
    let shell = &mut stage.shell;
    let (begin, end) = if stage.name == "fish" { ("", "end") } else { ("do\r", "done") };
    shell.enter(&format!("for i in 1 2 3\r{begin}echo multi-$i\r{end}"));
    for number in 1..=3 {
        shell.until(&format!("multi-{number}\r\n"));
    }
    shell.until_prompted();
    if stage.tells_commands() {
        assert_eq!((stage.lines_run() - before, stage.last_code()), (1, Some(0)));
    }
}

fn a_program_in_the_place_of_the_shell(stage: &mut Stage) {
    let shell = &mut stage.shell;
    shell.enter("exec sh -c 'echo in its\"\" place; read x; exit 5'");
    shell.until("in its place\r\n");
    shell.enter("");
    assert_eq!(shell.until_exited(), Some(5));
}

fn a_job_in_the_background(stage: &mut Stage) {
    let shell = &mut stage.shell;
    shell.enter("sleep 1000 &");
    shell.until_prompted();
    shell.enter("echo goes\"\" on");
    shell.until("goes on\r\n");
    shell.until_prompted();
    shell.enter("exit 3");
    // Some say first that something runs.
    shell.enter("exit 3");
    assert_eq!(shell.until_exited(), Some(3));
}

fn stubborn_programs(stage: &mut Stage) {
    let shell = &mut stage.shell;
    let stubborn = "sh -c 'trap \"\" HUP INT TERM; echo stub\"\"born $0; while :; do sleep 1; done'";
    shell.enter(&format!("setsid {stubborn} one &"));
    shell.until("stubborn one\r\n");
    shell.enter(&format!("{stubborn} two"));
    shell.until("stubborn two\r\n");
}

fn endless_output(stage: &mut Stage) {
    let shell = &mut stage.shell;
    shell.enter("yes");
    shell.until("\r\ny\r\n");
    let from = shell.shown.len();
    while shell.shown.len() < from + ENDLESS_BYTES {
        // Whoever asks meanwhile is answered.
        shell.ask("ping", json!({ "channel": "ahp-root://" }));
    }
    shell.input("\x03");
    shell.seen = shell.shown.len();
    let all = &shell.shown.as_bytes()[from..from + ENDLESS_BYTES];
    let first = all.iter().position(|byte| *byte == b'y').unwrap();
    assert!(all[first..].chunks_exact(3).all(|line| line == b"y\r\n"), "something of it is lost");
    shell.until("^C");
    shell.until_prompted();
    shell.enter("echo goes\"\" on");
    shell.until("goes on\r\n");
}

/// Numbered lines, with characters of every length.
fn numbered(bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 32);
    for number in 0.. {
        if text.len() >= bytes {
            break;
        }
        writeln!(text, "{number} aä€😀").unwrap();
    }
    text
}

/// Has a file printed, and checks that all of it is shown.
fn print_all(stage: &mut Stage, bytes: usize) {
    let text = numbered(bytes);
    fs::write(stage.path("numbered"), &text).unwrap();
    let shell = &mut stage.shell;
    shell.enter("cat numbered; echo al\"\"l of it");
    let from = shell.shown.len();
    let ends = |shown: &str| {
        let last = &shown.as_bytes()[shown.len().saturating_sub(200)..];
        memchr::memmem::find(last, b"all of it\r\n").is_some()
    };
    while !ends(&shell.shown) {
        shell.hear();
    }
    let expected = text.replace('\n', "\r\n");
    let shown = &shell.shown[from..];
    let begins = shown.find("0 aä€😀\r\n").expect("its beginning");
    let shown = &shown.as_bytes()[begins..];
    let end = shown.len().min(expected.len());
    let differs = shown[..end].iter().zip(expected.as_bytes()).position(|(shown, printed)| shown != printed);
    assert_eq!((differs, end), (None, expected.len()), "something of it is lost");
    shell.seen = from + begins + end;
    shell.until_prompted();
}

fn a_file_of_many_lines(stage: &mut Stage) {
    print_all(stage, MUCH_BYTES);
}

/// Bytes that seem to be arbitrary, the same each time.
fn garbage(count: usize) -> impl Iterator<Item = u8> {
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_be_bytes()[0]
    })
    .take(count)
}

fn binary_output(stage: &mut Stage) {
    // Without what could be said to the terminal: all of it is shown, as far as it can be.
    let bytes: Vec<u8> = garbage(200_000).filter(|byte| *byte != 0x1b).collect();
    fs::write(stage.path("garbage"), &bytes).unwrap();
    let shell = &mut stage.shell;
    shell.enter("sh -c 'stty -opost; printf be\"\"gin; cat garbage; printf e\"\"nd; stty opost'");
    shell.until("begin");
    let expected = String::from_utf8_lossy(&bytes);
    while shell.shown.len() < shell.seen + expected.len() + "end".len() {
        shell.hear();
    }
    let shown = &shell.shown[shell.seen..];
    assert!(shown.starts_with(&*expected), "something of it is lost");
    assert!(shown[expected.len()..].starts_with("end"));
    shell.until_prompted();
    // With that it is only not to do any harm: what it asks is typed as an answer, so no shell is
    // to read that.
    fs::write(stage.path("garbage"), garbage(200_000).collect::<Vec<u8>>()).unwrap();
    fs::write(stage.path("script"), "stty raw -echo; cat garbage; printf '\\030end'").unwrap();
    let shell = &mut stage.shell;
    shell.enter("exec sh script");
    assert_eq!(shell.until_exited(), Some(0));
    assert!(shell.shown.ends_with("end"), "{:?}", shell.shown.split_off(shell.seen));
}

fn characters_in_two_halves(stage: &mut Stage) {
    let octal = |bytes: &[u8]| bytes.iter().fold(String::new(), |all, byte| all + &format!("\\{byte:03o}"));
    let (mut script, mut expected) = ("stty -echo\n".to_owned(), Vec::new());
    for char in ["ä", "€", "😀"] {
        for at in 1..char.len() {
            let (head, tail) = char.as_bytes().split_at(at);
            let number = expected.len();
            writeln!(script, "printf '{number}:{}'; read x; printf '{}.'", octal(head), octal(tail)).unwrap();
            expected.push(char);
        }
    }
    fs::write(stage.path("halves"), script).unwrap();
    let shell = &mut stage.shell;
    shell.enter("exec sh halves");
    for (number, char) in expected.into_iter().enumerate() {
        // The rest of it comes when the first bytes have been read: the program waits for this.
        shell.until(&format!("{number}:"));
        shell.enter("");
        shell.until(&format!("{char}."));
    }
    assert_eq!(shell.until_exited(), Some(0));
    assert!(!shell.shown.contains(char::REPLACEMENT_CHARACTER), "{:?}", shell.shown);
}

/// Gives the screen so many sizes, none of them waiting for another.
fn resize(stage: &mut Stage, times: usize) {
    let shell = &mut stage.shell;
    for number in 1..=times {
        let (cols, rows) = (1 + number % 200, 1 + number % 60);
        shell.act(json!({ "type": "terminal/resized", "cols": cols, "rows": rows }));
    }
    shell.act(json!({ "type": "terminal/resized", "cols": 100, "rows": 30 }));
    let mut resized = 0;
    while resized <= times {
        resized += usize::from(shell.hear()["params"]["action"]["type"] == "terminal/resized");
    }
    shell.enter("stty size");
    shell.until("30 100\r\n");
}

/// The number of this name in the environment, if whoever runs the tests has said one.
fn asked_for(name: &str, otherwise: usize) -> usize {
    std::env::var(name).ok().and_then(|number| number.parse().ok()).unwrap_or(otherwise)
}

/// Tells whether a program is installed.
fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = std::env::split_paths(&path).any(|folder| folder.join(program).exists());
    if !is_there {
        skipped(program);
    }
    is_there
}

/// Does these things with a shell, each in a terminal of its own.
fn play(name: &'static str, shell: &Path, scenes: &[(&[&str], &str, Scene)]) {
    let folder = tempfile::tempdir().unwrap();
    let (state, home, place) =
        (folder.path().join("state"), folder.path().join("home"), folder.path().join("place"));
    for folder in [&state, &home, &place] {
        fs::create_dir(folder).unwrap();
    }
    make_home(&home);
    let cookie = uuid::Uuid::new_v4().to_string();
    let mut stage = Stage { shell: Shell::start_as(&state, &cookie, shell, &home), name, place };
    stage.shell.meet();
    let cwd = format!("file://{}", stage.place.display());
    for (programs, scene, play) in scenes {
        if !programs.iter().all(|program| is_there(program)) {
            continue;
        }
        let uri = format!("agenthost-terminal:///{name}/{scene}");
        stage.shell.follow_new(&uri, json!({ "cwd": cwd, "cols": 80, "rows": 24 }));
        stage.shell.until_prompted();
        play(&mut stage);
        stage.shell.check_mirror();
        stage.shell.dispose();
        stage.shell.wait_for_processes(1);
    }
    let process = &mut stage.shell.process;
    process.end();
    process.rest();
    assert_eq!(process.wait().code(), Some(0));
}

#[test]
fn programs_of_every_kind_run_in_bash() {
    let Some(bash) = installed("bash") else { return };
    play("bash", bash, &SCENES);
}

#[test]
fn programs_of_every_kind_run_in_zsh() {
    let Some(zsh) = installed("zsh") else { return };
    play("zsh", zsh, &SCENES);
}

#[test]
fn programs_of_every_kind_run_in_fish() {
    let Some(fish) = installed("fish") else { return };
    play("fish", fish, &SCENES);
}

/// `/bin/sh` is the plainest shell if dash is missing.
#[test]
fn programs_of_every_kind_run_in_dash() {
    let dash = installed("dash").unwrap_or(Path::new("/bin/sh"));
    play("dash", dash, &SCENES);
}

#[test]
fn terminal_output_of_many_megabytes_loses_no_byte() {
    let scene: Scene = |stage| print_all(stage, asked_for("TERMINAL_BYTES", VERY_MUCH_BYTES));
    play("dash", Path::new("/bin/sh"), &[(&[], "very-much", scene)]);
}

#[test]
fn terminal_survives_ten_thousand_resizes() {
    let scene: Scene = |stage| resize(stage, MANY_RESIZES);
    play("dash", Path::new("/bin/sh"), &[(&[], "resizes", scene)]);
}
