//! Agent output that is no message.

use super::*;

#[test]
fn junk_in_agent_output_is_skipped_everywhere() {
    let mut watched = Setting::with(&["--before-hello", "junk"]).start();
    watched.session();
    let script = [
        "say a",
        r"raw \n\n\x1b[31m",
        "say b",
        r"raw \xff\xfe\x00\n",
        r"raw {}\n[1]\nnull\n\x22x\x22\n",
        "pair 1|2",
        "say c",
        r#"raw {"jsonrpc":"2.0","id":77,"result":{}}\n"#,
        "lines 3000",
        "say d",
        "junk 70000000",
        "say e",
        r#"raw {"jsonrpc":"2.0","method":"session/update","params":{}}\n"#,
        r#"raw {"jsonrpc":"2.0","method":"_other/thing"}\n"#,
        "say f",
    ];
    assert_eq!(watched.turn("t1", &script.join("\n")), "ab12cdef");
    watched.leave();
}

#[test]
fn unknown_request_of_the_agent_is_answered_and_the_turn_continues() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let script = r#"raw {"jsonrpc":"2.0","id":"x","method":"craft/something","params":{}}\n"#;
    assert_eq!(watched.turn("t1", &format!("{script}\nsay ok")), "ok");
    watched.leave();
}

/// How the creation of a session fails.
fn failure(setting: Setting) -> String {
    let mut watched = setting.start();
    watched.session();
    let failed = watched.creation_failure();
    watched.leave();
    failed["message"].as_str().unwrap().to_owned()
}

#[test]
fn agent_that_writes_only_junk_is_quoted_in_the_error() {
    let message = failure(Setting::with(&["--before-hello", "only-junk"]));
    for part in ["`a0`", "does not speak ACP", "Usage: agent [OPTIONS]", "status 2"] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn agent_that_fails_to_start_is_reported_with_the_reason() {
    let message = failure(Setting::with(&["--before-hello", "die"]));
    assert!(message.contains("status 5") && message.contains("there is no model"), "{message}");
    let message = failure(Setting::with(&["--before-hello", "silence"]).limit("start_seconds = 0.5\n"));
    assert!(message.contains("did not answer `initialize` within 500ms"), "{message}");
    let message = failure(Setting::with(&["--before-hello", "version"]));
    assert!(message.contains("version 2"), "{message}");
    let message = failure(Setting::with(&["--can", "no-session"]));
    assert!(message.contains("Log in") && message.contains("Authentication required"), "{message}");
}
