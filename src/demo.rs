//! `ahp-sidecar demo`: a short conversation with a host, printed so that a newcomer sees what the
//! program is for.
//!
//! Owns: the conversation (the transcript `fixtures/demo/conversation.txt`, built into the
//! program), and one readable line for each of its messages.
//! Never: touches the state folder or the configuration of whoever runs it, or checks anything; the
//! tests hold the conversation and what is printed of it.

use std::io::{self, BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{bail, Context};
use serde_json::Value;

/// The conversation: `# ` begins a remark, `> ` a line of the client. What the host said when it
/// was written down is left out: the host says it again.
const CONVERSATION: &str = include_str!("../fixtures/demo/conversation.txt");

/// The arguments of the host: the same conversation is printed wherever and whenever it is held.
const ARGUMENTS: [&str; 6] =
    ["--deterministic", "--ephemeral", "--config", "/dev/null", "--default-directory", "/"];

/// The id of the request whose answer tells that everything before it has been answered.
const ALL_ANSWERED: &str = "all answered";

/// No message is printed longer than this, in characters.
const SHOWN_CHARS: usize = 90;

/// Holds the conversation with a new host, which is this program, and prints it on stdout.
///
/// # Errors
/// When the host cannot be started, ends early, or nobody reads what is printed.
pub fn run(program: &Path) -> anyhow::Result<()> {
    let mut host = Command::new(program)
        .args(ARGUMENTS)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("`{}` cannot be started", program.display()))?;
    let mut said = host.stdin.take().context("the host has no stdin")?;
    let mut heard = BufReader::new(host.stdout.take().context("the host has no stdout")?).lines();
    let mut out = io::stdout().lock();
    for group in CONVERSATION.split("\n\n") {
        print_group(group, &mut said, &mut heard, &mut out)?;
    }
    drop(said);
    let status = host.wait().context("the host cannot be waited for")?;
    writeln!(out, "The input ends, and so does the host: {status}.")?;
    Ok(())
}

/// Says what a group of lines says, and prints it with what comes back.
fn print_group(
    group: &str,
    said: &mut ChildStdin,
    heard: &mut Lines<BufReader<ChildStdout>>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    for line in group.lines() {
        if let Some(remark) = line.strip_prefix("# ") {
            writeln!(out, "{remark}")?;
        } else if let Some(line) = line.strip_prefix("> ") {
            writeln!(out, "  → {}", summary(&serde_json::from_str(line)?))?;
            writeln!(said, "{line}").context("the host does not read")?;
        }
    }
    writeln!(said, r#"{{"jsonrpc":"2.0","id":"{ALL_ANSWERED}","method":"ping"}}"#)
        .context("the host does not read")?;
    for line in heard {
        let message: Value = serde_json::from_str(&line.context("the host cannot be read")?)?;
        if message["id"] == ALL_ANSWERED {
            writeln!(out)?;
            return Ok(());
        }
        writeln!(out, "  ← {}", summary(&message))?;
    }
    bail!("the host has ended early")
}

/// A message in one line: the id of a request, what it is, and the beginning of what it says.
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
