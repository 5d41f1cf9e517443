//! The files that a run writes, and output that is lost.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::{fleeting, kept, ran, Ran};

/// Runs a command that writes both files to these names in a folder.
fn writing(folder: &std::path::Path, patch: &str, summary: &str) -> Ran {
    let mut run = fleeting("/say Hello");
    run.current_dir(folder).args(["--patch", patch, "--summary", summary]);
    ran(&mut run)
}

#[test]
fn files_are_not_written_through_links() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("victim"), "old").unwrap();
    symlink("victim", at("patch")).unwrap();
    symlink("missing", at("summary")).unwrap();
    let done = writing(folder.path(), "patch", "summary");
    assert_eq!(done.status, 0, "{done:?}");
    assert_eq!(fs::read_to_string(at("victim")).unwrap(), "old");
    assert!(!at("missing").exists() && !at("summary").is_symlink() && !at("patch").is_symlink());
    assert_eq!(fs::read_to_string(at("patch")).unwrap(), "");
}

#[test]
fn path_that_cannot_be_a_regular_file_is_wrong_usage() {
    let folder = tempfile::tempdir().unwrap();
    assert!(Command::new("mkfifo").arg(folder.path().join("pipe")).status().unwrap().success());
    fs::create_dir(folder.path().join("sub")).unwrap();
    for (name, why) in [("pipe", "`pipe`: it is"), ("sub", "`sub`: it is a folder"), ("no/such", "`no/such`")]
    {
        for (patch, summary) in [(name, "s"), ("p", name)] {
            let done = writing(folder.path(), patch, summary);
            assert_eq!((done.status, done.out.as_str()), (2, ""), "{done:?}");
            assert!(done.err.contains(why), "{}", done.err);
        }
    }
    assert_eq!(writing(folder.path(), "same", "./same").status, 2);
}

#[test]
fn pipe_that_appears_during_the_run_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = fleeting(&format!("/pty sh -c 'mkfifo \"{}/summary\"'", folder.path().display()));
    let done = ran(run.args(["--allow-all", "--summary"]).arg(folder.path().join("summary")));
    assert_eq!(done.status, 14, "{done:?}");
    assert!(done.err.contains("--summary: "), "{}", done.err);
}

#[test]
fn dash_is_stdout_and_the_null_device_takes_everything() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["-", "/dev/stdout"] {
        let done = writing(folder.path(), "/dev/null", name);
        let (answer, summary) = done.out.split_once('\n').unwrap();
        assert_eq!((done.status, answer), (0, "Hello"), "{done:?}");
        let summary: Value = serde_json::from_str(summary).unwrap();
        assert_eq!(summary["answer"], "Hello");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn output_that_cannot_be_written_has_a_status_of_its_own_and_the_session_stays() {
    let folder = tempfile::tempdir().unwrap();
    let summary = folder.path().join("summary");
    for form in [&["--quiet"][..], &["--json"], &[]] {
        let mut run = kept(&folder.path().join("state"), "/say Hello");
        run.args(form).arg("--summary").arg(&summary).stdout(File::create("/dev/full").unwrap());
        let output = run.stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(14), "{form:?}: {said}");
        assert_eq!(said.matches("stdout cannot be written: No space left").count(), 1, "{said}");
        let summary: Value = serde_json::from_str(&fs::read_to_string(&summary).unwrap()).unwrap();
        assert_eq!(summary["error"]["kind"], "output");
    }
    let next = ran(kept(&folder.path().join("state"), "/say fine").args(["--session", "last"]));
    assert_eq!((next.status, next.out.as_str()), (0, "fine\n"), "{next:?}");
}

#[test]
fn reader_that_is_gone_from_the_start_is_a_failure() {
    for form in [&["--quiet"][..], &[]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = fleeting("/say Hello").args(form).stdout(writer).output().unwrap();
        let status = output.status.code().unwrap();
        // The turn may have ended before it could be cancelled.
        let expected: &[i32] = if form.is_empty() { &[14, 130] } else { &[14] };
        assert!(expected.contains(&status), "{form:?}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("reader"), "{output:?}");
    }
}
