//! The process of the MCP server: this program in a hidden mode, started by an agent.
//!
//! Owns: connecting to the host that the environment names, and relaying bytes until the agent or
//! the host is gone.
//! Never: interprets the bytes, or outlives the host or the agent.

use std::io::{self, Read, Write};
use std::path::Path;
use std::process;
use std::thread;

use crate::os::sockets;

/// Command-line name of the relay mode.
pub const MODE: &str = "relay-client-tools";

/// Environment variable with the path of the host's socket.
pub const SOCKET: &str = "AHP_SIDECAR_TOOLS_SOCKET";

/// Environment variable with the token of the session.
pub const TOKEN: &str = "AHP_SIDECAR_TOOLS_TOKEN";

const CHUNK: usize = 64 << 10;

/// Relays bytes between the agent (stdin, stdout) and the host until one of them ends.
///
/// # Errors
/// When the host cannot be reached, or when no thread can be started.
pub fn run() -> io::Result<()> {
    let variable = |name| {
        std::env::var_os(name).ok_or_else(|| {
            io::Error::other(format!(
                "{name} is not set: this command is internal, and only agents of a running host start it"
            ))
        })
    };
    let (socket, token) = (variable(SOCKET)?, variable(TOKEN)?);
    let mut host = sockets::connect_now(Path::new(&socket))?;
    host.write_all(token.as_encoded_bytes())?;
    host.write_all(b"\n")?;
    let to_agent = host.try_clone()?;
    thread::Builder::new().spawn(move || {
        // Success and failure alike mean that the connection is over.
        carry(to_agent, io::stdout()).unwrap_or_default();
        process::exit(0);
    })?;
    carry(io::stdin(), &host)?;
    sockets::shut_down(&host)
}

fn carry(mut from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let count = match from.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        to.write_all(&chunk[..count])?;
        to.flush()?;
    }
}
