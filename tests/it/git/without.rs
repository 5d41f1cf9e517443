//! Changes in a folder without a repository, by the calls of two chats and by the user.
//!
//! Owns: histories of both, in which the host is killed; and that turns and sessions show what the
//! calls have said, byte by byte, and nothing else is taken back or brought back.
//! Never: asks git anything.
//!
//! `PROPTEST_CASES` tries more histories and `PROPTEST_RNG_SEED` others; without them every run
//! tries the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::{json, Value};

use super::model::{copy_of, FullCopy};
use super::operations::{fate_of, Fate, FileState, Plan};
use super::{try_all, uri, Repository, Talk, CHAT, SESSION};

const SECOND_CHAT: &str = "ahp-chat:/second";

/// Seed of the random choices, unless another one is requested.
const SEED: u64 = 29;

const NAMES: [&str; 5] = ["a", "dir/b", "dir/c d", "e/f/g", "h"];

/// The mode of a file that anybody makes.
const FILE: u32 = 0o100_644;

/// The texts that are written, each with a line end; the first one is none: the file is removed.
const TEXTS: [&str; 6] = ["", "1", "2", "\u{e4}\u{1f600}", "3", "with spaces  "];

/// A change of a file: its name, and its text then.
type Edit = (usize, usize);

#[derive(Debug, Clone)]
enum Event {
    /// A call in a turn of one of the chats; one is begun where there is none.
    Call(bool, Vec<Edit>),
    /// The turn of a chat ends.
    End(bool),
    /// The user changes files, and not always as text.
    Hand(Vec<Edit>, bool),
    /// Turns are over, and what one of them has changed (counted backwards), or all of the session,
    /// is taken back: all files or one. The host is killed after so many milliseconds, if that is
    /// said.
    Discard(Option<usize>, Option<usize>, Option<u8>),
    Restore(Option<usize>, Option<u8>),
    Killed,
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    proptest::collection::vec((0..NAMES.len(), 0..TEXTS.len()), 1..4)
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let which = || proptest::option::weighted(0.7, 0..3_usize);
    let killed = || proptest::option::weighted(0.2, 0..30_u8);
    let one = prop_oneof![
        8 => (any::<bool>(), edits()).prop_map(|(chat, edits)| Event::Call(chat, edits)),
        3 => any::<bool>().prop_map(Event::End),
        4 => (edits(), proptest::bool::weighted(0.2)).prop_map(|(edits, odd)| Event::Hand(edits, odd)),
        4 => (which(), proptest::option::weighted(0.3, 0..5_usize), killed())
            .prop_map(|(which, one, killed)| Event::Discard(which, one, killed)),
        3 => (which(), killed()).prop_map(|(which, killed)| Event::Restore(which, killed)),
        1 => Just(Event::Killed),
    ];
    proptest::collection::vec(one, 3..16)
}

/// An edit that is counted: which file, and what was in it and what is then.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Said {
    /// Of which changesets; what is taken back is of the session, too.
    of: String,
    /// Index of the undone operation that the edit belongs to; `None` for an edit of a call.
    undone: Option<usize>,
    name: String,
    before: Option<Vec<u8>>,
    after: Option<Vec<u8>>,
    /// True if the file was already reverted, so that restoring does not touch it.
    is_untouched: bool,
}

/// A chat, and the turn that runs in it: its id, and the call that waits.
struct Chat {
    uri: &'static str,
    turn: Option<String>,
}

struct History<'a> {
    repository: &'a Repository,
    talk: Talk,
    chats: [Chat; 2],
    turns: Vec<String>,
    said: Vec<Said>,
    /// Number of reverts.
    undone: usize,
    /// Changesets of which it is not known any more what can be brought back.
    forgotten: BTreeSet<String>,
}

/// Files, each with what it was and what it is.
type Net = BTreeMap<String, (Option<Vec<u8>>, Option<Vec<u8>>)>;

impl<'a> History<'a> {
    fn begin(repository: &'a Repository) -> Self {
        let mut talk = Talk::begin(repository);
        talk.ask("createChat", &json!({ "channel": SESSION, "chat": SECOND_CHAT }));
        let chats = [CHAT, SECOND_CHAT].map(|uri| Chat { uri, turn: None });
        Self {
            repository,
            talk,
            chats,
            turns: Vec::new(),
            said: Vec::new(),
            undone: 0,
            forgotten: BTreeSet::new(),
        }
    }

    fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        fs::read(self.repository.path(name)).ok()
    }

    /// A call that changes files.
    fn call(&mut self, chat: bool, edits: &[Edit]) {
        let at = usize::from(chat);
        let words: Vec<String> =
            edits.iter().map(|(name, text)| format!("'{}={}'", NAMES[*name], TEXTS[*text])).collect();
        let script = format!("/files {}\n/ask go", words.join(" "));
        self.end(chat);
        self.turns.push(format!("t{}", self.turns.len() + 1));
        let turn = self.turns.last().unwrap().clone();
        let mut now: BTreeMap<&str, Option<Vec<u8>>> = BTreeMap::new();
        for (name, text) in edits {
            let name = NAMES[*name];
            let before = now.get(name).cloned().unwrap_or_else(|| self.bytes(name));
            let after = (*text > 0).then(|| format!("{}\n", TEXTS[*text]).into_bytes());
            // What was no text is not told.
            let is_text = before.as_ref().is_none_or(|bytes| std::str::from_utf8(bytes).is_ok());
            if before != after && is_text {
                let said = Said {
                    of: format!("turn/{turn}"),
                    undone: None,
                    name: name.to_owned(),
                    before,
                    after: after.clone(),
                    is_untouched: false,
                };
                self.said.push(said);
            }
            now.insert(name, after);
        }
        let uri = self.chats[at].uri;
        self.talk.follow(uri);
        self.talk.start(uri, &turn, &script);
        self.talk.asked(uri);
        self.chats[at].turn = Some(turn);
    }

    fn end(&mut self, chat: bool) {
        let chat = &mut self.chats[usize::from(chat)];
        if let Some(turn) = chat.turn.take() {
            let uri = chat.uri;
            self.talk.dispatch(uri, &json!({ "type": "chat/turnCancelled", "turnId": turn }));
            self.talk.until(uri, |action| action["type"] == "chat/turnCancelled");
        }
    }

    fn by_hand(&self, edits: &[Edit], is_odd: bool) {
        for (name, text) in edits {
            let path = self.repository.path(NAMES[*name]);
            match text {
                0 => fs::remove_file(path).unwrap_or_default(),
                _ if is_odd => self.repository.write(NAMES[*name], [0, 0xff, 10]),
                text => self.repository.write(NAMES[*name], format!("{}\n", TEXTS[*text])),
            }
        }
    }

    fn net(&self, what: &str) -> Net {
        let mut net = Net::new();
        for said in self.said.iter().filter(|said| what == "session" || said.of == what) {
            let sides = (said.before.clone(), said.after.clone());
            match net.get_mut(&said.name) {
                Some((_, after)) => *after = sides.1,
                // What was taken back of nothing that counts.
                None if said.undone.is_some() => {}
                None => drop(net.insert(said.name.clone(), sides)),
            }
        }
        net.retain(|_, (before, after)| before != after);
        net
    }

    /// A changeset as it is now, while turns run.
    fn seen(&mut self, what: &str) -> Value {
        let channel = format!("{SESSION}/changeset/{what}");
        let state = self.talk.follow(&channel);
        let leave = json!({ "jsonrpc": "2.0", "method": "unsubscribe", "params": { "channel": channel } });
        self.talk.process.say(&leave.to_string());
        state
    }

    /// Checks that a changeset shows the edits reported by calls.
    fn must_show(&mut self, what: &str) {
        let wanted = self.net(what);
        let works = self.chats.iter().any(|chat| chat.turn.is_some());
        let state = if works { self.seen(what) } else { self.talk.changeset(what) };
        if state["status"] == "error" {
            // A turn whose calls have said nothing that could be told.
            assert!(wanted.is_empty(), "{what}: {state}: {wanted:?}");
            return;
        }
        let mut shown = Net::new();
        for file in state["files"].as_array().unwrap_or_else(|| panic!("{what}: {state}")) {
            let path = ahp_sidecar::files::uris::path_of(file["id"].as_str().unwrap()).unwrap();
            let name = path.strip_prefix(&self.repository.root).unwrap().to_str().unwrap().to_owned();
            let mut side = |side: &str| {
                let content = file["edit"][side]["content"]["uri"].as_str()?;
                Some(self.talk.content(content).into_bytes())
            };
            let sides = (side("before"), side("after"));
            shown.insert(name, sides);
        }
        assert_eq!(shown, wanted, "{what}");
    }

    fn check_all_changesets(&mut self) {
        if self.said.is_empty() {
            return;
        }
        for turn in self.turns.clone() {
            self.must_show(&format!("turn/{turn}"));
        }
        self.must_show("session");
    }

    fn name_of(&self, which: Option<usize>) -> Option<String> {
        match which {
            None => (!self.said.is_empty()).then(|| "session".to_owned()),
            Some(back) => Some(format!("turn/{}", self.turns.iter().nth_back(back)?)),
        }
    }

    /// Returns the expected edits of reverting, or of restoring the last revert.
    fn plan(&self, what: &str, one: Option<usize>, restores: bool) -> Plan {
        let now = copy_of(self.repository);
        let mut untouched = BTreeSet::new();
        let state = |bytes: Option<Vec<u8>>| -> FileState { bytes.map(|bytes| (FILE, bytes)) };
        let files: Net = if restores {
            let last = self.said.iter().filter(|said| said.of == what).filter_map(|said| said.undone).max();
            let last =
                self.said.iter().filter(|said| said.of == what && last.is_some() && said.undone == last);
            untouched.extend(last.clone().filter(|said| said.is_untouched).map(|said| said.name.clone()));
            last.map(|said| (said.name.clone(), (said.before.clone(), said.after.clone()))).collect()
        } else {
            self.net(what)
        };
        let one =
            one.filter(|_| !files.is_empty()).map(|at| files.keys().nth(at % files.len()).unwrap().clone());
        let target = one.as_ref().map(|name| uri(&self.repository.path(name)));
        let mut plan = Plan { what: what.to_owned(), target, ..Plan::default() };
        for (name, (before, after)) in
            files.into_iter().filter(|(name, _)| one.as_ref().is_none_or(|one| one == name))
        {
            let (before, after) = (state(before), state(after));
            let fate = match untouched.contains(&name) {
                true => Fate::Is,
                false => fate_of(&name, now.get(&name), after.as_ref(), before.clone()),
            };
            plan.undone.insert(name.clone(), Some((before, after)));
            plan.fates.insert(name, fate);
        }
        plan
    }

    fn request(plan: &Plan, restores: bool) -> Value {
        let operation = if restores { "restore-changes" } else { "discard-changes" };
        let mut params =
            json!({ "channel": format!("{SESSION}/changeset/{}", plan.what), "operationId": operation });
        if let Some(target) = &plan.target {
            params["target"] = json!({ "kind": "resource", "resource": target });
        }
        params
    }

    fn asks(&mut self, which: Option<usize>, one: Option<usize>, restores: bool, killed: Option<u8>) {
        self.end(false);
        self.end(true);
        let Some(what) = self.name_of(which) else { return };
        if restores && self.forgotten.contains(&what) {
            return;
        }
        let plan = self.plan(&what, one, restores);
        let before = copy_of(self.repository);
        self.talk.changeset(&what);
        if let Some(after) = killed.filter(|_| !plan.fates.is_empty()) {
            self.kill_during_operation(&plan, restores, after, &before);
            return;
        }
        let answer = self.talk.ask("invokeChangesetOperation", &Self::request(&plan, restores));
        plan.must_match(self.repository, &answer, &before);
        self.count(&plan, restores, &answer);
    }

    fn count(&mut self, plan: &Plan, restores: bool, answer: &Value) {
        let told = super::operations::message_in(answer);
        let done: BTreeSet<&String> =
            plan.fates.keys().filter(|name| !plan.is_named(self.repository, told, name)).collect();
        if restores {
            let last =
                self.said.iter().filter(|said| said.of == plan.what).filter_map(|said| said.undone).max();
            self.said.retain(|said| {
                said.of != plan.what || last.is_none() || said.undone != last || !done.contains(&said.name)
            });
        } else {
            self.undone += 1;
            for name in done {
                let (left, found) = plan.undone[name].clone().unwrap();
                let is_untouched = matches!(plan.fates[name], Fate::Is);
                let bytes = |state: FileState| state.map(|(_, bytes)| bytes);
                let (of, name) = (plan.what.clone(), name.clone());
                let said = Said {
                    of,
                    undone: Some(self.undone),
                    name,
                    before: bytes(found),
                    after: bytes(left),
                    is_untouched,
                };
                self.said.push(said);
            }
        }
    }

    fn is_killed(&mut self) {
        self.talk.process.child.kill().unwrap();
        self.talk.process.wait();
        self.talk = Talk::open(self.repository, &[]);
        self.talk.follow(SESSION);
        for chat in &mut self.chats {
            chat.turn = None;
        }
    }

    /// The host is killed while it takes files back: asked again, it comes to the same end.
    fn kill_during_operation(&mut self, plan: &Plan, restores: bool, after_ms: u8, before: &FullCopy) {
        let request = json!({
            "jsonrpc": "2.0", "id": "killed", "method": "invokeChangesetOperation",
            "params": Self::request(plan, restores),
        });
        self.talk.process.say(&request.to_string());
        let (begun, time) = (Instant::now(), Duration::from_micros(u64::from(after_ms) * 200));
        let mut answer = None;
        while answer.is_none() && begun.elapsed() < time {
            let left = time.saturating_sub(begun.elapsed());
            answer = self.talk.process.next_within(left).filter(|message| message["id"] == "killed");
        }
        self.is_killed();
        if let Some(answer) = answer {
            plan.must_match(self.repository, &answer, before);
            self.count(plan, restores, &answer);
            return;
        }
        let between = copy_of(self.repository);
        for name in before.keys().chain(between.keys()) {
            let (was, is) = (before.get(name), between.get(name));
            let is_done =
                matches!(plan.fates.get(name), Some(Fate::Becomes(wanted)) if is == wanted.as_ref());
            assert!(is_done || was == is, "{name:?}: {plan:?}\n{before:?}\n{between:?}");
        }
        self.talk.changeset(&plan.what);
        let mut again = self.talk.ask("invokeChangesetOperation", &Self::request(plan, restores));
        if again["error"]["code"] == -32602 {
            // It was done, and kept that it was.
            again = json!({ "result": {} });
        }
        let after = copy_of(self.repository);
        for (name, fate) in &plan.fates {
            let wanted = match fate {
                Fate::Becomes(wanted) => wanted.as_ref(),
                _ => before.get(name),
            };
            assert!(after.get(name) == wanted, "{name:?} again: {again}: {plan:?}\n{before:?}\n{after:?}");
        }
        self.count(plan, restores, &again);
        // What stays may have been taken back before it was changed, and can be brought back. Nor
        // is it known who has made a file what it was to be.
        if plan.fates.values().any(|fate| matches!(fate, Fate::Stays | Fate::Is)) {
            self.forgotten.insert(plan.what.clone());
        }
    }

    fn happens(&mut self, event: &Event) {
        match event {
            Event::Call(chat, edits) => self.call(*chat, edits),
            Event::End(chat) => self.end(*chat),
            Event::Hand(edits, is_odd) => self.by_hand(edits, *is_odd),
            Event::Discard(which, one, killed) => self.asks(*which, *one, false, *killed),
            Event::Restore(which, killed) => self.asks(*which, None, true, *killed),
            Event::Killed => self.is_killed(),
        }
    }
}

fn run(events: &[Event]) {
    let repository = Repository::empty();
    fs::remove_dir_all(repository.path(".git")).unwrap();
    for name in [NAMES[0], NAMES[2]] {
        repository.write(name, "1\n");
    }
    let mut history = History::begin(&repository);
    for event in events {
        history.happens(event);
        history.check_all_changesets();
    }
}

#[test]
fn edits_of_two_chats_without_git_are_shown_and_reverted() {
    try_all(&events(), (6, 1), SEED, |events| run(&events));
}

/// A restored file has its former mode.
#[test]
fn restored_program_without_git_retains_its_mode() {
    let repository = Repository::empty();
    fs::remove_dir_all(repository.path(".git")).unwrap();
    let mut talk = Talk::begin(&repository);
    let program = repository.path("run");
    talk.turn("t1", "/files run=x", || {
        fs::set_permissions(&program, fs::Permissions::from_mode(0o750)).unwrap();
    });
    assert_eq!(talk.invoke("session", "discard-changes", None)["result"], json!({}));
    assert!(!program.exists());
    assert_eq!(talk.invoke("session", "restore-changes", None)["result"], json!({}));
    assert_eq!(fs::metadata(&program).unwrap().permissions().mode() & 0o777, 0o750);
    assert_eq!(repository.read("run"), "x\n");
}
