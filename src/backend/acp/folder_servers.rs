//! MCP servers of an agent that gives them to all of its sessions in a folder.
//!
//! In such a process a server replaces one of the same name, also for other sessions, whose calls
//! then reach the wrong one; and none is taken away. So a process serves only sessions of a folder
//! that have the same servers, and never again without one that it was given.
//!
//! Owns: which servers each folder of a process has, and how many sessions are open there.
//! Never: starts or ends a process.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use agent_client_protocol_schema::v1::McpServer;

use crate::sync::lock;

#[derive(Default)]
struct ServersInFolder {
    open_sessions: usize,
    /// Servers of the sessions.
    current: Vec<McpServer>,
    /// Names of all servers that the process has been given.
    names: BTreeSet<String>,
}

type ByFolder = BTreeMap<PathBuf, ServersInFolder>;

/// Servers of a process, by folder.
#[derive(Default)]
pub struct FolderServers(Arc<Mutex<ByFolder>>);

/// Session that is open in a folder, until this is dropped.
pub struct OpenInFolder {
    folders: Arc<Mutex<ByFolder>>,
    folder: PathBuf,
}

fn locked(folders: &Mutex<ByFolder>) -> MutexGuard<'_, ByFolder> {
    lock(folders)
}

impl FolderServers {
    /// Notes a session with these servers; `None` if this process cannot serve it.
    pub fn open(&self, folder: &Path, servers: &[McpServer]) -> Option<OpenInFolder> {
        let mut folders = locked(&self.0);
        let there = folders.entry(folder.to_owned()).or_default();
        let names: BTreeSet<String> = servers.iter().map(|server| name_of(server).to_owned()).collect();
        let are_same = there.open_sessions == 0 || there.current == servers;
        if !are_same || !there.names.is_subset(&names) {
            return None;
        }
        there.open_sessions += 1;
        there.current = servers.to_vec();
        there.names = names;
        Some(OpenInFolder { folders: Arc::clone(&self.0), folder: folder.to_owned() })
    }
}

impl Drop for OpenInFolder {
    fn drop(&mut self) {
        if let Some(there) = locked(&self.folders).get_mut(&self.folder) {
            there.open_sessions -= 1;
        }
    }
}

// The servers have secrets.
impl fmt::Debug for FolderServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FolderServers(..)")
    }
}

impl fmt::Debug for OpenInFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OpenInFolder").field(&self.folder).finish()
    }
}

fn name_of(server: &McpServer) -> &str {
    match server {
        McpServer::Stdio(server) => &server.name,
        McpServer::Http(server) => &server.name,
        McpServer::Sse(server) => &server.name,
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use agent_client_protocol_schema::v1::McpServerStdio;

    use super::*;

    fn servers(named: &[(&str, &str)]) -> Vec<McpServer> {
        named.iter().map(|(name, program)| McpServer::Stdio(McpServerStdio::new(*name, *program))).collect()
    }

    #[test]
    fn sessions_of_a_folder_share_a_process_only_with_the_same_servers() {
        let process = FolderServers::default();
        let (folder, other) = (Path::new("/a"), Path::new("/b"));
        let both = servers(&[("one", "x"), ("two", "x")]);
        let first = process.open(folder, &both).unwrap();
        let second = process.open(folder, &both).unwrap();
        for others in [servers(&[("one", "x")]), servers(&[("one", "y"), ("two", "x")]), servers(&[])] {
            assert!(process.open(folder, &others).is_none());
            assert!(process.open(other, &[]).is_some());
        }
        drop(first);
        assert!(process.open(folder, &servers(&[("one", "y"), ("two", "x")])).is_none());
        drop(second);
        assert!(process.open(folder, &servers(&[("one", "x")])).is_none(), "`two` is not taken away");
        assert!(process.open(folder, &servers(&[("one", "y"), ("two", "x"), ("three", "x")])).is_some());
        assert!(process.open(folder, &both).is_none(), "`three` is not taken away");
    }
}
