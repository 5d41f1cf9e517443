//! The host is asked to leave, by a signal.
//!
//! Owns: that it is gone in time, whatever goes on.
//! Never: measures how long anything takes. What is looked at is until when the loop waits, and
//! that it waits no longer.

use serde_json::json;
use tokio::time::{timeout, Instant};

use super::{turn, World, HUNG, SESSION};
use crate::backend::script::Script;
use crate::backend::{Backend, HostLine, RunningConversation, Stopping};
use crate::host::effects::{AgentDescription, OpenConversation};
use crate::io::outbox::OutboxLimits;
use crate::io::persistence::Persistence;
use crate::io::run::leaving::{AGENTS_WITHIN, LEAVE_WITHIN};
use crate::os::hangup::LeaveReason;
use crate::wire::uris::default_chat_of;

/// Like the agent `script`, but nothing that it is told is heard, and it cannot be stopped.
struct Deaf;

impl Backend for Deaf {
    fn describe(&self) -> AgentDescription {
        Script.describe()
    }

    fn converse(&self, _: OpenConversation, line: HostLine) -> RunningConversation {
        Box::pin(async move {
            let _line = line;
            std::future::pending().await
        })
    }

    fn stop(&self) -> Stopping {
        Box::pin(std::future::pending())
    }
}

/// A turn runs whose agent neither gives it up nor ends, a client reads nothing of what waits for
/// it, and others talk on.
#[tokio::test]
async fn it_is_gone_within_two_seconds_whatever_goes_on() {
    let mut world = World::with_agent(Persistence::in_memory(), OutboxLimits::default(), Box::new(Deaf));
    world.sidecar.begin().unwrap();
    let mut talks = world.client("talks", "1.0.0").await;
    let chat = default_chat_of(SESSION);
    world.ask(&mut talks, "createSession", json!({ "channel": SESSION })).await;
    world.ask(&mut talks, "subscribe", json!({ "channel": chat })).await;
    talks.dispatches(&chat, turn("t", "/hang"));
    let mut stuck = world.open(true);
    stuck.asks("initialize", json!({ "clientId": "stuck", "protocolVersions": ["1.0.0"] }));
    world.settle().await;
    assert_eq!(world.sidecar.host.running_turns(), 1);
    assert!(world.sidecar.links.iter().any(|link| link.outbox.bytes() > 0), "nobody reads");

    assert!(
        world.sidecar.receive_leave_reason(LeaveReason::Asked("SIGTERM")).is_none(),
        "what is due is done before"
    );
    let (leave_by, agents_by) =
        (world.sidecar.departure.by.unwrap(), world.sidecar.departure.agents_by.unwrap());
    let now = Instant::now();
    assert!(leave_by <= now + LEAVE_WITHIN && agents_by <= now + AGENTS_WITHIN);
    world.settle().await;
    assert_eq!(
        (world.sidecar.departure.by, world.sidecar.departure.agents_by),
        (Some(leave_by), Some(agents_by))
    );

    // These times are up.
    (world.sidecar.departure.by, world.sidecar.departure.agents_by) = (Some(now), Some(now));
    let leaves = async {
        while world.sidecar.turn(&mut world.events).await.unwrap().is_none() {
            talks.asks("ping", json!({ "channel": "ahp-root://" }));
        }
        world.sidecar.stop_agents().await;
    };
    timeout(HUNG, leaves).await.expect("it does not leave");
}
