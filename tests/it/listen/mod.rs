//! Other programs connect: listeners of the real program, from outside.
//!
//! Owns: a host that listens, and clients that speak to it over sockets as they should, and as they
//! should not.
//! Never: judges how fast something is.

// The lints let tests panic, but not what they share.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod admission;
#[cfg(target_os = "linux")]
mod announcing;
#[cfg(target_os = "linux")]
mod asked;
mod bounds;
mod frames;
mod fronts;
mod joining;
mod returning;
mod together;
mod tokens;

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{channel, Receiver};
use std::thread;

use serde_json::{json, Value};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::{HeaderName, HeaderValue};
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{client, Error, Message, WebSocket};

use crate::support::{program, HUNG};

/// A host that listens, and nothing else.
struct Host {
    child: Child,
    log: Receiver<String>,
    /// Addresses of the listeners, as printed.
    urls: Vec<String>,
}

impl Host {
    /// Listens on a port of its own, with these arguments besides.
    fn start(arguments: &[&str]) -> Self {
        Self::listen(&["ws://127.0.0.1:0"], arguments)
    }

    /// Starts a host that listens on these addresses.
    fn listen(addresses: &[&str], arguments: &[&str]) -> Self {
        let mut command = program();
        command.args(["serve", "--ephemeral"]).args(arguments);
        Self::spawn(command, addresses)
    }

    /// Starts a host that listens on these addresses with this state folder.
    fn on(folder: &Path, addresses: &[&str]) -> Self {
        let mut command = program();
        command.args(["serve", "--state-dir"]).arg(folder);
        Self::spawn(command, addresses)
    }

    fn spawn(mut command: Command, addresses: &[&str]) -> Self {
        for address in addresses {
            command.args(["--listen", address]);
        }
        // A machine may stand still for longer than people wait for a handshake.
        for limit in ["--handshake-timeout", "--message-timeout"] {
            if command.get_args().all(|argument| argument != limit) {
                command.arg(limit).arg(HUNG.as_secs().to_string());
            }
        }
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, log) = channel();
        thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let printed = |_| {
            let line: String = log.recv_timeout(HUNG).expect("it tells where it listens");
            line.strip_prefix("listening on ").unwrap_or_else(|| panic!("{line}")).to_owned()
        };
        let urls = addresses.iter().map(printed).collect();
        Self { child, log, urls }
    }

    fn url(&self) -> &str {
        &self.urls[0]
    }

    /// `HOST:PORT` of the first listener.
    fn place(&self) -> &str {
        self.url().strip_prefix("ws://").unwrap().split('/').next().unwrap()
    }

    fn connect(&self) -> Client {
        Client::connect(self.url(), &[]).unwrap()
    }

    /// Asks it to leave, and returns everything that it has logged.
    fn leave(mut self) -> Vec<String> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
        self.log.iter().collect()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }
}

/// A stream whose reads go on after the process was stopped for a while. With a timeout, the system
/// ends them then, although no signal is handled.
struct ResumedStream<S>(S);

impl<S: Read> Read for ResumedStream<S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(into) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }
}

impl<S: Write> Write for ResumedStream<S> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.0.write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A client over a WebSocket.
struct Client {
    socket: WebSocket<ResumedStream<TcpStream>>,
    last: u64,
    /// Messages received while waiting for another one.
    told: Vec<Value>,
}

impl Client {
    fn connect(url: &str, headers: &[(&'static str, &str)]) -> Result<Self, Box<Error>> {
        let mut request = url.into_client_request().unwrap();
        for (name, value) in headers {
            request
                .headers_mut()
                .insert(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        }
        let uri = request.uri();
        let stream = TcpStream::connect((uri.host().unwrap(), uri.port_u16().unwrap())).unwrap();
        stream.set_read_timeout(Some(HUNG)).unwrap();
        match client(request, ResumedStream(stream)) {
            Ok((socket, _)) => Ok(Self { socket, last: 0, told: Vec::new() }),
            Err(tokio_tungstenite::tungstenite::HandshakeError::Failure(error)) => Err(Box::new(error)),
            Err(error) => panic!("{error}"),
        }
    }

    /// Connects to the listener's TCP address.
    fn try_connect(url: &str) -> std::io::Result<TcpStream> {
        let request = url.into_client_request().unwrap();
        let uri = request.uri();
        TcpStream::connect((uri.host().unwrap(), uri.port_u16().unwrap()))
    }

    fn says(&mut self, mut message: Value) {
        message["jsonrpc"] = "2.0".into();
        self.socket.send(Message::text(message.to_string())).unwrap();
    }

    fn hears(&mut self) -> Value {
        loop {
            match self.socket.read().unwrap() {
                Message::Text(text) => return serde_json::from_str(&text).unwrap(),
                Message::Ping(_) | Message::Pong(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Asks, and returns the whole answer.
    fn asks(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        self.says(json!({ "id": self.last, "method": method, "params": params }));
        loop {
            let told = self.hears();
            if told["id"] == self.last {
                return told;
            }
            self.told.push(told);
        }
    }

    fn initializes(&mut self, name: &str, version: &str) {
        let params = json!({ "channel": "ahp-root://", "clientId": name, "protocolVersions": [version] });
        let answer = self.asks("initialize", params);
        assert!(answer["result"].is_object(), "{answer}");
    }

    fn is_served(&mut self) {
        let answer = self.asks("ping", json!({ "channel": "ahp-root://" }));
        assert_eq!(answer["error"], Value::Null, "{answer}");
    }

    /// The code that the host closes the connection with.
    fn is_closed(&mut self) -> CloseCode {
        loop {
            match self.socket.read().unwrap() {
                Message::Close(Some(said)) => return said.code,
                Message::Close(None) => panic!("it does not say why"),
                _ => {}
            }
        }
    }
}

/// Writes a file that nobody else can read.
fn write_private(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// The status that a handshake is refused with.
fn refused(connected: Result<Client, Box<Error>>) -> u16 {
    match connected.map_err(|error| *error) {
        Err(Error::Http(response)) => response.status().as_u16(),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was let in"),
    }
}
