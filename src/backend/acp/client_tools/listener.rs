//! The socket on which the MCP servers of an agent's sessions reach the host.
//!
//! Owns: the socket, in a folder that only this user may enter; access by session token; and
//! removal of the folder when the host ends, or by the next host if this one was killed.
//! Never: gives a session's token to anyone but its agent, or accepts it after the session is
//! closed.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use agent_client_protocol_schema::v1::{EnvVariable, McpServer, McpServerStdio};
use ahp_types::state::ToolDefinition;
use anyhow::Context;
use tokio::sync::{mpsc, watch, OwnedSemaphorePermit, Semaphore};
use tokio::time::{timeout, Instant};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::server::{self, Lines, SharedTools, ToolServerEvent};
use super::{relay, OfferedTools, SERVER};
use crate::backend::secrets::Secret;
use crate::os::sockets::{bind, foreign_peer, has_listener, listen, AsyncListener, Stream};
use crate::os::{exe, private};
use crate::sync::lock;

/// Prefix of the socket folders' names, followed by the process id.
const FOLDER: &str = "ahp-sidecar-";

/// Maximum number of unauthenticated connections; further ones wait unaccepted, at no cost.
const UNAUTHENTICATED_MAX: usize = 32;

const TOKEN_WITHIN: Duration = Duration::from_secs(5);

/// Maximum number of queued events; reading from the agent stops while the queue is full.
const EVENTS_MAX: usize = 64;

/// Time for an agent to request changed tools; afterwards its list counts as outdated.
const RELIST_WITHIN: Duration = Duration::from_secs(1);

/// Listener for the MCP servers of an agent's sessions, opened on first use.
#[derive(Debug, Default)]
pub struct ToolListener {
    open: tokio::sync::Mutex<Option<OpenListener>>,
    links: LinksByToken,
}

#[derive(Debug)]
struct OpenListener {
    folder: SocketFolder,
    /// Stops the listening task on drop.
    _listening: DropGuard,
}

/// State of each session's server, by its token.
type LinksByToken = Arc<Mutex<HashMap<String, SharedTools>>>;

fn all(links: &LinksByToken) -> MutexGuard<'_, HashMap<String, SharedTools>> {
    lock(links)
}

/// Host's end of one session's MCP server. Dropping it invalidates the token.
#[derive(Debug)]
pub struct ToolServer {
    token: String,
    _secret: Secret,
    socket: PathBuf,
    links: LinksByToken,
    tools: watch::Sender<Arc<OfferedTools>>,
    events: mpsc::Receiver<ToolServerEvent>,
    listed: watch::Receiver<Option<Arc<OfferedTools>>>,
    changed: Instant,
}

impl ToolListener {
    /// Creates a server of these tools for one session.
    pub async fn serve(&self, tools: Vec<ToolDefinition>) -> anyhow::Result<ToolServer> {
        let mut open = self.open.lock().await;
        let listening = match &mut *open {
            Some(open) => open,
            open => open.insert(self.listen().context("the socket of the MCP server cannot be created")?),
        };
        let token = uuid::Uuid::new_v4().simple().to_string();
        let (tools, offered) = watch::channel(Arc::new(OfferedTools::new(tools)));
        let (events, receiver) = mpsc::channel(EVENTS_MAX);
        let (lists, listed) = watch::channel(None);
        let calls = Arc::new(AtomicU64::new(0));
        all(&self.links).insert(token.clone(), SharedTools { tools: offered, events, lists, calls });
        Ok(ToolServer {
            _secret: Secret::register(&token),
            token,
            socket: listening.folder.socket(),
            links: Arc::clone(&self.links),
            tools,
            events: receiver,
            listed,
            changed: Instant::now(),
        })
    }

    pub async fn stop(&self) {
        all(&self.links).clear();
        *self.open.lock().await = None;
    }

    fn listen(&self) -> io::Result<OpenListener> {
        let folder = SocketFolder::make()?;
        let listener = listen(bind(&folder.socket())?)?;
        let stop = CancellationToken::new();
        tokio::spawn(accept(listener, Arc::clone(&self.links), stop.clone()));
        Ok(OpenListener { folder, _listening: stop.drop_guard() })
    }
}

impl ToolServer {
    /// Returns the entry for the agent's list of MCP servers.
    pub fn entry(&self) -> anyhow::Result<McpServer> {
        let server = McpServerStdio::new(SERVER, exe::path_for_others()?).args(vec![relay::MODE.to_owned()]);
        let socket = self.socket.to_str().context("the path of the MCP server's socket is not UTF-8")?;
        let variables = [(relay::SOCKET, socket), (relay::TOKEN, &self.token)];
        let variables = variables.map(|(name, value)| EnvVariable::new(name, value));
        Ok(McpServer::Stdio(server.env(variables.to_vec())))
    }

    pub fn offer(&mut self, tools: Vec<ToolDefinition>) {
        let offered = OfferedTools::new(tools);
        if **self.tools.borrow() != offered {
            self.changed = Instant::now();
            self.tools.send_replace(Arc::new(offered));
        }
    }

    pub fn offered(&self) -> Arc<OfferedTools> {
        Arc::clone(&self.tools.borrow())
    }

    pub fn was_listed(&self) -> bool {
        self.listed.borrow().is_some()
    }

    pub fn has_tools(&self) -> bool {
        !self.tools.borrow().is_empty()
    }

    /// Returns whether the agent lacks current tools and has not requested them within
    /// [`RELIST_WITHIN`]: some agents list tools only once.
    pub fn is_out_of_date(&self) -> bool {
        let listed = self.listed.borrow();
        let lacks_some = listed.as_ref().is_some_and(|listed| !self.tools.borrow().are_all_in(listed));
        lacks_some && self.changed.elapsed() >= RELIST_WITHIN
    }

    pub async fn next_event(&mut self) -> Option<ToolServerEvent> {
        self.events.recv().await
    }
}

impl Drop for ToolServer {
    fn drop(&mut self) {
        all(&self.links).remove(&self.token);
    }
}

async fn accept(listener: AsyncListener, links: LinksByToken, stop: CancellationToken) {
    let strangers = Arc::new(Semaphore::new(UNAUTHENTICATED_MAX));
    loop {
        let accepted = async {
            let stranger = Arc::clone(&strangers).acquire_owned().await.map_err(io::Error::other)?;
            Ok::<_, io::Error>((listener.accept().await?.0, stranger))
        };
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = accepted => accepted,
        };
        match accepted {
            Ok((stream, stranger)) if is_of_this_user(&stream) => {
                tokio::spawn(accept_client(stream, stranger, Arc::clone(&links)));
            }
            Ok(_) => tracing::warn!(
                "a connection to the MCP server for clients' tools was rejected: it is from another user"
            ),
            Err(error) => {
                tracing::warn!(%error, "a connection to the MCP server for clients' tools cannot be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

fn is_of_this_user(stream: &Stream) -> bool {
    foreign_peer(stream).is_ok_and(|user| user.is_none())
}

async fn accept_client(stream: Stream, stranger: OwnedSemaphorePermit, links: LinksByToken) {
    let mut lines = Lines::new(stream);
    let token = match timeout(TOKEN_WITHIN, lines.next()).await {
        Ok(Some(token)) => token,
        _ => {
            return tracing::warn!(
                "a connection to the MCP server for clients' tools was rejected: it sent no token in time"
            )
        }
    };
    let link = all(&links).get(&token).cloned();
    drop(stranger);
    match link {
        Some(link) => server::serve(lines, link).await,
        None => tracing::warn!(
            "a connection to the MCP server for clients' tools was rejected: its token is unknown, since its session may have ended"
        ),
    }
}

/// Folder of the socket, accessible to this user only; removed on drop.
#[derive(Debug)]
struct SocketFolder(PathBuf);

impl SocketFolder {
    fn make() -> io::Result<Self> {
        let base = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let base = base.filter(|base| base.is_absolute() && base.is_dir());
        // Socket paths are limited to 104 bytes on some systems.
        let bases = base.into_iter().chain([std::env::temp_dir(), PathBuf::from("/tmp")]);
        let mut failed = io::Error::from(io::ErrorKind::NotFound);
        for base in bases.filter(|base| base.is_absolute() && base.as_os_str().len() < 50) {
            remove_left_behind(&base);
            let number = uuid::Uuid::new_v4().as_fields().0;
            let folder = Self(base.join(format!("{FOLDER}{}-{number:08x}", std::process::id())));
            match private::create_folder(&folder.0) {
                Ok(()) => return Ok(folder),
                Err(error) => {
                    failed = error;
                    // The folder was not created, so there is nothing to remove.
                    std::mem::forget(folder);
                }
            }
        }
        Err(failed)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("tools")
    }
}

impl Drop for SocketFolder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::debug!(%error, folder = %self.0.display(), "the folder of the socket for client tools cannot be removed");
        }
    }
}

/// Removes folders of killed hosts: the process is gone, and the socket refuses connections.
fn remove_left_behind(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let id = name.to_str().and_then(|name| name.strip_prefix(FOLDER)?.split_once('-')?.0.parse().ok());
        let Some(process) = id else { continue };
        if !private::process_exists(process) && !has_listener(&entry.path().join("tools")) {
            // Fails for another user's folder.
            if let Err(error) = fs::remove_dir_all(entry.path()) {
                tracing::debug!(%error, folder = %entry.path().display(), "the socket folder of a host that has crashed cannot be removed");
            }
        }
    }
}
