//! State of one observed repository.
//!
//! Owns: the last known status, whether it is stale, the progress of its refresh, and its watches,
//! with all transitions of these.
//! Never: reads the ledger, or emits an output: a transition returns what its caller has to do.
//!
//! A refresh is due, then in flight, then it has ended. Requests meanwhile make the next one due at
//! its end, and changes of watched files start the delay of the next one then.

use std::collections::BTreeSet;

use ahp_types::state::ResourceChangeType;

use crate::host::effects::RepositoryStatus;

/// Maximum number of changed files that are refreshed individually; beyond it all files are.
const TOUCHED_MAX: usize = 100;

/// Status of a session's repository. Its members do not imply each other, except that only a known
/// status has watches.
#[derive(Debug, Default)]
pub(super) struct ObservedRepository {
    last: LastStatus,
    /// Reason why the last refresh failed, for people.
    trouble: Option<String>,
    /// Set if the repository may have changed since its files became known. Changes since the start
    /// of the refresh in flight are noted there instead.
    was_stale: bool,
    refresh: Refresh,
    /// Number of the last refresh that has ended; 0 if none has.
    ended: u64,
    /// Set if the next refresh includes files even without subscribers.
    wants_files: bool,
    /// Set while a refresh is delayed to coalesce changes; other refreshes do not end the delay.
    is_debouncing: bool,
    watches: RepositoryWatches,
    linger: Linger,
}

/// Last known status of a repository.
#[derive(Debug, Default)]
enum LastStatus {
    #[default]
    Unknown,
    /// Status whose lists of files are empty, because no refresh has included files.
    WithoutFiles(RepositoryStatus),
    /// Status with the files of the last refresh that included them.
    WithFiles(RepositoryStatus),
}

/// Progress of a repository's refresh.
#[derive(Debug, Default, Clone, Copy)]
enum Refresh {
    #[default]
    Idle,
    /// Refresh that has not started.
    Due,
    InFlight(RefreshInFlight),
}

/// Refresh in flight, and events since its start.
#[derive(Debug, Default, Clone, Copy)]
struct RefreshInFlight {
    number: u64,
    includes_files: bool,
    /// Set if another refresh is due when this one ends.
    is_next_due: bool,
    /// Set if the status is stale when this refresh ends.
    is_outdated: bool,
    /// Set if the delay of another refresh starts when this one ends.
    debounces_next: bool,
}

/// Watches of a repository, and the files that they have reported.
#[derive(Debug, Default)]
enum RepositoryWatches {
    /// No watches: changes are not noticed.
    #[default]
    Off,
    /// Watches of which some have not started. `has_failed`: one of them could not start.
    Starting { channels: Vec<String>, started: BTreeSet<String>, has_failed: bool },
    /// Watches that have all started. `touched`: `file:` URIs of files that have changed since the
    /// last refresh with files started; `None` if any file may have. `is_incomplete`: a subfolder
    /// may not be watched any more, so each refresh examines all files.
    Reporting { channels: Vec<String>, touched: Option<BTreeSet<String>>, is_incomplete: bool },
}

/// Watching of a repository without subscribers.
#[derive(Debug, Default, Clone, Copy)]
enum Linger {
    #[default]
    Off,
    /// A subscriber has left, and may have been the last one.
    Due,
    /// Number of the timer that ends it.
    Running(u64),
}

/// Extent of a refresh that starts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RefreshExtent {
    pub(super) files: bool,
    /// Files to examine; `None` for all.
    pub(super) touched: Option<Vec<String>>,
}

/// Outcome of a refresh's end for its caller.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RefreshEnd {
    pub(super) included_files: bool,
    /// Set if the caller has to start the timer of the next refresh's delay.
    pub(super) starts_debounce: bool,
}

impl ObservedRepository {
    /// Creates the state for a status, with files, that was saved with the session.
    pub(super) fn restored(saved: RepositoryStatus) -> Self {
        Self { last: LastStatus::WithFiles(saved), was_stale: true, ..Self::default() }
    }

    /// Returns the last known status.
    pub(super) fn last(&self) -> Option<&RepositoryStatus> {
        match &self.last {
            LastStatus::Unknown => None,
            LastStatus::WithoutFiles(last) | LastStatus::WithFiles(last) => Some(last),
        }
    }

    /// Returns the last known status if its files are known.
    pub(super) fn last_with_files(&self) -> Option<&RepositoryStatus> {
        match &self.last {
            LastStatus::WithFiles(last) => Some(last),
            _ => None,
        }
    }

    /// Returns the reason why the last refresh failed, for people.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Returns whether the repository may have changed since its files became known.
    pub(super) fn is_stale(&self) -> bool {
        self.was_stale || matches!(self.refresh, Refresh::InFlight(refresh) if refresh.is_outdated)
    }

    fn mark_stale(&mut self) {
        match &mut self.refresh {
            Refresh::InFlight(refresh) => refresh.is_outdated = true,
            _ => self.was_stale = true,
        }
    }

    fn set_due(&mut self) {
        match &mut self.refresh {
            Refresh::InFlight(refresh) => refresh.is_next_due = true,
            refresh => *refresh = Refresh::Due,
        }
    }

    /// Requests a refresh of all files: any of them may have changed.
    pub(super) fn request(&mut self) {
        self.watches.touch_all();
        self.request_touched();
    }

    fn request_touched(&mut self) {
        self.set_due();
        self.mark_stale();
    }

    /// Requests a refresh for a new subscriber: of all files, unless watches or a refresh in flight
    /// keep them current. Returns whether the status has become stale by that.
    pub(super) fn subscribe(&mut self) -> bool {
        let is_unwatched = matches!(self.watches, RepositoryWatches::Off);
        let may_be_old = self.is_stale() || (self.last_with_files().is_some() && is_unwatched);
        let will_be_new = matches!(self.refresh, Refresh::InFlight(refresh) if refresh.includes_files);
        if may_be_old && !will_be_new {
            self.request();
            return true;
        }
        self.set_due();
        false
    }

    /// Notes that a subscriber has left.
    pub(super) fn unsubscribe(&mut self) {
        self.linger = Linger::Due;
    }

    /// Includes files in the next refresh. It is due unless they are known, or the last one failed.
    pub(super) fn require_files(&mut self) {
        self.wants_files = true;
        if self.last_with_files().is_none() && self.trouble.is_none() {
            self.set_due();
        }
    }

    /// Requests a refresh with files unless subscribers have received a current status, which
    /// watches keep so. Returns whether they have.
    pub(super) fn require_current(&mut self, has_subscriber: bool) -> bool {
        let is_known = self.last_with_files().is_some() && !self.is_stale() && self.trouble.is_none();
        let is_watched = matches!(self.watches, RepositoryWatches::Reporting { .. });
        if has_subscriber && is_known && is_watched && matches!(self.refresh, Refresh::Idle) {
            self.wants_files = false;
            return true;
        }
        self.wants_files = true;
        self.watches.touch_all();
        self.set_due();
        false
    }

    /// Returns whether a refresh with this number or a later one has ended.
    pub(super) fn has_ended(&self, number: u64) -> bool {
        self.ended >= number
    }

    /// Starts a due refresh, with a number that is higher than all before, unless another one is
    /// in flight.
    pub(super) fn start(&mut self, number: u64, has_subscriber: bool) -> Option<RefreshExtent> {
        if !matches!(self.refresh, Refresh::Due) {
            return None;
        }
        let files = std::mem::take(&mut self.wants_files) || has_subscriber;
        let refresh = RefreshInFlight { number, includes_files: files, ..RefreshInFlight::default() };
        self.refresh = Refresh::InFlight(refresh);
        let touched = if files { self.watches.take_touched() } else { None };
        Some(RefreshExtent { files, touched: touched.map(|touched| touched.into_iter().collect()) })
    }

    /// Ends the refresh with this number, whatever has come of it. `None` if it is not in flight:
    /// its session may have been evicted and loaded again since it started.
    pub(super) fn end(&mut self, number: u64) -> Option<RefreshEnd> {
        let Refresh::InFlight(refresh) = self.refresh else { return None };
        if refresh.number != number {
            return None;
        }
        self.refresh = if refresh.is_next_due { Refresh::Due } else { Refresh::Idle };
        self.ended = number;
        self.was_stale = refresh.is_outdated || (self.was_stale && !refresh.includes_files);
        let starts_debounce = refresh.debounces_next && self.start_debounce();
        Some(RefreshEnd { included_files: refresh.includes_files, starts_debounce })
    }

    /// Takes the status that a refresh has seen. Returns whether it is news.
    pub(super) fn succeed(&mut self, mut seen: RepositoryStatus, has_files: bool) -> bool {
        let had_trouble = self.trouble.take().is_some();
        let (mut last, had_files) = match std::mem::take(&mut self.last) {
            LastStatus::Unknown => (None, false),
            LastStatus::WithoutFiles(last) => (Some(last), false),
            LastStatus::WithFiles(last) => (Some(last), true),
        };
        // The older files are better than none.
        let retained = last
            .as_mut()
            .filter(|_| had_files && !has_files)
            .map(|last| (std::mem::take(&mut last.uncommitted), std::mem::take(&mut last.branch_changes)));
        // An empty list of files is news, too.
        let is_news = had_trouble || (has_files && !had_files) || last.as_ref() != Some(&seen);
        if let Some(files) = retained {
            (seen.uncommitted, seen.branch_changes) = files;
        }
        let is_complete = had_files || has_files;
        self.last = if is_complete { LastStatus::WithFiles(seen) } else { LastStatus::WithoutFiles(seen) };
        is_news
    }

    /// Takes the reason why a refresh has failed, for people. The last known status stays.
    pub(super) fn fail(&mut self, why: String) {
        self.trouble = Some(why);
        // The files that it was about have not been examined.
        self.watches.touch_all();
    }

    /// Starts or ends watching without subscribers. Returns whether the caller has to start the
    /// timer with this number, which no other timer has.
    pub(super) fn update_linger(&mut self, number: u64, has_subscriber: bool) -> bool {
        let starts = matches!(self.linger, Linger::Due) && !has_subscriber && self.last().is_some();
        if starts {
            self.linger = Linger::Running(number);
        } else if has_subscriber || matches!(self.linger, Linger::Due) {
            self.linger = Linger::Off;
        }
        starts
    }

    /// Ends watching without subscribers if this is its timer. Returns whether it is.
    pub(super) fn linger_expired(&mut self, number: u64) -> bool {
        let is_current = matches!(self.linger, Linger::Running(running) if running == number);
        if is_current {
            self.linger = Linger::Off;
        }
        is_current
    }

    /// Returns the status whose repository is to be watched; `None` if none is.
    pub(super) fn to_watch(&self, has_subscriber: bool) -> Option<&RepositoryStatus> {
        self.last().filter(|_| has_subscriber || matches!(self.linger, Linger::Running(_)))
    }

    /// Returns the channels of the watches in use.
    pub(super) fn watches(&self) -> &[String] {
        self.watches.channels()
    }

    /// Replaces the watches. Returns the channels of the former ones.
    pub(super) fn replace_watches(&mut self, channels: Vec<String>) -> Vec<String> {
        self.watches.replace(channels)
    }

    /// Requests a refresh after the start of a watch: earlier changes were not reported.
    pub(super) fn watch_started(&mut self, watch: &str) {
        if self.watches.note_started(watch) {
            self.set_due();
        }
    }

    /// Notes that a watch could not start.
    pub(super) fn watch_failed(&mut self, watch: &str) {
        self.watches.note_failed(watch);
    }

    /// Takes the watches if one of them could not start, so that all can be requested again.
    /// Returns their channels.
    pub(super) fn take_failed_watches(&mut self) -> Vec<String> {
        match self.watches {
            RepositoryWatches::Starting { has_failed: true, .. } => self.replace_watches(Vec::new()),
            _ => Vec::new(),
        }
    }

    /// Notes changes that a watch has reported. With a subscriber they delay a refresh, else the
    /// status is stale. Returns whether the caller has to start the timer of the delay.
    pub(super) fn note_changes(
        &mut self,
        changes: &[(String, ResourceChangeType)],
        has_subscriber: bool,
    ) -> bool {
        let root = self.last().map(|last| last.root.as_str());
        // A change of the root can mean that a subfolder is not watched any more.
        if changes.iter().any(|(uri, _)| root.is_none_or(|root| root == uri)) {
            self.watches.note_incomplete();
        }
        self.watches.touch(changes.iter().map(|(uri, _)| uri));
        match &mut self.refresh {
            // The next subscriber starts the refresh.
            _ if !has_subscriber => self.mark_stale(),
            // A repository that changes all the time still shows a status after each refresh.
            Refresh::InFlight(refresh) => refresh.debounces_next = true,
            _ => return self.start_debounce(),
        }
        false
    }

    /// Starts the delay of a refresh. Returns whether the caller has to start its timer.
    fn start_debounce(&mut self) -> bool {
        !std::mem::replace(&mut self.is_debouncing, true)
    }

    /// Requests the refresh that was delayed to coalesce changes.
    pub(super) fn debounce_expired(&mut self) {
        self.is_debouncing = false;
        self.request_touched();
    }
}

impl RepositoryWatches {
    fn channels(&self) -> &[String] {
        match self {
            Self::Off => &[],
            Self::Starting { channels, .. } | Self::Reporting { channels, .. } => channels,
        }
    }

    /// Replaces the watches by ones that start. Returns the channels of the former ones.
    fn replace(&mut self, channels: Vec<String>) -> Vec<String> {
        let next = match channels.is_empty() {
            true => Self::Off,
            false => Self::Starting { channels, started: BTreeSet::new(), has_failed: false },
        };
        match std::mem::replace(self, next) {
            Self::Off => Vec::new(),
            Self::Starting { channels, .. } | Self::Reporting { channels, .. } => channels,
        }
    }

    /// Notes that a subfolder may not be watched any more.
    fn note_incomplete(&mut self) {
        self.touch_all();
        if let Self::Reporting { is_incomplete, .. } = self {
            *is_incomplete = true;
        }
    }

    /// Notes that a watch has started. Returns whether it is one of these.
    fn note_started(&mut self, watch: &str) -> bool {
        if !self.channels().iter().any(|channel| channel == watch) {
            return false;
        }
        self.touch_all();
        if let Self::Starting { channels, started, .. } = self {
            started.insert(watch.to_owned());
            if started.len() == channels.len() {
                let channels = std::mem::take(channels);
                *self = Self::Reporting { channels, touched: None, is_incomplete: false };
            }
        }
        true
    }

    /// Notes that a watch could not start, if it is one of these.
    fn note_failed(&mut self, watch: &str) {
        if let Self::Starting { channels, started, has_failed } = self {
            *has_failed |= channels.iter().any(|channel| channel == watch) && !started.contains(watch);
        }
    }

    fn touch<'a>(&mut self, uris: impl Iterator<Item = &'a String>) {
        if let Self::Reporting { touched: Some(touched), .. } = self {
            touched.extend(uris.cloned());
            if touched.len() > TOUCHED_MAX {
                self.touch_all();
            }
        }
    }

    fn touch_all(&mut self) {
        if let Self::Reporting { touched, .. } = self {
            *touched = None;
        }
    }

    /// Returns the files that have changed since the last call, `None` for all.
    fn take_touched(&mut self) -> Option<BTreeSet<String>> {
        match self {
            Self::Reporting { touched, is_incomplete: false, .. } => touched.replace(BTreeSet::new()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::effects::GitContent;
    use crate::state::edits::FileDiff;

    const ROOT: &str = "file:///r";

    fn seen(branch: &str) -> RepositoryStatus {
        let (root, branch) = (ROOT.to_owned(), Some(branch.to_owned()));
        RepositoryStatus { root, branch, ..RepositoryStatus::default() }
    }

    /// Starts a due refresh with the next number.
    fn start(observed: &mut ObservedRepository, has_subscriber: bool) -> Option<RefreshExtent> {
        observed.start(observed.ended + 1, has_subscriber)
    }

    /// Ends the refresh in flight, if there is one.
    fn end(observed: &mut ObservedRepository) -> Option<RefreshEnd> {
        observed.end(observed.ended + 1)
    }

    /// Runs a whole refresh, with files or not. Returns the files that it examines.
    fn refresh(observed: &mut ObservedRepository, files: bool) -> Option<Vec<String>> {
        let extent = start(observed, files).unwrap();
        assert_eq!(extent.files, files);
        assert_eq!(end(observed).unwrap().included_files, files);
        observed.succeed(seen("main"), files);
        extent.touched
    }

    /// A repository whose status is known, with files or not.
    fn known(files: bool) -> ObservedRepository {
        let mut observed = ObservedRepository::default();
        observed.request();
        assert_eq!(refresh(&mut observed, files), None);
        observed
    }

    /// A repository whose watches, on these channels, report each change.
    fn reporting(channels: &[&str]) -> ObservedRepository {
        let mut observed = known(true);
        observed.replace_watches(channels.iter().map(|&channel| channel.to_owned()).collect());
        for channel in channels {
            observed.watch_started(channel);
        }
        assert_eq!(refresh(&mut observed, true), None, "earlier changes were not reported");
        observed
    }

    fn changes(names: &[&str]) -> Vec<(String, ResourceChangeType)> {
        names.iter().map(|name| (format!("{ROOT}{name}"), ResourceChangeType::Updated)).collect()
    }

    #[test]
    fn due_refresh_starts_once_and_requests_meanwhile_make_the_next_one_due_at_its_end() {
        let mut observed = ObservedRepository::default();
        assert_eq!((start(&mut observed, true), end(&mut observed)), (None, None));
        observed.request();
        observed.request();
        assert!(start(&mut observed, true).is_some());
        assert!(start(&mut observed, true).is_none());
        assert_eq!(observed.end(2), None, "another one");
        observed.request();
        assert!(start(&mut observed, true).is_none());
        end(&mut observed);
        assert!(start(&mut observed, true).is_some());
        end(&mut observed);
        assert!(start(&mut observed, true).is_none());
    }

    #[test]
    fn status_is_stale_until_a_refresh_with_files_that_starts_after_the_last_change() {
        let saved = ObservedRepository::restored(seen("main"));
        assert!(saved.is_stale() && saved.last_with_files().is_some());
        for (files, is_outdated, is_stale) in
            [(true, false, false), (true, true, true), (false, false, true), (false, true, true)]
        {
            let mut observed = known(true);
            assert!(!observed.is_stale());
            observed.request();
            start(&mut observed, files);
            if is_outdated {
                observed.request();
            }
            assert!(observed.is_stale());
            end(&mut observed);
            assert_eq!(observed.is_stale(), is_stale, "{files}, {is_outdated}");
        }
        let mut observed = known(true);
        observed.set_due();
        start(&mut observed, false);
        observed.request();
        assert!(observed.is_stale(), "the refresh in flight may have missed the change");
    }

    #[test]
    fn required_files_are_in_the_next_refresh_which_is_due_if_they_are_unknown() {
        let mut failed = ObservedRepository::default();
        failed.fail("no time".to_owned());
        let unknown = ObservedRepository::default();
        for (mut observed, is_due) in
            [(unknown, true), (known(false), true), (known(true), false), (failed, false)]
        {
            observed.require_files();
            assert_eq!(matches!(observed.refresh, Refresh::Due), is_due);
            for has_subscriber in [false, true] {
                observed.require_files();
                observed.request();
                assert!(start(&mut observed, has_subscriber).unwrap().files);
                end(&mut observed);
                observed.request();
                assert!(!start(&mut observed, false).unwrap().files, "once");
                end(&mut observed);
            }
        }
    }

    #[test]
    fn subscriber_requests_all_files_unless_they_are_watched_or_in_flight() {
        let stale = |mut observed: ObservedRepository| {
            observed.mark_stale();
            observed
        };
        let in_flight = |mut observed: ObservedRepository, files| {
            observed.request();
            start(&mut observed, files);
            observed
        };
        let mut unwatched = reporting(&["w"]);
        assert_eq!(unwatched.replace_watches(Vec::new()), ["w"]);
        for (at, (mut observed, requests)) in [
            (unwatched, true),
            (ObservedRepository::default(), false),
            (known(false), true),
            (known(true), true),
            (reporting(&["w"]), false),
            (stale(reporting(&["w"])), true),
            (in_flight(reporting(&["w"]), false), true),
            (in_flight(reporting(&["w"]), true), false),
            (in_flight(known(true), true), false),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!((at, observed.subscribe()), (at, requests));
            end(&mut observed);
            assert!(matches!(observed.refresh, Refresh::Due), "{at}: a refresh is due in any case");
            assert_eq!((at, observed.is_stale()), (at, requests));
        }
    }

    #[test]
    fn current_status_requires_no_refresh_and_the_required_one_starts_later() {
        let mut failed = reporting(&["w"]);
        failed.fail("no time".to_owned());
        let mut stale = reporting(&["w"]);
        stale.mark_stale();
        let mut in_flight = reporting(&["w"]);
        in_flight.set_due();
        start(&mut in_flight, true);
        let mut due = reporting(&["w"]);
        due.set_due();
        let mut without_files = ObservedRepository::default();
        without_files.set_due();
        refresh(&mut without_files, false);
        assert!(!without_files.is_stale());
        let mut unwatched = reporting(&["w"]);
        unwatched.replace_watches(vec!["x".to_owned()]);
        for (at, (mut observed, has_subscriber, is_current)) in [
            (reporting(&["w"]), true, true),
            (unwatched, true, false),
            (reporting(&["w"]), false, false),
            (without_files, true, false),
            (failed, true, false),
            (stale, true, false),
            (in_flight, true, false),
            (due, true, false),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!((at, observed.require_current(has_subscriber)), (at, is_current));
            end(&mut observed);
            if is_current {
                assert_eq!(start(&mut observed, true), None);
                continue;
            }
            let number = observed.ended + 1;
            assert!(!observed.has_ended(number), "{at}");
            let extent = RefreshExtent { files: true, touched: None };
            assert_eq!(start(&mut observed, false), Some(extent));
            assert!(!observed.has_ended(number), "{at}");
            end(&mut observed);
            assert!(observed.has_ended(number) && observed.has_ended(number - 1), "{at}");
        }
        let mut current = reporting(&["w"]);
        current.require_files();
        assert!(current.require_current(true));
        current.request();
        assert_eq!(refresh(&mut current, false), None, "files are not required any more");
    }

    #[test]
    fn watched_changes_delay_one_refresh_or_make_the_status_stale() {
        // Whether a delay runs, a refresh is in flight, and a subscriber exists; then whether a
        // timer starts at the change, or at the end of the refresh, and the status is stale.
        let (no, yes) = (false, true);
        for (runs, in_flight, subscriber, now, at_end, is_stale) in [
            (no, no, yes, yes, no, no),
            (yes, no, yes, no, no, no),
            (no, no, no, no, no, yes),
            (no, yes, yes, no, yes, no),
            (yes, yes, yes, no, no, no),
            (no, yes, no, no, no, yes),
        ] {
            let mut observed = reporting(&["w"]);
            assert!(!runs || observed.note_changes(&changes(&["/a"]), true));
            if in_flight {
                observed.set_due();
                start(&mut observed, true);
            }
            let case = (runs, in_flight, subscriber);
            assert_eq!((case, observed.note_changes(&changes(&["/b"]), subscriber)), (case, now));
            assert_eq!((case, end(&mut observed).is_some_and(|end| end.starts_debounce)), (case, at_end));
            assert_eq!((case, observed.is_stale()), (case, is_stale));
            assert!(start(&mut observed, true).is_none(), "{case:?}: none is due before the delay has ended");
        }
    }

    #[test]
    fn end_of_a_delay_requests_the_touched_files_and_allows_another_delay() {
        let mut observed = reporting(&["w"]);
        observed.note_changes(&changes(&["/b", "/a"]), true);
        observed.debounce_expired();
        assert!(observed.is_stale());
        assert_eq!(refresh(&mut observed, true).unwrap(), ["file:///r/a", "file:///r/b"]);
        assert!(observed.note_changes(&changes(&["/c"]), true));
        observed.debounce_expired();
        assert_eq!(refresh(&mut observed, false), None, "no file is examined");
        observed.debounce_expired();
        assert_eq!(refresh(&mut observed, true).unwrap(), ["file:///r/c"]);
    }

    #[test]
    fn all_files_are_examined_after_changes_that_may_not_have_been_reported() {
        let many: Vec<String> = (0..=TOUCHED_MAX).map(|number| format!("/{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        type Event<'a> = &'a dyn Fn(&mut ObservedRepository);
        let cases: [(Event, bool, bool); 9] = [
            (&|_| (), false, false),
            (&ObservedRepository::request, true, false),
            (&|it| it.fail("no time".to_owned()), true, false),
            (&|it| it.watch_started("w"), true, false),
            (&|it| it.watch_started("other"), false, false),
            (&|it| assert!(!it.note_changes(&changes(&many[2..]), false)), false, false),
            (&|it| assert!(!it.note_changes(&changes(&many), false)), true, false),
            (&|it| assert!(!it.note_changes(&changes(&[""]), false)), true, true),
            (&|it| drop(it.replace_watches(vec!["w".to_owned(), "v".to_owned()])), true, true),
        ];
        for (at, (event, now, later)) in cases.into_iter().enumerate() {
            let mut observed = reporting(&["v", "w"]);
            event(&mut observed);
            for examines_all in [now, later] {
                observed.note_changes(&changes(&["/a"]), false);
                observed.set_due();
                assert_eq!((at, refresh(&mut observed, true).is_none()), (at, examines_all));
            }
            // After the start of other watches and of a refresh, each change is reported.
            observed.replace_watches(vec!["v".to_owned(), "w".to_owned()]);
            observed.watch_started("v");
            assert_eq!(refresh(&mut observed, true), None);
            observed.watch_started("w");
            assert_eq!(refresh(&mut observed, true), None);
            observed.set_due();
            assert_eq!(refresh(&mut observed, true), Some(vec![]), "{at}");
        }
        let mut observed = reporting(&["v", "w"]);
        observed.watch_started("other");
        assert_eq!(start(&mut observed, true), None);
        observed.replace_watches(vec!["v".to_owned(), "w".to_owned()]);
        observed.watch_started("v");
        for event in ["one of two has started", "earlier changes were not reported"] {
            observed.set_due();
            assert_eq!(refresh(&mut observed, true), None, "{event}");
        }
    }

    #[test]
    fn known_repository_is_watched_with_subscribers_and_while_a_timer_runs_after_the_last() {
        let mut unknown = ObservedRepository::default();
        unknown.unsubscribe();
        assert!(!unknown.update_linger(1, false));
        assert!(unknown.to_watch(true).is_none());
        unknown.succeed(seen("main"), false);
        assert!(!unknown.update_linger(2, false), "no subscriber has left since it is known");
        let mut observed = known(false);
        // A subscriber that leaves, subscribers that are left, an expired timer; whether a timer
        // starts, with the number of the case, and the repository is watched then.
        for (number, (leaves, has_subscriber, expired, starts, is_watched)) in [
            (false, false, None, false, false),
            (false, true, None, false, true),
            (true, true, None, false, true),
            (false, false, None, false, false),
            (true, false, None, true, true),
            (false, false, None, false, true),
            (true, false, None, true, true),
            (false, false, Some(4), false, true),
            (false, true, None, false, true),
            (false, false, None, false, false),
            (true, false, None, true, true),
            (false, false, Some(10), false, false),
        ]
        .into_iter()
        .enumerate()
        {
            if leaves {
                observed.unsubscribe();
            }
            if let Some(number) = expired {
                assert_eq!(observed.linger_expired(number), !is_watched);
            }
            let case = (number, observed.linger);
            assert_eq!(observed.update_linger(number as u64, has_subscriber), starts, "{case:?}");
            assert_eq!(observed.to_watch(has_subscriber).is_some(), is_watched, "{case:?}");
        }
    }

    #[test]
    fn refresh_without_files_keeps_them_and_is_news_only_if_the_rest_has_changed() {
        let file = FileDiff {
            file: "file:///r/a".to_owned(),
            renamed_from: None,
            before: None,
            after: Some(GitContent { blob: "1".to_owned(), mode: 0o100_644 }),
            lines: None,
        };
        let files = || (vec![file.clone()], vec![file.clone()]);
        let with_files = |branch| {
            let (uncommitted, branch_changes) = files();
            RepositoryStatus { uncommitted, branch_changes, ..seen(branch) }
        };
        let mut observed = ObservedRepository::default();
        for (at, (status, has_files, is_news)) in [
            (seen("main"), false, true),
            (seen("main"), false, false),
            (seen("main"), true, true),
            (seen("main"), true, false),
            (with_files("main"), true, true),
            (with_files("main"), true, false),
            (seen("main"), false, false),
            (seen("other"), false, true),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!((at, observed.succeed(status, has_files)), (at, is_news));
            assert_eq!(observed.last_with_files().is_some(), at >= 2);
        }
        let last = observed.last_with_files().unwrap();
        assert_eq!((last.uncommitted.clone(), last.branch_changes.clone()), files());
        observed.fail("no time".to_owned());
        assert_eq!((observed.trouble(), observed.last_with_files().is_some()), (Some("no time"), true));
        assert!(observed.succeed(seen("other"), false));
        assert_eq!(observed.trouble(), None);
    }
}
