//! Runs of automations with a real agent, at each moment of which the host is killed.
//!
//! Owns: that no agent is left, that the agent receives the message once at most, and that the next
//! host knows the run.
//! Never: waits for a schedule.

use super::*;

const LIST: &str = "ahp-automations://";
const AUTOMATION: &str = "ahp-automation:/a";

/// Moment of a run at which the host is killed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Moment {
    /// The client has the answer to its request.
    Answered,
    /// The client has received an action of this type about the run.
    Received(&'static str),
    /// The agent has received the message.
    Prompted,
    /// The run has ended.
    Ended,
}

impl Watched {
    fn request(&mut self, id: u64, method: &str, params: Value) -> Value {
        self.say(json!({ "id": id, "method": method, "params": params }));
        self.process.until(|message| message["id"] == id).pop().unwrap()
    }

    fn run_automation(&mut self, id: u64) -> String {
        let params = json!({ "channel": LIST, "automation": AUTOMATION, "requestId": "r" });
        let answer = self.request(id, "runAutomation", params);
        answer["result"]["resource"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }
}

/// A host on the folder, with automations.
fn host(folder: tempfile::TempDir) -> Watched {
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let setting = Setting::with(&["--notes", &path("notes"), "--memory", &path("memory.json")]);
    let mut setting = setting.limit("[automations]");
    setting.flags = vec!["--state-dir".to_owned(), path("state")];
    setting.start_in(folder)
}

#[test]
fn host_killed_at_any_moment_of_a_run_leaves_no_agent_and_repeats_no_message() {
    let received = ["automationRun/sessionSet", "automationRun/lifecycleChanged"].map(Moment::Received);
    let others = [Moment::Answered, Moment::Prompted, Moment::Ended];
    for moment in received.into_iter().chain(others) {
        let mut watched = host(tempfile::tempdir().unwrap());
        watched.request(70, "subscribe", json!({ "channel": LIST }));
        let text = if moment == Moment::Ended { "say done" } else { "hang" };
        let definition = json!({ "title": "Title", "session": { "provider": "a0" }, "enabled": true,
            "message": { "text": text, "origin": { "kind": "automation" } }, "triggers": [] });
        let create =
            json!({ "type": "automation/createRequested", "resource": AUTOMATION, "definition": definition });
        let params = json!({ "channel": LIST, "clientSeq": 1, "action": create });
        watched.say(json!({ "method": "dispatchAction", "params": params }));
        watched.process.until(|message| message["params"]["origin"]["clientSeq"] == 1);
        let run = watched.run_automation(71);
        let notes = watched.folder.as_ref().unwrap().path().join("notes");
        let prompts = || {
            let notes = fs::read_to_string(&notes).unwrap_or_default();
            notes.lines().filter(|line| line.contains("\"prompt\"")).count()
        };
        let listed = |message: &Value| message["params"]["action"]["automation"]["runs"][0].clone();
        match moment {
            Moment::Answered => {}
            // Clients of the list see both as the automation with its run.
            Moment::Received("automationRun/sessionSet") => {
                watched.process.until(|message| listed(message)["sessionCount"] == 1);
            }
            Moment::Received(_) => {
                watched.process.until(|message| listed(message)["lifecycle"]["status"] == "running");
            }
            Moment::Prompted => {
                let start = Instant::now();
                while prompts() == 0 {
                    assert!(start.elapsed() < HUNG, "{moment:?}");
                    thread::sleep(Duration::from_millis(10));
                }
            }
            Moment::Ended => {
                watched.process.until(|message| listed(message)["lifecycle"]["status"] == "completed");
            }
        }
        watched.process.child.kill().unwrap();
        watched.process.wait();
        watched.wait_for_agents(0);

        let mut watched = host(watched.folder.take().unwrap());
        assert_eq!(watched.run_automation(73), run, "{moment:?}");
        let list = watched.request(74, "subscribe", json!({ "channel": LIST }));
        let runs = list["result"]["snapshot"]["state"]["entries"][0]["runs"].as_array().unwrap();
        assert_eq!(runs.len(), 1, "{moment:?}: {list}");
        let lifecycle = &runs[0]["lifecycle"];
        let is_as_expected = match (moment, lifecycle["status"].as_str().unwrap()) {
            (Moment::Ended, status) => status == "completed",
            // It may have begun meanwhile.
            (Moment::Answered, "pending") => true,
            (_, status) => status == "failed" && lifecycle["error"]["errorType"] == "interrupted",
        };
        assert!(is_as_expected, "{moment:?}: {lifecycle}");
        let is_prompted = matches!(moment, Moment::Prompted | Moment::Ended);
        let prompts = prompts();
        assert!(prompts <= 1 && (prompts == 1 || !is_prompted), "{moment:?}: {prompts} prompts");
        watched.leave();
    }
}
