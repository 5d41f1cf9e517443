//! Existence checks of the working directories that clients name.
//!
//! Owns: the checks on separate threads, and their timeout. A client's later messages wait for
//! them.
//! Never: decides about the result; the core does.

use std::fs;
use std::io::ErrorKind;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, Semaphore};

use crate::files::uris::path_of;
use crate::host::effects::{AutomationRunKey, ConnectionId};
use crate::host::Findings;

/// Timeout for the answer of a file system.
const WITHIN: Duration = Duration::from_secs(5);

/// Maximum number of concurrent checks, including blocked ones. Further checks report the timeout.
const STUCK_MAX: usize = 16;

/// Reason of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckFor {
    /// A message of this connection.
    Message(ConnectionId),
    /// A run of an automation that is to begin.
    Run(AutomationRunKey),
}

#[derive(Debug)]
pub struct Directories {
    room: Arc<Semaphore>,
    findings: mpsc::UnboundedSender<(CheckFor, Findings)>,
}

impl Directories {
    pub fn new() -> (Self, mpsc::UnboundedReceiver<(CheckFor, Findings)>) {
        let (findings, found) = mpsc::unbounded_channel();
        (Self { room: Arc::new(Semaphore::new(STUCK_MAX)), findings }, found)
    }

    /// Checks directories. Findings arrive within a
    /// few seconds. Must be called inside a tokio runtime.
    pub fn check(&self, reason: CheckFor, uris: Vec<String>) {
        self.check_by(check_directory, reason, uris);
    }

    fn check_by(&self, check: fn(&str) -> Result<(), String>, reason: CheckFor, uris: Vec<String>) {
        let (sender, receiver) = oneshot::channel();
        let (named, mut why) = (uris.clone(), "is on a file system that does not answer");
        if let Ok(room) = Arc::clone(&self.room).try_acquire_owned() {
            let work = move || {
                let findings = uris.into_iter().map(|uri| (uri.clone(), check(&uri))).collect();
                drop(room);
                if sender.send(findings).is_err() {
                    tracing::warn!(
                        "an answer about a working directory was dropped: the file system took too long"
                    );
                }
            };
            if let Err(error) = thread::Builder::new().name("directories".to_owned()).spawn(work) {
                tracing::error!(%error, "working directories cannot be checked: the system starts no thread");
                why = "cannot be checked: the system starts no thread";
            }
        } else {
            why = "cannot be checked now: too many other checks wait for file systems that do not answer";
        }
        let failed: Findings = named.into_iter().map(|uri| (uri, Err(why.to_owned()))).collect();
        let found = self.findings.clone();
        tokio::spawn(async move {
            let answer = tokio::time::timeout(WITHIN, receiver).await;
            let findings = answer.ok().and_then(Result::ok).unwrap_or(failed);
            if found.send((reason, findings)).is_err() {
                tracing::debug!("results about working directories were dropped: the host has left");
            }
        });
    }
}

fn check_directory(uri: &str) -> Result<(), String> {
    let path = path_of(uri).map_err(|error| error.message)?;
    match fs::metadata(&path) {
        Ok(there) if there.is_dir() => Ok(()),
        Ok(_) => Err("is not a directory".to_owned()),
        Err(error) => Err(match error.kind() {
            ErrorKind::NotFound => "does not exist".to_owned(),
            ErrorKind::NotADirectory => "is not a directory".to_owned(),
            ErrorKind::PermissionDenied => "is not accessible: permission denied".to_owned(),
            _ => format!("cannot be read: {error}"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn check_that_panics_frees_its_place() {
        let (directories, mut found) = Directories::new();
        let (me, here) = (CheckFor::Message(ConnectionId(1)), vec!["file:///".to_owned()]);
        for _ in 0..=STUCK_MAX {
            directories.check_by(|_| panic!("the check fails on purpose"), me, here.clone());
            assert!(found.recv().await.unwrap().1["file:///"].is_err());
        }
        directories.check(me, here);
        assert_eq!(found.recv().await.unwrap().1["file:///"], Ok(()));
    }
}
