//! Client actions on a session's channel.
//!
//! Owns: their conditions.
//! Never: touches a chat's conversation.

use ahp_types::actions::ActionOrigin;

use crate::host::refusal::Refusal;

/// Checks that a client adds or removes only itself as an active client.
pub(crate) fn check_own_client(origin: &ActionOrigin, client_id: &str) -> Result<(), Refusal> {
    if client_id == origin.client_id {
        Ok(())
    } else {
        Err(Refusal::NotItself(origin.client_id.clone()))
    }
}
