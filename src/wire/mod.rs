//! Shapes on the wire, and nothing that acts.
//!
//! Owns: what a line is ([`rpc`]) and which members it has ([`members`]), one that tells of an
//! action ([`action_lines`]), which methods exist ([`methods`]), which errors we give ([`errors`]),
//! what messages are for ([`selection`]), which kinds of channels there are ([`channels`]), how
//! they are called ([`uris`]), what one of a watch says ([`watches`]), one of a terminal
//! ([`terminals`]), of a changeset ([`changesets`]) and of annotations ([`annotations`]), what all
//! states of a tool call have ([`tool_calls`]), what a message names ([`references`]), and what may
//! stand in a message for people ([`text`]). The types of the protocol itself are those of the
//! crate `ahp-types`.
//! Never: decides anything about state, does I/O, or knows another module of ours.

pub mod action_lines;
pub mod annotations;
pub mod changesets;
pub mod channels;
pub mod errors;
pub mod escapes;
pub mod members;
pub mod methods;
pub mod references;
pub mod rpc;
pub mod selection;
pub mod terminals;
pub mod text;
pub mod tool_calls;
pub mod uris;
pub mod watches;
