//! `resolveSessionConfig`, `sessionConfigCompletions`, `completions`: what can be chosen and said.
//!
//! Owns: their answers, out of what the agents say of themselves.
//! Never: changes anything, or waits for an agent.

use ahp_types::commands::{
    CompletionItem, CompletionItemKind, CompletionsParams, CompletionsResult, ResolveSessionConfigResult,
    SessionConfigCompletionsResult, SessionConfigValueItem,
};
use ahp_types::state::{MessageAttachment, SimpleMessageAttachment};
use serde_json::{json, Value};

use crate::host::config::{resolved, settings_of};
use crate::host::effects::{AgentCommand, AgentDescription, ConnectionId};
use crate::host::{Host, Step};
use crate::wire::errors::RpcError;
use crate::wire::methods::{ConfigCompletionsParams, ResolveConfigParams};
use crate::wire::rpc::to_sorted_json;

/// What a command of an agent begins with.
const COMMAND_MARK: char = '/';

impl Host {
    /// What can be configured before a session is created, and what is chosen so far with the defaults of the
    /// rest. Where that is not known yet, it is found out meanwhile.
    pub(in crate::host) fn resolve_session_config(
        &mut self,
        step: &mut Step<'_>,
        connection: ConnectionId,
        params: &ResolveConfigParams,
    ) -> Result<Vec<u8>, RpcError> {
        let agent = self.agent_called(params.provider.as_deref())?;
        let schema = &agent.config;
        let values = resolved(schema, &settings_of(agent, params.config.clone()));
        let answer = to_sorted_json(&ResolveSessionConfigResult { schema: schema.clone(), values });
        let provider = agent.info.provider.clone();
        self.meet_agent(step, connection, &provider);
        Ok(answer)
    }

    /// The values of a property that fit what the user has typed.
    pub(in crate::host) fn session_config_completions(
        &self,
        params: &ConfigCompletionsParams,
    ) -> Result<Vec<u8>, RpcError> {
        let schema = &self.agent_called(params.provider.as_deref())?.config;
        let property = schema.properties.get(&params.property).ok_or_else(|| {
            RpcError::invalid_params(format_args!("`property`: `{}` is no setting", params.property))
        })?;
        let labels = property.enum_labels.as_deref().unwrap_or_default();
        let descriptions = property.enum_descriptions.as_deref().unwrap_or_default();
        let query = params.query.as_deref().unwrap_or_default().to_lowercase();
        let items = property.r#enum.iter().flatten().enumerate().map(|(at, value)| {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            SessionConfigValueItem {
                label: labels.get(at).unwrap_or(&value).clone(),
                description: descriptions.get(at).cloned(),
                value,
            }
        });
        let fits = |item: &SessionConfigValueItem| {
            [&item.value, &item.label].iter().any(|text| text.to_lowercase().contains(&query))
        };
        Ok(to_sorted_json(&SessionConfigCompletionsResult { items: items.filter(fits).collect() }))
    }

    /// The commands of a session's agent that may be meant by what the user has typed.
    pub(in crate::host) fn completions(&self, params: &CompletionsParams) -> Result<Vec<u8>, RpcError> {
        let target = self.find(&params.channel).ok_or_else(|| self.not_found(&params.channel))?;
        let session = self.channels.session_of(target);
        let session = session.and_then(|key| self.channels.sessions.get(&key)).ok_or_else(|| {
            RpcError::invalid_params("`channel` must be a session or a chat: nothing is said elsewhere")
        })?;
        let typed = Typed::at(&params.text, params.offset)?;
        let agent = self.config.agents.iter().find(|agent| agent.info.provider == session.state.provider);
        // What was said in this chat, which may be of its folder; else what the agent said last anywhere.
        let default = || self.find_chat(session.state.default_chat.as_deref()?);
        let chat = target.chat().or_else(default).and_then(|key| self.channels.chats.get(&key));
        let of_chat = chat.and_then(|chat| chat.commands.as_ref());
        let commands = of_chat.or(agent.map(|agent| &agent.commands)).into_iter().flatten();
        let items = match params.kind {
            CompletionItemKind::UserMessage => {
                commands.filter_map(|command| typed.completed(command)).collect()
            }
            CompletionItemKind::Unknown(_) => Vec::new(),
        };
        Ok(to_sorted_json(&CompletionsResult { items }))
    }

    /// What makes a client ask for [`Host::completions`].
    pub(in crate::host) fn completion_triggers(&self) -> Option<Vec<String>> {
        let some = self.config.agents.iter().any(|agent| !agent.commands.is_empty());
        some.then(|| vec![COMMAND_MARK.to_string()])
    }

    /// The agent of this provider; the default one when none is named.
    pub(in crate::host) fn agent_called(
        &self,
        provider: Option<&str>,
    ) -> Result<&AgentDescription, RpcError> {
        let agent = match provider {
            None => self.config.agents.first(),
            Some(provider) => self.config.agents.iter().find(|agent| agent.info.provider == provider),
        };
        agent.ok_or_else(|| RpcError::provider_not_found(provider.unwrap_or("(no agent is configured)")))
    }
}

/// The word that the user is typing, at the beginning of a line. Offsets count UTF-16 code units, as the
/// protocol does.
struct Typed<'a> {
    /// Up to the cursor; none when it stands elsewhere.
    word: Option<&'a str>,
    start: usize,
    /// Where the word ends, behind the cursor.
    end: usize,
    /// A space follows it.
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
        let line = before.rfind('\n').map_or(0, |newline| newline + 1);
        let word = Some(&before[line..]).filter(|word| !word.contains(char::is_whitespace));
        let rest = &after[..after.find(char::is_whitespace).unwrap_or(after.len())];
        let length = |text: &str| text.encode_utf16().count();
        Ok(Self {
            word,
            start: length(&before[..line]),
            end: length(before) + length(rest),
            spaced: after[rest.len()..].starts_with(' '),
        })
    }

    /// The command in place of the word, if that may be its beginning.
    fn completed(&self, command: &AgentCommand) -> Option<CompletionItem> {
        let begun = self.word?.strip_prefix(COMMAND_MARK)?;
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
            range_start: i64::try_from(self.start).ok(),
            range_end: i64::try_from(self.end).ok(),
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
