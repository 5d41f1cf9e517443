//! The configuration file that is read when none is named.
//!
//! Owns: where the real program looks for it, and that it is not needed.
//! Never: reads the one of whoever runs it; each test has a home of its own.
// Elsewhere the folder has another name.
#![cfg(target_os = "linux")]

use std::fs;
use std::path::Path;
use std::process::Stdio;

use serde_json::json;
use tempfile::TempDir;

use crate::support::{sidecar, Process};

/// The agents of a host with this environment and these arguments, but for the built-in one.
fn agents(environment: &[(&str, &Path)], arguments: &[&str]) -> Vec<String> {
    let mut command = sidecar();
    command.envs(environment.iter().copied()).args(arguments);
    let mut process = Process::spawn(command);
    let hello = json!({ "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["1.0.0"],
        "initialSubscriptions": ["ahp-root://"] });
    process.say(&json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello }).to_string());
    let root = process.next()["result"]["snapshots"][0]["state"].take();
    process.end();
    assert_eq!(process.wait().code(), Some(0));
    let agents = root["agents"].as_array().unwrap().iter();
    let names = agents.map(|agent| agent["provider"].as_str().unwrap().to_owned());
    names.filter(|name| name != "script").collect()
}

/// Makes the file below a folder for configuration, with one agent.
fn write(folder: &Path, agent: &str) {
    fs::create_dir_all(folder.join("ahp-sidecar")).unwrap();
    let text = format!("[agents.{agent}]\ncommand = '/no/such/{agent}'");
    fs::write(folder.join("ahp-sidecar/config.toml"), text).unwrap();
}

#[test]
fn it_is_looked_for_in_the_folder_for_configuration() {
    let outer = TempDir::new().unwrap();
    let (home, config) = (outer.path().join("home"), outer.path().join("config"));
    let named = outer.path().join("named.toml");
    fs::write(&named, "[agents.named]\ncommand = 'named'").unwrap();
    assert_eq!(agents(&[("HOME", &home)], &[]), [""; 0]);
    write(&home.join(".config"), "home");
    write(&config, "config");
    assert_eq!(agents(&[("HOME", &home)], &[]), ["home"]);
    assert_eq!(agents(&[("HOME", &home), ("XDG_CONFIG_HOME", &config)], &[]), ["config"]);
    assert_eq!(agents(&[("HOME", &home), ("XDG_CONFIG_HOME", Path::new("config"))], &[]), ["home"]);
    assert_eq!(agents(&[("HOME", &home)], &["--config", named.to_str().unwrap()]), ["named"]);
    assert_eq!(agents(&[("HOME", &home)], &["--config", "/dev/null"]), [""; 0]);
    assert_eq!(agents(&[("HOME", &home)], &["--agent", "flag=x", "--agent", "home=y"]), ["flag", "home"]);
    // A relative home is none.
    assert_eq!(agents(&[("HOME", Path::new("home"))], &[]), [""; 0]);
}

#[test]
fn one_that_is_there_must_be_good_and_one_that_is_named_must_be_there() {
    let home = TempDir::new().unwrap();
    let refused = |arguments: &[&str]| {
        let mut command = sidecar();
        let output = command.env("HOME", home.path()).args(arguments).stdin(Stdio::null()).output().unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let missing = home.path().join("no/such.toml");
    assert!(refused(&["--config", missing.to_str().unwrap()]).contains("no/such.toml"));
    write(&home.path().join(".config"), "a]\nwrong = [");
    assert!(refused(&[]).contains(".config/ahp-sidecar/config.toml"));
}
