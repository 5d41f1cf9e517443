//! Every way of failing at every moment of a turn: the turn ends once and as it must, the next one
//! works, and nothing of the failed one is left, neither a process nor a word.
//!
//! Owns: the two tables, of what an agent can do in a turn and of what it can do before one.
//! Never: measures a time. What takes too long has hung.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Mutex;

use super::*;

/// Number of agents that fail in parallel: most of the time they wait.
const WORKERS: usize = 6;

/// Something that an agent does in a turn.
#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    /// Script of the agent.
    script: &'static str,
    ends: Ends,
}

/// Outcome of a failure.
#[derive(Clone, Copy)]
enum Ends {
    /// The agent is gone; the error says all of this.
    Died(&'static [&'static str]),
    /// The agent says that it has failed: an error of this kind, which says this.
    Failed(&'static str, &'static str),
    /// No failure of the turn: the turn continues with this output, and the agent stays.
    Not(&'static str),
    /// The turn does not end until the user cancels it, which the agent does not take in: it is
    /// replaced.
    Never,
}

use Ends::{Died, Failed, Never, Not};

const fn way(name: &'static str, script: &'static str, ends: Ends) -> Way {
    Way { name, script, ends }
}

/// Failures of agents. Where only the user can end the turn, `note` reports that the failure was
/// reached.
const WAYS: &[Way] = &[
    way("exits", "stderr no more money\ndie 3", Died(&["ended with status 3", "no more money"])),
    way("is killed", "kill", Died(&["signal 9"])),
    way("kills all of its group", "kill_group", Died(&["signal 9"])),
    way("kills its guard", "kill_parent\ndeaf", Died(&["signal 9"])),
    way("exits with a child left", "child\ndie 4", Died(&["ended with status 4"])),
    way("exits in a frame", "half", Died(&["ended with status 0"])),
    way("ends its output", "close_stdout", Died(&["it ended"])),
    way("floods stderr and exits", "flood_stderr 20000\ndie 5", Died(&["ended with status 5", "zzz"])),
    way("does not read answers", "ask_for_ever", Died(&["does not read its stdin"])),
    way("fails", "error -32603 The model is ill", Failed("agentError", "The model is ill")),
    way("fails in words of its own", r#"answer {"error":"ill"}"#, Failed("agentError", "ill")),
    way(
        "fails with a code that is none",
        r#"answer {"error":{"code":"ill","message":null}}"#,
        Failed("agentError", "error"),
    ),
    way("wants a login", "error -32000 Log in", Failed("authRequired", "requires a login")),
    way("answers nonsense", r#"answer {"result":5}"#, Not("late")),
    way("answers nothing", "answer {}", Not("late")),
    way(
        "answers twice",
        r#"answer {"result":{"stopReason":"end_turn"}} | {"error":{"code":1,"message":"no"}}"#,
        Not("latelate"),
    ),
    way("writes junk", "raw \\x1b[2K\\n\\n{}\\n[]\\n\nlines 200\njunk 3000000\nsay on", Not("on")),
    way("writes what is too long", "junk 70000000\nsay on", Not("on")),
    way("writes what is no text", "raw \\xff\\xfe\\n\nbad_text o\nsay n", Not("o\u{fffd}\u{fffd}n")),
    way(
        "breaks off a frame and goes on",
        "raw {\"jsonrpc\":\"2.0\",\"method\":\"session/upd\nsay on",
        Not("on"),
    ),
    way("goes on to work", "tool_left_open c2\nsay on", Not("on")),
    way("floods stderr", "flood_stderr 20000\nsay on", Not("on")),
    way("breaks off a frame", "raw {\"jsonrpc\":\"2.0\",\"id\":\nnote here\ndeaf", Never),
    way("hears nothing", "note here\ndeaf", Never),
    way("ends its input", "close_stdin\nnote here\ndeaf", Never),
    way("talks for ever", "note here\nchatty", Never),
    way("talks more than can be heard", "note here\nroar", Never),
    way("freezes", "note here\nfreeze me", Never),
    way("freezes with all of its group", "note here\nfreeze all", Never),
];

/// When the agent does it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Moment {
    BeforeTheFirstChunk,
    InText,
    InAToolCall,
    WithAPermissionPending,
    AfterCancel,
}

use Moment::{AfterCancel, BeforeTheFirstChunk, InAToolCall, InText, WithAPermissionPending};

const MOMENTS: &[Moment] = &[BeforeTheFirstChunk, InText, InAToolCall, WithAPermissionPending, AfterCancel];

impl Moment {
    fn script(self) -> &'static str {
        match self {
            BeforeTheFirstChunk => "",
            InText => "say begun \n",
            InAToolCall => "say begun \ntool_left_open c1\n",
            WithAPermissionPending => "say begun \nask_and_finish\n",
            AfterCancel => "say begun \nuncancelled\n",
        }
    }

    /// Waits until it is seen that it has come.
    fn wait(self, watched: &mut Watched) {
        watched.action_where(|action| match self {
            BeforeTheFirstChunk => action["type"] == "chat/turnStarted",
            InText | AfterCancel => action["part"]["content"] == "begun ",
            InAToolCall | WithAPermissionPending => action["type"] == "chat/toolCallReady",
        });
    }
}

/// Has an agent fail in one way at these moments, one after the other.
fn fail(way: Way, moments: &[Moment], wrapped: bool) {
    let folder = tempfile::tempdir().unwrap();
    let (memory, notes) = (memory(folder.path()), folder.path().join("notes"));
    let paths = [&memory, &notes].map(|path| path.to_str().unwrap().to_owned());
    // What it says when it takes its session up again must not be seen either.
    let limit = if matches!(way.ends, Never) { "cancel_seconds = 0.2\n" } else { "cancel_seconds = 100\n" };
    let mut setting =
        Setting::with(&["--can", "load", "--memory", &paths[0], "--notes", &paths[1]]).limit(limit);
    (setting.wrapped, setting.wrapper_ends) = (wrapped, wrapped);
    let mut watched = setting.start_in(folder);
    watched.session();
    assert_eq!(watched.turn("t0", "say ok"), "ok");
    let usual = watched.agents();
    for &moment in moments {
        let turn = format!("{moment:?}");
        let before = watched.agents();
        watched.begin(&turn, &format!("{}{}", moment.script(), way.script));
        if moment == AfterCancel || matches!(way.ends, Never) {
            moment.wait(&mut watched);
            if moment != AfterCancel {
                wait_for_note(&notes, "here");
            }
            watched.cancel(&turn);
        }
        let ending = watched.ending(&turn);
        judge(way.ends, moment, &ending, &watched);
        fs::write(&notes, "").unwrap();

        // Whatever the agent still does, the next turn is its own.
        let next = format!("after {moment:?}");
        let said = watched.turn(&next, "say ok");
        assert_eq!(said, "ok", "{moment:?}: {:?}", watched.heard);
        let strangers =
            watched.heard.iter().filter(|action| action["turnId"].as_str().is_some_and(|id| id != next));
        assert_eq!(strangers.count(), 0, "{moment:?}: {:?}", watched.heard);
        assert!(watched.received("chat/toolCallStart").is_empty(), "{moment:?}: {:?}", watched.heard);
        watched.wait_for_agents(usual.len());
        // Somebody may have logged in elsewhere: it is started anew to see that.
        let wants_login = matches!(way.ends, Failed("authRequired", _));
        if matches!(way.ends, Failed(..) | Not(_)) && !wants_login {
            assert_eq!(watched.agents(), before, "{moment:?}: the agent was replaced");
        } else {
            assert_ne!(watched.agents(), before, "{moment:?}: the agent was not replaced");
        }
    }
    check_state(&mut watched);
    watched.leave();
}

/// Checks that a turn has ended as expected.
fn judge(ends: Ends, moment: Moment, ending: &Value, watched: &Watched) {
    let error = &ending["part"]["error"];
    let message = error["message"].as_str().unwrap_or_default();
    match ends {
        _ if moment == AfterCancel => assert_eq!(ending["type"], "chat/turnCancelled", "{ending}"),
        Died(all) => {
            assert_eq!(error["errorType"], "agentDied", "{moment:?}: {ending}");
            assert!(all.iter().all(|part| message.contains(part)), "{moment:?}: {ending}");
        }
        Failed(kind, part) => {
            assert_eq!(error["errorType"], kind, "{moment:?}: {ending}");
            assert!(message.contains(part), "{moment:?}: {ending}");
        }
        Not(said) => {
            assert_eq!(ending["type"], "chat/turnComplete", "{moment:?}: {ending}");
            let begun = if moment == BeforeTheFirstChunk { "" } else { "begun " };
            assert_eq!(watched.answer_text(), format!("{begun}{said}"), "{moment:?}");
        }
        Never => assert_eq!(ending["type"], "chat/turnCancelled", "{moment:?}: {ending}"),
    }
    let asked =
        watched.received("chat/toolCallReady").iter().filter(|ready| ready["options"].is_array()).count();
    assert_eq!(asked, usize::from(moment == WithAPermissionPending), "{moment:?}: {:?}", watched.heard);
}

/// Checks the state of clients: no turn runs, and no call of a finished turn runs.
fn check_state(watched: &mut Watched) {
    watched.say(json!({ "id": 8, "method": "subscribe", "params": { "channel": default_chat_of(SESSION) } }));
    let told = watched.process.until(|message| message["id"] == 8);
    let state = &told.last().unwrap()["result"]["snapshot"]["state"];
    assert!(state["activeTurn"].is_null(), "{state}");
    let parts =
        state["turns"].as_array().unwrap().iter().flat_map(|turn| turn["responseParts"].as_array().unwrap());
    for call in parts.filter(|part| part["kind"] == "toolCall").map(|part| &part["toolCall"]) {
        let status = call["status"].as_str().unwrap();
        assert!(["completed", "cancelled"].contains(&status), "{call}");
    }
}

fn wait_for_note(notes: &Path, note: &str) {
    let start = Instant::now();
    let wanted = format!("\"note\": \"{note}\"");
    while !fs::read_to_string(notes).unwrap_or_default().contains(&wanted) {
        assert!(start.elapsed() < HUNG, "the agent has not got so far");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Runs all of these, several at once; says which of them have failed.
fn run_all(trials: Vec<(String, Box<dyn FnOnce() + Send>)>) {
    let (waiting, failures) = (Mutex::new(trials.into_iter()), Mutex::new(Vec::new()));
    let work = || loop {
        let Some((name, trial)) = waiting.lock().unwrap().next() else { return };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(trial)) {
            let why = panic.downcast_ref::<String>().map(String::as_str);
            let why = why.or_else(|| panic.downcast_ref().copied()).unwrap_or("panicked").to_owned();
            failures.lock().unwrap().push(format!("{name}: {why}"));
        }
    };
    thread::scope(|scope| (0..WORKERS).for_each(|_| drop(scope.spawn(work))));
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

#[test]
fn agent_failure_at_any_moment_ends_the_turn_once_and_the_next_turn_works() {
    let trial = |way: &'static Way| -> (String, Box<dyn FnOnce() + Send>) {
        (format!("an agent that {}", way.name), Box::new(|| fail(*way, MOMENTS, false)))
    };
    run_all(WAYS.iter().map(trial).collect());
}

/// Failures have the same outcome through a shell that ignores signals and ends with its agent.
#[test]
fn agent_failure_behind_a_wrapper_that_ignores_signals_ends_the_turn_once() {
    // The wrapper holds the output open.
    let ways = WAYS.iter().filter(|way| !["ends its output", "does not read answers"].contains(&way.name));
    let trial = |way: &'static Way| -> (String, Box<dyn FnOnce() + Send>) {
        (
            format!("a wrapped agent that {}", way.name),
            Box::new(|| fail(*way, &[InAToolCall, AfterCancel], true)),
        )
    };
    run_all(ways.map(trial).collect());
}

/// Failures at start: the request, the failure, and the text of its error.
const BEGINNINGS: &[(&str, &str, &[&str])] = &[
    ("initialize", "die", &["ended with status 9", "something went wrong"]),
    ("initialize", "kill", &["signal 9"]),
    ("initialize", "silence", &["did not answer `initialize`"]),
    ("initialize", "half", &["ended with status 0"]),
    ("initialize", "close", &["it ended"]),
    ("initialize", "error", &["rejected `initialize`: ", "Something went wrong"]),
    ("initialize", "bad-error", &["rejected `initialize`: ", "Something went wrong"]),
    ("initialize", "wrong", &["answer to `initialize` is invalid"]),
    ("initialize", "nothing", &["answer to `initialize` is invalid"]),
    ("session/new", "die", &["ended before it answered `session/new`", "ended with status 9"]),
    ("session/new", "kill", &["ended before it answered `session/new`", "signal 9"]),
    ("session/new", "silence", &["did not answer `session/new`"]),
    ("session/new", "half", &["ended before it answered `session/new`"]),
    ("session/new", "close", &["ended before it answered `session/new`"]),
    ("session/new", "error", &["rejected `session/new`: ", "Something went wrong"]),
    ("session/new", "bad-error", &["rejected `session/new`: ", "Something went wrong"]),
    ("session/new", "wrong", &["answer to `session/new` is invalid"]),
    ("session/new", "nothing", &["answer to `session/new` is invalid"]),
];

/// The first process fails when it is to begin, and the second one when it is to go on: the session
/// that was to be created fails, and another turn of one that was ends, each with a reason; what
/// follows works.
fn fail_to_begin(method: &str, what: &str, reasons: &[&str]) {
    for again in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let notes = folder.path().join("notes");
        let wrong = format!("{method}={what}");
        let which = if again { "2" } else { "1" };
        let arguments = ["--notes", notes.to_str().unwrap(), "--at", &wrong, "--which", which];
        let seconds = if what == "silence" { long_for_a_start() } else { 100 };
        let limit = format!("start_seconds = {seconds}\n");
        let mut watched = Setting::with(&arguments).limit(&limit).start_in(folder);
        let message = if again {
            watched.session();
            assert_eq!(watched.turn("t1", "say ok"), "ok");
            watched.begin("t2", "die 1");
            assert_eq!(watched.ending("t2")["part"]["error"]["errorType"], "agentDied");
            watched.begin("t3", "say never");
            let ending = watched.ending("t3");
            assert_eq!(ending["part"]["error"]["errorType"], "agentUnavailable", "{ending}");
            ending["part"]["error"]["message"].as_str().unwrap().to_owned()
        } else {
            watched.create("ahp-session:/first", "a0");
            watched.subscribe("ahp-session:/first");
            let failed = watched.creation_failure();
            watched.session();
            failed["message"].as_str().unwrap().to_owned()
        };
        assert!(reasons.iter().all(|reason| message.contains(reason)), "{again}: {message}");
        assert_eq!(watched.turn("t4", "say ok"), "ok");
        watched.leave();
    }
}

#[test]
fn agent_failure_at_start_is_reported_with_its_reason_and_a_retry_works() {
    let trial =
        |&(method, what, reasons): &'static (&str, &str, &[&str])| -> (String, Box<dyn FnOnce() + Send>) {
            (format!("{method}: {what}"), Box::new(move || fail_to_begin(method, what, reasons)))
        };
    run_all(BEGINNINGS.iter().map(trial).collect());
}
