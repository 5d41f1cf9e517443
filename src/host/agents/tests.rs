//! Tests of the registry of agents with a ledger alone.
//!
//! Owns: what is known of an agent, for how long, and who may use which token.
//! Never: starts an agent.

use serde_json::json;

use super::AgentRegistry;
use crate::host::effects::{named_model, AgentCommand, AgentDescription, Output, Record, SelfDescription};
use crate::host::testing::{actions_in, agent, outputs_of, registry, step_at, with_session, ME, MY_ID};
use crate::wire::rpc::Params;

const RESOURCE: &str = "https://example.com";

fn description(model: &str) -> SelfDescription {
    SelfDescription { models: Some(vec![named_model(model, "a", model)]), ..SelfDescription::default() }
}

fn models(agents: &AgentRegistry) -> Vec<&str> {
    agents.of("a").unwrap().info.models.iter().map(|model| model.id.as_str()).collect()
}

/// An agent that requires a token.
fn guarded() -> AgentDescription {
    let mut agent = agent("a", "");
    let resource = json!([{ "resource": RESOURCE }]);
    agent.info.protected_resources = Some(serde_json::from_value(resource).unwrap());
    agent
}

#[test]
fn description_of_an_agent_is_kept_for_the_same_program_alone() {
    let (mut ledger, mut agents) = (with_session(), registry(&[agent("a", "one")]));
    assert_eq!(models(&agents), ["default"], "one stands in for those that are not known");
    let mut learn = |agents: &mut AgentRegistry| {
        outputs_of(|step| agents.merge_description(&mut ledger, step, "a", description("large")))
    };
    let outputs = learn(&mut agents);
    assert!(
        matches!(&outputs[0], Output::Record(Record::AgentDescribed { provider, .. }) if provider == "a")
    );
    assert_eq!(actions_in(&outputs), ["root/agentsChanged"]);
    assert!(learn(&mut agents).is_empty(), "it is no news");
    agents.replace(vec![agent("b", ""), agent("a", "one")]);
    assert_eq!(models(&agents), ["large"]);
    assert_eq!(agents.default().unwrap().info.provider, "b", "the order is the operator's");
    agents.replace(vec![agent("a", "two")]);
    assert_eq!(models(&agents), ["default"], "another program has its name");
}

#[test]
fn commands_of_an_agent_are_a_customization_of_it() {
    let (mut ledger, mut agents) = (with_session(), registry(&[agent("a", "one")]));
    let command = |name: &str| AgentCommand {
        name: name.to_owned(),
        description: "Does it".to_owned(),
        argument_hint: None,
    };
    let commands = Some(vec![command("go on")]);
    let description =
        SelfDescription { commands, version: Some("1".to_owned()), ..SelfDescription::default() };
    let outputs = outputs_of(|step| agents.merge_description(&mut ledger, step, "a", description));
    assert!(actions_in(&outputs).contains(&"root/agentsChanged".to_owned()));
    let shown = serde_json::to_value(&ledger.channels.root.state.agents[0].customizations).unwrap();
    let child = json!({ "type": "prompt", "id": "agent:a#go on", "uri": "ahp-agent:/a/commands/go%20on",
        "name": "go on", "description": "Does it" });
    assert_eq!(
        shown,
        json!([{ "type": "plugin", "id": "agent:a", "uri": "ahp-agent:/a", "name": "a", "version": "1",
            "load": { "kind": "loaded" }, "children": [child] }])
    );
    let none = SelfDescription { commands: Some(Vec::new()), ..SelfDescription::default() };
    outputs_of(|step| agents.merge_description(&mut ledger, step, "a", none));
    assert_eq!(ledger.channels.root.state.agents[0].customizations, None);
}

#[test]
fn token_counts_for_a_declared_resource_until_it_expires() {
    let (mut ledger, mut agents) = (with_session(), registry(&[guarded()]));
    let push = |resource: &str| {
        Params::from_json(json!({ "resource": resource, "token": "secret", "expiresIn": 2 }).to_string())
    };
    let mut at = |ms, resource: Option<&str>| {
        let mut outcome = (false, false);
        step_at(ms, |step| {
            let pushed = resource.map(|it| agents.authenticate(&mut ledger, step, ME, &push(it)).is_ok());
            let agent = agents.of("a").unwrap();
            let missing = agents.check_tokens(&ledger, step, ME, agent).is_err();
            let is_given = agents.tokens_for_agent(&ledger, step, MY_ID, agent).contains_key(RESOURCE);
            assert_ne!(missing, is_given);
            outcome = (pushed.unwrap_or_default(), is_given);
        });
        outcome
    };
    assert_eq!(at(0, Some("https://elsewhere.example")), (false, false));
    assert_eq!(at(0, Some(RESOURCE)), (true, true));
    assert!(at(1999, None).1);
    assert!(!at(2000, None).1);
}

#[test]
fn agent_with_unknown_settings_is_probed_once_in_a_while() {
    let (ledger, mut agents) = (with_session(), registry(&[agent("a", "")]));
    let mut probes = |ms| step_at(ms, |step| agents.probe_agent(&ledger, step, ME, "a")).0.len();
    assert_eq!(
        [probes(0), probes(super::PROBE_INTERVAL_MS - 1), probes(super::PROBE_INTERVAL_MS)],
        [1, 0, 1]
    );
    let mut agents = registry(&[guarded()]);
    assert!(outputs_of(|step| agents.probe_agent(&ledger, step, ME, "a")).is_empty(), "a token is missing");
}
