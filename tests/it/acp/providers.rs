//! Providers of an agent's models, which the operator sets.

use super::*;

/// Value of a header that no log or error shows.
const KEY: &str = "sk-very-secret-key";

/// Starts a host whose agent has this provider, and notes what it is asked.
fn start(can: &[&str], provider: &str) -> Watched {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("key"), format!("{KEY}\n")).unwrap();
    let notes = folder.path().join("notes");
    let mut arguments = vec!["--notes", notes.to_str().unwrap()];
    arguments.extend(can.iter().flat_map(|can| ["--can", can]));
    let settings = format!(
        "[agents.a0.providers.{provider}]\napi = \"openai\"\nurl = \"https://gateway.example/v1\"\n\
         headers = {{ Authorization = {{ file = \"key\", prefix = \"Bearer \" }}, Plain = \"x\" }}\n"
    );
    let mut setting = Setting::with(&arguments).limit(&settings);
    setting.log = Some("debug");
    setting.start_with_log(folder)
}

fn file(watched: &Watched, name: &str) -> String {
    fs::read_to_string(watched.folder.as_ref().unwrap().path().join(name)).unwrap()
}

#[test]
fn provider_is_set_before_the_agent_is_used_and_its_key_is_not_logged() {
    let mut watched = start(&["providers"], "main");
    watched.session().until_ready();
    assert_eq!(watched.turn("t1", "say hello"), "hello");
    let notes = file(&watched, "notes");
    let note = notes.lines().find(|note| note.contains("provider")).unwrap();
    let note: Value = serde_json::from_str(note).unwrap();
    let headers = json!({ "Authorization": format!("Bearer {KEY}"), "Plain": "x" });
    assert_eq!(
        note["provider"],
        json!({ "providerId": "main", "apiType": "openai", "baseUrl": "https://gateway.example/v1", "headers": headers })
    );
    let folder = watched.leave().unwrap();
    let log = fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(!log.contains(KEY), "{log}");
}

#[test]
fn agent_that_does_not_take_a_provider_is_not_used() {
    for (can, provider, why) in [
        (&[][..], "main", "it does not let `providers` be set"),
        (&["providers"], "bad", "it rejected the provider `bad` (`providers/set`): No such provider"),
    ] {
        let mut watched = start(can, provider);
        watched.session();
        let failure = watched.creation_failure();
        let message = failure["message"].as_str().unwrap();
        assert!(message.contains(why) && !message.contains(KEY), "{message}");
        let folder = watched.leave().unwrap();
        let log = fs::read_to_string(folder.path().join("log")).unwrap();
        assert!(!log.contains(KEY), "{log}");
    }
}
