//! Helpers for tests of one owner.
//!
//! Owns: a configuration with nothing in it, and a step whose outputs are returned.
//! Never: makes a whole host.

use std::collections::{BTreeMap, VecDeque};

use ahp_types::commands::Implementation;

use super::configuration::directories::Findings;
use super::effects::{Ids, Now, Output};
use super::limits::Limits;
use super::log::ReplayWindow;
use super::{nothing_to_configure, Config, Start, Step};

/// Gives the same id each time.
struct SameId;

impl Ids for SameId {
    fn fresh(&mut self) -> String {
        "id".to_owned()
    }
}

/// Returns the configuration of a host without agents, at its first start.
pub(super) fn config() -> Config {
    Config {
        server_info: Implementation { name: "host".to_owned(), version: None, title: None },
        agents: Vec::new(),
        root_schema: nothing_to_configure(),
        replay_window: ReplayWindow::default(),
        start: Start::default(),
        memory_budget: usize::MAX,
        limits: Limits::default(),
    }
}

/// Does something in a step. Returns its outputs.
pub(super) fn outputs_of(act: impl FnOnce(&mut Step<'_>)) -> Vec<Output> {
    let mut out = Vec::new();
    act(&mut Step {
        now: Now { unix_ms: 0, monotonic_ms: 0 },
        ids: &mut SameId,
        out: &mut out,
        past: None,
        findings: Findings::new(),
        refused_watches: BTreeMap::new(),
        facts: VecDeque::new(),
    });
    out
}
