//! `make demo`: holds the conversation of `fixtures/demo/conversation.txt` with the program and prints it, so
//! that a newcomer sees what it is for.
//!
//! Owns: one readable line for each message, under the remark that the transcript has for it.
//! Never: checks anything; that is what the tests do with the same transcript.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a demonstration talks to a person")]

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

/// The id of the request whose answer tells that everything before it has been answered.
const ALL_SAID: &str = "all said";

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let transcript = std::fs::read_to_string(root.join("fixtures/demo/conversation.txt")).unwrap();
    // Built before, into the folder above that of the examples.
    let program = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("ahp-sidecar");
    let mut child = Command::new(program)
        .args(["--deterministic", "--ephemeral", "--config", "/dev/null", "--default-directory", "/"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap()).lines();
    for group in transcript.split("\n\n") {
        hold(group, &mut stdin, &mut stdout);
    }
    drop(stdin);
    println!("The input ends, and so does the host: exit status {}.", child.wait().unwrap().code().unwrap());
}

/// Says what a group of the transcript says, and prints what comes back.
fn hold(group: &str, stdin: &mut ChildStdin, stdout: &mut Lines<BufReader<ChildStdout>>) {
    for line in group.lines() {
        if let Some(remark) = line.strip_prefix("# ") {
            println!("{remark}");
        } else if let Some(line) = line.strip_prefix("> ") {
            println!("  → {}", told(&serde_json::from_str(line).unwrap()));
            writeln!(stdin, "{line}").unwrap();
        }
    }
    writeln!(stdin, r#"{{"jsonrpc":"2.0","id":"{ALL_SAID}","method":"ping"}}"#).unwrap();
    for line in stdout {
        let message: Value = serde_json::from_str(&line.unwrap()).unwrap();
        if message["id"] == ALL_SAID {
            break;
        }
        println!("  ← {}", told(&message));
    }
    println!();
}

/// What a message says, in a line.
fn told(message: &Value) -> String {
    let params = &message["params"];
    let action = &params["action"];
    let (head, body) = match (message["method"].as_str(), action["type"].as_str()) {
        (Some("action" | "dispatchAction"), Some(name)) => (name.to_owned(), action),
        (Some(method), _) => (method.to_owned(), params),
        _ if message.get("error").is_some() => ("error".to_owned(), &message["error"]),
        _ => (format!("answer to {}", message["id"]), &message["result"]),
    };
    let number =
        message["id"].as_u64().map(|id| format!("({id}) ")).filter(|_| message.get("method").is_some());
    let mut body = body.clone();
    if let Some(members) = body.as_object_mut() {
        members.retain(|name, _| !matches!(name.as_str(), "type" | "turnId"));
    }
    let body = body.to_string();
    let short: String = body.chars().take(90).collect();
    let dots = if short.len() < body.len() { "…" } else { "" };
    format!("{}{head}  {short}{dots}", number.unwrap_or_default())
}
