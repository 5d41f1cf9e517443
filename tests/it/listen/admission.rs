//! Authentication of connections, and limits for connections without it.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::{refused, Client, Host};
use crate::support::{program, HUNG};

#[test]
fn websocket_connection_requires_the_token() {
    let host = Host::start(&["--log", "trace"]);
    let (place, token) = host.url().split_once("/?tkn=").unwrap();
    assert_eq!(token.len(), 43, "256 bits");
    host.connect().initializes("one", "1.0.0");
    let bearer = format!("Bearer {token}");
    Client::connect(place, &[("authorization", &bearer)]).unwrap().initializes("two", "1.0.0");
    assert_eq!(refused(Client::connect(place, &[])), 401);
    assert_eq!(refused(Client::connect(&format!("{place}/?tkn={token}x"), &[])), 401);
    assert_eq!(refused(Client::connect(&format!("{place}/elsewhere?tkn={token}"), &[])), 404);
    let token = token.to_owned();
    let log = host.leave();
    assert!(log.iter().any(|line| line.contains("a client is rejected")), "{log:?}");
    assert!(log.iter().all(|line| !line.contains(&token)), "the token is in the log");
}

#[test]
fn unknown_origins_and_host_names_are_refused() {
    let host = Host::start(&["--allow-origin", "https://a.example"]);
    let origin = |origin| Client::connect(host.url(), &[("origin", origin)]);
    origin("https://a.example").unwrap().initializes("page", "1.0.0");
    assert_eq!(refused(origin("https://b.example")), 403);
    assert_eq!(refused(Client::connect(host.url(), &[("host", "evil.example")])), 403);
    Client::connect(host.url(), &[("host", "localhost:7")]).unwrap().initializes("tunnel", "1.0.0");
}

#[test]
fn token_may_be_chosen_and_is_optional_only_on_loopback() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    super::write_private(&file, "a-token-of-our-own\n");
    let host = Host::start(&["--token-file", file.to_str().unwrap()]);
    assert!(!host.url().contains("tkn"), "who has it need not be told");
    assert_eq!(refused(Client::connect(host.url(), &[])), 401);
    let url = format!("{}/?tkn=a-token-of-our-own", host.url());
    Client::connect(&url, &[]).unwrap().initializes("one", "1.0.0");

    let host = Host::start(&["--no-token"]);
    host.connect().initializes("one", "1.0.0");
    for address in ["ws://0.0.0.0:0", "ws://[::]:0", "ws://some.example:0"] {
        let mut command = program();
        let output =
            command.args(["serve", "--ephemeral", "--no-token", "--listen", address]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{address}");
    }
}

/// Requests other than a WebSocket handshake are answered with an HTTP error.
#[test]
fn invalid_websocket_handshake_is_answered_with_an_http_error() {
    let host = Host::start(&[]);
    let long = format!("GET / HTTP/1.1\r\nHost: localhost\r\nLong: {}\r\n\r\n", "x".repeat(17 << 10));
    for (said, status) in [
        ("POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", "400"),
        ("\x16\x03\x01 hello\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "401"),
        (&long, "431"),
    ] {
        let mut stream = TcpStream::connect(host.place()).unwrap();
        stream.set_read_timeout(Some(HUNG)).unwrap();
        stream.write_all(said.as_bytes()).unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(String::from_utf8_lossy(&answer), format!("HTTP/1.1 {status}"), "{said:.40}");
    }
    host.connect().initializes("one", "1.0.0");
}

/// Silent connections do not keep others out.
#[test]
fn ten_thousand_half_open_connections_do_not_block_other_clients() {
    let host = Host::start(&[]);
    let mut served = host.connect();
    served.initializes("before", "1.0.0");
    let mut open = std::collections::VecDeque::new();
    for _ in 0..10_000 {
        let mut stream = TcpStream::connect(host.place()).unwrap();
        // Those that were made to leave may be gone by the time that they speak.
        stream.write_all(b"GET / HT").ok();
        open.push_back(stream);
        open.truncate(400);
        if open.len() == 400 {
            open.pop_front();
        }
    }
    served.is_served();
    host.connect().initializes("after", "1.0.0");
    let files = std::fs::read_dir(format!("/proc/{}/fd", host.child.id())).map_or(0, Iterator::count);
    assert!(files < 250, "{files} files are open");
}

#[test]
fn connection_with_an_expired_handshake_is_closed() {
    let host = Host::start(&["--handshake-timeout", "0"]);
    let mut stream = TcpStream::connect(host.place()).unwrap();
    stream.set_read_timeout(Some(HUNG)).unwrap();
    stream.write_all(b"GET / HT").ok();
    // It may have been hung up on before it was heard.
    assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0, "it is hung up on");
}
