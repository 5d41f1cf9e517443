//! An editor's registry of the hosts on this machine.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::{json, Value};

use super::Host;
use crate::support::program;

/// The entries in a registry.
fn entries(config: &Path) -> Vec<PathBuf> {
    let folder = config.join("Code/agent-host/local-endpoint/entries");
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn announcement_file_tells_visual_studio_code_the_address_and_token() {
    let config = tempfile::tempdir().unwrap();
    let mut command = program();
    command.env("XDG_CONFIG_HOME", config.path());
    command.args(["serve", "--ephemeral", "--config", "/dev/null", "--announce", "vscode"]);
    let host = Host::spawn(command, &["ws://127.0.0.1:0"]);

    let told = entries(config.path());
    let [path] = &told[..] else { panic!("{told:?}") };
    for (path, mode) in [(path.as_path(), 0o600), (path.parent().unwrap(), 0o700)] {
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, mode, "{}", path.display());
    }
    let entry: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let (place, token) = host.url().strip_prefix("ws://").unwrap().split_once("/?tkn=").unwrap();
    let port: u16 = place.split_once(':').unwrap().1.parse().unwrap();
    let instance = entry["instanceId"].as_str().unwrap();
    let shown = json!({
        "schemaVersion": 2, "type": "standalone", "pid": host.child.id(), "instanceId": instance,
        "protocolVersion": "0.9.0", "connectionToken": token,
        "endpoint": { "type": "tcp", "host": "127.0.0.1", "port": port },
    });
    assert_eq!(entry, shown);
    let name = format!("standalone\0{}\0{instance}", host.child.id());
    assert_eq!(path.file_stem().unwrap().to_str().unwrap(), sha256(&name));

    host.leave();
    assert_eq!(entries(config.path()), Vec::<PathBuf>::new());
}

/// Returns the checksum that `sha256sum` prints for the text.
fn sha256(text: &str) -> String {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let mut child = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let said = child.wait_with_output().unwrap().stdout;
    String::from_utf8(said).unwrap().split_whitespace().next().unwrap().to_owned()
}

#[test]
fn address_unreachable_for_visual_studio_code_is_refused_for_announcement() {
    let config = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}", config.path().join("socket").display());
    for (arguments, why) in [
        (&["--listen", &socket][..], "Visual Studio Code connects to ws:// only"),
        (&["--listen", "ws://127.0.0.1:0", "--no-token"][..], "--no-token"),
    ] {
        let mut command = program();
        command.env("XDG_CONFIG_HOME", config.path());
        command.args(["serve", "--ephemeral", "--config", "/dev/null", "--announce", "vscode"]);
        let output = command.args(arguments).output().unwrap();
        assert!(!output.status.success());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(why), "{said}");
        assert!(!config.path().join("Code").exists());
    }
}
