//! State machine of all watches.
//!
//! Owns: the watches, their use counts and scans, and the reported changes in protocol terms.
//! Never: waits; the caller drives it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ahp_types::state::ResourceChangeType;

use super::changes::PathChanges;
use super::path_resolution;
use super::system::{NoNotifier, Notifier, System, SystemReport, WatchTrouble};
use super::tree::{EntryBudget, WatchedTree};
use crate::files::folders::HostFile;
use crate::files::uris::path_of;
use crate::os::paths;
use crate::wire::errors::RpcError;
use crate::wire::watches::Watched;

/// Maximum number of files and folders in one watch.
pub const ENTRIES_MAX: usize = 100_000;

/// Maximum number of files and folders in all watches together; each takes some 250 bytes.
const ALL_ENTRIES_MAX: usize = 500_000;

/// Changes that one watch reports.
#[derive(Debug, Clone, PartialEq)]
pub struct WatchReport {
    /// Channel of the watch.
    pub watch: String,
    /// URI of each changed file and folder, with the kind of change.
    pub changes: Vec<(String, ResourceChangeType)>,
}

/// Reason why a watch cannot begin.
#[derive(Debug)]
pub struct WatchRefusal {
    /// Error for its client.
    pub error: RpcError,
    /// Set if the watch could begin once fewer folders are watched.
    pub lacks_room: bool,
}

impl From<RpcError> for WatchRefusal {
    fn from(error: RpcError) -> Self {
        Self { error, lacks_room: false }
    }
}

/// State machine of all watches.
#[derive(Debug)]
pub struct Engine {
    system: Box<dyn System + Send>,
    watches: BTreeMap<String, WatchedFolder>,
    /// Number of requests of the host that have failed, by channel. Each is released like one that
    /// has not, and must take no watch from others.
    failed: BTreeMap<String, usize>,
    own: Arc<[HostFile]>,
    report: SystemReport,
    /// Maximum number of entries that are polled.
    polled_entries_max: usize,
    entries_max: usize,
    budget: Arc<EntryBudget>,
    /// Setting whose limit is exhausted, so that the system reports no changes.
    no_room: Option<&'static str>,
}

#[derive(Debug)]
struct WatchedFolder {
    tree: WatchedTree,
    /// URI as its client spells it.
    uri: String,
    wanted: usize,
    changes: PathChanges,
    /// Set if the folder is polled, because the system does not report its changes.
    is_polled: bool,
}

impl Engine {
    #[cfg(test)]
    pub(super) fn limited_to(self, entries_max: usize) -> Self {
        Self { entries_max, ..self }
    }

    #[cfg(test)]
    pub(super) fn with_entries_in_all(self, max: usize) -> Self {
        Self { budget: EntryBudget::new(max), ..self }
    }

    /// Creates the engine. `polled_entries_max` limits the files and folders of one polled watch.
    pub fn new(system: Box<dyn System + Send>, own: Arc<[HostFile]>, polled_entries_max: usize) -> Self {
        let (watches, failed, report) = (BTreeMap::new(), BTreeMap::new(), SystemReport::default());
        let (entries_max, budget, no_room) = (ENTRIES_MAX, EntryBudget::new(ALL_ENTRIES_MAX), None);
        Self { system, watches, failed, own, report, polled_entries_max, entries_max, budget, no_room }
    }

    /// Creates the engine for a system whose notifications fail because of `trouble`.
    pub fn without_system(trouble: WatchTrouble, own: Arc<[HostFile]>, polled_entries_max: usize) -> Self {
        let no_room = match trouble {
            WatchTrouble::NoRoom(setting) => Some(setting),
            _ => None,
        };
        Self { no_room, ..Self::new(Box::new(NoNotifier), own, polled_entries_max) }
    }

    /// Returns the notifier of the system, to wait for it; `None` without any.
    pub fn notifier(&self) -> Option<&Notifier> {
        self.system.notifier()
    }

    #[cfg(test)]
    pub(super) fn catch_up(&self) {
        self.system.catch_up();
    }

    #[cfg(test)]
    pub(super) fn folder_count(&self) -> usize {
        self.system.count()
    }

    /// Begins a watch, or adds a request for an active one. No change is missed from now on.
    ///
    /// # Errors
    /// When the path cannot be watched.
    pub fn begin(&mut self, channel: &str) -> Result<(), WatchRefusal> {
        if let Some(watch) = self.watches.get_mut(channel) {
            watch.wanted += 1;
            return Ok(());
        }
        let watched = Watched::from_channel(channel).ok_or_else(|| RpcError::resource_not_found(channel))?;
        let path = path_of(&watched.uri)?;
        let entries_max = if self.system.notifies() { self.entries_max } else { self.polled_entries_max };
        let own = || Arc::clone(&self.own);
        let (tree, is_polled) = match WatchedTree::begin(
            &watched,
            &path,
            own(),
            (entries_max, &self.budget),
            &mut *self.system,
        ) {
            Ok(tree) => (tree, !self.system.notifies()),
            Err(WatchTrouble::NoRoom(setting)) => {
                let limits = (self.polled_entries_max, &self.budget);
                let polled = WatchedTree::begin(&watched, &path, own(), limits, &mut NoNotifier);
                let tree = polled.map_err(|_| WatchRefusal {
                    error: failed(&watched.uri, &WatchTrouble::NoRoom(setting)),
                    lacks_room: true,
                })?;
                tracing::warn!(
                        uri = watched.uri,
                        setting,
                        "a folder is polled every few seconds: the system's limit of watches is reached; raise the setting"
                    );
                (tree, true)
            }
            Err(trouble) => {
                let no_room = self.no_room.filter(|_| matches!(trouble, WatchTrouble::Entries(_)));
                let lacks_room = matches!(trouble, WatchTrouble::Folders(_) | WatchTrouble::AllEntries(_));
                let error = failed(&watched.uri, &no_room.map_or(trouble, WatchTrouble::NoRoom));
                return Err(WatchRefusal { error, lacks_room });
            }
        };
        let (changes, uri) = (PathChanges::default(), watched.uri);
        self.watches.insert(channel.to_owned(), WatchedFolder { tree, uri, wanted: 1, changes, is_polled });
        Ok(())
    }

    /// Begins a watch for the host, which releases it even if it could not begin.
    ///
    /// # Errors
    /// When the path cannot be watched.
    pub fn begin_own(&mut self, channel: &str) -> Result<(), WatchRefusal> {
        self.begin(channel).inspect_err(|_| *self.failed.entry(channel.to_owned()).or_default() += 1)
    }

    /// Drops one request for a watch.
    pub fn release(&mut self, channel: &str) {
        if let Some(failed) = self.failed.get_mut(channel) {
            *failed -= 1;
            if *failed == 0 {
                self.failed.remove(channel);
            }
            return;
        }
        let Some(watch) = self.watches.get_mut(channel) else { return };
        watch.wanted -= 1;
        if watch.wanted > 0 {
            return;
        }
        if let Some(mut watch) = self.watches.remove(channel) {
            let system: &mut dyn System = if watch.is_polled { &mut NoNotifier } else { &mut *self.system };
            watch.tree.end(system);
        }
    }

    /// Reads the pending notifications of the system; returns whether there is anything to scan.
    pub fn read_events(&mut self) -> bool {
        if let Err(error) = self.system.read_events(&mut self.report) {
            tracing::error!(%error, "file events of the system cannot be read, so everything that is watched is scanned again");
            self.report.forgot = true;
        }
        !self.report.is_nothing()
    }

    /// Simulates a loss of notifications.
    #[cfg(test)]
    pub fn forget(&mut self) {
        self.catch_up();
        self.read_events();
        self.report = SystemReport { forgot: true, ..SystemReport::default() };
    }

    /// Scans the paths that the system has reported.
    pub fn process_events(&mut self) {
        let report = std::mem::take(&mut self.report);
        if report.forgot {
            tracing::info!(
                "the system has dropped file events, so everything that is watched is scanned again"
            );
        }
        for (channel, watch) in self.watches.iter_mut().filter(|(_, watch)| !watch.is_polled) {
            if report.forgot {
                watch.tree.rescan(&mut *self.system, &mut watch.changes);
                watch.changes.add(Path::new(""), ResourceChangeType::Updated);
            } else {
                watch.tree.rescan_paths(&report.touched, &mut *self.system, &mut watch.changes);
            }
            if matches!(watch.tree.trouble(), Some(WatchTrouble::NoRoom(_))) {
                let limits = (self.polled_entries_max, &self.budget);
                watch.fall_back_to_polling(channel, &self.own, limits, &mut *self.system);
            }
            watch.report_incomplete();
        }
    }

    /// Scans all polled watches.
    pub fn poll(&mut self) {
        for watch in self.watches.values_mut().filter(|watch| watch.is_polled) {
            watch.tree.rescan(&mut NoNotifier, &mut watch.changes);
            watch.report_incomplete();
        }
    }

    /// Returns whether any watch is polled.
    pub fn must_poll(&self) -> bool {
        self.watches.values().any(|watch| watch.is_polled)
    }

    /// Returns whether any watch has pending changes.
    pub fn has_changes(&self) -> bool {
        self.watches.values().any(|watch| !watch.changes.is_empty())
    }

    /// Takes the pending changes of one watch; `None` if no watch has any.
    pub fn take_changes(&mut self) -> Option<WatchReport> {
        let (channel, watch) = self.watches.iter_mut().find(|(_, watch)| !watch.changes.is_empty())?;
        let uri = watch.uri.strip_suffix('/').unwrap_or(&watch.uri);
        let name = |path: &Path| match path.as_os_str().is_empty() {
            true => watch.uri.clone(),
            false => format!("{uri}/{}", paths::escaped(path)),
        };
        let changes = watch.changes.take();
        let changes = changes.iter().map(|(path, kind)| (name(path), *kind)).collect();
        Some(WatchReport { watch: channel.clone(), changes })
    }
}

impl WatchedFolder {
    /// Switches to polling, if the folder is small enough, since the system's limit is exhausted.
    fn fall_back_to_polling(
        &mut self,
        channel: &str,
        own: &Arc<[HostFile]>,
        limits: (usize, &Arc<EntryBudget>),
        system: &mut dyn System,
    ) {
        let Some((watched, path)) = Watched::from_channel(channel).zip(path_of(&self.uri).ok()) else {
            return;
        };
        if let Ok(tree) = WatchedTree::begin(&watched, &path, Arc::clone(own), limits, &mut NoNotifier) {
            self.tree.end(system);
            self.is_polled = true;
            let trouble = std::mem::replace(&mut self.tree, tree).take_trouble();
            self.tree.note(trouble);
        }
    }

    /// Reports the whole folder as changed if a part of it is not watched any more.
    fn report_incomplete(&mut self) {
        if let Some(trouble) = self.tree.take_trouble() {
            tracing::warn!(error = %failed(&self.uri, &trouble), "a part of a watched folder is not watched any more");
            self.changes.add(Path::new(""), ResourceChangeType::Updated);
        }
    }
}

/// Checks whether a path can be watched, as far as is possible without watching it.
///
/// # Errors
/// When the path cannot be watched.
pub fn check(watched: &Watched, own: &[HostFile]) -> Result<(), RpcError> {
    path_resolution::check(&path_of(&watched.uri)?, own).map_err(|trouble| failed(&watched.uri, &trouble))
}

fn failed(uri: &str, trouble: &WatchTrouble) -> RpcError {
    match trouble {
        WatchTrouble::Gone => RpcError::resource_not_found(uri),
        WatchTrouble::Denied => RpcError::permission_denied(uri),
        WatchTrouble::Own => RpcError::own_file(uri),
        WatchTrouble::Folders(max) => RpcError::invalid_params(format_args!(
            "`{uri}`: all clients together can watch at most {max} folders; exclude some"
        )),
        WatchTrouble::Entries(max) => RpcError::invalid_params(format_args!(
            "`{uri}`: there are more than {max} files and folders; exclude some"
        )),
        WatchTrouble::AllEntries(max) => RpcError::invalid_params(format_args!(
            "`{uri}`: all clients together can watch at most {max} files and folders; exclude some"
        )),
        WatchTrouble::TooLong => RpcError::invalid_params(format_args!("`{uri}` is longer than any path")),
        WatchTrouble::NoRoom(setting) => RpcError::unavailable(format_args!(
            "`{uri}`: the system's limit of watches for this user is reached; raise `{setting}`"
        )),
        WatchTrouble::Failed(error) => RpcError::unavailable(format_args!("`{uri}`: {error}")),
    }
}
