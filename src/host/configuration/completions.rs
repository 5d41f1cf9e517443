//! `completions`: suggestions for the word that the user is typing in a message.
//!
//! Owns: finding that word, the agent commands that match it, and the query for matching files.
//! Never: reads a file system.

use ahp_types::commands::{CompletionItem, CompletionItemKind, CompletionsParams, CompletionsResult};
use ahp_types::state::{MessageAttachment, SimpleMessageAttachment};
use serde_json::{json, Value};

use crate::host::agents::AgentRegistry;
use crate::host::configuration::directories;
use crate::host::effects::{AgentCommand, ChatKey, FileCompletionQuery};
use crate::host::ledger::Ledger;
use crate::host::model::Session;
use crate::wire::errors::RpcError;
use crate::wire::rpc::to_sorted_json;

const COMMAND_MARK: char = '/';

const FILE_MARKS: [char; 2] = ['#', '@'];

/// Completions of the user's word, or the query that finds them.
#[derive(Debug)]
pub(crate) enum CompletionTarget {
    /// Completions as JSON text.
    Known(Vec<u8>),
    Files(FileCompletionQuery),
}

/// Returns completions of the word at the cursor: commands of the session's agent, or files in its
/// working directories.
pub(crate) fn completions(
    ledger: &Ledger,
    agents: &AgentRegistry,
    params: &CompletionsParams,
) -> Result<CompletionTarget, RpcError> {
    let target = ledger.find(&params.channel).ok_or_else(|| ledger.not_found(&params.channel))?;
    let session = ledger.channels.session_of(target);
    let session = session.and_then(|key| ledger.channels.sessions.known(key)).ok_or_else(|| {
        RpcError::invalid_params("`channel` must be a session or a chat: only these have completions")
    })?;
    let typed = Typed::at(&params.text, params.offset)?;
    let default = || ledger.find_chat(session.state.default_chat.as_deref()?);
    let chat = target.chat().or_else(default);
    let items = match params.kind {
        CompletionItemKind::UserMessage => {
            let directories =
                chat.map(|key| directories::effective_directories(ledger, key)).unwrap_or_default();
            if let Some(files) = typed.files(directories) {
                return Ok(CompletionTarget::Files(files));
            }
            commands_of(ledger, agents, session, chat)
                .filter_map(|command| typed.completed(command))
                .collect()
        }
        CompletionItemKind::Unknown(_) => Vec::new(),
    };
    Ok(CompletionTarget::Known(to_sorted_json(&CompletionsResult { items })))
}

/// Returns the commands last sent in this chat, which may depend on its folder, or else anywhere.
fn commands_of<'a>(
    ledger: &'a Ledger,
    agents: &'a AgentRegistry,
    session: &'a Session,
    chat: Option<ChatKey>,
) -> impl Iterator<Item = &'a AgentCommand> {
    let agent = agents.of(&session.state.provider);
    let of_chat =
        chat.and_then(|key| ledger.channels.chats.known(key)).and_then(|chat| chat.commands.as_ref());
    of_chat.or(agent.map(|agent| &agent.commands)).into_iter().flatten()
}

pub(crate) fn completion_triggers(agents: &AgentRegistry) -> Vec<String> {
    let commands = agents.iter().any(|agent| !agent.commands.is_empty());
    commands.then_some(COMMAND_MARK).into_iter().chain(FILE_MARKS).map(String::from).collect()
}

/// Word that the user is typing. Offsets are UTF-16 code units, as in the protocol.
struct Typed<'a> {
    word: &'a str,
    /// Set if a line begins with the word.
    leads: bool,
    start: usize,
    end: usize,
    spaced: bool,
}

impl<'a> Typed<'a> {
    fn at(text: &'a str, offset: i64) -> Result<Self, RpcError> {
        let mut units = 0;
        let offset = usize::try_from(offset).ok();
        let ends = text.char_indices().map(|(at, character)| (at, character.len_utf16()));
        let at = ends.chain([(text.len(), 0)]).find_map(|(at, length)| {
            let here = (Some(units) == offset).then_some(at);
            units += length;
            here
        });
        let at = at.ok_or_else(|| {
            RpcError::invalid_params("`offset` must be a place between two characters of `text`")
        })?;
        let (before, after) = text.split_at(at);
        let word = before.rsplit(char::is_whitespace).next().unwrap_or_default();
        let start = &before[..before.len() - word.len()];
        let rest = &after[..after.find(char::is_whitespace).unwrap_or(after.len())];
        let length = |text: &str| text.encode_utf16().count();
        Ok(Self {
            word,
            leads: start.is_empty() || start.ends_with('\n'),
            start: length(start),
            end: length(before) + length(rest),
            spaced: after[rest.len()..].starts_with(' '),
        })
    }

    fn range(&self) -> (Option<i64>, Option<i64>) {
        (i64::try_from(self.start).ok(), i64::try_from(self.end).ok())
    }

    /// Returns the query for files that match the word.
    fn files(&self, directories: Vec<String>) -> Option<FileCompletionQuery> {
        let mark = self.word.chars().next().filter(|mark| FILE_MARKS.contains(mark))?;
        let typed = self.word[mark.len_utf8()..].to_owned();
        Some(FileCompletionQuery { directories, mark, typed, range: self.range() })
    }

    /// Returns the completion of the word to a command, if the command matches.
    fn completed(&self, command: &AgentCommand) -> Option<CompletionItem> {
        let begun = self.word.strip_prefix(COMMAND_MARK).filter(|_| self.leads)?;
        let label = format!("{COMMAND_MARK}{}", command.name);
        let mut meta = json!({ "command": command.name, "description": command.description });
        let mut insert_text = label.clone();
        if let Some(hint) = &command.argument_hint {
            meta["argumentHint"] = hint.as_str().into();
            insert_text.push_str(if self.spaced { "" } else { " " });
        }
        let meta = match meta {
            Value::Object(meta) => meta.into_iter().collect(),
            _ => return None,
        };
        command.name.starts_with(begun).then(|| CompletionItem {
            insert_text,
            range_start: self.range().0,
            range_end: self.range().1,
            attachment: MessageAttachment::Simple(SimpleMessageAttachment {
                label,
                range: None,
                display_kind: None,
                meta: Some(meta),
                model_representation: None,
            }),
        })
    }
}
