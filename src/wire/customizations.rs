//! Customizations on the wire.
//!
//! Owns: what the translation of older versions tells the host about a list of decisions.
//! Never: reads a list.

/// Kind at the end of a list of decisions of a client whose version knows no scopes: its list is
/// about the session alone, and the decisions for other scopes stay as they are. No client is sent
/// this kind.
pub const OTHER_SCOPES: &str = "ahpSidecar.otherScopes";
