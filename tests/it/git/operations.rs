//! Changeset operations of clients, between turns and the user's own work, with the real program.
//!
//! Owns: histories in which changes are discarded, brought back and committed, and in which the
//! host is killed meanwhile; and what two copies of all files must say then: that nothing is lost,
//! that what was told is done, and that nothing of the user's own has changed.
//! Never: knows how a file is taken back, or what becomes of turns alone: that is in `histories`.
//!
//! `PROPTEST_CASES` tries more histories and `PROPTEST_RNG_SEED` others; without them every run
//! tries the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::{json, Value};

use super::histories::{as_git_gives, as_git_has, brief, committed, KINDS};
use super::model::{copy_of, deeds, difference, do_all, is_beyond, made, Deed, FullCopy, Kind};
use super::{instead_of_git, try_all, uri, Repository, Talk, SESSION};
use crate::support::HUNG;

/// Seed of the random choices, unless another one is requested.
const SEED: u64 = 23;

/// Of which changeset something is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    Uncommitted,
    Session,
    /// Changeset of a turn, counted backwards from the last one.
    Turn(usize),
}

/// Operation requested by a client.
#[derive(Debug, Clone)]
enum Wish {
    /// All files, or one of them.
    Discard(Scope, Option<usize>),
    Restore(Scope),
    Commit,
}

/// When the host is killed.
#[derive(Debug, Clone, Copy)]
enum Death {
    /// When git is run for the so many-th time.
    Before(u8),
    /// When git has done its work for the so many-th time, and its end is not heard yet.
    Behind(u8),
    /// Delay after the request, in milliseconds.
    Late(u8),
}

#[derive(Debug, Clone)]
enum Event {
    /// A turn of the agent, in which files are changed so.
    Turn(Vec<Deed>),
    /// The user works while nobody else does.
    Meanwhile(Vec<Deed>),
    Asked(Wish),
    /// The host is killed while it does this.
    Dies(Wish, Death),
    /// The user makes another commit the one that is checked out, without touching a file, when git
    /// is run for the so many-th time.
    Moves(Wish, u8),
}

fn scopes() -> impl Strategy<Value = Scope> {
    prop_oneof![3 => Just(Scope::Uncommitted), 1 => Just(Scope::Session), 3 => (0..3_usize).prop_map(Scope::Turn)]
}

fn wishes() -> impl Strategy<Value = Wish> {
    prop_oneof![
        5 => (scopes(), proptest::option::weighted(0.3, 0..8_usize)).prop_map(|(of, one)| Wish::Discard(of, one)),
        4 => scopes().prop_map(Wish::Restore),
        2 => Just(Wish::Commit),
    ]
}

fn deaths() -> impl Strategy<Value = Death> {
    prop_oneof![
        3 => (1..30_u8).prop_map(Death::Before),
        3 => (1..30_u8).prop_map(Death::Behind),
        2 => (0..150_u8).prop_map(Death::Late),
    ]
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let one = prop_oneof![
        4 => deeds().prop_map(Event::Turn),
        3 => deeds().prop_map(Event::Meanwhile),
        7 => wishes().prop_map(Event::Asked),
        3 => (wishes(), deaths()).prop_map(|(wish, death)| Event::Dies(wish, death)),
        2 => (wishes(), 1..30_u8).prop_map(|(wish, at)| Event::Moves(wish, at)),
    ];
    proptest::collection::vec(one, 2..7)
}

/// A turn that is over, and what was in the folder when it began and when it ended.
struct PastTurn {
    id: String,
    before: FullCopy,
    after: FullCopy,
}

pub(super) type FileState = Option<(u32, Vec<u8>)>;

/// Files that were taken back together, by their names: of each what was left in its place, and
/// what was found there; `None` for one that was what it was to be before, which nothing touches
/// then.
pub(super) type UndoneFiles = BTreeMap<String, Option<(FileState, FileState)>>;

struct Undone {
    /// Of which changeset.
    of: String,
    files: UndoneFiles,
}

/// Expected state of a file after an operation.
#[derive(Debug, Clone)]
pub(super) enum Fate {
    /// Already in the wanted state.
    Is,
    /// Changed to this state, unless another file is in its way.
    Becomes(FileState),
    /// Changed to this state, or unchanged and named: its content may be too large for a
    /// checkpoint.
    MayBecome(FileState),
    /// Unchanged and named.
    Stays,
}

/// Expected states of files, by name.
pub(super) type Fates = BTreeMap<String, Fate>;

struct History<'a> {
    repository: &'a Repository,
    talk: Talk,
    path: String,
    turns: Vec<PastTurn>,
    /// Copy of the folder at the last checkpoint for a turn or an operation; `None` if unknown.
    kept: Option<FullCopy>,
    undone: Vec<Undone>,
    /// Changesets of which it is not known any more what can be brought back.
    forgotten: BTreeSet<String>,
}

/// A git that stops where it is said: at the so many-th run from now on, before its work or behind
/// it.
fn stopping_git(repository: &Repository) -> String {
    let (home, root) = (repository.home.display(), repository.root.display());
    let script = format!(
        "cd_home='{home}'\n\
         if [ -e \"$cd_home/stop\" ]; then\n\
         echo >> \"$cd_home/runs\"; n=$(($(wc -l < \"$cd_home/runs\")))\n\
         read how at < \"$cd_home/stop\"\n\
         if [ $how = moves ]; then\n\
         git() {{ env -i HOME=\"$HOME\" GIT_CONFIG_GLOBAL=\"$GIT_CONFIG_GLOBAL\" GIT_CONFIG_NOSYSTEM=1 \"$GIT\" -C '{root}' \"$@\"; }}\n\
         if [ $n -eq $at ]; then c=$(git commit-tree 'HEAD^{{tree}}' -p HEAD -m moved) && git update-ref HEAD $c; fi 2> /dev/null\n\
         exec \"$GIT\" \"$@\"; fi\n\
         if [ $how = before ] && [ $n -ge $at ]; then : > \"$cd_home/there\"; exec sleep 1000; fi\n\
         if [ $n -eq $at ]; then \"$GIT\" \"$@\"; : > \"$cd_home/there\"; sleep 1000; fi\n\
         if [ $n -gt $at ]; then exec sleep 1000; fi\n\
         fi\n\
         exec \"$GIT\" \"$@\""
    );
    instead_of_git(repository, &script)
}

impl<'a> History<'a> {
    fn begin(repository: &'a Repository) -> Self {
        let path = stopping_git(repository);
        let mut talk = Talk::open(repository, &[("PATH", &path)]);
        talk.create(SESSION, &repository.root);
        talk.wait_until_known();
        Self {
            repository,
            talk,
            path,
            turns: Vec::new(),
            kept: None,
            undone: Vec::new(),
            forgotten: BTreeSet::new(),
        }
    }

    /// Returns the name of a changeset, or `None` if it does not exist.
    fn name_of(&self, scope: Scope) -> Option<String> {
        Some(match scope {
            Scope::Uncommitted => "uncommitted".to_owned(),
            Scope::Session => "session".to_owned(),
            Scope::Turn(back) => format!("turn/{}", self.turns.iter().nth_back(back)?.id),
        })
    }

    /// The names of the files that a changeset shows, before and now; none where it is not known.
    fn shown(&mut self, what: &str) -> Option<Vec<BTreeSet<String>>> {
        let start = Instant::now();
        let state = loop {
            let state = self.talk.changeset(what);
            if state["status"] == "ready" || state["status"] == "error" {
                break state;
            }
            assert!(start.elapsed() < HUNG, "{what} stays {}", state["status"]);
            std::thread::sleep(Duration::from_millis(3));
        };
        let name = |file: &Value, side: &str| {
            let path = ahp_sidecar::files::uris::path_of(file["edit"][side]["uri"].as_str()?).unwrap();
            Some(path.strip_prefix(&self.repository.root).unwrap().to_str().unwrap().to_owned())
        };
        let names =
            |file: &Value| ["before", "after"].into_iter().filter_map(|side| name(file, side)).collect();
        (state["status"] == "ready").then(|| state["files"].as_array().unwrap().iter().map(names).collect())
    }

    /// Lists the possible sets of uncommitted files, as of now.
    fn not_committed(&mut self, now: &FullCopy) -> Vec<BTreeSet<String>> {
        let (before, after) = difference(&as_git_has(&committed(self.repository)), &as_git_has(now));
        let wanted: BTreeSet<String> = before.into_keys().chain(after.into_keys()).collect();
        let start = Instant::now();
        loop {
            let shown = self.shown("uncommitted").expect("what is not committed is known");
            let names: BTreeSet<String> = shown.iter().flatten().cloned().collect();
            if names == wanted {
                return shown;
            }
            assert!(start.elapsed() < HUNG, "not committed is shown {names:?} and not {wanted:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn turn(&mut self, deeds: &[Deed]) {
        let id = format!("t{}", self.turns.len() + 1);
        let (before, repository) = (copy_of(self.repository), self.repository);
        self.talk.turn(&id, "/say x", || do_all(repository, deeds));
        let after = copy_of(self.repository);
        self.shown(&format!("turn/{id}"));
        self.kept = Some(after.clone());
        self.turns.push(PastTurn { id, before, after });
    }

    /// Returns the files of a changeset before and after their change; `None` if unknown.
    fn sides(&self, scope: Scope, now: &FullCopy) -> Option<(FullCopy, FullCopy)> {
        Some(match scope {
            Scope::Uncommitted => (committed(self.repository), now.clone()),
            Scope::Session => (self.turns.first()?.before.clone(), self.kept.clone()?),
            Scope::Turn(back) => {
                let turn = self.turns.iter().nth_back(back)?;
                (turn.before.clone(), turn.after.clone())
            }
        })
    }

    /// A turn shows what lies between its two ends, without what was taken back of it; a session
    /// what lies between its beginning and what was kept last.
    fn must_show(
        &self,
        scope: Scope,
        what: &str,
        shown: &[BTreeSet<String>],
        (before, after): (&FullCopy, &FullCopy),
    ) {
        if self.forgotten.contains(what) {
            return;
        }
        let (before, after) = difference(&as_git_has(before), &as_git_has(after));
        let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        let shown: BTreeSet<&String> = shown.iter().flatten().collect();
        let of_it = self.undone.iter().filter(|undone| scope != Scope::Session && undone.of == what);
        let undone: BTreeSet<&String> = of_it.flat_map(|undone| undone.files.keys()).collect();
        assert!(shown.is_subset(&names), "{what} shows {shown:?} of {names:?}");
        let hidden: BTreeSet<&String> = names.difference(&shown).copied().collect();
        // Of one that was renamed both names go together.
        assert!(undone.is_disjoint(&shown), "{what} shows {shown:?}, of which {undone:?} were taken back");
        assert!(hidden.is_subset(&undone) || !undone.is_empty(), "{what} does not show {hidden:?}");
    }

    /// Returns the expected outcome of an operation; `None` if it cannot be predicted.
    fn plan(&mut self, wish: &Wish, now: &FullCopy) -> Option<Plan> {
        let (scope, one) = match *wish {
            Wish::Discard(scope, one) => (scope, one),
            Wish::Restore(scope) => {
                let what = self.name_of(scope)?;
                let last = self.undone.iter().rfind(|undone| undone.of == what);
                let files = last.map(|undone| undone.files.clone()).unwrap_or_default();
                let fates = files.iter().map(|(name, sides)| {
                    let fate = match sides {
                        Some((left, found)) => fate_of(name, now.get(name), left.as_ref(), found.clone()),
                        None => Fate::Is,
                    };
                    (name.clone(), fate)
                });
                return Some(Plan { what, target: None, fates: fates.collect(), undone: files });
            }
            Wish::Commit => return None,
        };
        let what = self.name_of(scope)?;
        let shown = match scope {
            Scope::Uncommitted => self.not_committed(now),
            _ => self.shown(&what)?,
        };
        let (before, after) = self.sides(scope, now)?;
        self.must_show(scope, &what, &shown, (&before, &after));
        let one = one.filter(|_| !shown.is_empty()).map(|at| &shown[at % shown.len()]);
        let names: BTreeSet<&String> = match one {
            Some(names) => names.iter().collect(),
            None => shown.iter().flatten().collect(),
        };
        let target = one.map(|names| uri(&self.repository.path(names.first().unwrap())));
        let mut plan = Plan { what, target, fates: Fates::new(), undone: UndoneFiles::new() };
        for name in names {
            let (must_be, wanted) = (after.get(name), as_git(name, before.get(name)));
            let fate = fate_of(name, now.get(name), must_be, wanted.clone());
            let found = match &fate {
                Fate::Becomes(_) | Fate::MayBecome(_) => now.get(name).cloned(),
                _ => as_git(name, must_be),
            };
            let is_touched = !matches!(fate, Fate::Is);
            plan.undone.insert(name.clone(), is_touched.then_some((wanted, found)));
            plan.fates.insert(name.clone(), fate);
        }
        Some(plan)
    }

    fn params(wish: &Wish, plan: &Plan) -> Value {
        let operation = match wish {
            Wish::Discard(..) => "discard-changes",
            Wish::Restore(_) => "restore-changes",
            Wish::Commit => "commit",
        };
        let mut params =
            json!({ "channel": format!("{SESSION}/changeset/{}", plan.what), "operationId": operation });
        if let Some(target) = &plan.target {
            params["target"] = json!({ "kind": "resource", "resource": target });
        }
        if matches!(wish, Wish::Commit) {
            params["_meta"] = json!({ "message": "of a client" });
        }
        params
    }

    fn ask(&mut self, wish: &Wish, plan: &Plan) -> Value {
        self.talk.changeset(&plan.what);
        self.talk.ask("invokeChangesetOperation", &Self::params(wish, plan))
    }

    /// Something is taken back or brought back: what was told is done, and nothing else.
    fn is_done(&mut self, wish: &Wish, plan: &Plan, before: &FullCopy) {
        let theirs = self.repository.of_the_user();
        let answer = self.ask(wish, plan);
        plan.must_match(self.repository, &answer, before);
        self.repository.has_lost_nothing(before);
        assert_eq!(self.repository.of_the_user(), theirs);
        let told = message_in(&answer);
        let is_done =
            |name: &String| plan.fates.contains_key(name) && !plan.is_named(self.repository, told, name);
        if matches!(wish, Wish::Restore(_)) {
            if let Some(last) = self.undone.iter().rposition(|undone| undone.of == plan.what) {
                self.undone[last].files.retain(|name, _| !is_done(name));
                if self.undone[last].files.is_empty() {
                    self.undone.remove(last);
                }
            }
        } else {
            let mut files = plan.undone.clone();
            files.retain(|name, _| is_done(name));
            if !files.is_empty() {
                self.undone.push(Undone { of: plan.what.clone(), files });
            }
        }
        if answer["result"].is_object() {
            self.kept = Some(copy_of(self.repository));
            // Until it is kept, too.
            self.shown("session");
        }
    }

    /// Commits the uncommitted changes, and checks that all or none are committed.
    fn commits(&mut self, before: &FullCopy) {
        let (head, theirs) = (self.head(), self.repository.of_the_user());
        let is_clean = self.not_committed(before).is_empty();
        let plan = Plan { what: "uncommitted".to_owned(), ..Plan::default() };
        let answer = self.ask(&Wish::Commit, &plan);
        assert!(copy_of(self.repository) == *before, "{answer}");
        if answer["result"].is_object() {
            assert!(!is_clean, "{answer}");
            self.is_committed(&head, before);
            must_equal(&theirs, &self.repository.of_the_user());
        } else {
            assert!(is_clean || message_in(&answer).contains("is in progress"), "{answer}");
            assert_eq!(self.repository.of_the_user(), theirs, "{answer}");
        }
    }

    fn head(&self) -> Option<String> {
        let said =
            self.repository.try_git_in(&self.repository.root, &["rev-parse", "-q", "--verify", "HEAD"]);
        said.status.success().then(|| String::from_utf8(said.stdout).unwrap())
    }

    /// All files are in a commit behind the one that was checked out, and git finds nothing else.
    fn is_committed(&self, head: &Option<String>, before: &FullCopy) {
        assert_eq!(as_git_has(&committed(self.repository)), as_git_has(before));
        let above =
            self.repository.try_git_in(&self.repository.root, &["rev-parse", "-q", "--verify", "HEAD^"]);
        assert_eq!(above.status.success().then(|| String::from_utf8(above.stdout).unwrap()), *head);
        // The filter is the user's own, and has nothing to do here.
        let said = ["-c", "filter.lfs.clean=", "status", "--porcelain", "--ignore-submodules=all"];
        let said = self.repository.git(&said);
        assert!(said.lines().all(|line| line.contains("below") || line.contains(".gitmodules")), "{said}");
    }

    /// Asks for it, and kills the host at this moment, or when it is answered; and begins a new
    /// one.
    fn killed(&mut self, wish: &Wish, plan: &Plan, death: Death) {
        let home = self.repository.home.clone();
        let there = home.join("there");
        self.talk.changeset(&plan.what);
        fs::write(home.join("runs"), "").unwrap();
        match death {
            Death::Before(at) => fs::write(home.join("stop"), format!("before {at}\n")).unwrap(),
            Death::Behind(at) => fs::write(home.join("stop"), format!("behind {at}\n")).unwrap(),
            Death::Late(_) => {}
        }
        let id = json!("killed");
        let request = json!({
            "jsonrpc": "2.0", "id": id, "method": "invokeChangesetOperation", "params": Self::params(wish, plan),
        });
        self.talk.process.say(&request.to_string());
        let start = Instant::now();
        loop {
            let wait = match death {
                Death::Late(after) if start.elapsed() >= Duration::from_millis(after.into()) => break,
                Death::Late(after) => Duration::from_millis(after.into()).saturating_sub(start.elapsed()),
                _ => Duration::from_millis(2),
            };
            let is_over = self.talk.process.next_within(wait).is_some_and(|message| message["id"] == id);
            if is_over || there.exists() {
                break;
            }
            assert!(start.elapsed() < HUNG, "neither answered nor stopped");
        }
        self.talk.process.child.kill().unwrap();
        self.talk.process.wait();
        for name in ["stop", "runs", "there"] {
            fs::remove_file(home.join(name)).unwrap_or_default();
        }
        self.talk = Talk::open(self.repository, &[("PATH", &self.path)]);
        self.talk.follow(SESSION);
        // The new one has asked git something then.
        self.talk.changeset("uncommitted");
        self.not_committed(&copy_of(self.repository));
    }

    /// The host is killed while files are taken back or brought back; that it is asked for again,
    /// and then the other way round.
    fn dies(&mut self, wish: &Wish, plan: &Plan, death: Death, before: &FullCopy) {
        let theirs = self.repository.of_the_user();
        self.killed(wish, plan, death);
        let between = copy_of(self.repository);
        self.repository.has_lost_nothing(before);
        let context = || format!("{wish:?} {death:?}: {plan:?}\n{:?}\n{:?}", brief(before), brief(&between));
        for name in before.keys().chain(between.keys()) {
            let is = between.get(name);
            let is_done = match plan.fates.get(name) {
                Some(Fate::Becomes(wanted) | Fate::MayBecome(wanted)) => is == wanted.as_ref(),
                _ => false,
            };
            assert!(is_done || is == before.get(name), "{name:?}: {}", context());
        }
        assert_eq!(self.repository.of_the_user(), theirs, "{}", context());
        // Again.
        let answer = self.ask(wish, plan);
        let after = copy_of(self.repository);
        self.repository.has_lost_nothing(before);
        let told = message_in(&answer);
        for (name, fate) in &plan.fates {
            let is = after.get(name);
            let is_right = match fate {
                Fate::Becomes(wanted) => {
                    is == wanted.as_ref()
                        || (plan.is_named(self.repository, told, name) && is_crossed(name, before))
                }
                Fate::MayBecome(wanted) => is == wanted.as_ref() || is == before.get(name),
                _ => is == before.get(name),
            };
            assert!(is_right, "{name:?} again: {answer}: {}\n{:?}", context(), brief(&after));
        }
        assert_eq!(self.repository.of_the_user(), theirs, "{}", context());
        self.kept = None;
        let had_others = self.undone.iter().any(|undone| undone.of == plan.what);
        self.undone.retain(|undone| undone.of != plan.what);
        // What was there before is brought back, by as many steps as it takes.
        if matches!(wish, Wish::Discard(..)) && !had_others {
            let restore = Wish::Restore(Scope::Uncommitted);
            let fates = &plan.fates;
            let plan = Plan { what: plan.what.clone(), ..Plan::default() };
            let mut answers = Vec::new();
            while answers.len() < 3 {
                let answer = self.ask(&restore, &plan);
                let is_over = !answer["result"].is_object();
                answers.push(answer);
                if is_over {
                    break;
                }
            }
            let mut found = copy_of(self.repository);
            // The host cannot know who has made a file what it was to be: the one that was killed,
            // or somebody before it.
            for (name, _) in fates.iter().filter(|(_, fate)| matches!(fate, Fate::Is)) {
                found.remove(name);
                found.extend(before.get(name).map(|file| (name.clone(), file.clone())));
            }
            assert!(
                as_git_has(&found) == as_git_has(before),
                "brought back: {answers:?}: {}\n{:?}",
                context(),
                brief(&found)
            );
            assert_eq!(self.repository.of_the_user(), theirs, "{}", context());
        }
        self.forgotten.insert(plan.what.clone());
    }

    /// The host is killed while it commits.
    fn dies_committing(&mut self, death: Death, before: &FullCopy) {
        if self.not_committed(before).is_empty() {
            return;
        }
        let (head, theirs) = (self.head(), self.repository.of_the_user());
        let plan = Plan { what: "uncommitted".to_owned(), ..Plan::default() };
        self.killed(&Wish::Commit, &plan, death);
        assert!(copy_of(self.repository) == *before, "{death:?}");
        if self.head() == head {
            assert_eq!(self.repository.of_the_user(), theirs, "{death:?}");
            self.commits(before);
        } else {
            self.is_committed(&head, before);
            must_equal(&theirs, &self.repository.of_the_user());
        }
    }

    /// The user makes a commit of what was committed before while something is done with files:
    /// that is done all the same. A commit is made before that, or behind it, or not at all.
    fn moves(&mut self, wish: &Wish, plan: &Plan, at: u8, before: &FullCopy) {
        let (home, index_lock) = (self.repository.home.clone(), "index.lock");
        self.talk.changeset(&plan.what);
        fs::write(home.join("runs"), "").unwrap();
        fs::write(home.join("stop"), format!("moves {at}\n")).unwrap();
        let answer = self.talk.ask("invokeChangesetOperation", &Self::params(wish, plan));
        fs::remove_file(home.join("stop")).unwrap();
        if matches!(wish, Wish::Commit) {
            let context = || format!("{at}: {answer}");
            assert!(copy_of(self.repository) == *before, "{}", context());
            let git =
                |arguments: &[&str]| self.repository.try_git_in(&self.repository.root, arguments).stdout;
            let message = String::from_utf8(git(&["log", "-2", "--format=%s"])).unwrap();
            let is_made = message.lines().any(|line| line == "of a client");
            assert!(is_made == answer["result"].is_object(), "{}\n{message}", context());
            if is_made {
                assert_eq!(as_git_has(&committed(self.repository)), as_git_has(before), "{}", context());
            }
        } else {
            plan.must_match(self.repository, &answer, before);
            self.repository.has_lost_nothing(before);
        }
        let locks = self.repository.of_the_user().into_keys().filter(|path| path.ends_with(index_lock));
        assert_eq!(locks.count(), 0, "{answer}");
        self.forgotten.insert(plan.what.clone());
        self.undone.retain(|undone| undone.of != plan.what);
        self.kept = None;
    }

    /// Tells whether the checkpoint was late, according to the row.
    fn is_late(&mut self) -> bool {
        let state = self.talk.follow(SESSION);
        state["changesets"].to_string().contains("could not be checkpointed in time")
    }

    fn happens(&mut self, event: &Event) {
        let now = copy_of(self.repository);
        match event {
            Event::Turn(deeds) => self.turn(deeds),
            Event::Meanwhile(deeds) => do_all(self.repository, deeds),
            Event::Asked(Wish::Commit) => self.commits(&now),
            Event::Dies(Wish::Commit, death) => self.dies_committing(*death, &now),
            Event::Moves(Wish::Commit, at) if !self.not_committed(&now).is_empty() => {
                let plan = Plan { what: "uncommitted".to_owned(), ..Plan::default() };
                self.moves(&Wish::Commit, &plan, *at, &now);
            }
            Event::Moves(Wish::Commit, _) => {}
            Event::Asked(wish) | Event::Dies(wish, _) | Event::Moves(wish, _) => {
                let Some(plan) = self.plan(wish, &now).filter(|plan| !self.forgotten.contains(&plan.what))
                else {
                    return;
                };
                match event {
                    Event::Dies(_, death) if !plan.fates.is_empty() => self.dies(wish, &plan, *death, &now),
                    Event::Moves(_, at) if !plan.fates.is_empty() => self.moves(wish, &plan, *at, &now),
                    _ => self.is_done(wish, &plan, &now),
                }
            }
        }
    }
}

/// Expected outcome of an operation.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Of which changeset it is asked.
    pub(super) what: String,
    /// The file that it is asked of; none for all.
    pub(super) target: Option<String>,
    pub(super) fates: Fates,
    /// Files that can be restored afterwards, or might be.
    pub(super) undone: UndoneFiles,
}

impl Plan {
    pub(super) fn is_named(&self, repository: &Repository, told: &str, name: &str) -> bool {
        told.contains(&format!("`{}`: ", uri(&repository.path(name))))
    }

    /// Checks that the answer and the folder match the expected outcome.
    pub(super) fn must_match(&self, repository: &Repository, answer: &Value, before: &FullCopy) {
        let after = copy_of(repository);
        let context = || format!("{answer}\n{self:?}\n{:?}\n{:?}", brief(before), brief(&after));
        let is_answered = match self.fates.is_empty() {
            true => answer["error"]["code"] == -32602,
            false => answer["result"].is_object() || answer["error"]["code"] == -32011,
        };
        assert!(is_answered, "{}", context());
        for name in before.keys().chain(after.keys()).chain(self.fates.keys()) {
            let (was, is) = (before.get(name), after.get(name));
            let is_named = self.is_named(repository, message_in(answer), name);
            let is_right = match self.fates.get(name) {
                None | Some(Fate::Is) => was == is && !is_named,
                Some(Fate::Stays) => was == is && is_named,
                Some(Fate::MayBecome(_)) if is_named => was == is,
                Some(Fate::Becomes(_)) if is_named => was == is && is_crossed(name, before),
                Some(Fate::Becomes(wanted) | Fate::MayBecome(wanted)) => is == wanted.as_ref(),
            };
            assert!(is_right, "{name:?}: {}", context());
        }
    }
}

pub(super) fn message_in(answer: &Value) -> &str {
    answer["result"]["message"].as_str().or(answer["error"]["message"].as_str()).unwrap_or_default()
}

fn as_git(name: &str, state: Option<&(u32, Vec<u8>)>) -> FileState {
    state.map(|(mode, bytes)| (*mode, as_git_gives(name, bytes)))
}

/// Returns the expected state of a file that is changed to `wanted` if its state is `must_be`.
pub(super) fn fate_of(
    name: &str,
    now: Option<&(u32, Vec<u8>)>,
    must_be: Option<&(u32, Vec<u8>)>,
    wanted: FileState,
) -> Fate {
    let is = as_git(name, now);
    let sides = [now, must_be, wanted.as_ref()];
    if sides.into_iter().flatten().any(|(_, bytes)| is_beyond(bytes)) {
        let may = is == as_git(name, wanted.as_ref()) || is == as_git(name, must_be);
        return if may { Fate::MayBecome(wanted) } else { Fate::Stays };
    }
    if is == as_git(name, wanted.as_ref()) {
        Fate::Is
    } else if is == as_git(name, must_be) {
        Fate::Becomes(wanted)
    } else {
        Fate::Stays
    }
}

/// Tells whether a file is in the place of a parent folder of this one, or the other way round.
fn is_crossed(name: &str, copy: &FullCopy) -> bool {
    let is_below = |one: &str, other: &str| one.strip_prefix(other).is_some_and(|rest| rest.starts_with('/'));
    copy.keys().any(|other| is_below(name, other) || is_below(other, name))
}

/// But for what a commit changes: the index, HEAD and its branch with their notes, and the message
/// of a commit.
fn must_equal(before: &BTreeMap<PathBuf, Vec<u8>>, after: &BTreeMap<PathBuf, Vec<u8>>) {
    let others = |all: &BTreeMap<PathBuf, Vec<u8>>| -> BTreeMap<PathBuf, Vec<u8>> {
        let is_other = |path: &PathBuf| {
            let text = path.to_str().unwrap();
            !["/HEAD", "/index"].iter().any(|end| text.ends_with(end))
                && !["/refs/heads/", "/logs/"].iter().any(|part| text.contains(part))
        };
        all.iter()
            .filter(|(path, _)| is_other(path))
            .map(|(path, text)| (path.clone(), text.clone()))
            .collect()
    };
    assert_eq!(others(before), others(after));
}

fn run(kind: Kind, at_first: &[Deed], events: &[Event]) {
    let repository = made(kind);
    do_all(&repository, at_first);
    // Also where the files that say so are not committed, and taken back.
    for (file, text) in [("exclude", "ignored\n"), ("attributes", "*.crlf text eol=crlf\n")] {
        let path =
            repository.git(&["rev-parse", "--path-format=absolute", "--git-path", &format!("info/{file}")]);
        fs::create_dir_all(Path::new(path.trim_end()).parent().unwrap()).unwrap();
        fs::write(path.trim_end(), text).unwrap();
    }
    // With it nothing would be committed.
    repository.try_git_in(&repository.root, &["config", "--unset", "filter.lfs.clean"]);
    let mut history = History::begin(&repository);
    for event in events {
        history.happens(event);
        if history.is_late() {
            return;
        }
    }
}

#[test]
fn changeset_operations_match_the_model_and_lose_no_content() {
    for (seed, kind) in (SEED..).zip(KINDS) {
        let histories = (Just(kind), deeds(), events());
        try_all(&histories, (1, 10), seed, |(kind, at_first, events)| run(kind, &at_first, &events));
    }
}
