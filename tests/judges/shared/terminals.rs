//! A shell in a terminal by the crate's own client, over the pipes of the real program.
//!
//! Owns: that what becomes of a terminal is told by actions that the version's reducers apply: its
//! output, the marks of its shell, and what the client changes in it.
//! Never: relies on one shell: the marks are printed by a command.

use anyhow::{ensure, Context, Result};
use serde_json::{json, Value};

use super::conversation::{conversing, Followed};
use super::dialect::{Dialect, V0_9_0};
use super::official::{Official, OfficialClient};

const TERMINAL: &str = "test-terminal:///1";

/// Prints what a shell prints that is in `/tmp` and has run a command, which failed.
const MARKS: &str = r"printf '\033]7;file:///tmp\007\033]633;A\007\033]633;C\007out\n\033]633;D;3\007'";

/// Judges by one shell.
pub fn run(official: &'static dyn Official) {
    conversing(official, async |client| talk(official, client).await);
}

async fn talk(official: &'static dyn Official, client: &dyn OfficialClient) -> Result<()> {
    let dialect = official.dialect();
    client.initialize("tester", vec![dialect.root().to_owned()]).await?;
    let mut root = Followed::new(official, client, dialect.root()).await?;
    let wishes = json!({ "claim": { "kind": "client", "clientId": "tester" }, "name": "Shell",
        "cwd": "file:///", "cols": 100, "rows": 30 });
    client.request("createTerminal", dialect.params("createTerminal", TERMINAL, wishes)).await?;
    let mut terminal = Followed::new(official, client, TERMINAL).await?;
    root.until(|view| view["terminals"][0]["title"] == "Shell").await.context("the list")?;

    act(dialect, client, "input", json!({ "data": format!("{MARKS}\n") })).await?;
    let view = terminal.until(|view| failed_command(view).is_some()).await.context("the marks")?;
    let command = failed_command(&view).context("no command")?;
    ensure!(command["output"].as_str().is_some_and(|output| output.contains("out")), "it is {view}");
    // The directory is told behind the output.
    let view = terminal.until(|view| view["cwd"] == "file:///tmp").await.context("the directory")?;
    ensure!(view["supportsCommandDetection"] == true, "it is {view}");

    act(dialect, client, "resized", json!({ "cols": 120, "rows": 40 })).await?;
    act(dialect, client, "titleChanged", json!({ "title": "Build" })).await?;
    terminal.until(|view| view["cols"] == 120 && view["title"] == "Build").await?;
    root.until(|view| view["terminals"][0]["title"] == "Build").await.context("the list")?;
    act(dialect, client, "cleared", json!({})).await?;
    terminal.until(|view| failed_command(view).is_none()).await.context("clearing")?;

    act(dialect, client, "input", json!({ "data": "exit 4\n" })).await?;
    let exit_code = |view: &Value| match dialect {
        _ if dialect >= V0_9_0 => view["lifecycle"]["exitCode"].clone(),
        _ => view["exitCode"].clone(),
    };
    let view = terminal.until(|view| exit_code(view) == 4).await.context("the end")?;
    let fresh = Followed::new(official, client, TERMINAL).await?.held.view()?;
    ensure!(fresh == view, "the host shows {fresh}, and not {view}");
    client.request("disposeTerminal", dialect.params("disposeTerminal", TERMINAL, json!({}))).await?;
    root.until(|view| view["terminals"] == json!([])).await.context("the list")?;
    Ok(())
}

async fn act(dialect: Dialect, client: &dyn OfficialClient, name: &str, members: Value) -> Result<()> {
    client.dispatch(TERMINAL, &dialect.act_of("terminal", name, members)).await
}

/// Returns the part of the terminal's content for the command that failed.
fn failed_command(view: &Value) -> Option<&Value> {
    let mut parts = view["content"].as_array()?.iter();
    parts.find(|part| part["type"] == "command" && part["isComplete"] == true && part["exitCode"] == 3)
}
