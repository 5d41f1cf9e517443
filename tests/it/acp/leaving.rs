//! The end of the host is the end of its agents.

use rustix::process::{kill_process, Pid, Signal};

use super::*;

/// An agent that does not want to leave, in a wrapper that does not either, with a child that does
/// not either.
fn stubborn() -> Watched {
    let mut setting = Setting::with(&["--stubborn"]);
    setting.wrapped = true;
    let mut watched = setting.start();
    watched.session();
    watched.turn("t0", "child\nsay ok");
    assert!(watched.agents().len() >= 3, "{:?}", watched.agents());
    watched
}

fn send(watched: &Watched, signal: Signal) {
    let pid = Pid::from_raw(watched.process.child.id().try_into().unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

#[test]
fn agent_processes_end_when_the_host_is_killed() {
    let mut watched = stubborn();
    watched.begin("t1", "say a\ndeaf");
    watched.action_where(|action| action["part"]["content"] == "a");
    send(&watched, Signal::KILL);
    watched.process.wait();
    watched.wait_for_agents(0);
}

#[test]
fn agent_processes_end_when_the_host_ends() {
    stubborn().leave();

    can_be_done_within(Duration::from_secs(10), || {
        let mut watched = stubborn();
        watched.begin("t1", "deaf");
        watched.action("chat/turnStarted");
        let start = Instant::now();
        send(&watched, Signal::TERM);
        assert_eq!(watched.process.wait().code(), Some(0));
        let took = start.elapsed();
        watched.check_no_agents();
        took
    });
}

#[test]
fn twenty_stubborn_agents_end_in_the_time_of_one() {
    can_be_done_within(Duration::from_secs(10), || {
        let mut setting = Setting::with(&["--stubborn"]);
        setting.agents = 20;
        let mut watched = setting.start();
        for number in 0..20 {
            let session = format!("ahp-session:/{number}");
            watched.create(&session, &format!("a{number}"));
            watched.subscribe(&session);
        }
        for _ in 0..20 {
            watched.until_ready();
        }
        let start = Instant::now();
        watched.leave();
        start.elapsed()
    });
}

#[test]
fn idle_agent_is_stopped_and_restarted_without_an_error() {
    for can in ["nothing", "resume", "load"] {
        let mut watched = Setting::with(&["--can", can]).limit("idle_seconds = 0.3\n").start();
        watched.session();
        watched.turn("t1", "say one");
        watched.wait_for_agents(0);
        // Everything that was told up to here, and nothing of the end.
        watched.say(json!({ "id": 9, "method": "ping", "params": { "channel": "ahp-root://" } }));
        let told = watched.process.until(|message| message["id"] == 9);
        assert!(told.iter().all(|message| message["params"]["action"]["type"] != "chat/error"), "{told:?}");
        let said = watched.turn("t2", "say two");
        assert!(said.ends_with("two"), "{said}");
        watched.leave();
    }
}
