//! Shapes on the wire.
//!
//! Owns: lines ([`rpc`]), their members ([`members`]) and those of actions ([`action_lines`]);
//! methods ([`methods`]), errors ([`errors`]), and names in messages ([`references`]); kinds of
//! channels ([`channels`]), their URIs ([`uris`]), and those of watches ([`watches`]), terminals
//! ([`terminals`]), changesets ([`changesets`]), annotations ([`annotations`]), canvases
//! ([`canvases`]) and exported logs ([`telemetry`]); common members of tool calls
//! ([`tool_calls`]), selections ([`selection`]), texts for people ([`text`]), and escape sequences
//! ([`escapes`]). The types of the protocol are in the crate `ahp-types`.
//! Never: decides about state, does I/O, or uses another module of this crate but the constants of
//! [`crate::os::paths`].

pub mod action_lines;
pub mod annotations;
pub mod canvases;
pub mod changesets;
pub mod channels;
pub mod customizations;
pub mod errors;
pub mod escapes;
pub mod members;
pub mod methods;
pub mod references;
pub mod rpc;
pub mod selection;
pub mod telemetry;
pub mod terminals;
pub mod text;
pub mod tool_calls;
pub mod uris;
pub mod watches;
