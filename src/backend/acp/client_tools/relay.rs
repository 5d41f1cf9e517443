//! The process of the MCP server: this program again, in a hidden mode, started by an agent.
//!
//! Owns: finding the host by what its environment says, and carrying bytes between the agent and
//! the host until either of them is gone.
//! Never: understands what it carries, or outlives the host or the agent.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process;
use std::thread;

/// The name of the mode in which this program carries bytes between an agent and the host.
pub const MODE: &str = "relay-client-tools";

/// The variable that names the host's socket.
pub const SOCKET: &str = "AHP_SIDECAR_TOOLS_SOCKET";

/// The variable that holds the token of the session.
pub const TOKEN: &str = "AHP_SIDECAR_TOOLS_TOKEN";

const CHUNK: usize = 64 << 10;

/// Carries bytes between stdin and stdout and the host, until one of them ends.
///
/// # Errors
/// When the host cannot be reached, or the system gives us no thread.
pub fn run() -> io::Result<()> {
    let said = |name| {
        std::env::var_os(name).ok_or_else(|| {
            io::Error::other(format!("{name} is not set: only an agent of a running host starts this"))
        })
    };
    let (socket, token) = (said(SOCKET)?, said(TOKEN)?);
    let mut host = UnixStream::connect(socket)?;
    host.write_all(token.as_encoded_bytes())?;
    host.write_all(b"\n")?;
    let to_agent = host.try_clone()?;
    thread::Builder::new().spawn(move || {
        // Whichever way it ends, there is nobody left to carry anything for.
        carry(to_agent, io::stdout()).unwrap_or_default();
        process::exit(0);
    })?;
    carry(io::stdin(), &host)?;
    host.shutdown(Shutdown::Both)
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
