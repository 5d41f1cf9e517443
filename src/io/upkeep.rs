//! Upkeep of what others may change under a running host: its socket, and its configuration file.
//!
//! Owns: a thread that looks at both every two seconds, so that a file system that does not answer
//! holds up nobody; binding a socket anew whose file somebody has removed, and locking the folder
//! anew where that was done to its lock; reading a file anew that has changed, when that is seen
//! and when a front says that its content is another one.
//! Never: takes up what was read, lets anybody in, or binds a socket in a folder whose lock is
//! another process's: that one may serve the folder.
//!
//! Looking is chosen over the notifications of the system because it sees every way by which files
//! change (links that are turned, folders that are moved, network file systems) on every platform,
//! at the cost of two calls every two seconds.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::config::{AgentSource, ConfigurationReading, ConfigurationSeen, Stamp};
use crate::store::folder::{LockId, LockPlace};

/// Time between two looks.
const EVERY: Duration = Duration::from_secs(2);

/// Time for which a file that has changed has to stay as it is before it is read: an editor may be
/// writing it.
const SETTLED_AFTER: Duration = Duration::from_millis(200);

/// Maximum time that a front waits for the file to be read.
const READ_WITHIN: Duration = Duration::from_secs(5);

/// Event of the upkeep thread.
#[derive(Debug)]
pub enum UpkeepEvent {
    /// The host's socket was removed; this one is bound in its place.
    Socket(UnixListener),
    /// The lock of the folder was removed, and another process has one in its place: it serves the
    /// folder.
    Replaced,
    /// The configuration file has changed.
    Configuration(Box<ConfigurationReading>),
}

/// The socket of a host, and the lock that lets it be bound.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    inode: Option<u64>,
    lock: LockId,
    /// The lock that is held in the place of one that was removed.
    renewed: Option<File>,
    is_replaced: bool,
    /// The reason why it cannot be bound was logged.
    is_in_trouble: bool,
}

/// The configuration file as it was read last.
#[derive(Debug)]
pub struct ConfigurationFile {
    source: AgentSource,
    seen: ConfigurationSeen,
    stamp: Option<Stamp>,
    /// Another version that was seen, and not read yet.
    pending: Option<Option<Stamp>>,
}

impl SocketFile {
    /// Takes the socket as it is now.
    pub fn new(path: PathBuf, lock: LockId) -> Self {
        let inode = inode_of(&path);
        Self { path, inode, lock, renewed: None, is_replaced: false, is_in_trouble: false }
    }

    /// Puts lock and socket right where their files are gone, or another socket is in the place of
    /// this one.
    fn look(&mut self) -> Option<UpkeepEvent> {
        match self.lock.place() {
            LockPlace::There => {}
            LockPlace::Removed => match self.lock.renew(&self.path) {
                Ok(lock) => {
                    tracing::warn!("the lock of the state folder was removed, and is made anew");
                    self.renewed = Some(lock);
                }
                Err(error) => {
                    tracing::debug!(%error, "the lock of the state folder was removed, and cannot be made anew");
                    return None;
                }
            },
            LockPlace::Replaced => {
                let is_new = !std::mem::replace(&mut self.is_replaced, true);
                return is_new.then_some(UpkeepEvent::Replaced);
            }
        }
        let inode = inode_of(&self.path);
        if inode.is_some() && inode == self.inode {
            return None;
        }
        match bind_in_its_folder(&self.path) {
            Ok(listener) => {
                tracing::info!(path = %self.path.display(), "the socket of the host was removed, and is bound anew");
                (self.inode, self.is_in_trouble) = (inode_of(&self.path), false);
                Some(UpkeepEvent::Socket(listener))
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_in_trouble, true) {
                    tracing::warn!(%error, path = %self.path.display(),
                        "the socket of the host was removed, and cannot be bound anew: nobody can join until it is");
                }
                None
            }
        }
    }
}

fn inode_of(path: &Path) -> Option<u64> {
    fs::symlink_metadata(path).ok().map(|there| there.ino())
}

/// Returns why nobody can listen at a path or join there: what is there is neither a socket nor an
/// empty file, so that somebody might miss it.
pub fn is_taken(path: &Path) -> Option<String> {
    let there = fs::symlink_metadata(path).ok()?;
    let is_free = there.file_type().is_socket() || there.is_file() && there.len() == 0;
    (!is_free).then(|| format!("`{}` is no socket: move it away", path.display()))
}

/// The folder may have gone with the socket: that of the user for what runs.
fn bind_in_its_folder(path: &Path) -> io::Result<UnixListener> {
    match bind(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = path.parent().ok_or(error)?;
            fs::DirBuilder::new().mode(0o700).create(folder)?;
            bind(path)
        }
        bound => bound,
    }
}

/// Binds a socket that only its owner can connect to. To be called by whoever holds the folder: a
/// socket or an empty file that is there is removed.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    if let Some(why) = is_taken(path) {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::debug!(%error, "the socket of a host that is gone cannot be removed");
        }
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

impl ConfigurationFile {
    /// Takes the file as it was read.
    pub fn new(source: AgentSource, reading: &ConfigurationReading) -> Self {
        Self { source, seen: reading.seen.clone(), stamp: reading.stamp, pending: None }
    }

    /// Reads the file if it has changed, and has not changed any more since the last look.
    fn look(&mut self) -> Option<ConfigurationReading> {
        let stamp = self.source.file().and_then(Stamp::of);
        if stamp == self.stamp {
            self.pending = None;
            return None;
        }
        if self.pending != Some(stamp) {
            self.pending = Some(stamp);
            return None;
        }
        let before = self.seen.clone();
        let reading = self.read();
        (reading.seen != before || reading.agents.is_err()).then_some(reading)
    }

    fn read(&mut self) -> ConfigurationReading {
        // A pipe is read once.
        let is_pipe = self.source.file().is_some_and(|file| file.exists() && Stamp::of(file).is_none());
        let reading = if is_pipe {
            let agents =
                Err("it is no regular file: it is read when the host starts, and never again".to_owned());
            ConfigurationReading {
                seen: ConfigurationSeen { agents: None, ..self.seen.clone() },
                stamp: None,
                agents,
            }
        } else {
            self.source.read()
        };
        (self.seen, self.stamp, self.pending) = (reading.seen.clone(), reading.stamp, None);
        reading
    }

    fn is_pending(&self) -> bool {
        self.pending.is_some()
    }
}

/// The way to the thread, which ends when this is dropped.
#[derive(Debug)]
pub struct Upkeep {
    orders: Sender<oneshot::Sender<ConfigurationReading>>,
}

impl Upkeep {
    /// Starts the thread. Its news come out of the receiver.
    pub fn start(
        socket: Option<SocketFile>,
        configuration: Option<ConfigurationFile>,
    ) -> io::Result<(Self, mpsc::UnboundedReceiver<UpkeepEvent>)> {
        let (orders, ordered) = channel();
        let (tell, news) = mpsc::unbounded_channel();
        let work = move || run_upkeep(&ordered, socket, configuration, &tell);
        thread::Builder::new().name("upkeep".to_owned()).spawn(work)?;
        Ok((Self { orders }, news))
    }

    /// Has the configuration file read now; `None` where that takes too long.
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
    mut socket: Option<SocketFile>,
    mut configuration: Option<ConfigurationFile>,
    tell: &mpsc::UnboundedSender<UpkeepEvent>,
) {
    loop {
        let is_pending = configuration.as_ref().is_some_and(ConfigurationFile::is_pending);
        match orders.recv_timeout(if is_pending { SETTLED_AFTER } else { EVERY }) {
            Ok(reply) => {
                // Where nobody waits any more, the file is seen to be another one at the next look.
                if let Some(configuration) = &mut configuration {
                    let before = (configuration.seen.clone(), configuration.stamp);
                    if reply.send(configuration.read()).is_err() {
                        (configuration.seen, configuration.stamp) = before;
                    }
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                let bound = socket.as_mut().and_then(SocketFile::look);
                let read = configuration.as_mut().and_then(ConfigurationFile::look);
                let read = read.map(|reading| UpkeepEvent::Configuration(Box::new(reading)));
                if !bound.into_iter().chain(read).all(|news| tell.send(news).is_ok()) {
                    return;
                }
            }
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
    fn socket_and_lock_are_made_anew_unless_another_process_has_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let held = StateFolder::hold(folder.path()).unwrap();
        let (path, lock) = (folder.path().join("host.sock"), folder.path().join("lock"));
        let _listener = bind(&path).unwrap();
        let mut socket = SocketFile::new(path.clone(), held.lock_id().unwrap().unwrap());
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
    }

    #[test]
    fn what_is_no_socket_stays_where_the_socket_was_and_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let held = StateFolder::hold(folder.path()).unwrap();
        let path = folder.path().join("host.sock");
        let _listener = bind(&path).unwrap();
        let mut socket = SocketFile::new(path.clone(), held.lock_id().unwrap().unwrap());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "mine").unwrap();
        assert!(socket.look().is_none());
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        let why = format!("`{}` is no socket: move it away", path.display());
        assert_eq!(bind(&path).unwrap_err().to_string(), why);
        assert_eq!(is_taken(&path), Some(why));
        fs::remove_file(&path).unwrap();
        assert!(matches!(socket.look(), Some(UpkeepEvent::Socket(_))) && is_taken(&path).is_none());
    }
}
