//! What a connection makes of an agent's output.
//!
//! Owns: outputs that no good agent writes, and listeners that are slow.
//! Never: starts a process.

use std::future::Future;

use tokio::io::AsyncWriteExt;

use super::*;

/// A connection to an agent that says this, reads all that it is told, and ends like that.
fn connected(
    output: impl AsyncRead + Unpin + Send + 'static,
    ending: impl Future<Output = String> + Send + 'static,
) -> Connection {
    Connection::start("a".to_owned(), tokio::io::sink(), output, CancellationToken::new(), ending)
}

async fn heard(output: &[u8]) -> (Vec<String>, String) {
    let connection = connected(&*output.to_vec().leak(), async { "it ended".to_owned() });
    let mut ear = connection.listen();
    ear.follow("s");
    let mut updates = Vec::new();
    while let Some(said) = ear.hear().await {
        let Said::Update(update) = said else { panic!("{said:?}") };
        updates.push(update.get().to_owned());
    }
    (updates, connection.ended().await)
}

fn update(text: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"s","update":"{text}"}}}}"#)
}

#[tokio::test]
async fn messages_are_found_among_junk() {
    let mut output = b"Welcome!\n\n\x1b[2K\x1b[1G{x} ".to_vec();
    output.extend(update("1").bytes());
    output.extend(b"\n\xff\xfe\n[]\n{}\n{\"half\": \r\n");
    output.extend(update("2").bytes());
    output.extend(b"\n");
    let mut broken = update("3_").into_bytes();
    let at = broken.iter().position(|byte| *byte == b'_').unwrap();
    broken[at] = 0xff;
    output.extend(broken);
    let (updates, how) = heard(&output).await;
    assert_eq!(updates, ["\"1\"", "\"2\"", "\"3\u{fffd}\""]);
    assert_eq!(how, "it ended");
}

#[tokio::test]
async fn a_stream_that_is_junk_throughout_is_quoted() {
    let (_, how) = heard(b"command not found: agent\nusage: ...\n").await;
    assert!(how.contains("does not speak ACP") && how.contains("command not found: agent"), "{how}");
    let (_, how) = heard(&b"y\n".repeat(5000)).await;
    assert!(how.contains("does not speak ACP"), "{how}");
    let mut late = update("1").into_bytes();
    late.push(b'\n');
    late.extend(b"y\n".repeat(5000));
    late.extend(update("2").bytes());
    let (updates, how) = heard(&late).await;
    assert_eq!((updates.len(), how.as_str()), (2, "it ended"));
}

/// What is said of a session before its name is known is heard once it is, in order and before what follows.
#[tokio::test]
async fn sessions_are_heard_of_from_their_beginning() {
    let (mut agent, output) = tokio::io::duplex(1 << 20);
    let connection = connected(output, std::future::pending());
    let mut ear = connection.listen();
    ear.follow("other");
    for _ in 0..UNCLAIMED_MAX {
        agent.write_all((update("early") + "\n").as_bytes()).await.unwrap();
    }
    agent.write_all((update("last") + "\n").as_bytes()).await.unwrap();
    agent.write_all((update("x").replace("\"s\"", "\"other\"") + "\n").as_bytes()).await.unwrap();
    assert!(matches!(ear.hear().await, Some(Said::Update(_))));
    let early = ear.follow("s");
    assert_eq!(early.len(), UNCLAIMED_MAX);
    assert_eq!(early.last().unwrap().get(), "\"last\"");
    agent.write_all((update("now") + "\n").as_bytes()).await.unwrap();
    let Some(Said::Update(now)) = ear.hear().await else { panic!() };
    assert_eq!(now.get(), "\"now\"");
}

#[tokio::test]
async fn an_agent_waits_until_it_is_heard() {
    let (mut agent, output) = tokio::io::duplex(1024);
    let connection = connected(output, std::future::pending());
    let mut ear = connection.listen();
    ear.follow("s");
    let line = update("1") + "\n";
    let said = tokio::spawn(async move {
        for _ in 0..1000 {
            agent.write_all(line.as_bytes()).await.unwrap();
        }
    });
    while !connection.is_held_up() {
        tokio::task::yield_now().await;
    }
    assert!(!said.is_finished());
    for _ in 0..1000 {
        assert!(ear.hear().await.is_some());
    }
    said.await.unwrap();
}
