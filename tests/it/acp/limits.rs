//! Time limits of turns.

use super::*;

#[test]
fn turn_beyond_its_time_limit_is_cancelled_and_ends_with_an_error() {
    for script in ["hang", "chatty", "deaf", "ask", "tool_left_open c1\nhang"] {
        let limits = "turn_seconds = 3\ncancel_seconds = 0.3\n";
        let mut watched = Setting::with(&["--can", "load"]).limit(limits).start();
        watched.session();
        watched.begin("t1", &format!("say begun\n{script}"));
        let ending = watched.ending("t1");
        assert_eq!(ending["type"], "chat/error", "{script}: {ending}");
        assert_eq!(ending["part"]["error"]["errorType"], "turnTimedOut", "{script}: {ending}");
        assert!(ending["part"]["error"]["message"].as_str().unwrap().contains("its time limit of 3s"));
        assert_eq!(ending["part"]["resumable"], false);
        assert!(watched.answer_text().starts_with("begun"), "{script}: {}", watched.answer_text());
        let said = watched.turn("t2", "say ok");
        assert!(said.ends_with("ok"), "after {script}: {said}");
        watched.leave();
    }
}

#[test]
fn turn_cancelled_by_the_user_before_its_time_limit_is_cancelled() {
    let mut watched = Setting::with(&[]).limit("turn_seconds = 600\n").start();
    watched.session();
    watched.begin("t1", "say begun\nhang");
    watched.action_where(|action| action["part"]["content"] == "begun");
    watched.cancel("t1");
    assert_eq!(watched.ending("t1")["type"], "chat/turnCancelled");
    watched.leave();
}

/// No other limit is one for a turn.
#[test]
fn silent_agent_in_a_turn_is_not_timed_out() {
    let seconds = long_for_a_start();
    let limits = format!("start_seconds = {seconds}\ncancel_seconds = 0.2\nidle_seconds = 0.3\n");
    let mut watched = Setting::with(&[]).limit(&limits).start();
    watched.session();
    watched.until_ready();
    let start = Instant::now();
    assert_eq!(watched.turn("t1", &format!("sleep {}\nsay ok", seconds + 1)), "ok");
    assert!(start.elapsed() >= Duration::from_secs(seconds + 1));
    watched.leave();
}
