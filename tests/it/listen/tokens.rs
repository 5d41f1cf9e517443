//! The token of a listener, and the ways in which `connect` is told it.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::json;

use super::{write_private, Host};
use crate::support::program;

const TOKEN: &str = "a-token-of-our-own";

/// Runs `connect`, whose client shakes hands and has said all.
fn connected(arguments: &[&str], variable: Option<&str>) -> Output {
    let mut command = program();
    command.arg("connect").args(arguments).envs(variable.map(|token| ("AHP_SIDECAR_TOKEN", token)));
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let hello = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params":
        { "channel": "ahp-root://", "clientId": "pipe", "protocolVersions": ["1.0.0"] } });
    // One that is refused reads nothing.
    writeln!(child.stdin.take().unwrap(), "{hello}").ok();
    child.wait_with_output().unwrap()
}

fn is_served(output: &Output) -> bool {
    output.status.success() && String::from_utf8_lossy(&output.stdout).contains(r#""serverSeq""#)
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn unix_socket_is_joined_without_a_token_whatever_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = program();
    command.args(["serve", "--state-dir"]).arg(folder.path().join("state"));
    let address = format!("unix:{}", folder.path().join("socket").display());
    let host = Host::spawn(command, &[&address]);
    for variable in [None, Some(""), Some("short"), Some(TOKEN)] {
        let output = connected(&[&address], variable);
        assert!(is_served(&output), "{variable:?}: {output:?}");
        assert_eq!(stderr(&output), "", "{variable:?}");
    }
    host.leave();
}

#[test]
fn token_is_read_from_a_file_the_environment_or_the_state_folder() {
    let folder = tempfile::tempdir().unwrap();
    let (file, state) = (folder.path().join("token"), folder.path().join("state"));
    write_private(&file, TOKEN);
    let mut command = program();
    command.args(["serve", "--state-dir"]).arg(&state).arg("--token-file").arg(&file);
    let host = Host::spawn(command, &["ws://127.0.0.1:0"]);
    let (file, state) = (file.to_str().unwrap(), state.to_str().unwrap());
    for (arguments, variable) in [
        (&[host.url(), "--token-file", file][..], None),
        (&[host.url(), "--token-file", file], Some("another-token-which-is-wrong")),
        (&[host.url()], Some(TOKEN)),
        (&["--state-dir", state], None),
    ] {
        let output = connected(arguments, variable);
        assert!(is_served(&output), "{arguments:?}: {output:?}");
        assert_eq!(stderr(&output), "", "{arguments:?}");
    }
    for path in ["/", ""] {
        let output = connected(&[&format!("{}{path}?tkn={TOKEN}", host.url())], None);
        assert!(is_served(&output) && stderr(&output).contains("in the list of processes"), "{output:?}");
    }
    // An empty variable is none.
    let output = connected(&[host.url()], Some(""));
    assert!(!is_served(&output) && !stderr(&output).contains("AHP_SIDECAR_TOKEN:"), "{output:?}");
    let output = connected(&[host.url()], Some("short"));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("AHP_SIDECAR_TOKEN: a token has at least 16"), "{output:?}");
    host.leave();
    let output = connected(&["--state-dir", state], None);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("no host listens for"), "{output:?}");
}

#[test]
fn token_file_readable_by_others_is_refused_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    write_private(&file, TOKEN);
    let serve = |file: &Path| -> Command {
        let mut command = program();
        command.args(["serve", "--ephemeral", "--listen", "ws://127.0.0.1:0", "--token-file"]).arg(file);
        command
    };
    let connect = |file: &Path| -> Command {
        let mut command = program();
        command.args(["connect", "ws://127.0.0.1:1", "--token-file"]).arg(file);
        command
    };
    for mode in [0o644, 0o666, 0o640, 0o620, 0o604, 0o601] {
        fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        for (mut command, status) in [(serve(&file), 2), (connect(&file), 1)] {
            let output = command.stdin(Stdio::null()).output().unwrap();
            assert_eq!(output.status.code(), Some(status), "{mode:o}: {output:?}");
            let said = stderr(&output);
            assert!(said.contains(&format!("mode 0{mode:o}")) && said.contains("`chmod 600 "), "{said}");
        }
    }
    if rustix::process::geteuid().is_root() {
        write_private(&file, TOKEN);
        std::os::unix::fs::chown(&file, Some(54_321), None).unwrap();
        for (mut command, status) in [(serve(&file), 2), (connect(&file), 1)] {
            let output = command.stdin(Stdio::null()).output().unwrap();
            assert_eq!(output.status.code(), Some(status), "{output:?}");
            assert!(stderr(&output).contains("belongs to another user (54321)"), "{output:?}");
        }
    }
}

#[test]
fn agents_that_commands_start_do_not_inherit_the_token() {
    let folder = tempfile::tempdir().unwrap();
    let (environment, state) = (folder.path().join("environment"), folder.path().join("state"));
    let agent = format!("x=/bin/sh -c 'env > {}'", environment.display());
    let bundle = folder.path().join("bundle.json");
    for arguments in [
        &["agents", "check"][..],
        &["agents", "logout", "x"],
        &["agents", "delete-session", "x", "s"],
        &["debug-bundle", bundle.to_str().unwrap(), "--state-dir", state.to_str().unwrap()],
    ] {
        let mut command = program();
        command.args(arguments).args(["--agent", &agent]).env("AHP_SIDECAR_TOKEN", "a-token-of-a-client");
        // The agent ends at once, which most of them report.
        let output = command.env("PATH", "/usr/bin:/bin").output().unwrap();
        let inherited =
            fs::read_to_string(&environment).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        assert!(inherited.contains("PATH=") && !inherited.contains("AHP_SIDECAR_TOKEN"), "{arguments:?}");
        fs::remove_file(&environment).unwrap();
    }
}
