//! `ahp-sidecar demo`: prints a short conversation with a host, for newcomers.
//!
//! Owns: the conversation (the transcript `fixtures/demo/conversation.txt`, built into the
//! program), and the one-line summary of each message.
//! Never: touches the user's state folder or configuration, or checks the answers: the tests do.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{bail, Context};
use serde_json::Value;

use crate::listening::print;
use crate::os::paths::NULL_DEVICE;

/// Conversation: `# ` begins a remark, `> ` a line of the client. Recorded lines of the host are
/// skipped, since the host sends them again.
const CONVERSATION: &str = include_str!("../fixtures/demo/conversation.txt");

/// Host arguments with which the output does not depend on machine and time.
const ARGUMENTS: [&str; 6] =
    ["--deterministic", "--ephemeral", "--config", NULL_DEVICE, "--default-directory", "/"];

/// Id of the request whose answer shows that all previous requests are answered.
const ALL_ANSWERED: &str = "all answered";

/// Maximum length of a printed message, in characters.
const SHOWN_CHARS: usize = 90;

/// Runs the conversation with a new host, started from `program`, and prints it on stdout.
///
/// # Errors
/// When the host cannot be started or ends early. A closed stdout is no failure.
pub fn run(program: &Path) -> anyhow::Result<()> {
    let mut host = Command::new(program)
        .args(ARGUMENTS)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("`{}` cannot be started", program.display()))?;
    let mut stdin = host.stdin.take().context("the host has no stdin")?;
    let mut stdout = BufReader::new(host.stdout.take().context("the host has no stdout")?).lines();
    for group in CONVERSATION.split("\n\n") {
        print(&run_group(group, &mut stdin, &mut stdout)?)?;
    }
    drop(stdin);
    let status = host.wait().context("the host cannot be waited for")?;
    print(&format!("The input ends, and so does the host: {status}.\n"))
}

/// Sends the messages of a group, and returns the group with the answers, to be printed.
fn run_group(
    group: &str,
    stdin: &mut ChildStdin,
    stdout: &mut Lines<BufReader<ChildStdout>>,
) -> anyhow::Result<String> {
    let mut text = String::new();
    for line in group.lines() {
        if let Some(remark) = line.strip_prefix("# ") {
            text += &format!("{remark}\n");
        } else if let Some(line) = line.strip_prefix("> ") {
            text += &format!("  → {}\n", summary(&serde_json::from_str(line)?));
            writeln!(stdin, "{line}").context("the host does not read")?;
        }
    }
    writeln!(stdin, r#"{{"jsonrpc":"2.0","id":"{ALL_ANSWERED}","method":"ping"}}"#)
        .context("the host does not read")?;
    for line in stdout {
        let message: Value = serde_json::from_str(&line.context("the host cannot be read")?)?;
        if message["id"] == ALL_ANSWERED {
            return Ok(text + "\n");
        }
        text += &format!("  ← {}\n", summary(&message));
    }
    bail!("the host has ended early")
}

/// Returns a message as one line: its id, its method or action, and the beginning of its content.
fn summary(message: &Value) -> String {
    let params = &message["params"];
    let action = &params["action"];
    let method = message["method"].as_str();
    let (head, body) = match (method, action["type"].as_str()) {
        (Some("action" | "dispatchAction"), Some(name)) => (name.to_owned(), action),
        (Some(method), _) => (method.to_owned(), params),
        _ if message.get("error").is_some() => ("error".to_owned(), &message["error"]),
        _ => (format!("answer to {}", message["id"]), &message["result"]),
    };
    let id = message["id"].as_u64().filter(|_| method.is_some()).map(|id| format!("({id}) "));
    let mut body = body.clone();
    if let Some(members) = body.as_object_mut() {
        members.retain(|name, _| !matches!(name.as_str(), "type" | "turnId"));
    }
    let body = body.to_string();
    let shown: String = body.chars().take(SHOWN_CHARS).collect();
    let dots = if shown.len() < body.len() { "…" } else { "" };
    format!("{}{head}  {shown}{dots}", id.unwrap_or_default())
}
