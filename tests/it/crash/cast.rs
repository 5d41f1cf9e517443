//! Agent of a world: `script`, or a program that speaks ACP.
//!
//! Owns: how it is configured, what it is told to do and what that leaves behind, and what must be
//! true of the other program: nothing of it outlives the host, and it is told nothing twice.
//! Never: speaks to a host.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ahp_types::state::{ResponsePart, ToolCallState, ToolInput};
use serde_json::{json, Value};

use super::dice::Dice;

#[derive(Debug, Clone, Copy)]
pub enum Cast {
    Script,
    /// The agent of the tests of ACP, which can do this to take a conversation up again.
    Acp(&'static str),
}

/// Mark of the processes of one life of the host.
#[derive(Debug, Default)]
pub struct Cookie(Option<String>);

impl Cast {
    pub fn provider(self) -> &'static str {
        match self {
            Self::Script => "script",
            Self::Acp(_) => "acp",
        }
    }

    /// How a session is configured.
    pub fn config(self, dice: &mut Dice) -> Value {
        let slow = matches!(self, Self::Script) && dice.percent(20);
        if slow {
            json!({ "openMs": 1 })
        } else {
            json!({})
        }
    }

    /// Tells whether an interrupted turn is always resumable.
    pub fn always_resumes(self) -> bool {
        matches!(self, Self::Script)
    }

    /// Returns the maximum number of chats besides the default ones of the sessions.
    pub fn chats_max(self) -> usize {
        match self {
            Self::Script => 5,
            Self::Acp(_) => 3,
        }
    }

    /// Tells whether the agent begins immediately after a request.
    pub fn is_quick(self) -> bool {
        matches!(self, Self::Script)
    }

    /// Completes a command that starts the host, with what it keeps in this folder.
    pub fn configure(self, command: &mut Command, folder: &Path) -> Cookie {
        let Self::Acp(can) = self else { return Cookie::default() };
        let agent = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/acp/agent.py");
        let args = [
            agent,
            "--can".into(),
            can.into(),
            "--memory".into(),
            folder.join("memory.json"),
            "--notes".into(),
            notes(folder),
        ];
        let config = folder.join("config.toml");
        fs::write(&config, format!("[agents.acp]\ncommand = \"python3\"\nargs = {args:?}\n")).unwrap();
        let cookie = uuid::Uuid::new_v4().to_string();
        command.arg("--config").arg(config).env("PATH", std::env::var("PATH").unwrap());
        command.env("AHP_SIDECAR_TEST", &cookie);
        Cookie(Some(cookie))
    }

    /// A step, with a name of its own.
    pub fn step(self, dice: &mut Dice, name: &str) -> String {
        match self {
            Self::Script => match dice.from(0..100) {
                0..35 => format!("/say {name}"),
                35..50 => "/stream 200 20".to_owned(),
                50..60 => format!("/tool look {{\"n\":\"{name}\"}}"),
                60..70 => format!("/ask remove {{\"n\":\"{name}\"}}"),
                70..75 => format!("/review write {{\"n\":\"{name}\"}}"),
                75..83 => format!(r#"/question [{{"kind":"text","id":"{name}","message":"Who?"}}]"#),
                83..91 => "/sleep 1".to_owned(),
                91..94 => format!("/title {name}"),
                94..97 => format!("some words of {name}"),
                _ => format!("/error-resumable {name}"),
            },
            // It does one thing after the other, for all of its sessions: nothing may take long.
            Self::Acp(_) => match dice.from(0..100) {
                0..35 => format!("message {name} {name}"),
                35..55 => format!("words {name} 200"),
                55..70 => format!("tool {name}"),
                70..80 => "ask_and_finish\nsleep 0.02".to_owned(),
                80..92 => "sleep 0.005".to_owned(),
                92..96 => format!(r#"update {{"sessionUpdate":"session_info_update","title":"{name}"}}"#),
                _ => format!("think {name}"),
            },
        }
    }

    /// The last step of each message.
    pub fn last_step(self, name: &str) -> String {
        match self {
            Self::Script => format!("/say {name}"),
            Self::Acp(_) => format!("message {name} {name}"),
        }
    }

    /// Checks that no process with this cookie is left, soon after the kill.
    pub fn check_no_process_is_left(self, cookie: &Cookie) {
        #[cfg(target_os = "linux")]
        if let Some(cookie) = &cookie.0 {
            let start = std::time::Instant::now();
            while !crate::guard::bearers(cookie).is_empty() {
                let left = crate::guard::bearers(cookie);
                assert!(start.elapsed() < crate::support::HUNG, "left of a host that was killed: {left:?}");
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        }
        #[cfg(not(target_os = "linux"))]
        let _: &Option<String> = &cookie.0;
    }

    /// Checks that the agent program received nothing twice; returns the number of prompts.
    pub fn check_prompted_once(self, folder: &Path) -> usize {
        let notes = fs::read_to_string(notes(folder)).unwrap_or_default();
        let notes = notes.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut told = BTreeSet::new();
        for prompt in notes.filter_map(|note| note["prompt"].as_str().map(str::to_owned)) {
            assert!(told.insert(prompt.clone()), "prompted twice: {prompt:?}");
        }
        told.len()
    }
}

/// Returns the file in which the agent program records its prompts.
fn notes(folder: &Path) -> PathBuf {
    folder.join("notes")
}

/// Returns the number of times that a step with a trace of its own was completed.
pub fn times_done(step: &str, parts: &[ResponsePart]) -> Option<usize> {
    let texts = |wanted: &dyn Fn(&str) -> bool| {
        // A message is set apart from the one before it.
        let said = |content: &str| wanted(content.strip_prefix("\n\n").unwrap_or(content));
        let is = |part: &&ResponsePart| matches!(part, ResponsePart::Markdown(part) if said(&part.content));
        parts.iter().filter(is).count()
    };
    let calls = |wanted: &dyn Fn(&ToolCallState) -> bool| {
        let is =
            |part: &&ResponsePart| matches!(part, ResponsePart::ToolCall(part) if wanted(&part.tool_call));
        parts.iter().filter(is).count()
    };
    let (name, rest) = step.split_once(' ').unwrap_or((step, ""));
    match name {
        "/say" => Some(texts(&|text| text == rest)),
        "message" => Some(texts(&|text| rest.split(' ').next() == Some(text))),
        "words" => {
            let (word, count) = rest.split_once(' ').unwrap();
            let all = format!("{word} ").repeat(count.parse().unwrap());
            Some(texts(&|text| text == all))
        }
        "/stream" => {
            let mut numbers = rest.split(' ').map(|number| number.parse::<usize>().unwrap());
            let size = numbers.next().unwrap() * numbers.next().unwrap();
            Some(texts(&|text| text.len() == size && text.starts_with("0123456789")))
        }
        "/tool" => {
            let input = rest.split_once(' ').unwrap().1;
            Some(calls(&|call| match call {
                ToolCallState::Completed(call) => {
                    call.success && call.tool_input == Some(ToolInput::Inline(input.to_owned()))
                }
                _ => false,
            }))
        }
        "tool" => Some(calls(&|call| match call {
            ToolCallState::Completed(call) => call.success && call.tool_call_id == rest,
            _ => false,
        })),
        _ => None,
    }
}
