//! `make demo`: pipes the transcript `fixtures/demo/conversation.txt` through the program and prints the
//! conversation, so that a newcomer sees what it is for.
//!
//! Owns: one readable line for each message.
//! Never: checks anything; that is what the tests do with the same transcript.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a demonstration talks to a person")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let transcript = std::fs::read_to_string(root.join("fixtures/demo/conversation.txt")).unwrap();
    // Built before, into the folder above that of the examples.
    let program = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("ahp-sidecar");
    let mut child = Command::new(program)
        .args(["--deterministic", "--ephemeral", "--default-directory", "/"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    println!("client → host: what an editor says          host → client: what it gets back\n");
    for line in transcript.lines().filter_map(|line| line.strip_prefix("> ")) {
        println!("→ {}", told(&serde_json::from_str(line).unwrap()));
        writeln!(stdin, "{line}").unwrap();
    }
    drop(stdin);
    println!();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        println!("← {}", told(&serde_json::from_str(&line.unwrap()).unwrap()));
    }
    println!("\nexit status {}", child.wait().unwrap().code().unwrap_or(-1));
}

/// What a message says, in a line.
fn told(message: &Value) -> String {
    let params = &message["params"];
    let action = &params["action"];
    let (head, body) = match (message["method"].as_str(), action["type"].as_str()) {
        (Some("action" | "dispatchAction"), Some(name)) => (name.to_owned(), action),
        (Some(method), _) => (method.to_owned(), params),
        _ if message.get("error").is_some() => ("error".to_owned(), &message["error"]),
        _ => (format!("answer {}", message["id"]), &message["result"]),
    };
    let number = params["serverSeq"].as_u64().map(|number| format!("#{number} ")).unwrap_or_default();
    let mut body = body.clone();
    if let Some(members) = body.as_object_mut() {
        members.remove("type");
    }
    let body = body.to_string();
    let short: String = body.chars().take(100).collect();
    let dots = if short.len() < body.len() { "…" } else { "" };
    format!("{number}{head}  {short}{dots}")
}
