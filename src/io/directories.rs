//! Whether what clients name as working directories is there.
//!
//! Owns: finding it out on a thread of its own, and giving up when a file system takes too long: who waits for it
//! is a client that nothing more is heard from meanwhile.
//! Never: decides what follows; that is the core's.

use std::collections::BTreeSet;
use std::fs;
use std::future::pending;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;

use super::resources::path_of;
use crate::host::Findings;
use crate::wire::rpc::Incoming;

/// A file system must say something within this time.
const WITHIN: Duration = Duration::from_secs(5);

/// So many threads may be stuck in file systems that do not answer.
const STUCK_MAX: usize = 16;

/// What looks at directories.
#[derive(Debug, Default)]
pub struct Directories {
    looking: Arc<AtomicUsize>,
}

impl Directories {
    /// Holds what a client said until the directories that it names were looked at.
    pub fn hold(&self, messages: Vec<Incoming>, named: BTreeSet<String>) -> Held {
        Held { messages, findings: self.look(named.into_iter().collect()) }
    }

    /// Looks at directories; nothing is waited for longer than a few seconds.
    fn look(&self, uris: Vec<String>) -> oneshot::Receiver<Findings> {
        let (found, findings) = oneshot::channel();
        let (tell, told) = oneshot::channel();
        let silent =
            uris.iter().map(|uri| (uri.clone(), Err("is on a file system that does not answer".to_owned())));
        let silent: Findings = silent.collect();
        let looking = Arc::clone(&self.looking);
        let has_room = looking.fetch_add(1, Ordering::Relaxed) < STUCK_MAX;
        let work = move || {
            let findings = uris.into_iter().map(|uri| (uri.clone(), find_out(&uri))).collect();
            looking.fetch_sub(1, Ordering::Relaxed);
            if tell.send(findings).is_err() {
                tracing::warn!("a file system has answered too late");
            }
        };
        if !has_room {
            self.looking.fetch_sub(1, Ordering::Relaxed);
        } else if let Err(error) = thread::Builder::new().name("directories".to_owned()).spawn(work) {
            tracing::error!(%error, "no thread to look at directories with");
            self.looking.fetch_sub(1, Ordering::Relaxed);
        }
        tokio::spawn(async move {
            let answer = tokio::time::timeout(WITHIN, told).await;
            if found.send(answer.ok().and_then(Result::ok).unwrap_or(silent)).is_err() {
                tracing::debug!("nobody asks for directories any more");
            }
        });
        findings
    }
}

/// What a client said, as the core is to hear it, and what must be known first.
#[derive(Debug)]
pub struct Held {
    messages: Vec<Incoming>,
    findings: oneshot::Receiver<Findings>,
}

impl Held {
    /// What was said.
    pub fn into_messages(self) -> Vec<Incoming> {
        self.messages
    }
}

/// What was found out about the directories that a held message names; never when none is held.
pub async fn found(held: &mut Option<Held>) -> Findings {
    match held {
        Some(held) => (&mut held.findings).await.unwrap_or_default(),
        None => pending().await,
    }
}

fn find_out(uri: &str) -> Result<(), String> {
    let path = path_of(uri).map_err(|error| error.message)?;
    match fs::metadata(&path) {
        Ok(there) if there.is_dir() => Ok(()),
        Ok(_) => Err("is no directory".to_owned()),
        Err(error) => Err(match error.kind() {
            ErrorKind::NotFound => "does not exist".to_owned(),
            ErrorKind::NotADirectory => "is no directory".to_owned(),
            ErrorKind::PermissionDenied => "may not be looked at".to_owned(),
            _ => format!("cannot be looked at: {error}"),
        }),
    }
}
