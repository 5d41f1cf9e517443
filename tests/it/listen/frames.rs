//! WebSocket frames that the host accepts, and the close codes of those that it does not.

use serde_json::json;
use std::io::Write;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::Message;

use super::Host;

fn ping(id: u64) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "method": "ping", "params": { "channel": "ahp-root://" } })
        .to_string()
}

#[test]
fn message_may_arrive_in_several_frames_with_pings_between() {
    let host = Host::start(&[]);
    let mut client = host.connect();
    client.initializes("one", "1.0.0");
    let whole = ping(70);
    let (first, rest) = whole.split_at(10);
    let (second, third) = rest.split_at(1);
    let part = |text: &str, kind, is_last| {
        Message::Frame(Frame::message(text.as_bytes().to_vec(), OpCode::Data(kind), is_last))
    };
    client.socket.write(part(first, Data::Text, false)).unwrap();
    client.socket.write(Message::Ping("marco".into())).unwrap();
    client.socket.write(part(second, Data::Continue, false)).unwrap();
    client.socket.write(part(third, Data::Continue, true)).unwrap();
    client.socket.flush().unwrap();
    let mut heard = Vec::new();
    while heard.len() < 2 {
        match client.socket.read().unwrap() {
            Message::Pong(said) => heard.push(String::from_utf8(said.to_vec()).unwrap()),
            Message::Text(text) => heard.push(text.to_string()),
            other => panic!("{other:?}"),
        }
    }
    heard.sort();
    assert_eq!(heard[0], "marco");
    assert_eq!(heard[1], r#"{"jsonrpc":"2.0","id":70,"result":null}"#);
}

#[test]
fn invalid_frame_closes_only_its_own_connection() {
    let host = Host::start(&["--max-frame-bytes", "1000"]);
    let mut other = host.connect();
    other.initializes("other", "1.0.0");
    let longest = |bytes: usize| ping(1) + &" ".repeat(bytes - ping(1).len());
    let halves = |bytes: usize| {
        let text = longest(bytes);
        let (first, second) = text.split_at(bytes / 2);
        let part = |text: &str, kind, is_last| {
            Message::Frame(Frame::message(text.as_bytes().to_vec(), OpCode::Data(kind), is_last))
        };
        vec![part(first, Data::Text, false), part(second, Data::Continue, true)]
    };
    let wrong =
        |bytes: &'static [u8]| vec![Message::Frame(Frame::message(bytes, OpCode::Data(Data::Text), true))];
    for (said, code) in [
        (vec![Message::binary(ping(1).into_bytes())], CloseCode::Unsupported),
        (vec![Message::text(longest(1001))], CloseCode::Size),
        (halves(1002), CloseCode::Size),
        (vec![Message::text("x".repeat(5 << 20))], CloseCode::Size),
        (wrong(b"\xff\xfe"), CloseCode::Invalid),
    ] {
        let mut client = host.connect();
        client.initializes("one", "1.0.0");
        for message in said {
            // It may be hung up on before all is said.
            client.socket.send(message).ok();
        }
        assert_eq!(client.is_closed(), code);
        other.is_served();
    }
    let mut client = host.connect();
    client.initializes("one", "1.0.0");
    for message in [vec![Message::text(longest(1000))], halves(1000)].concat() {
        client.socket.send(message).unwrap();
    }
    assert_eq!((client.hears()["id"].as_u64(), client.hears()["id"].as_u64()), (Some(1), Some(1)));
    // A frame that is not masked is none of a client.
    client.socket.get_mut().write_all(b"\x81\x02{}").unwrap();
    assert_eq!(client.is_closed(), CloseCode::Protocol);
    other.is_served();
}

#[test]
fn closing_client_receives_a_close_frame() {
    let host = Host::start(&[]);
    let mut client = host.connect();
    client.initializes("one", "1.0.0");
    client.socket.close(None).unwrap();
    let answer = std::iter::from_fn(|| client.socket.read().ok()).find(Message::is_close);
    assert!(answer.is_some());
    host.connect().initializes("one", "1.0.0");
}
