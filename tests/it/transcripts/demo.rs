//! Output of `ahp-sidecar demo`, compared with `fixtures/demo/printed.out` and rewritten like a
//! transcript.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use super::{blessing, diff};
use crate::support::program;

#[test]
fn demo_ends_well_if_its_reader_does() {
    let mut child = program().arg("demo").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn demo_prints_its_conversation() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/demo/printed.out");
    let output = program().arg("demo").output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert_eq!(output.status.code(), Some(0));
    let now = String::from_utf8(output.stdout).unwrap();
    if blessing() {
        return fs::write(&path, now).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap();
    assert!(now == written, "fixtures/demo/printed.out (- written, + now):\n{}", diff(&written, &now));
}
