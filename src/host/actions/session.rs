//! Client actions on a session's channel.
//!
//! Owns: their conditions and what follows from them.
//! Never: touches a chat's conversation.

use ahp_types::actions::ActionOrigin;

use crate::host::refusal::Refusal;

/// Clients come and go on their own account.
pub(crate) fn check_own_client(origin: &ActionOrigin, client_id: &str) -> Result<(), Refusal> {
    if client_id == origin.client_id {
        Ok(())
    } else {
        Err(Refusal::NotItself(origin.client_id.clone()))
    }
}
