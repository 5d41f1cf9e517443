//! Protocol versions: which one a connection speaks, and what that means for its messages.
//!
//! Owns: negotiation, and the translation of messages between the version of a connection and the newest
//! one, which is the only one that the core knows. [`Edge`] stands between a connection and the core.
//! Never: holds state of a channel. 0.9.0 needs no translation of what is served so far: all that 1.0.0
//! added to it is optional for its clients, and actions that they do not know are ignored by them.
#![deny(clippy::disallowed_methods)]

use ahp_types::version::{negotiate_protocol_version, SUPPORTED_PROTOCOL_VERSIONS};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::host::effects::Frame;
use crate::wire::errors::RpcError;
use crate::wire::methods::Method;
use crate::wire::rpc::{error_line, notification_line, result_line, to_json, Incoming};

/// One connection's side of the core: what comes in is translated up, what goes out down.
#[derive(Debug, Default)]
pub struct Edge {
    /// The version that the connection speaks, as its client offered it.
    version: Option<String>,
    /// The handshake is over: the version stands.
    open: bool,
}

/// What `initialize` says about versions.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Offer {
    protocol_versions: Vec<String>,
}

impl Edge {
    /// Translates a message up. An `initialize` whose versions cannot be served is turned into what its
    /// error answers.
    pub fn up(&mut self, message: Incoming) -> Incoming {
        let Incoming::Request { id, method, params } = &message else { return message };
        if self.open || method != Method::Initialize.name() {
            return message;
        }
        match params.read().and_then(|offer: Offer| negotiate(&offer.protocol_versions)) {
            Ok(version) => {
                self.version = Some(version);
                message
            }
            Err(error) => Incoming::Malformed { id: Some(id.clone()), error },
        }
    }

    /// Translates a frame down, to the line that goes out.
    pub fn down(&mut self, frame: &Frame) -> Bytes {
        if matches!(frame, Frame::Result { method: Method::Initialize | Method::Reconnect, .. }) {
            self.open = true;
        }
        match frame {
            Frame::Action(action) => action.line.clone(),
            Frame::Answer(line) => line.clone(),
            Frame::Notification { method, params } => notification_line(method, params),
            Frame::Error { id, error } => error_line(id.as_ref(), error),
            Frame::Result { id, method: Method::Initialize, result } => {
                let mut result: Map<String, Value> = serde_json::from_slice(result).unwrap_or_default();
                let version = self.version.clone().unwrap_or_default();
                result.insert("protocolVersion".to_owned(), Value::String(version));
                result_line(id, &to_json(&result))
            }
            Frame::Result { id, result, .. } => result_line(id, result),
        }
    }
}

/// The highest offered version that is compatible with one that we speak, exactly as it was offered.
fn negotiate(offered: &[String]) -> Result<String, RpcError> {
    match negotiate_protocol_version(offered) {
        Ok(Some(version)) => Ok(version.to_owned()),
        Ok(None) => Err(RpcError::unsupported_protocol_version(SUPPORTED_PROTOCOL_VERSIONS)),
        Err(why) => Err(RpcError::invalid_params(format_args!("`protocolVersions`: {why}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code_of(offered: &[&str]) -> Result<String, i32> {
        negotiate(&offered.iter().map(|&version| version.to_owned()).collect::<Vec<_>>())
            .map_err(|error| error.code)
    }

    #[test]
    fn the_highest_compatible_offer_wins_whatever_the_order() {
        assert_eq!(code_of(&["0.9.0", "1.0.0"]), Ok("1.0.0".to_owned()));
        assert_eq!(code_of(&["1.0.0", "1.7.3", "0.9.9"]), Ok("1.7.3".to_owned()));
        assert_eq!(code_of(&["2.0.0", "0.9.4"]), Ok("0.9.4".to_owned()));
    }

    #[test]
    fn offers_that_are_too_old_too_new_or_no_versions_are_told_apart() {
        assert_eq!(code_of(&[]), Err(-32005));
        assert_eq!(code_of(&["0.8.0", "2.0.0"]), Err(-32005));
        assert_eq!(code_of(&["1.0.0", "1.0"]), Err(-32602));
        assert_eq!(code_of(&["1.0.0-rc.1"]), Err(-32602));
        assert_eq!(code_of(&["01.0.0"]), Err(-32602));
    }
}
