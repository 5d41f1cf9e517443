//! Limits of the host's memory per client: its own frames, incomplete messages, and their total.

use serde_json::json;
use std::io::Write;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::frame::{Frame, FrameHeader};
use tokio_tungstenite::tungstenite::Message;

use super::{Client, Host};

/// Sends the beginning of a message that is announced as long as this.
fn begin_message(client: &mut Client, announced: u64, sent: usize) {
    let opcode = OpCode::Data(Data::Text);
    let header = FrameHeader { is_final: true, opcode, mask: Some([0; 4]), ..FrameHeader::default() };
    let mut bytes = Vec::new();
    header.format(announced, &mut bytes).unwrap();
    bytes.resize(bytes.len() + sent, b' ');
    client.socket.get_mut().write_all(&bytes).unwrap();
}

/// The code and the reason that the host closes the connection with.
fn closed(client: &mut Client) -> (CloseCode, String) {
    loop {
        match client.socket.read().unwrap() {
            Message::Close(said) => {
                let said = said.expect("it says why");
                return (said.code, said.reason.to_string());
            }
            Message::Text(_) | Message::Pong(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Pongs in the system's buffers are bounded; the host retains only the latest one.
#[test]
fn client_that_sends_pings_without_reading_has_one_pending_pong() {
    const PINGS: u32 = 200_000;
    let host = Host::start(&[]);
    let mut client = host.connect();
    client.initializes("one", "1.0.0");
    let payload = |number: u32| format!("{number:0>120}");
    let mut pings = Vec::new();
    for number in 1..=PINGS {
        let mut ping = Frame::ping(payload(number));
        ping.header_mut().mask = Some([0; 4]);
        ping.format(&mut pings).unwrap();
    }
    client.socket.get_mut().write_all(&pings).unwrap();
    client.says(json!({ "id": 70, "method": "ping", "params": { "channel": "ahp-root://" } }));
    let (mut pongs, mut last, mut is_answered) = (0, String::new(), false);
    while !is_answered || last != payload(PINGS) {
        match client.socket.read().unwrap() {
            Message::Pong(said) => {
                pongs += 1;
                last = String::from_utf8(said.to_vec()).unwrap();
            }
            Message::Text(text) => is_answered |= text.contains(r#""id":70"#),
            other => panic!("{other:?}"),
        }
    }
    assert!(pongs < PINGS, "each ping is answered: all answers have waited");
    client.is_served();
}

#[test]
fn unfinished_message_closes_only_its_own_connection_after_a_timeout() {
    let host = Host::start(&["--message-timeout", "0"]);
    let mut other = host.connect();
    other.initializes("other", "1.0.0");
    let part = |text: &str, kind, is_last| {
        Message::Frame(Frame::message(text.as_bytes().to_vec(), OpCode::Data(kind), is_last))
    };
    for begun in ["a frame", "a message", "a ping"] {
        let mut client = host.connect();
        client.initializes("one", "1.0.0");
        match begun {
            "a frame" => begin_message(&mut client, 1000, 10),
            "a message" => client.socket.send(part("{", Data::Text, false)).unwrap(),
            _ => client.socket.get_mut().write_all(&[0x89, 0x84, 0, 0]).unwrap(),
        }
        let (code, reason) = closed(&mut client);
        assert_eq!(code, CloseCode::Policy, "{begun}");
        assert_eq!(reason, "a message was begun and not finished within 0 seconds");
        other.is_served();
    }
}

#[test]
fn client_with_the_largest_message_is_closed_at_the_total_limit_and_may_return() {
    let host = Host::start(&["--client-memory", "4194304"]);
    let (mut large, mut small) = (host.connect(), host.connect());
    large.initializes("large", "1.0.0");
    small.initializes("small", "1.0.0");
    begin_message(&mut large, 60 << 20, 3 << 20);
    large.socket.get_mut().flush().unwrap();
    begin_message(&mut small, 2 << 20, (2 << 20) - 2);
    let (code, reason) = closed(&mut large);
    assert_eq!(code, CloseCode::Again);
    assert!(reason.contains("exceed 4194304 bytes of memory") && reason.contains("reconnect"), "{reason}");
    // Its message was blank, and is none.
    small.socket.get_mut().write_all(b"  ").unwrap();
    small.is_served();
    let mut back = host.connect();
    back.initializes("large", "1.0.0");
    let log = host.leave();
    let told = log.iter().filter(|line| line.contains("all connections together exceed")).count();
    assert_eq!(told, 1, "{log:?}");
}

#[test]
fn pings_do_not_extend_the_time_for_an_unfinished_message() {
    let host = Host::start(&["--message-timeout", "1"]);
    let mut client = host.connect();
    client.initializes("one", "1.0.0");
    let part = Frame::message(b"{".to_vec(), OpCode::Data(Data::Text), false);
    client.socket.send(Message::Frame(part)).unwrap();
    let mut stream = client.socket.get_ref().0.try_clone().unwrap();
    let (closed_now, is_closed) = channel();
    // Longer than the time for a message, by far.
    let pings = thread::spawn(move || {
        (0..200).all(|_| {
            let ping = [0x89, 0x81, 0, 0, 0, 0, b'p'];
            // The host may have closed the connection.
            stream.write_all(&ping).ok();
            is_closed.recv_timeout(Duration::from_millis(50)).is_err()
        })
    });
    let (code, _) = closed(&mut client);
    closed_now.send(()).unwrap_or_default();
    assert_eq!(code, CloseCode::Policy);
    assert!(!pings.join().unwrap(), "the connection is closed only when the pings have ended");
}
