//! Commands of agents, as customizations that clients can list.
//!
//! Owns: the form of an agent's commands as a customization of the agent.
//! Never: shows commands that the host itself describes, or lets a client switch one: agents cannot
//! be told that.

use ahp_types::state::{
    ChildCustomization, Customization, CustomizationLoadState, CustomizationLoadedState, PluginCustomization,
    PromptCustomization,
};

use crate::host::effects::{AgentCommand, SelfDescription};
use crate::wire::uris::encode_segment;

/// Maximum number of commands in a customization; completions know the others.
const COMMANDS_MAX: usize = 256;

/// Returns the customization with the commands that an agent has reported; `None` without any.
pub(super) fn customization_of(
    provider: &str,
    title: &str,
    description: &SelfDescription,
) -> Option<Customization> {
    let commands = description.commands.as_ref().filter(|commands| !commands.is_empty())?;
    let uri = format!("ahp-agent:/{}", encode_segment(provider));
    let children = commands.iter().take(COMMANDS_MAX).map(|command| prompt(provider, &uri, command));
    Some(Customization::Plugin(PluginCustomization {
        id: format!("agent:{provider}"),
        name: title.to_owned(),
        icons: None,
        range: None,
        meta: None,
        client_id: None,
        load: Some(CustomizationLoadState::Loaded(CustomizationLoadedState {})),
        children: Some(children.collect()),
        enablement: None,
        version: description.version.clone(),
        uri,
    }))
}

fn prompt(provider: &str, uri: &str, command: &AgentCommand) -> ChildCustomization {
    let AgentCommand { name, description, .. } = command;
    ChildCustomization::Prompt(PromptCustomization {
        id: format!("agent:{provider}#{name}"),
        uri: format!("{uri}/commands/{}", encode_segment(name)),
        name: name.clone(),
        icons: None,
        range: None,
        meta: None,
        enabled: None,
        description: Some(description.clone()).filter(|description| !description.is_empty()),
    })
}
