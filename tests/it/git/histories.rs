//! Turns of several chats, by whatever means, against full copies of the folder: through the real
//! program.
//!
//! Owns: histories in which agents, commands and the user's own hand change files, alone and at the
//! same time, and in which the host dies; and what every changeset must show after each of them.
//! Never: knows how a changeset is computed: what it must show is what two copies of all files say.
//!
//! `PROPTEST_CASES` tries more histories and `PROPTEST_RNG_SEED` others; without them every run
//! tries the same.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::time::{Duration, Instant};

use base64::prelude::{Engine, BASE64_STANDARD};
use proptest::prelude::*;
use serde_json::{json, Value};

use super::model::{copy_of, deeds, difference, do_all, is_beyond, made, Deed, FullCopy, Kind, LIMIT, NAMES};
use super::{try_all, Repository, Talk, CHAT, SESSION};
use crate::support::HUNG;

const SECOND_CHAT: &str = "ahp-chat:/second";
const OTHER_SESSION: &str = "ahp-session:/2";
const CHAT_OF_OTHER: &str = "ahp-chat://default/YWhwLXNlc3Npb246LzI";

/// Seed of the random choices, unless another one is requested.
const SEED: u64 = 19;

/// A file whose content is too large to be kept.
const GIANT: &str = "giant";

/// Chat that runs a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    First,
    Second,
    OtherSession,
}

impl Who {
    fn session(self) -> &'static str {
        if self == Self::OtherSession {
            OTHER_SESSION
        } else {
            SESSION
        }
    }

    fn chat(self) -> &'static str {
        match self {
            Self::First => CHAT,
            Self::Second => SECOND_CHAT,
            Self::OtherSession => CHAT_OF_OTHER,
        }
    }
}

/// How something is changed in a turn.
#[derive(Debug, Clone)]
enum Means {
    /// The agent writes a file itself, or removes it, and its call says so.
    Agent(usize, u8),
    /// The agent has a command run.
    Shell(Deed),
    /// The user does it meanwhile.
    Hand(Deed),
    /// The user writes a file of which git changes the ends of lines, with ends of all kinds.
    Ends(u8),
    /// A file that is too large gets so many bytes more.
    Giant(u8),
}

/// One thing after the other.
#[derive(Debug, Clone)]
enum Event {
    /// A turn that runs alone; what it has done may be taken back and brought back then.
    Turn(Who, Vec<Means>, bool),
    /// A command that the user types.
    Command(Who, Deed),
    /// Two turns at the same time.
    Both([(Who, Vec<Means>); 2]),
    /// A turn, and a command in another chat at the same time.
    Beside((Who, Vec<Means>), (Who, Deed)),
    /// The user works while nobody else does.
    Meanwhile(Vec<Deed>),
    /// The host dies so many milliseconds after a turn was begun.
    Dies(Who, Vec<Means>, u64),
}

fn whos() -> impl Strategy<Value = Who> {
    prop_oneof![4 => Just(Who::First), 2 => Just(Who::Second), 1 => Just(Who::OtherSession)]
}

fn two() -> impl Strategy<Value = [Who; 2]> {
    prop_oneof![
        2 => Just([Who::First, Who::Second]),
        1 => Just([Who::Second, Who::OtherSession]),
        1 => Just([Who::OtherSession, Who::First]),
    ]
}

fn deed() -> impl Strategy<Value = Deed> {
    deeds().prop_filter_map("none", |deeds| deeds.into_iter().next())
}

fn agents() -> impl Strategy<Value = Means> {
    (0..NAMES.len(), any::<u8>()).prop_map(|(name, text)| Means::Agent(name, text))
}

fn means() -> impl Strategy<Value = Vec<Means>> {
    let one = prop_oneof![
        3 => agents(),
        4 => deed().prop_map(Means::Shell),
        4 => deed().prop_map(Means::Hand),
        1 => any::<u8>().prop_map(Means::Ends),
        1 => any::<u8>().prop_map(Means::Giant),
    ];
    proptest::collection::vec(one, 0..5)
}

/// Generates means of change that leave nothing running after the host is gone.
fn quick_means() -> impl Strategy<Value = Vec<Means>> {
    proptest::collection::vec(prop_oneof![agents(), deed().prop_map(Means::Hand)], 1..4)
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let one = prop_oneof![
        6 => (whos(), means(), any::<bool>()).prop_map(|(who, means, back)| Event::Turn(who, means, back)),
        1 => (whos(), deed()).prop_map(|(who, deed)| Event::Command(who, deed)),
        2 => (two(), means(), means()).prop_map(|([one, other], first, second)| {
            Event::Both([(one, first), (other, second)])
        }),
        1 => (two(), means(), deed()).prop_map(|([one, other], means, deed)| {
            Event::Beside((one, means), (other, deed))
        }),
        2 => deeds().prop_map(Event::Meanwhile),
        2 => (whos(), quick_means(), 0..60_u64).prop_map(|(who, means, after)| Event::Dies(who, means, after)),
    ];
    proptest::collection::vec(one, 1..4)
}

/// Kinds of repositories, so that a few cases have them all.
pub(super) const KINDS: [Kind; 6] =
    [Kind::Plain, Kind::NoCommits, Kind::Detached, Kind::Conflict, Kind::Worktree, Kind::Submodule];

/// A name as a shell has it, if it fits on a line.
fn name_on_line(name: &str) -> Option<String> {
    (!name.contains('\n')).then(|| format!("'./{name}'"))
}

/// Returns the deed as a shell command, or `None` if a name does not fit on a line.
fn command_of(deed: &Deed) -> Option<String> {
    let name = |name: &usize| name_on_line(NAMES[*name]);
    // Nothing stands where it is to be, nor where a folder of it is to be.
    let way = |file: &usize| {
        let above = NAMES[*file].match_indices('/').map(|(at, _)| &NAMES[*file][..at]);
        let free = |above: &str| format!("[ -d './{above}' -a ! -h './{above}' ] || rm -f './{above}'; ");
        Some(format!(
            "{}rm -rf {1}; mkdir -p \"$(dirname {1})\"",
            above.map(free).collect::<String>(),
            name(file)?
        ))
    };
    let is_crlf = |name: &usize| NAMES[*name].ends_with(".crlf");
    Some(match deed {
        Deed::Write(file, text) => {
            let lines = super::model::lines_of(NAMES[*file], *text).replace('\r', "\\r").replace('\n', "\\n");
            format!("{}; printf '{lines}' > {}", way(file)?, name(file)?)
        }
        Deed::Binary(file) if !is_crlf(file) => {
            format!("{}; printf '\\0\\377\\n' > {}", way(file)?, name(file)?)
        }
        Deed::Remove(file) => format!("rm -rf {}", name(file)?),
        Deed::Rename(from, to) if !is_crlf(from) && !is_crlf(to) && from != to => {
            let (from, way, to) = (name(from)?, way(to)?, name(to)?);
            format!("if [ -e {from} -o -h {from} ]; then {way}; mv -fT {from} {to}; fi")
        }
        Deed::Link(file) if !is_crlf(file) => {
            format!("{}; ln -sfT {} {}", way(file)?, super::model::target_of(NAMES[*file]), name(file)?)
        }
        Deed::Program(file) => format!("test -h {0} || chmod 755 {0}", name(file)?),
        Deed::Ignored => "echo x > ignored".to_owned(),
        Deed::Stage => "git -c filter.lfs.clean= add -A".to_owned(),
        Deed::Commit => {
            "git -c filter.lfs.clean= add -A; git -c filter.lfs.clean= commit -qm x --allow-empty".to_owned()
        }
        Deed::Move(how) => {
            let words = [&super::model::NO_FILTER, super::model::MOVES[*how]].concat();
            format!("[ -e .gitmodules ] || git {}", words.join(" "))
        }
        _ => return None,
    })
}

/// Plan of a turn: the request to the agent, the changes of the user meanwhile, and the edits that
/// its calls report, with both texts of each file.
#[derive(Default)]
struct Plan {
    script: Vec<String>,
    by_hand: Vec<Deed>,
    ends: Option<u8>,
    giant: Option<u8>,
    said: BTreeMap<String, Vec<Option<String>>>,
}

fn planned(means: &[Means]) -> Plan {
    let mut plan = Plan::default();
    for one in means {
        match one {
            Means::Agent(name, text) => {
                let name = NAMES[*name];
                let text = (text % 4 != 0).then(|| text.to_string());
                if name.contains('\n') {
                    continue;
                }
                plan.script.push(format!("/files '{name}={}'", text.clone().unwrap_or_default()));
                let said = plan.said.entry(name.to_owned()).or_default();
                said.push(text.map(|text| format!("{text}\n")));
            }
            Means::Shell(deed) => match command_of(deed) {
                Some(command) => plan.script.push(format!("/pty {command}")),
                None => plan.by_hand.push(deed.clone()),
            },
            Means::Hand(deed) => plan.by_hand.push(deed.clone()),
            Means::Ends(text) => plan.ends = Some(*text),
            Means::Giant(more) => plan.giant = Some(*more),
        }
    }
    plan
}

fn by_hand(repository: &Repository, plan: &Plan) {
    do_all(repository, &plan.by_hand);
    if let Some(text) = plan.ends {
        let ends = ["\n", "\r\n"].map(|end| format!("{text}{end}"));
        repository.write("b.crlf", [0, 1].map(|bit| ends[usize::from(text >> bit & 1)].clone()).concat());
    }
    if let Some(more) = plan.giant {
        let giant = File::create(repository.path(GIANT)).unwrap();
        giant.set_len(LIMIT + 1 + u64::from(more)).unwrap();
    }
}

/// The sides of a changeset by the names of the files; none where a content is not kept.
type Sides = BTreeMap<String, Option<Vec<u8>>>;

/// Files of a changeset, or the reason why they are unknown.
type Found = Result<(Sides, Sides), String>;

/// Returns the content of a file as git checks it out.
pub(super) fn as_git_gives(name: &str, bytes: &[u8]) -> Vec<u8> {
    if !name.ends_with(".crlf") {
        return bytes.to_vec();
    }
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    text.replace("\r\n", "\n").replace('\n', "\r\n").into_bytes()
}

/// Files as git knows them: what it takes for the same is the same.
pub(super) fn as_git_has(copy: &FullCopy) -> FullCopy {
    let file = |(name, (mode, bytes)): (&String, &(u32, Vec<u8>))| {
        (name.clone(), (*mode, as_git_gives(name, bytes)))
    };
    copy.iter().map(file).collect()
}

fn is_side(found: &Sides, wanted: &FullCopy) -> bool {
    let names = found.keys().eq(wanted.keys());
    names
        && found.iter().all(|(name, content)| match content {
            Some(content) => *content == wanted[name].1,
            None => is_beyond(&wanted[name].1),
        })
}

/// Checks that a changeset equals the difference of two copies.
fn must_be(what: &str, (before, after): (&Sides, &Sides), wanted: (&FullCopy, &FullCopy)) {
    assert!(
        is_side(before, wanted.0) && is_side(after, wanted.1),
        "{what} shows\n{:?}\n{:?}\nand not\n{:?}\n{:?}",
        brief_sides(before),
        brief_sides(after),
        brief(wanted.0),
        brief(wanted.1)
    );
}

pub(super) fn brief(copy: &FullCopy) -> Vec<(&String, String)> {
    copy.iter().map(|(name, (mode, bytes))| (name, brief_of(*mode, bytes))).collect()
}

fn brief_of(mode: u32, bytes: &[u8]) -> String {
    format!("{mode:o} {} {:?}", bytes.len(), String::from_utf8_lossy(&bytes[..bytes.len().min(40)]))
}

fn brief_sides(sides: &Sides) -> Vec<(&String, Option<String>)> {
    sides.iter().map(|(name, bytes)| (name, bytes.as_ref().map(|bytes| brief_of(0, bytes)))).collect()
}

struct History<'a> {
    repository: &'a Repository,
    talk: Talk,
    /// Copy of the folder when the first turn of the session began.
    at_first: Option<FullCopy>,
    /// True while all changes of the session are known.
    is_whole: bool,
    turns: usize,
    /// Changesets of finished turns, which must never change.
    shown: Vec<(Who, String, Found)>,
}

impl<'a> History<'a> {
    fn begin(repository: &'a Repository) -> Self {
        let mut talk = Talk::begin(repository);
        talk.create(OTHER_SESSION, &repository.root);
        talk.ask("createChat", &json!({ "channel": SESSION, "chat": SECOND_CHAT }));
        Self { repository, talk, at_first: None, is_whole: true, turns: 0, shown: Vec::new() }
    }

    fn turn_id(&mut self, who: Who) -> String {
        self.turns += 1;
        if who != Who::OtherSession && self.at_first.is_none() {
            self.at_first = Some(copy_of(self.repository));
        }
        format!("t{}", self.turns)
    }

    fn start(&mut self, who: Who, turn: &str, plan: &Plan) {
        self.talk.follow(who.chat());
        let script: Vec<&str> = plan.script.iter().map(String::as_str).chain(["/ask go"]).collect();
        self.talk.start(who.chat(), turn, &script.join("\n"));
    }

    fn ends(&mut self, who: Who) {
        self.talk.until(who.chat(), |action| action["type"] == "chat/turnComplete");
    }

    /// Returns the files of a changeset once it is computed.
    fn found(&mut self, who: Who, what: &str) -> Found {
        let channel = format!("{}/changeset/{what}", who.session());
        let start = Instant::now();
        let state = loop {
            let state = self.talk.follow(&channel);
            assert!(state.is_object(), "{channel} is not there");
            let leave =
                json!({ "jsonrpc": "2.0", "method": "unsubscribe", "params": { "channel": channel } });
            self.talk.process.say(&leave.to_string());
            if state["status"] == "ready" || state["status"] == "error" {
                break state;
            }
            assert!(start.elapsed() < HUNG, "{channel} stays {}", state["status"]);
            std::thread::sleep(Duration::from_millis(3));
        };
        if state["status"] == "error" {
            return Err(state["error"]["message"].as_str().unwrap_or_default().to_owned());
        }
        let (mut before, mut after) = (Sides::new(), Sides::new());
        for file in state["files"].as_array().unwrap() {
            for (side, sides) in [("before", &mut before), ("after", &mut after)] {
                let side = &file["edit"][side];
                let Some(uri) = side["uri"].as_str() else { continue };
                let path = ahp_sidecar::files::uris::path_of(uri).unwrap();
                let name = path.strip_prefix(&self.repository.root).unwrap().to_str().unwrap().to_owned();
                let content = self.content(side["content"]["uri"].as_str().unwrap());
                assert!(sides.insert(name, content).is_none(), "a file is there twice: {state}");
            }
        }
        Ok((before, after))
    }

    fn content(&mut self, uri: &str) -> Option<Vec<u8>> {
        let params = json!({ "channel": "ahp-root://", "uri": uri, "encoding": "base64" });
        let answer = self.talk.ask("resourceRead", &params);
        let Some(data) = answer["result"]["data"].as_str() else {
            assert_eq!(answer["error"]["code"], -32008, "{answer}");
            return None;
        };
        assert_eq!(answer["result"]["encoding"], "base64", "{answer}");
        Some(BASE64_STANDARD.decode(data).unwrap())
    }

    /// Tells whether the checkpoint was late, according to the row.
    fn is_late(&mut self, who: Who) -> bool {
        let state = self.talk.follow(who.session());
        state["changesets"].to_string().contains("could not be checkpointed in time")
    }

    /// Checks that the changeset of a turn that ran alone equals the difference of these copies.
    fn is_between(&mut self, who: Who, turn: &str, before: &FullCopy, after: &FullCopy) {
        let (wanted_before, wanted_after) = difference(&as_git_has(before), &as_git_has(after));
        let found = self.found(who, &format!("turn/{turn}"));
        match &found {
            Ok((before, after)) if is_side(before, &wanted_before) && is_side(after, &wanted_after) => {}
            _ if self.is_late(who) => {}
            Ok((before, after)) => panic!(
                "{turn} shows\n{:?}\n{:?}\nand not\n{:?}\n{:?}",
                brief_sides(before),
                brief_sides(after),
                brief(&wanted_before),
                brief(&wanted_after)
            ),
            Err(why) => panic!("{turn}: {why}"),
        }
        self.shown.push((who, turn.to_owned(), found));
    }

    /// Checks the changeset of the session and the uncommitted one.
    fn check_the_rest(&mut self, who: Who, after: &FullCopy) {
        if who != Who::OtherSession && self.is_whole && !self.is_late(who) {
            let at_first = self.at_first.clone().unwrap_or_default();
            let (before, after) = difference(&as_git_has(&at_first), &as_git_has(after));
            let found = self.found(who, "session").expect("what the session has changed is known");
            must_be("the session", (&found.0, &found.1), (&before, &after));
        }
        let (before, after) = difference(&as_git_has(&committed(self.repository)), &as_git_has(after));
        let start = Instant::now();
        loop {
            let found = self.found(who, "uncommitted").expect("what is not committed is known");
            let mut now = found.1.clone();
            for (name, bytes) in &mut now {
                *bytes = bytes.take().map(|bytes| as_git_gives(name, &bytes));
            }
            if is_side(&found.0, &before) && is_side(&now, &after) {
                return;
            }
            assert!(
                start.elapsed() < HUNG,
                "not committed is shown\n{:?}\n{:?}\nand not\n{:?}\n{:?}",
                brief_sides(&found.0),
                brief_sides(&now),
                brief(&before),
                brief(&after)
            );
        }
    }

    fn alone(&mut self, who: Who, means: &[Means], is_taken_back: bool) {
        let plan = planned(means);
        let before = copy_of(self.repository);
        let turn = self.turn_id(who);
        self.start(who, &turn, &plan);
        let call = self.talk.asked(who.chat());
        by_hand(self.repository, &plan);
        self.talk.allow(who.chat(), &turn, &call);
        self.ends(who);
        let after = copy_of(self.repository);
        self.is_between(who, &turn, &before, &after);
        self.check_the_rest(who, &after);
        let is_large = |copy: &FullCopy| copy.values().any(|(_, bytes)| is_beyond(bytes));
        if is_taken_back && !is_large(&before) && !is_large(&after) {
            self.discard_and_restore(who, &turn, &before, &after);
        }
    }

    /// A turn is taken back, so that all is as it was before, and brought back.
    fn discard_and_restore(&mut self, who: Who, turn: &str, before: &FullCopy, after: &FullCopy) {
        let (theirs, what) = (self.repository.of_the_user(), format!("turn/{turn}"));
        if self.shown.last().is_none_or(|(_, _, found)| {
            found.as_ref().is_ok_and(|found| found.0.is_empty() && found.1.is_empty())
        }) {
            return;
        }
        let answer = self.invoke(who, &what, "discard-changes");
        assert_eq!(answer["result"], json!({}), "{answer}");
        let (_, changed) = difference(&as_git_has(after), &as_git_has(before));
        let mut wanted = before.clone();
        // What git gives is what it gives whoever checks it out.
        wanted.extend(changed);
        let found = copy_of(self.repository);
        assert_eq!(brief(&found), brief(&wanted), "{turn} was taken back");
        assert_eq!(self.found(who, &what), Ok(Default::default()));
        let answer = self.invoke(who, &what, "restore-changes");
        assert_eq!(answer["result"], json!({}), "{answer}");
        let found = copy_of(self.repository);
        assert_eq!(brief(&found), brief(after), "{turn} was brought back");
        assert!(found == *after, "{turn} was brought back");
        assert_eq!(self.found(who, &what), self.shown.last().unwrap().2);
        assert_eq!(self.repository.of_the_user(), theirs);
    }

    fn invoke(&mut self, who: Who, what: &str, operation: &str) -> Value {
        let channel = format!("{}/changeset/{what}", who.session());
        let params = json!({ "channel": channel, "operationId": operation });
        self.talk.ask("invokeChangesetOperation", &params)
    }

    /// Checks that a turn concurrent with another one shows the edits of its calls.
    fn must_show_reported_edits(&mut self, who: Who, turn: &str, plan: &Plan) {
        if self.is_late(who) {
            return;
        }
        let found = self.found(who, &format!("turn/{turn}"));
        if let Ok((_, after)) = &found {
            assert!(!plan.said.is_empty(), "{turn} has said nothing, and shows {found:?}");
            for (name, content) in after {
                let said = plan.said.get(name).unwrap_or_else(|| panic!("{turn} has not said {name:?}"));
                // Where a folder was in the way of one of its calls, that has failed.
                let mut said = said.iter().map(|said| said.clone().map(String::into_bytes));
                assert!(said.any(|said| said == *content), "{turn}: {name:?}: {content:?}");
            }
        }
        self.shown.push((who, turn.to_owned(), found));
    }

    fn at_once(&mut self, both: &[(Who, Vec<Means>); 2]) {
        let mut begun = Vec::new();
        for (who, means) in both {
            let plan = planned(means);
            let turn = self.turn_id(*who);
            self.start(*who, &turn, &plan);
            let call = self.talk.asked(who.chat());
            by_hand(self.repository, &plan);
            begun.push((*who, turn, call, plan));
        }
        for (who, turn, call, _) in &begun {
            self.talk.allow(who.chat(), turn, call);
            self.ends(*who);
        }
        for (who, turn, _, plan) in &begun {
            self.must_show_reported_edits(*who, turn, plan);
        }
        self.is_whole &= both.iter().all(|(who, _)| *who != Who::OtherSession);
    }

    fn beside(&mut self, (who, means): &(Who, Vec<Means>), (other, deed): &(Who, Deed)) {
        let plan = planned(means);
        let turn = self.turn_id(*who);
        self.start(*who, &turn, &plan);
        let call = self.talk.asked(who.chat());
        let command = self.turn_id(*other);
        self.talk.follow(other.chat());
        self.talk.start(
            other.chat(),
            &command,
            &format!("!{}", command_of(deed).unwrap_or_else(|| "true".to_owned())),
        );
        self.ends(*other);
        by_hand(self.repository, &plan);
        self.talk.allow(who.chat(), &turn, &call);
        self.ends(*who);
        self.must_show_reported_edits(*who, &turn, &plan);
        self.must_show_reported_edits(*other, &command, &Plan::default());
        self.is_whole &= who.session() == other.session();
    }

    fn command(&mut self, who: Who, deed: &Deed) {
        let Some(command) = command_of(deed) else { return };
        let before = copy_of(self.repository);
        let turn = self.turn_id(who);
        self.talk.follow(who.chat());
        self.talk.start(who.chat(), &turn, &format!("!{command}"));
        self.ends(who);
        let after = copy_of(self.repository);
        self.is_between(who, &turn, &before, &after);
    }

    /// The host dies in a turn, or right behind it. What was shown before is shown by the next one;
    /// and the turn, if the host has heard of it, shows what it has changed, or says that this is
    /// not known.
    fn dies(&mut self, who: Who, means: &[Means], after_ms: u64) {
        let plan = planned(means);
        let before = copy_of(self.repository);
        let turn = self.turn_id(who);
        self.start(who, &turn, &plan);
        if after_ms.is_multiple_of(2) {
            let call = self.talk.asked(who.chat());
            by_hand(self.repository, &plan);
            self.talk.allow(who.chat(), &turn, &call);
            if after_ms.is_multiple_of(4) {
                self.ends(who);
            }
        }
        std::thread::sleep(Duration::from_millis(after_ms / 4));
        self.talk.process.child.kill().unwrap();
        self.talk.process.wait();
        self.talk = Talk::open(self.repository, &[]);
        for session in [SESSION, OTHER_SESSION] {
            self.talk.follow(session);
        }
        for (who, turn, found) in self.shown.clone() {
            assert_eq!(self.found(who, &format!("turn/{turn}")), found, "{turn} after a death");
        }
        let state = self.talk.follow(who.chat());
        let is_known = state["turns"].to_string().contains(&format!("\"id\":\"{turn}\""));
        if !is_known || self.is_late(who) {
            return;
        }
        let after = copy_of(self.repository);
        let (before, after) = difference(&as_git_has(&before), &as_git_has(&after));
        if let Ok(found) = self.found(who, &format!("turn/{turn}")) {
            must_be(&format!("{turn}, in which the host has died,"), (&found.0, &found.1), (&before, &after));
        }
    }

    fn happens(&mut self, event: &Event) {
        match event {
            Event::Turn(who, means, is_taken_back) => self.alone(*who, means, *is_taken_back),
            Event::Command(who, deed) => self.command(*who, deed),
            Event::Both(both) => self.at_once(both),
            Event::Beside(turn, command) => self.beside(turn, command),
            Event::Meanwhile(deeds) => do_all(self.repository, deeds),
            Event::Dies(who, means, after_ms) => self.dies(*who, means, *after_ms),
        }
    }
}

/// The files as they were committed, as git writes them.
pub(super) fn committed(repository: &Repository) -> FullCopy {
    if !repository.try_git_in(&repository.root, &["rev-parse", "-q", "--verify", "HEAD"]).status.success() {
        return FullCopy::new();
    }
    let folder = tempfile::tempdir().unwrap();
    let top = folder.path().canonicalize().unwrap();
    let index = top.join("index");
    let files = format!("--prefix={}/files/", top.display());
    for arguments in [&["read-tree", "HEAD"][..], &["checkout-index", "-a", &files]] {
        repository.git_with(&[("GIT_INDEX_FILE", index.to_str().unwrap())], arguments);
    }
    fs::create_dir_all(top.join("files")).unwrap();
    super::model::copy_in(&top.join("files"))
}

fn run(kind: Kind, at_first: &[Deed], events: &[Event]) {
    let repository = made(kind);
    do_all(&repository, at_first);
    let mut history = History::begin(&repository);
    for event in events {
        history.happens(event);
    }
}

/// Number of histories for each kind of repository.
const CASES: u32 = 2;

#[test]
fn changesets_of_turns_equal_the_differences_of_full_copies() {
    for (seed, kind) in (SEED..).zip(KINDS) {
        let histories = (Just(kind), deeds(), events());
        try_all(&histories, (CASES, 10), seed, |(kind, at_first, events)| run(kind, &at_first, &events));
    }
}
