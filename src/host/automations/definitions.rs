//! Definitions of automations, and their limits.
//!
//! Owns: what a definition may say, and the changes that a client asks for.
//! Never: knows runs.

use std::collections::BTreeSet;

use ahp_types::state::{
    AutomationDefinition, AutomationDefinitionPatch, AutomationDisableCondition, AutomationMisfirePolicy,
    AutomationSchedule, AutomationTrigger, MessageAttachment, MessageKind,
};
use jiff::civil::DateTime;
use jiff::Timestamp;

use super::cron::Cron;
use super::{refuse, AutomationSettings, TimeZones};
use crate::host::agents::AgentRegistry;
use crate::host::configuration::requests::find_agent;
use crate::host::limits::{check_id, URI_BYTES_MAX};
use crate::host::refusal::Refusal;
use crate::wire::rpc::json_bytes;
use crate::wire::text;
use crate::wire::uris::is_automation;

/// Maximum size of a definition as JSON text, in bytes.
const BYTES_MAX: usize = 64 << 10;

/// Maximum length of a title and of the id of a trigger, in bytes.
const NAME_BYTES_MAX: usize = 1024;

/// Maximum number of triggers of an automation.
const TRIGGERS_MAX: usize = 16;

/// Checks that a new automation can have this URI.
pub(super) fn check_uri(uri: &str) -> Result<(), Refusal> {
    check_id("resource", uri, URI_BYTES_MAX)?;
    is_automation(uri)
        .then_some(())
        .ok_or_else(|| refuse("the URI of an automation is `ahp-automation:/<id>`"))
}

/// Returns a definition with the changes of a client.
pub(super) fn patched(
    mut definition: AutomationDefinition,
    changes: AutomationDefinitionPatch,
) -> AutomationDefinition {
    let AutomationDefinitionPatch { title, message, session, enabled, triggers, disable_conditions, meta } =
        changes;
    definition.title = title.unwrap_or(definition.title);
    definition.message = message.unwrap_or(definition.message);
    definition.session = session.unwrap_or(definition.session);
    definition.enabled = enabled.unwrap_or(definition.enabled);
    definition.triggers = triggers.unwrap_or(definition.triggers);
    definition.disable_conditions = disable_conditions.or(definition.disable_conditions);
    definition.meta = meta.or(definition.meta);
    definition
}

/// Returns a definition without empty lists, if it is valid.
pub(super) fn checked(
    mut definition: AutomationDefinition,
    agents: &AgentRegistry,
    settings: &AutomationSettings,
    now: Timestamp,
) -> Result<AutomationDefinition, Refusal> {
    check_id("title", &definition.title, NAME_BYTES_MAX)?;
    if json_bytes(&definition) > BYTES_MAX {
        return Err(refuse(format_args!("the definition exceeds {BYTES_MAX} bytes")));
    }
    let message = &definition.message;
    if message.origin.kind != MessageKind::Automation {
        return Err(refuse("`message.origin.kind` must be `automation`"));
    }
    let is_of_session =
        |it: &MessageAttachment| matches!(it, MessageAttachment::Chat(_) | MessageAttachment::Annotations(_));
    if message.attachments.iter().flatten().any(is_of_session) {
        return Err(refuse("`message.attachments`: an automation cannot attach chats or annotations"));
    }
    if definition.session.customizations.as_ref().is_some_and(|plugins| !plugins.is_empty()) {
        return Err(refuse("`session.customizations`: this host captures no plugins for automations"));
    }
    find_agent(agents, definition.session.provider.as_deref()).map_err(|error| refuse(error.message))?;
    if definition.triggers.len() > TRIGGERS_MAX {
        return Err(refuse(format_args!("an automation has at most {TRIGGERS_MAX} triggers")));
    }
    let mut ids = BTreeSet::new();
    for trigger in &definition.triggers {
        let AutomationTrigger::Schedule(trigger) = trigger else {
            return Err(refuse("`triggers`: this host knows no events that could start a run"));
        };
        check_id("triggers.id", &trigger.id, NAME_BYTES_MAX)?;
        if !ids.insert(&trigger.id) {
            return Err(refuse(format_args!("two triggers have the id `{}`", trigger.id)));
        }
        if let Some(AutomationMisfirePolicy::Unknown(policy)) = &trigger.misfire_policy {
            let policy = text::one_line(text::first_bytes(policy, 100));
            return Err(refuse(format_args!("`misfirePolicy`: `{policy}` is neither `runOnce` nor `skip`")));
        }
        let cron = cron_of(&trigger.schedule, &settings.zones).map_err(refuse)?;
        let minutes = i64::from(settings.rules.min_interval_minutes.get());
        if minutes > 1 && cron.smallest_interval(now).is_some_and(|smallest| smallest < minutes) {
            return Err(refuse(format_args!(
                "`{}` occurs more often than every {minutes} minutes, which the operator does not allow",
                trigger.schedule.expression
            )));
        }
    }
    check_conditions(definition.disable_conditions.as_deref().unwrap_or_default())?;
    definition.disable_conditions = definition.disable_conditions.filter(|conditions| !conditions.is_empty());
    Ok(definition)
}

fn check_conditions(conditions: &[AutomationDisableCondition]) -> Result<(), Refusal> {
    let (mut runs, mut dates) = (0, 0);
    for condition in conditions {
        match condition {
            AutomationDisableCondition::AfterRuns(after) => {
                runs += 1;
                if after.max < 1 {
                    return Err(refuse("`disableConditions`: `max` must be at least 1"));
                }
            }
            AutomationDisableCondition::AfterDate(after) => {
                dates += 1;
                if date_of(&after.date).is_none() {
                    return Err(refuse(format_args!(
                        "`disableConditions`: `{}` is no time in ISO 8601",
                        after.date
                    )));
                }
            }
        }
    }
    if runs > 1 || dates > 1 {
        return Err(refuse("`disableConditions`: each kind may occur once"));
    }
    Ok(())
}

/// Reads the time of a condition. The end of the year 9999, by which people mean never, is later
/// than the latest time that can be computed with.
pub(super) fn date_of(text: &str) -> Option<Timestamp> {
    let latest = || {
        let local = text.strip_suffix(['Z', 'z'])?.parse::<DateTime>().ok()?;
        (local.year() == 9999).then_some(Timestamp::MAX)
    };
    text.parse().ok().or_else(latest)
}

/// Reads a schedule. The error is for people.
pub(super) fn cron_of(schedule: &AutomationSchedule, zones: &TimeZones) -> Result<Cron, String> {
    let AutomationSchedule { expression, time_zone } = schedule;
    let zone = zones.get(time_zone).ok_or_else(|| format!("`{time_zone}` is no known time zone"))?;
    Cron::parse(expression, zone).map_err(|why| format!("`{expression}` is no cron expression: {why}"))
}

/// Returns the number of scheduled runs after which a definition disables itself.
pub(super) fn runs_max(definition: &AutomationDefinition) -> Option<i64> {
    definition.disable_conditions.iter().flatten().find_map(|condition| match condition {
        AutomationDisableCondition::AfterRuns(after) => Some(after.max),
        AutomationDisableCondition::AfterDate(_) => None,
    })
}
