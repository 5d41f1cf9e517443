//! Configuration of an ACP session, as requested by the host and as reported by the agent.
//!
//! Owns: the pending changes of settings, requested one after the other, never while a turn runs;
//! the turn that waits for them; and reporting the configuration and the agent's description to the
//! host.
//! Never: requests a value that is set already, or fails a turn because of a refused setting.

use std::collections::{BTreeMap, BTreeSet};

use agent_client_protocol_schema::v1::{AvailableCommand, AvailableCommandInput};
use ahp_types::common::JsonObject;
use ahp_types::state::{Message, SessionConfigState, SessionModelInfo};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::Value;
use tokio::time::Instant;

use super::updates::UpdateMembers;
use super::{AcpConversation, Next};
use crate::backend::acp::agent::AgentLease;
use crate::backend::acp::options::{misfit, OfferedOptions};
use crate::backend::acp::peer::{AgentError, PausableTimeout};
use crate::host::effects::{AgentCommand, Command, Event, RunId, SelfDescription, TurnEnd, TurnEvent};
use crate::wire::text;

const COMMANDS_MAX: usize = 1000;

#[derive(Debug, Default)]
pub(super) struct Settings {
    options: OfferedOptions,
    /// Values to set. A value that the agent has not accepted once all were tried is dropped.
    wanted: JsonObject,
    /// Ids of the wanted values that the operator has set and no client has chosen.
    starting: BTreeSet<String>,
    asked: Option<PendingSetting>,
    /// Ids of the tried values, each with the reason if it was refused.
    tried: BTreeMap<String, Option<String>>,
    /// Set if the session's other conversations must receive the values to set.
    spreads: bool,
    /// Set after a request of the host, which assumes that it succeeds: the configuration is
    /// reported even if it is unchanged.
    unconfirmed: bool,
    /// Number of the last `Configure` command.
    acknowledged: u64,
    last_sent: Option<SessionConfigState>,
    models_sent: Option<Vec<SessionModelInfo>>,
    /// Notices about refused values, shown to the user in the next turn.
    refused: Vec<String>,
    /// Opening of the conversation, which waits for the settings.
    opening: Option<OpeningSettings>,
    held: Option<WaitingTurn>,
}

#[derive(Debug)]
struct PendingSetting {
    request: u64,
    id: String,
    value: Value,
    until: Instant,
    timeout: PausableTimeout,
    /// Set if the agent has reported the setting's value since the request.
    overtaken: bool,
    _use: AgentLease,
}

#[derive(Debug)]
struct OpeningSettings {
    had_a_name: bool,
    _use: AgentLease,
}

#[derive(Debug)]
struct WaitingTurn {
    run: RunId,
    command: Command,
    _use: AgentLease,
}

impl Settings {
    /// Returns the settings of a session from the updates before the answer that opened it, and
    /// then from the answer. Removes the updates of settings from the list.
    pub(super) fn of_session(updates: &mut Vec<Box<RawValue>>, answer: &RawValue) -> Self {
        let mut settings = Self::default();
        updates.retain(|raw| {
            let update = serde_json::from_str::<UpdateMembers<'_>>(raw.get());
            !update.is_ok_and(|update| settings.take(&update))
        });
        settings.options.take_session(answer);
        settings
    }

    /// Applies the settings in an update. Returns whether the update is about settings.
    fn take(&mut self, update: &UpdateMembers<'_>) -> bool {
        if let Some(list) = update.config_options {
            self.options.take_list(list);
        }
        if let Some(mode) = &update.current_mode_id {
            self.options.take_mode(mode);
        }
        update.available_commands.is_none()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.asked.as_ref().map(|asked| asked.until)
    }

    /// Returns whether the opening of the conversation waits for the settings.
    pub(super) fn is_opening(&self) -> bool {
        self.opening.is_some()
    }

    /// Returns whether the opening of the conversation, or a turn, waits for the settings.
    pub(super) fn are_waited_for(&self) -> bool {
        self.opening.is_some() || self.held.is_some()
    }

    fn want(&mut self, id: &str, value: Value) {
        self.tried.remove(id);
        self.starting.remove(id);
        self.wanted.insert(id.to_owned(), value);
    }

    /// Returns the id and value of the setting to change next; `None` if there is none.
    fn next(&self) -> Option<(String, Value)> {
        let open = |id: &&str| !self.tried.contains_key(*id);
        self.options.in_order().filter(open).find_map(|id| {
            let wanted = self.wanted.get(id)?;
            (self.options.value(id) != Some(wanted)).then(|| (id.to_owned(), wanted.clone()))
        })
    }

    /// Drops the wanted values that the agent has not accepted, and prepares notices about them.
    fn drop_pending(&mut self, agent: &str) {
        let mut tried = std::mem::take(&mut self.tried);
        for (id, value) in std::mem::take(&mut self.wanted) {
            if self.starting.remove(&id) {
                if let Some(misfit) = misfit(&self.now(), &id, &value) {
                    let why = tried.remove(&id).flatten().map(|why| format!(" ({why})")).unwrap_or_default();
                    tracing::warn!(
                        agent,
                        "a configured setting of the agent cannot be applied: {misfit}{why}"
                    );
                    let notice = format!(
                        "A configured setting of the agent `{agent}` cannot be applied: {misfit}{why}."
                    );
                    self.refused.push(text::message(&notice));
                }
                continue;
            }
            // Initial values are not validated, and clients add settings of their own: the host
            // drops those that the agent does not offer.
            if self.opening.is_some() && !self.options.offers(&id, &value) {
                tracing::info!(
                    agent,
                    setting = id,
                    "a setting was skipped: the agent has no such option or value"
                );
                continue;
            }
            let why = match self.options.value(&id) {
                Some(now) if *now == value => continue,
                Some(now) => {
                    tried.remove(&id).flatten().unwrap_or_else(|| format!("its value is still {now}"))
                }
                None => tried.remove(&id).flatten().unwrap_or_else(|| "it has no such setting".to_owned()),
            };
            tracing::warn!(agent, setting = id, why, "the agent has refused a setting");
            self.refused.push(text::message(&format!("The agent did not accept `{id}` = {value}: {why}")));
        }
    }

    fn now(&self) -> SessionConfigState {
        SessionConfigState { schema: self.options.schema(None), values: self.options.values() }
    }

    /// Returns the configuration with the wanted values.
    fn shown(&self) -> SessionConfigState {
        let mut shown = self.now();
        for (id, value) in &self.wanted {
            if let Some(shown) = shown.values.get_mut(id) {
                shown.clone_from(value);
            }
        }
        shown
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SettingAnswer<'a> {
    #[serde(borrow, default)]
    config_options: Option<&'a RawValue>,
}

/// Returns whether an update is about the session itself rather than part of the conversation.
pub(super) fn is_of_session(update: &RawValue) -> bool {
    serde_json::from_str::<UpdateMembers<'_>>(update.get()).is_ok_and(|update| {
        matches!(
            &*update.session_update,
            "config_option_update" | "current_mode_update" | "available_commands_update"
        )
    })
}

impl AcpConversation {
    /// Requests the initial settings from an agent that knows the session; after that, the
    /// conversation is open.
    pub(super) fn open_with(&mut self, config: JsonObject, had_a_name: bool, used: AgentLease) {
        let starting = &self.agent.spec.config;
        let defaults = self.session.is_new().then(|| self.settings.options.schema(Some(starting)));
        let capabilities = Some(self.running.abilities());
        self.describe(SelfDescription { config: defaults, capabilities, ..SelfDescription::default() });
        self.settings.wanted = config;
        if self.session.is_new() && !had_a_name {
            for (id, value) in &self.agent.spec.config {
                if !self.settings.wanted.contains_key(id) {
                    self.settings.starting.insert(id.clone());
                    self.settings.wanted.insert(id.clone(), value.clone());
                }
            }
        }
        self.settings.opening = Some(OpeningSettings { had_a_name, _use: used });
        // If the agent is being stopped, the conversation ends when the agent does.
        self.settle();
    }

    fn describe(&mut self, news: SelfDescription) {
        self.events.push(Event::Described(Box::new(news)));
    }

    /// Returns a command if it can be carried out now, else the next step.
    pub(super) fn after_settings(&mut self, command: Command) -> Result<Command, Next> {
        match &command {
            Command::Configure { all, changed, number } => {
                self.settings.acknowledged = *number;
                for id in changed {
                    match all.get(id) {
                        Some(value) => self.settings.want(id, value.clone()),
                        None => drop(self.settings.wanted.remove(id)),
                    }
                }
                self.settings.unconfirmed = true;
                return Err(self.settle());
            }
            Command::StartTurn { run, message, .. } | Command::ResumeTurn { run, message, .. } => {
                let run = *run;
                self.want_model(message);
                if self.settings.asked.is_none() && self.settings.next().is_none() {
                    self.all_is_tried();
                    self.report_refused_settings(run);
                    return Ok(command);
                }
                let Some(used) = self.running.lease() else { return Err(Next::Leave) };
                self.settings.held = Some(WaitingTurn { run, command, _use: used });
                return Err(self.settle());
            }
            _ => {}
        }
        let Some(held) = &mut self.settings.held else { return Ok(command) };
        match command {
            Command::Cancel { run } if run == held.run => {
                self.settings.held = None;
                self.events.drop_turn_events();
                self.events.push(Event::Turn(run, TurnEvent::Ended(TurnEnd::Cancelled)));
                self.retry_turn_request();
                Err(Next::Hear)
            }
            command => Ok(command),
        }
    }

    /// Wants the model that a message chooses, for the session from then on. Has no effect if the
    /// agent's models are unknown.
    fn want_model(&mut self, message: &Message) {
        let Some(chosen) = &message.model else { return };
        let Some(id) = self.settings.options.model().map(str::to_owned) else { return };
        if self.settings.shown().values.get(&id).and_then(Value::as_str) != Some(&chosen.id) {
            self.settings.spreads = true;
            self.settings.want(&id, chosen.id.as_str().into());
        }
    }

    /// Requests the next setting, unless a turn runs or a request is pending. If no setting is
    /// left, continues the opening or turn that waits.
    pub(super) fn settle(&mut self) -> Next {
        if self.settings.asked.is_some() || self.run.is_some() {
            return Next::Hear;
        }
        if let Some((id, value)) = self.settings.next() {
            let Some((method, params)) = self.settings.options.request(&self.session.id.0, &id, &value)
            else {
                return Next::Hear;
            };
            let Some(used) = self.running.lease() else {
                // The agent is being stopped. An opening fails with the reason once the agent has
                // ended; an open conversation requests the setting when it is opened again.
                return if self.settings.is_opening() { Next::Hear } else { Next::Leave };
            };
            let request = self.receiver.request(method, &params);
            let until = Instant::now() + self.agent.spec.start_limit;
            let timeout = PausableTimeout::default();
            self.settings.asked =
                Some(PendingSetting { request, id, value, until, timeout, overtaken: false, _use: used });
            return Next::Hear;
        }
        self.all_is_tried();
        if let Some(opening) = self.settings.opening.take() {
            self.introduce(opening.had_a_name);
            self.retry_turn_request();
        }
        if let Some(held) = self.settings.held.take() {
            self.report_refused_settings(held.run);
            return self.obey_at_once(held.command);
        }
        Next::Hear
    }

    fn all_is_tried(&mut self) {
        self.settings.drop_pending(&self.agent.spec.name);
        let spreads = std::mem::take(&mut self.settings.spreads);
        self.send_settings(spreads);
    }

    fn report_refused_settings(&mut self, run: RunId) {
        for notice in std::mem::take(&mut self.settings.refused) {
            self.events.push(Event::Turn(run, TurnEvent::Notice(notice)));
        }
    }

    /// Reports the configuration and the models if the host may not know them.
    fn send_settings(&mut self, spreads: bool) {
        let settings = &mut self.settings;
        let unconfirmed = std::mem::take(&mut settings.unconfirmed);
        let now = settings.shown();
        if unconfirmed || settings.last_sent.as_ref() != Some(&now) {
            settings.last_sent = Some(now.clone());
            let (config, acknowledged) = (Box::new(now), settings.acknowledged);
            self.events.push(Event::Configured { config, spreads, acknowledged });
        }
        let models = self.settings.options.models(&self.agent.spec.name);
        let known = self.settings.models_sent.as_ref();
        if known.map_or(!models.is_empty() || self.session.is_new(), |known| *known != models) {
            self.settings.models_sent = Some(models.clone());
            self.describe(SelfDescription { models: Some(models), ..SelfDescription::default() });
        }
    }

    /// Handles an answer, which may be the one to the pending request for a setting.
    pub(super) fn setting_answered(&mut self, id: u64, answer: &Result<Box<RawValue>, AgentError>) {
        let settings = &mut self.settings;
        let asked = settings.asked.take_if(|asked| asked.request == id);
        match answer {
            Ok(answer) => {
                let parsed: Option<SettingAnswer<'_>> = serde_json::from_str(answer.get()).ok();
                match (parsed.and_then(|parsed| parsed.config_options), &asked) {
                    (Some(list), _) => settings.options.take_list(list),
                    (None, Some(asked)) if !asked.overtaken => {
                        settings.options.take_value(&asked.id, &asked.value);
                    }
                    (None, _) => {}
                }
            }
            Err(_) if asked.is_none() => return,
            Err(_) => {}
        }
        match asked {
            Some(asked) if settings.wanted.get(&asked.id) == Some(&asked.value) => {
                settings.tried.insert(asked.id, answer.as_ref().err().map(ToString::to_string));
            }
            Some(_) => {}
            None => self.send_settings(true),
        }
    }

    /// Treats a setting that the agent does not answer as refused. The deadline is extended while
    /// the host does not read the agent's output.
    pub(super) fn setting_timed_out(&mut self) -> Next {
        let limit = self.agent.spec.start_limit;
        let settings = &mut self.settings;
        if let Some(asked) = &mut settings.asked {
            let is_listening = self.events.is_empty() && self.own_turns.has_room();
            if let Some(more) = asked.timeout.extend(&self.running.connection, limit, is_listening) {
                asked.until = Instant::now() + more;
                return Next::Hear;
            }
        }
        if let Some(asked) = settings.asked.take() {
            let why = format!("it did not answer within {limit:?}");
            settings.tried.insert(asked.id, Some(why));
        }
        self.settle()
    }

    pub(super) fn session_updated(&mut self, raw: &RawValue) {
        let update: UpdateMembers<'_> = match serde_json::from_str(raw.get()) {
            Ok(update) => update,
            Err(error) => {
                tracing::debug!(agent = self.agent.spec.name, %error, "an update of the agent's settings was ignored: it is invalid: {raw}");
                return;
            }
        };
        self.settings.take(&update);
        if let Some(list) = update.available_commands {
            let commands = Some(commands(list));
            return self.describe(SelfDescription { commands, ..SelfDescription::default() });
        }
        let settings = &mut self.settings;
        match &mut settings.asked {
            Some(asked) => {
                let by_mode = update.config_options.is_none();
                asked.overtaken |= settings.options.is_reported(&asked.id, by_mode);
            }
            None if settings.opening.is_none() => self.send_settings(true),
            None => {}
        }
    }
}

/// Parses the commands of an agent; skips invalid ones.
fn commands(list: &RawValue) -> Vec<AgentCommand> {
    let raw: Vec<&RawValue> = serde_json::from_str(list.get()).unwrap_or_default();
    let read = raw.into_iter().filter_map(|it| serde_json::from_str::<AvailableCommand>(it.get()).ok());
    let command = |it: AvailableCommand| AgentCommand {
        // Some agents include the slash in the name.
        name: text::message(it.name.trim_start_matches('/')),
        description: text::message(&it.description),
        argument_hint: match it.input {
            Some(AvailableCommandInput::Unstructured(input)) => Some(text::message(&input.hint)),
            _ => None,
        },
    };
    read.map(command).filter(|it| !it.name.is_empty()).take(COMMANDS_MAX).collect()
}
