//! Backends that are programs: the bridge to the scripted ACP agent, over its real processes.
//!
//! Owns: that agent behind the conversations of a world, hearing what it reports, and what it is
//! told to do.
//! Never: makes anything up. What it reports, and when, is its own; so no schedule of it runs twice
//! alike.

use std::path::Path;
use std::time::Duration;

use ahp_sidecar::backend::acp::{Acp, AgentSpec, Offers};
use ahp_sidecar::backend::{AgentReceivers, Agents, Report};
use ahp_sidecar::host::effects::{ChatKey, Command, Event};
use ahp_sidecar::os::process::{GuardProgram, GUARD};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::Receiver;

/// Scripts of turns. The agent runs the turns of all its sessions one after another, so none may
/// take long.
const PROGRAMS: [&str; 12] = [
    "say one\nsay two\nthink three\nsay four",
    "message a one\nmessage b two\nmessage b three",
    "tool c1\nsay between\ntool c2\nsay after",
    "say before\ntool_left_open c1",
    "ask_and_finish\nsleep 0.01\nsay too late",
    "stream 100 30\ntool\nstream 100 30",
    r#"update {"sessionUpdate":"plan","entries":[{"content":"work","priority":"low","status":"in_progress"}]}
sleep 0.005
update {"sessionUpdate":"plan","entries":[]}"#,
    r#"update {"sessionUpdate":"usage_update","used":10,"size":100}
usage {"totalTokens":12,"inputTokens":7,"outputTokens":5}"#,
    r#"update {"sessionUpdate":"session_info_update","title":"A title"}
say named"#,
    "say a\nerror -32603 The model is ill",
    "say a \nsoon_after nd.|Too late.",
    "say a\ndie 1",
];

/// The agent behind a world's conversations.
pub struct Bridged {
    runtime: Runtime,
    agents: Agents,
    reports: Receiver<Report>,
    told: usize,
}

impl Bridged {
    /// The agent under this name. Starts nothing.
    pub fn new(name: &str) -> Self {
        let agent = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/acp/agent.py");
        let spec = AgentSpec {
            name: name.to_owned(),
            title: None,
            description: None,
            program: "python3".into(),
            arguments: vec![agent.into()],
            environment: [].into(),
            directory: Some("/".into()),
            start_limit: Duration::from_secs(60),
            turn_limit: None,
            cancel_limit: Duration::from_secs(60),
            idle_limit: Duration::from_secs(600),
            one_session: false,
            providers: Default::default(),
            config: Default::default(),
            client_tools: true,
            offers: Offers { reading: Some(false), writing: false, terminals: false },
        };
        let program = assert_cmd::cargo::cargo_bin!("ahp-sidecar").to_owned();
        let guard = GuardProgram::new(program, vec![GUARD.to_owned()]);
        let (agents, AgentReceivers { reports, .. }) = Agents::new(vec![Box::new(Acp::new(spec, guard))]);
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        Self { runtime, agents, reports, told: 0 }
    }

    /// Has the agent be told this.
    pub fn carry_out(&mut self, chat: ChatKey, mut command: Command) {
        if let Command::Open(open) = &mut command {
            // Those of a schedule are not there.
            open.working_directories.clear();
        }
        let _inside = self.runtime.enter();
        self.agents.carry_out(chat, command);
    }

    /// The next report that still means something, if one comes in this time.
    pub fn hear(&mut self, time: Duration) -> Option<(ChatKey, Event)> {
        let Self { runtime, agents, reports, .. } = self;
        let hearing = async {
            loop {
                let report = reports.recv().await?;
                if let Some(heard) = agents.accept(report) {
                    return Some(heard);
                }
            }
        };
        runtime.block_on(async { tokio::time::timeout(time, hearing).await }).ok().flatten()
    }

    /// Has a message say what the agent is to do.
    pub fn instruct(&mut self, action: &mut Value) {
        if let Some(text) = action.pointer_mut("/message/text").filter(|text| text.is_string()) {
            *text = PROGRAMS[self.told % PROGRAMS.len()].into();
            self.told += 1;
        }
    }
}

impl Drop for Bridged {
    fn drop(&mut self) {
        let _inside = self.runtime.enter();
        let stopping = self.agents.stop();
        self.runtime.block_on(stopping);
    }
}
