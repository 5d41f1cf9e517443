//! Tests of configuration with a ledger alone.
//!
//! Owns: whose word counts for a setting, when a selection takes effect, and which directories can
//! be changed.
//! Never: checks values against every kind of schema, which `values` does.

use ahp_types::actions::{SessionWorkingDirectorySetAction, StateAction};
use ahp_types::common::JsonObject;
use ahp_types::state::SessionConfigState;
use serde_json::{json, value::RawValue};

use super::selection::{self, PendingAction};
use super::{directories, settings, values};
use crate::host::effects::{Command, Output};
use crate::host::ledger::Ledger;
use crate::host::refusal::Refusal;
use crate::host::testing::{
    actions_in, agent, chat, commands_in, origin, outputs_of, registry, start_turn, with_session, CHAT, ME,
    SESSION,
};
use crate::wire::errors::tests::logged;
use crate::wire::selection::SelectionChange;

fn config(level: &str) -> SessionConfigState {
    let property = json!({ "type": "string", "title": "", "sessionMutable": true });
    let schema = json!({ "type": "object", "properties": { "level": property } });
    serde_json::from_value(json!({ "schema": schema, "values": { "level": level } })).unwrap()
}

fn level(ledger: &Ledger) -> String {
    let session = ledger.channels.sessions.get(&SESSION).unwrap();
    session.state.config.as_ref().unwrap().values["level"].as_str().unwrap().to_owned()
}

#[test]
fn setting_of_a_client_holds_until_its_agent_acknowledges_it() {
    let (mut ledger, agents) = (with_session(), registry(&[agent("script", "")]));
    let report_settings = |ledger: &mut Ledger, level: &str, acknowledged| {
        outputs_of(|step| {
            settings::agent_is_configured(ledger, &agents, step, CHAT, config(level), false, acknowledged);
        })
    };
    assert_eq!(actions_in(&report_settings(&mut ledger, "low", 0)), ["session/configChanged"]);
    assert_eq!(level(&ledger), "low");
    assert!(report_settings(&mut ledger, "low", 0).is_empty(), "nothing has changed");
    // A client sets another value.
    let before = JsonObject::from_iter([("level".to_owned(), json!("low"))]);
    let session = ledger.channels.sessions.get_mut(&SESSION).unwrap();
    session.state.config = Some(config("high"));
    let outputs = outputs_of(|step| settings::send_configuration(&mut ledger, step, SESSION, &before, None));
    assert!(matches!(commands_in(&outputs)[..], [Command::Configure { number: 1, .. }]), "{outputs:?}");
    report_settings(&mut ledger, "low", 0);
    assert_eq!(level(&ledger), "high", "the agent has said so before it heard");
    report_settings(&mut ledger, "low", 1);
    assert_eq!(level(&ledger), "low");
}

#[test]
fn selection_takes_effect_when_no_turn_runs() {
    let (mut ledger, agents) = (with_session(), registry(&[agent("script", "")]));
    start_turn(&mut ledger, "t");
    let model = |ledger: &Ledger| ledger.channels.selected_in(CHAT).model;
    let select = |ledger: &mut Ledger, id: &str, text: &str| {
        let action = RawValue::from_string(json!({ "text": text }).to_string()).unwrap();
        let channel = "ahp-session:/s".to_owned();
        let asked = PendingAction { connection: ME, channel, action, origin: origin() };
        let (change, mut result) = (SelectionChange::Model(json!({ "id": id })), None);
        let outputs = outputs_of(|step| {
            let session = SESSION.into();
            result = selection::client_selects(ledger, &agents, step, session, asked, &change, false).err();
        });
        (outputs, result)
    };
    let (outputs, refused) = select(&mut ledger, "small", "first");
    assert!(outputs.is_empty() && refused.is_none() && model(&ledger).is_none());
    for count in 2..=8 {
        let (outputs, refused) = select(&mut ledger, "large", "next");
        assert!(outputs.is_empty() && refused.is_none(), "{count}");
    }
    let (outputs, _) = select(&mut ledger, "large", "last");
    assert!(matches!(&outputs[..], [Output::Frame(ME, _)]), "the first one is acknowledged: {outputs:?}");
    assert_eq!(chat(&mut ledger).pending_selections.len(), 8);
    chat(&mut ledger).pending_selections.drain(1..);
    ledger.limits.state_bytes = 1000;
    let (_, refused) = select(&mut ledger, "huge", &"x".repeat(1000));
    assert!(matches!(refused, Some(Refusal::StateFull { .. })), "{refused:?}");
    chat(&mut ledger).run = None;
    let outputs = outputs_of(|step| selection::apply_pending_selections(&mut ledger, step, CHAT));
    assert_eq!(actions_in(&outputs), ["chat/draftChanged"]);
    assert_eq!(model(&ledger).unwrap()["id"], "large");
    assert!(outputs_of(|step| selection::apply_pending_selections(&mut ledger, step, CHAT)).is_empty());
}

#[test]
fn directories_change_only_where_the_agent_can_follow() {
    let mut ledger = with_session();
    let set = || {
        let directory = "file:///a".to_owned();
        StateAction::SessionWorkingDirectorySet(SessionWorkingDirectorySetAction { directory })
    };
    let mut several = agent("script", "");
    let can = json!({ "multipleWorkingDirectories": {} });
    several.info.capabilities = Some(serde_json::from_value(can).unwrap());
    let mut change = |agent, is_found: bool| {
        let (agents, mut result) = (registry(&[agent]), None);
        let outputs = outputs_of(|step| {
            step.findings.extend(is_found.then_some(("file:///a".to_owned(), Ok(()))));
            let changed =
                directories::client_changes_directories(&mut ledger, &agents, step, SESSION, set(), origin());
            result = changed.err();
        });
        (result, outputs)
    };
    let (refused, _) = change(agent("script", ""), true);
    assert_eq!(refused, Some(Refusal::OneDirectory("script".to_owned())));
    let (refused, _) = change(several.clone(), false);
    assert!(matches!(refused, Some(Refusal::Directory { .. })), "{refused:?}");
    let (refused, outputs) = change(several, true);
    assert_eq!((refused, &actions_in(&outputs)[..]), (None, &["session/workingDirectorySet".to_owned()][..]));
    let sent = commands_in(&outputs);
    assert!(
        matches!(&sent[..], [Command::WorkIn { directories }] if *directories == ["file:///a"]),
        "{sent:?}"
    );
    assert_eq!(directories::effective_directories(&ledger, CHAT), ["file:///a"]);
}

#[test]
fn setting_that_an_agent_does_not_have_is_dropped_and_logged_without_its_value() {
    let level = json!({ "type": "string", "title": "", "enum": ["low", "high"] });
    let mut agent = agent("script", "");
    agent.config =
        serde_json::from_value(json!({ "type": "object", "properties": { "level": level } })).unwrap();
    let given = [("level", json!("secret")), ("other", json!(["secret"])), ("third", json!(true))];
    let given = given.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
    let (taken, logged) = logged(|| values::settings_of(&agent, given));
    assert_eq!(taken.into_iter().collect::<Vec<_>>(), [("third".to_owned(), json!(true))]);
    assert!(logged.contains("level") && logged.contains("other"), "{logged}");
    assert!(!logged.contains("secret"), "{logged}");
}
