//! Upkeep of files that others may change under a running host: socket, lock, configuration.
//!
//! Owns: a thread that checks them every two seconds, so that a blocked file system delays nothing
//! else; restoring a removed socket and lock; rereading the configuration, also for a front.
//! Never: applies what it reads, or binds a socket while another process holds the folder's lock or
//! after the host has removed it.
//!
//! Polling is used instead of notifications because it notices all changes (relinked files, moved
//! folders, network file systems) on every platform, for two calls every two seconds.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use crate::config::{AgentSource, ConfigurationReading, ConfigurationSeen, Stamp, Stamps};
use crate::os::facts::{self, Identity};
use crate::os::private;
use crate::os::sockets::{self, LocalListener};
use crate::store::folder::{LockId, LockPlace};
use crate::sync::lock;

/// Interval of checks.
const EVERY: Duration = Duration::from_secs(2);

/// Time for which a changed file must stay unchanged before it is read: an editor may write it.
const SETTLED_AFTER: Duration = Duration::from_millis(200);

/// Maximum time that a front waits for the file to be reread.
const READ_WITHIN: Duration = Duration::from_secs(5);

/// Event of the upkeep thread.
#[derive(Debug)]
pub enum UpkeepEvent {
    /// New socket in place of the host's removed one.
    Socket(LocalListener),
    /// Loss of the folder: its lock was removed, and another process holds a new one.
    Replaced,
    /// New reading of the changed configuration file.
    Configuration(Box<ConfigurationReading>),
}

/// Socket of a host, and the lock that permits binding it.
///
/// The upkeep thread restores the file and the host removes it in the end, so both share one under
/// a mutex: a check that has begun finishes before the removal, and none binds afterwards.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    file: Option<Identity>,
    /// `None` if its identity cannot be determined: the file is not restored.
    lock: Option<LockId>,
    /// Lock that replaces a removed one.
    renewed: Option<File>,
    /// Set once the takeover by another host, which owns the file now, was reported.
    is_replaced: bool,
    /// Set once the host has removed the file.
    is_removed: bool,
    /// Set once a failure to bind was logged.
    is_in_trouble: bool,
}

/// Configuration file, and the files that it names, as they were last read.
#[derive(Debug)]
pub struct ConfigurationFile {
    source: AgentSource,
    seen: ConfigurationSeen,
    stamps: Stamps,
    /// Stamps of newer versions that are not read yet.
    pending: Option<Stamps>,
}

impl SocketFile {
    /// Records the current file of the socket.
    pub fn new(path: PathBuf, lock: Option<LockId>) -> Self {
        let file = identity_of(&path);
        Self { path, file, lock, renewed: None, is_replaced: false, is_removed: false, is_in_trouble: false }
    }

    /// Removes the file for good, unless it belongs to another host.
    pub fn remove(&mut self) {
        self.is_removed = true;
        // A takeover after the last check counts, too.
        if self.lock.as_mut().is_some_and(|lock| matches!(lock.place(), LockPlace::Replaced)) {
            return;
        }
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(%error, "the socket of the host is gone already");
        }
    }

    /// Restores the lock if its file was removed, and the socket if its file is not the bound one.
    fn look(&mut self) -> Option<UpkeepEvent> {
        let lock = self.lock.as_mut().filter(|_| !self.is_removed)?;
        match lock.place() {
            LockPlace::There => {}
            LockPlace::Removed => match lock.renew(&self.path) {
                Ok(lock) => {
                    tracing::warn!("the lock of the state folder was removed, and is created again");
                    self.renewed = Some(lock);
                }
                Err(error) => {
                    tracing::debug!(%error, "the lock of the state folder was removed, and cannot be created again");
                    return None;
                }
            },
            LockPlace::Replaced => {
                let is_new = !std::mem::replace(&mut self.is_replaced, true);
                return is_new.then_some(UpkeepEvent::Replaced);
            }
        }
        let file = identity_of(&self.path);
        if file.is_some() && file == self.file {
            return None;
        }
        match bind_in_its_folder(&self.path) {
            Ok(listener) => {
                tracing::info!(path = %self.path.display(), "the socket of the host was removed, and is created again");
                (self.file, self.is_in_trouble) = (identity_of(&self.path), false);
                Some(UpkeepEvent::Socket(listener))
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_in_trouble, true) {
                    tracing::warn!(%error, path = %self.path.display(),
                        "the socket of the host was removed, and cannot be created again: no other client can join");
                }
                None
            }
        }
    }
}

/// Locks the socket's file, whose state is whole after each step.
pub fn locked(socket: &Mutex<SocketFile>) -> MutexGuard<'_, SocketFile> {
    lock(socket)
}

fn identity_of(path: &Path) -> Option<Identity> {
    facts::at(path).ok().map(|there| there.identity)
}

/// Returns an error message if a path is neither free, a socket nor an empty file.
pub fn is_taken(path: &Path) -> Option<String> {
    let there = fs::symlink_metadata(path).ok()?;
    let is_free = sockets::is_socket(path) || there.is_file() && there.len() == 0;
    (!is_free).then(|| format!("`{}` is not a socket: move it away", path.display()))
}

/// Binds the socket. Creates its folder if that is gone, too: the user's runtime folder.
fn bind_in_its_folder(path: &Path) -> io::Result<LocalListener> {
    match bind(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = path.parent().ok_or(error)?;
            private::create_folder(folder)?;
            bind(path)
        }
        bound => bound,
    }
}

/// Binds a socket that only its owner can connect to. Removes an existing socket or empty file, so
/// the caller must hold the state folder.
pub fn bind(path: &Path) -> io::Result<LocalListener> {
    if let Some(why) = is_taken(path) {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::debug!(%error, "the socket of a host that is gone cannot be removed");
        }
        _ => {}
    }
    sockets::bind(path)
}

impl ConfigurationFile {
    /// Starts from the first reading of the file.
    pub fn new(source: AgentSource, reading: &ConfigurationReading) -> Self {
        Self { source, seen: reading.seen.clone(), stamps: reading.stamps.clone(), pending: None }
    }

    /// Returns the paths of the file and of those that it names.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.stamps.keys()
    }

    /// Reads the files if one has changed, and none has changed again since the last check.
    fn look(&mut self) -> Option<ConfigurationReading> {
        let stamps = Stamp::of_all(self.stamps.keys().cloned());
        if stamps == self.stamps {
            self.pending = None;
            return None;
        }
        if self.pending.as_ref() != Some(&stamps) {
            self.pending = Some(stamps);
            return None;
        }
        let before = self.seen.clone();
        let reading = self.read();
        (reading.seen != before || reading.agents.is_err()).then_some(reading)
    }

    fn read(&mut self) -> ConfigurationReading {
        // A pipe can be read only once.
        let is_pipe = self.source.file().is_some_and(|file| file.exists() && Stamp::of(file).is_none());
        let reading = if is_pipe {
            let agents = Err("it is not a regular file, so it is read only when the host starts".to_owned());
            ConfigurationReading {
                seen: ConfigurationSeen { agents: None, ..self.seen.clone() },
                stamps: Stamp::of_all(self.stamps.keys().cloned()),
                agents,
                servers: Vec::new(),
            }
        } else {
            self.source.read()
        };
        (self.seen, self.stamps, self.pending) = (reading.seen.clone(), reading.stamps.clone(), None);
        reading
    }

    fn is_pending(&self) -> bool {
        self.pending.is_some()
    }
}

/// Handle of the upkeep thread, which ends when this is dropped.
#[derive(Debug)]
pub struct Upkeep {
    orders: Sender<oneshot::Sender<ConfigurationReading>>,
}

impl Upkeep {
    /// Starts the thread. The receiver gets its events.
    pub fn start(
        socket: Option<Arc<Mutex<SocketFile>>>,
        configuration: Option<ConfigurationFile>,
    ) -> io::Result<(Self, mpsc::UnboundedReceiver<UpkeepEvent>)> {
        let (orders, ordered) = channel();
        let (tell, news) = mpsc::unbounded_channel();
        let work = move || run_upkeep(&ordered, socket, configuration, &tell);
        thread::Builder::new().name("upkeep".to_owned()).spawn(work)?;
        Ok((Self { orders }, news))
    }

    /// Rereads the configuration file now. Resolves to `None` if that takes too long.
    pub fn read_configuration(
        &self,
    ) -> impl std::future::Future<Output = Option<ConfigurationReading>> + Send + 'static {
        let (reply, replied) = oneshot::channel();
        let is_sent = self.orders.send(reply).is_ok();
        async move {
            if !is_sent {
                return None;
            }
            tokio::time::timeout(READ_WITHIN, replied).await.ok()?.ok()
        }
    }
}

fn run_upkeep(
    orders: &Receiver<oneshot::Sender<ConfigurationReading>>,
    socket: Option<Arc<Mutex<SocketFile>>>,
    mut configuration: Option<ConfigurationFile>,
    tell: &mpsc::UnboundedSender<UpkeepEvent>,
) {
    let mut due = Instant::now() + EVERY;
    loop {
        // Orders that arrive all the time delay no check.
        if due <= Instant::now() {
            let bound = socket.as_ref().and_then(|socket| locked(socket).look());
            let read = configuration.as_mut().and_then(ConfigurationFile::look);
            let read = read.map(|reading| UpkeepEvent::Configuration(Box::new(reading)));
            if !bound.into_iter().chain(read).all(|news| tell.send(news).is_ok()) {
                return;
            }
            let is_pending = configuration.as_ref().is_some_and(ConfigurationFile::is_pending);
            due = Instant::now() + if is_pending { SETTLED_AFTER } else { EVERY };
        }
        match orders.recv_timeout(due.saturating_duration_since(Instant::now())) {
            Ok(reply) => {
                // If the front has given up, the next check reports the change.
                if let Some(configuration) = &mut configuration {
                    let before = (configuration.seen.clone(), configuration.stamps.clone());
                    if reply.send(configuration.read()).is_err() {
                        (configuration.seen, configuration.stamps) = before;
                    }
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::folder::StateFolder;

    #[test]
    fn file_that_is_being_written_is_read_when_it_has_settled() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        let write = |text: &str| fs::write(&path, text).unwrap();
        write("[agents.a]\ncommand = 'a'");
        let source = AgentSource::new(&[], Some(&path), None).unwrap();
        let mut file = ConfigurationFile::new(source.clone(), &source.read());
        assert!(file.look().is_none() && !file.is_pending());
        write("[agents.a");
        assert!(file.look().is_none() && file.is_pending(), "it may go on");
        write("[agents.ab]\ncommand = 'ab'");
        assert!(file.look().is_none(), "it has gone on");
        let reading = file.look().unwrap();
        assert_eq!(reading.agents.unwrap()[0].name, "ab");
        assert!(file.look().is_none() && !file.is_pending());
        // The content is what it was.
        write("[agents.ab]\ncommand = 'ab'");
        assert!(file.look().is_none() && file.look().is_none() && !file.is_pending());
        fs::remove_file(&path).unwrap();
        assert!(file.look().is_none());
        assert!(file.look().unwrap().agents.is_err(), "one that was named must exist");
    }

    #[test]
    fn file_that_the_configuration_names_is_read_again_when_it_has_changed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, named) = (folder.path().join("config.toml"), folder.path().join("mcp.json"));
        fs::write(&path, "mcp_files = ['mcp.json']").unwrap();
        let source = AgentSource::new(&[], Some(&path), None).unwrap();
        let mut file = ConfigurationFile::new(source.clone(), &source.read());
        assert!(file.look().is_none() && !file.is_pending());
        for name in ["one", "other"] {
            let servers = format!("{{ \"mcpServers\": {{ \"{name}\": {{ \"command\": \"x\" }} }} }}");
            fs::write(&named, servers).unwrap();
            assert!(file.look().is_none() && file.is_pending());
            assert_eq!(file.look().unwrap().servers[0].name, name);
            assert!(file.look().is_none() && !file.is_pending());
        }
    }

    #[test]
    fn socket_and_lock_are_made_anew_unless_another_process_has_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let held = StateFolder::hold(folder.path()).unwrap();
        let (path, lock) = (folder.path().join("host.sock"), folder.path().join("lock"));
        let _listener = bind(&path).unwrap();
        let mut socket = SocketFile::new(path.clone(), held.lock_id().unwrap());
        assert!(socket.look().is_none());
        for removed in [&[&path][..], &[&lock], &[&path, &lock]] {
            removed.iter().for_each(|file| fs::remove_file(file).unwrap());
            let news = socket.look();
            assert_eq!(matches!(news, Some(UpkeepEvent::Socket(_))), removed.contains(&&path));
            assert!(path.exists() && socket.look().is_none());
            assert!(StateFolder::hold(folder.path()).is_err(), "the folder is held");
        }
        fs::remove_file(&path).unwrap();
        fs::remove_file(&lock).unwrap();
        let _other = StateFolder::hold(folder.path()).unwrap();
        assert!(matches!(socket.look(), Some(UpkeepEvent::Replaced)));
        assert!(socket.look().is_none() && !path.exists(), "that is the other one's");
        let _others = bind(&path).unwrap();
        socket.remove();
        assert!(path.exists(), "that is the other one's");
    }

    #[test]
    fn socket_that_the_host_has_removed_is_not_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let held = StateFolder::hold(folder.path()).unwrap();
        let path = folder.path().join("host.sock");
        let _listener = bind(&path).unwrap();
        let mut socket = SocketFile::new(path.clone(), held.lock_id().unwrap());
        socket.remove();
        assert!(socket.look().is_none() && !path.exists());
        // Not even where the lock has gone with it.
        fs::remove_file(folder.path().join("lock")).unwrap();
        assert!(socket.look().is_none() && !folder.path().join("lock").exists());
    }

    #[test]
    fn checks_are_made_in_time_while_orders_arrive() {
        let folder = tempfile::tempdir().unwrap();
        let held = StateFolder::hold(folder.path()).unwrap();
        let path = folder.path().join("host.sock");
        let socket = SocketFile::new(path.clone(), held.lock_id().unwrap());
        let (upkeep, mut news) = Upkeep::start(Some(Arc::new(Mutex::new(socket))), None).unwrap();
        let until = Instant::now() + 10 * EVERY;
        while news.is_empty() {
            assert!(Instant::now() < until, "the socket is not bound");
            // One order is always in the queue.
            drop(upkeep.read_configuration());
            thread::yield_now();
        }
        assert!(matches!(news.try_recv(), Ok(UpkeepEvent::Socket(_))));
    }

    #[test]
    fn what_is_no_socket_stays_where_the_socket_was_and_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let held = StateFolder::hold(folder.path()).unwrap();
        let path = folder.path().join("host.sock");
        let _listener = bind(&path).unwrap();
        let mut socket = SocketFile::new(path.clone(), held.lock_id().unwrap());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "mine").unwrap();
        assert!(socket.look().is_none());
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        let why = format!("`{}` is not a socket: move it away", path.display());
        assert_eq!(bind(&path).unwrap_err().to_string(), why);
        assert_eq!(is_taken(&path), Some(why));
        fs::remove_file(&path).unwrap();
        assert!(matches!(socket.look(), Some(UpkeepEvent::Socket(_))) && is_taken(&path).is_none());
    }
}
