//! Tests of how a connection handles an agent's output.
//!
//! Owns: malformed output, and slow receivers.
//! Never: starts a process.

use std::future::Future;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, DuplexStream};

use super::receiver::INBOX_BYTES_MAX;
use super::*;

/// Connects to an agent that writes `output`, discards its input, and ends with this reason.
fn connected(
    output: impl AsyncRead + Unpin + Send + 'static,
    ending: impl Future<Output = String> + Send + 'static,
) -> AgentConnection {
    AgentConnection::start("a".to_owned(), (tokio::io::sink(), ()), output, CancellationToken::new(), ending)
}

/// Connects to an agent with a pipe of this capacity, in bytes, and subscribes to session `s`.
fn talking(pipe_bytes: usize) -> (DuplexStream, AgentConnection, PeerReceiver) {
    let (agent, output) = tokio::io::duplex(pipe_bytes);
    let connection = connected(output, std::future::pending());
    let receiver = connection.listen();
    receiver.subscribe("s");
    (agent, connection, receiver)
}

async fn received(output: &[u8]) -> (Vec<String>, String) {
    let connection = connected(&*output.to_vec().leak(), async { "it ended".to_owned() });
    let mut receiver = connection.listen();
    receiver.subscribe("s");
    let mut updates = Vec::new();
    while let Some(message) = receiver.recv().await {
        let PeerMessage::Update(update) = message else { panic!("{message:?}") };
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
    let (updates, how) = received(&output).await;
    assert_eq!(updates, ["\"1\"", "\"2\"", "\"3\u{fffd}\""]);
    assert_eq!(how, "it ended");
}

#[tokio::test]
async fn halves_of_characters_are_replaced() {
    let texts = [
        (r"a\ud83d", r"a\ufffd"),
        (r"\uDE00b\n", r"\ufffdb\n"),
        (r"\ud83d\ude00", r"\ud83d\ude00"),
        (r"\uD83D\uD83D\uDE00\uD83D", r"\ufffd\uD83D\uDE00\ufffd"),
        (r"\\ud83d\\", r"\\ud83d\\"),
        (r"\u00e9\udfffx", r"\u00e9\ufffdx"),
    ];
    let output = texts.map(|(text, _)| update(text) + "\n").concat() + "\\ud83d\\u";
    let (updates, how) = received(output.as_bytes()).await;
    assert_eq!(updates, texts.map(|(_, text)| format!("\"{text}\"")));
    assert_eq!(how, "it ended");
}

#[tokio::test]
async fn a_stream_that_is_junk_throughout_is_quoted() {
    let (_, how) = received(b"command not found: agent\nusage: ...\n").await;
    assert!(how.contains("does not speak ACP") && how.contains("command not found: agent"), "{how}");
    let (_, how) = received(&b"y\n".repeat(5000)).await;
    assert!(how.contains("does not speak ACP"), "{how}");
    let mut late = update("1").into_bytes();
    late.push(b'\n');
    late.extend(b"y\n".repeat(5000));
    late.extend(update("2").bytes());
    let (updates, how) = received(&late).await;
    assert_eq!((updates.len(), how.as_str()), (2, "it ended"));
}

/// Updates that precede a session's subscription are delivered in order, before later ones.
#[tokio::test]
async fn updates_of_a_session_are_received_from_its_beginning() {
    let (mut agent, output) = tokio::io::duplex(1 << 20);
    let connection = connected(output, std::future::pending());
    let mut receiver = connection.listen();
    receiver.subscribe("other");
    for _ in 0..UNCLAIMED_MAX {
        agent.write_all((update("early") + "\n").as_bytes()).await.unwrap();
    }
    agent.write_all((update("last") + "\n").as_bytes()).await.unwrap();
    agent.write_all((update("x").replace("\"s\"", "\"other\"") + "\n").as_bytes()).await.unwrap();
    assert!(matches!(receiver.recv().await, Some(PeerMessage::Update(_))));
    let early = receiver.subscribe("s");
    assert_eq!(early.len(), UNCLAIMED_MAX);
    assert_eq!(early.last().unwrap().get(), "\"last\"");
    agent.write_all((update("now") + "\n").as_bytes()).await.unwrap();
    let Some(PeerMessage::Update(now)) = receiver.recv().await else { panic!() };
    assert_eq!(now.get(), "\"now\"");
}

#[tokio::test]
async fn agent_waits_until_its_output_is_received() {
    let (mut agent, connection, mut receiver) = talking(1024);
    let line = update("1") + "\n";
    let sending = tokio::spawn(async move {
        for _ in 0..1000 {
            agent.write_all(line.as_bytes()).await.unwrap();
        }
    });
    while !connection.is_held_up() {
        tokio::task::yield_now().await;
    }
    assert!(!sending.is_finished());
    for _ in 0..1000 {
        assert!(receiver.recv().await.is_some());
    }
    sending.await.unwrap();
}

#[tokio::test]
async fn pending_messages_are_bounded_by_their_bytes() {
    const UPDATES: usize = 20;
    let (mut agent, connection, mut receiver) = talking(1024);
    let line = update(&"x".repeat(1 << 20)) + "\n";
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    let saying = tokio::spawn(async move {
        for _ in 0..UPDATES {
            agent.write_all(line.as_bytes()).await.unwrap();
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    while !connection.is_held_up() {
        tokio::task::yield_now().await;
    }
    // One message more than the queue holds is waiting for room.
    let waiting = sent.load(Ordering::Relaxed);
    assert!(waiting <= INBOX_BYTES_MAX / (1 << 20) + 2, "{waiting} updates of 1 MiB wait");
    for _ in 0..UPDATES {
        assert!(receiver.recv().await.is_some());
    }
    saying.await.unwrap();
}

/// Receives until [`PeerMessage::Drained`] of `request`; returns all messages as text.
async fn drained_updates(receiver: &mut PeerReceiver, request: u64) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        match receiver.recv().await.unwrap() {
            PeerMessage::Update(update) => all.push(update.get().trim_matches('"').to_owned()),
            PeerMessage::Answer(id, _) => all.push(format!("answer {id}")),
            PeerMessage::Drained(id) => {
                all.push(format!("out {id}"));
                if id == request {
                    return all;
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

fn answer(id: u64) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#) + "\n"
}

/// Messages that an agent wrote before its answer was handled precede [`PeerMessage::Drained`],
/// however many reads they take.
#[tokio::test]
async fn messages_sent_with_an_answer_are_received_before_the_drain_ends() {
    let (mut agent, connection, mut receiver) = talking(1 << 20);
    let mut other = connection.listen();
    let (first, second) = (receiver.request("m", &()), other.request("m", &()));
    // More bytes than one read returns, and more messages than one task may receive per poll.
    let long = "x".repeat(2 * READ_BYTES);
    agent.write_all((update("before") + "\n" + &answer(first)).as_bytes()).await.unwrap();
    agent.write_all((update(&long) + "\n").repeat(2).as_bytes()).await.unwrap();
    agent.write_all((update("behind") + "\n").repeat(300).as_bytes()).await.unwrap();
    agent.write_all(answer(second).as_bytes()).await.unwrap();
    let mut expected = vec!["before".to_owned(), format!("answer {first}"), long.clone(), long];
    expected.extend(std::iter::repeat_n("behind".to_owned(), 300));
    expected.push(format!("out {first}"));
    assert_eq!(drained_updates(&mut receiver, first).await, expected);
    assert_eq!(
        drained_updates(&mut other, second).await,
        [format!("answer {second}"), format!("out {second}")]
    );
    agent.write_all((update("late") + "\n").as_bytes()).await.unwrap();
    assert!(matches!(receiver.recv().await, Some(PeerMessage::Update(_))));
}

#[tokio::test]
async fn agent_that_never_stops_sending_is_drained_all_the_same() {
    let (mut agent, _connection, mut receiver) = talking(4 * READ_BYTES);
    let id = receiver.request("m", &());
    let talking = tokio::spawn(async move {
        let text = update(&"x".repeat(1000)) + "\n";
        agent.write_all((answer(id) + &text.repeat(100)).as_bytes()).await.unwrap();
        while agent.write_all(text.repeat(100).as_bytes()).await.is_ok() {}
    });
    drained_updates(&mut receiver, id).await;
    assert!(!talking.is_finished());
    talking.abort();
}

#[tokio::test]
async fn agent_that_exits_with_its_answer_is_drained() {
    let output = answer(1) + &update("behind");
    let (mut agent, reader) = tokio::io::duplex(1024);
    let connection = connected(reader, async { "it ended".to_owned() });
    let mut receiver = connection.listen();
    receiver.subscribe("s");
    assert_eq!(receiver.request("m", &()), 1);
    agent.write_all(output.as_bytes()).await.unwrap();
    drop(agent);
    assert_eq!(drained_updates(&mut receiver, 1).await, ["answer 1", "behind", "out 1"]);
    assert!(receiver.recv().await.is_none());
}

#[tokio::test]
async fn what_is_kept_for_sessions_that_nobody_knows_is_counted_with_their_names() {
    let (mut agent, _connection, mut receiver) = talking(1024);
    let name = |number: usize| number.to_string().repeat(UNCLAIMED_BYTES_MAX / 2);
    for number in 1..4 {
        let line = update("x").replace("\"s\"", &format!("\"{}\"", name(number)));
        agent.write_all((line + "\n").as_bytes()).await.unwrap();
    }
    agent.write_all((update("last") + "\n").as_bytes()).await.unwrap();
    assert!(receiver.recv().await.is_some());
    let kept = [1, 2, 3].map(|number| receiver.subscribe(&name(number)).len());
    assert_eq!(kept, [0, 0, 1]);
}

#[tokio::test]
async fn a_request_whose_id_is_too_long_or_in_use_is_refused() {
    let (mut agent, _connection, mut receiver) = talking(1024);
    // A request with the last id is already open.
    for length in [REQUEST_ID_BYTES_MAX - 1, REQUEST_ID_BYTES_MAX - 2, REQUEST_ID_BYTES_MAX - 2] {
        let id = "x".repeat(length);
        let line = format!(r#"{{"id":"{id}","method":"m","params":{{"sessionId":"s"}}}}"#) + "\n";
        agent.write_all(line.as_bytes()).await.unwrap();
    }
    let Some(PeerMessage::Request { id, .. }) = receiver.recv().await else { panic!() };
    assert_eq!((id.0.len(), receiver.unanswered()), (REQUEST_ID_BYTES_MAX, 1));
    agent.write_all((update("after") + "\n").as_bytes()).await.unwrap();
    assert!(matches!(receiver.recv().await, Some(PeerMessage::Update(_))), "it was given twice");
}

/// The first request stays open, and closing the session of the second one does not answer it.
#[tokio::test]
async fn request_id_in_use_is_refused_and_stays_with_its_first_request() {
    let (mut agent, output) = tokio::io::duplex(1 << 20);
    let (answers, input) = tokio::io::duplex(1 << 20);
    let ending = std::future::pending();
    let connection =
        AgentConnection::start("a".to_owned(), (input, ()), output, CancellationToken::new(), ending);
    let (mut first, second) = (connection.listen(), connection.listen());
    first.subscribe("s");
    second.subscribe("other");
    let mut answers = tokio::io::BufReader::new(answers).lines();
    for session in ["s", "other"] {
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "m", "params": { "sessionId": session } });
        agent.write_all(format!("{request}\n").as_bytes()).await.unwrap();
    }
    let Some(PeerMessage::Request { id, .. }) = first.recv().await else { panic!() };
    let refused: Value = serde_json::from_str(&answers.next_line().await.unwrap().unwrap()).unwrap();
    assert!(refused["error"].is_object(), "{refused}");
    drop(second);
    first.answer(&id, Ok(json!("answered")));
    let answer: Value = serde_json::from_str(&answers.next_line().await.unwrap().unwrap()).unwrap();
    assert_eq!(answer["result"], "answered");
}

/// The stop and what is still queued race in the writer, so this is tried several times.
#[tokio::test]
async fn messages_from_before_a_stop_reach_the_agent() {
    for _ in 0..20 {
        let (answers, input) = tokio::io::duplex(1 << 20);
        let (_agent, output) = tokio::io::duplex(1);
        let ending = std::future::pending();
        let connection =
            AgentConnection::start("a".to_owned(), (input, ()), output, CancellationToken::new(), ending);
        let receiver = connection.listen();
        receiver.notify("first", &());
        receiver.notify("last", &());
        connection.stop();
        let mut lines = tokio::io::BufReader::new(answers).lines();
        for method in ["first", "last"] {
            let line = lines.next_line().await.unwrap().unwrap_or_default();
            assert!(line.contains(method), "{method}: {line}");
        }
        assert_eq!(lines.next_line().await.unwrap(), None);
    }
}

#[tokio::test]
async fn stdin_of_an_agent_that_does_not_read_is_closed_after_a_stop() {
    let (lifeline, held) = tokio::sync::oneshot::channel::<()>();
    let (_answers, input) = tokio::io::duplex(1);
    let (_agent, output) = tokio::io::duplex(1);
    let stop = CancellationToken::new();
    let ending = std::future::pending();
    let connection = AgentConnection::start("a".to_owned(), (input, lifeline), output, stop, ending);
    connection.listen().notify("never read", &());
    connection.stop();
    // The lifeline is dropped without a word.
    assert!(held.await.is_err());
}

#[test]
fn error_that_quotes_a_secret_hides_it() {
    let _kept = crate::backend::secrets::Secret::register("of-peer-c0ffee");
    let error = r#"{"code":-1,"message":"no of-peer-c0ffee","data":{"details":"of-peer-c0ffee too"}}"#;
    let error = AgentError::of(&RawValue::from_string(error.to_owned()).unwrap());
    assert_eq!(error.to_string(), "no (secret) (-1): (secret) too");
}

/// The lost message may be an answer or the text of one; junk is skipped.
#[tokio::test]
async fn agent_whose_message_is_too_long_is_given_up_with_the_reason() {
    let long = "x".repeat(LINE_BYTES_MAX + 1);
    let output = [update("before"), long.clone(), update("behind"), format!(" {{{long}"), update("lost")];
    let (texts, how) = received(output.join("\n").as_bytes()).await;
    assert_eq!(texts, ["\"before\"", "\"behind\""]);
    assert!(how.contains("a message of more than 64 MiB"), "{how}");
}
