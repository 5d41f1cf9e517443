//! Supported protocol versions, and which one a client's first messages ask for.
//!
//! Owns: the list of versions, negotiation, and the signs that tell versions of one name apart.
//! Never: translates.

use ahp_types::version::negotiate_protocol_version;
use serde_json::Value;

use super::node::Object;
use crate::host::effects::Abilities;
use crate::wire::errors::RpcError;

macro_rules! dialects {
    ($($(#[$doc:meta])? $variant:ident = $name:literal,)*) => {
        /// Version of the protocol on the wire, in ascending order.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs)]
        pub enum Dialect {
            $($(#[$doc])? $variant,)*
        }

        impl Dialect {
            /// Every version, oldest first.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Returns the version's name on the command line, in the README and in the store.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

dialects! {
    /// Integer version 1 as its first page describes it, with other action names.
    Draft = "1-draft",
    /// Integer version 1 as the crate 0.1.0 speaks it.
    Integer = "1",
    V0_1_0 = "0.1.0",
    V0_2_0 = "0.2.0",
    V0_3_0 = "0.3.0",
    V0_4_0 = "0.4.0",
    V0_5_0 = "0.5.0",
    V0_5_1 = "0.5.1",
    V0_5_2 = "0.5.2",
    V0_6_0 = "0.6.0",
    V0_7_0 = "0.7.0",
    V0_8_0 = "0.8.0",
    V0_9_0 = "0.9.0",
    V1_0_0 = "1.0.0",
    /// Next release, as far as it is settled: only with `--preview 1.1`.
    V1_1_0 = "1.1.0",
}

impl Default for Dialect {
    fn default() -> Self {
        Self::NEWEST
    }
}

fn number_of(version: &str) -> Option<[u64; 3]> {
    let parts: Option<Vec<u64>> = version.split('.').map(|part| part.parse().ok()).collect();
    parts?.try_into().ok()
}

impl Dialect {
    /// Newest released version, which the core speaks unless a preview is on. Later versions are
    /// previews: each is offered only where its option is given.
    pub const NEWEST: Self = Self::V1_0_0;

    /// Versions that can be previewed, by their names in the option. Those that are released stay
    /// here: their option has no effect any more.
    pub const PREVIEWS: &'static [(&'static str, Self)] = &[("1.1", Self::V1_1_0)];

    /// Returns the released versions, oldest first.
    pub fn released() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(|dialect| *dialect <= Self::NEWEST)
    }

    /// Returns the version that the core speaks with this preview, if any.
    pub fn spoken(preview: Option<Self>) -> Self {
        preview.map_or(Self::NEWEST, |preview| preview.max(Self::NEWEST))
    }

    /// Returns the version of a preview by its name in the option.
    pub fn preview(name: &str) -> Option<Self> {
        Self::PREVIEWS.iter().find(|(known, _)| *known == name).map(|(_, dialect)| *dialect)
    }

    /// Returns the version with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|dialect| dialect.name() == name)
    }

    /// Returns the version that serves a version number. Before 1.0.0 a minor number breaks
    /// compatibility, after it a major one. None is newer than `newest`.
    fn of(offered: [u64; 3], newest: Self) -> Option<Self> {
        let series = |[major, minor, _]: [u64; 3]| (major, if major == 0 { minor } else { 0 });
        let serves = |dialect: &Self| {
            number_of(dialect.name())
                .is_some_and(|number| series(number) == series(offered) && number <= offered)
        };
        Self::ALL.iter().copied().filter(|dialect| *dialect <= newest).rfind(serves)
    }

    /// Returns whether messages have the member `channel`; before, each method had its own.
    pub fn names_channels(self) -> bool {
        self >= Self::V0_2_0
    }

    /// Returns whether connections are notified of sessions without a subscription to the root.
    pub fn notifies_everybody(self) -> bool {
        self <= Self::V0_1_0
    }

    /// Returns whether a session's state contains its summary and the selected model.
    pub fn has_summaries_in_states(self) -> bool {
        self <= Self::V0_4_0
    }

    /// Returns whether a session is one conversation, without chats.
    pub fn has_turns_in_sessions(self) -> bool {
        self <= Self::V0_3_0
    }

    /// Returns whether a missed action can be replayed without the state before it.
    pub fn can_replay(self, action: &str) -> bool {
        match action {
            "chat/turnResume" => self >= Self::V0_9_0,
            "session/workingDirectoryReplaced" => self >= Self::V0_8_0,
            "chat/draftChanged" | "session/activeClientSet" | "session/activeClientRemoved" => {
                self >= Self::V0_5_0
            }
            // With the first chat, its pending messages are removed.
            "session/chatRemoved" => self >= Self::V0_4_0,
            _ => self > Self::Draft,
        }
    }

    /// Returns the abilities of the version's clients.
    pub fn abilities(self) -> Abilities {
        Abilities {
            sees_questions: self > Self::Draft,
            // Some answer with an error.
            answers_requests: self >= Self::V0_5_2,
            resumes_turns: self >= Self::V0_9_0,
        }
    }

    /// Returns whether some translations need the state that an action changes.
    pub fn needs_states(self) -> bool {
        self <= Self::V0_8_0
    }
}

/// Outcome of a client's handshake.
#[derive(Debug, Clone, PartialEq)]
pub struct Negotiation {
    /// Version of the connection.
    pub dialect: Dialect,
    /// Version in the answer, exactly as the client offered it.
    pub answer: Value,
    /// Set if a later message may show that another version is meant.
    pub doubtful: bool,
}

/// Chooses a version by the params of `initialize`, or `assumed` where they leave it open. The
/// newest version that is served is `newest`.
///
/// # Errors
/// `-32005` when no offered version is served; `-32602` when the params offer none.
pub fn negotiate(
    params: &Object,
    assumed: Option<Dialect>,
    newest: Dialect,
) -> Result<Negotiation, RpcError> {
    let older = params.get("protocolVersion");
    if let Some(offer) = params.get("protocolVersions") {
        let offered: Vec<Value> = serde_json::from_value(offer.clone())
            .map_err(|why| RpcError::invalid_params(format_args!("`protocolVersions`: {why}")))?;
        let chosen = negotiate_list(params, &offered, assumed, newest);
        if chosen.is_ok() || older.is_none() {
            return chosen;
        }
    }
    let Some(offer) = older else {
        return Err(RpcError::invalid_params("missing field `protocolVersions`"));
    };
    match offer {
        Value::Number(number) if number.as_i64() == Some(1) => {
            let sign = integer_sign_in_handshake(params);
            let doubtful = sign.is_none();
            let assumed = assumed.filter(|assumed| *assumed <= Dialect::Integer);
            Ok(Negotiation {
                dialect: sign.or(assumed).unwrap_or(Dialect::Integer),
                answer: offer.clone(),
                doubtful: doubtful && assumed.is_none(),
            })
        }
        Value::Number(_) => Err(unsupported(newest)),
        _ => Err(RpcError::invalid_params("`protocolVersion` must be a number; or offer `protocolVersions`")),
    }
}

/// Chooses the highest version that is served. Invalid entries are skipped if others are valid.
fn negotiate_list(
    params: &Object,
    offered: &[Value],
    assumed: Option<Dialect>,
    newest: Dialect,
) -> Result<Negotiation, RpcError> {
    let mut wrong = None;
    let mut versions: Vec<&str> = Vec::new();
    for offer in offered {
        // The newest crate defines what a version number is.
        let version = offer.as_str().ok_or_else(|| format!("`{offer}` is no text"));
        let known = version.and_then(|version| match negotiate_protocol_version(&[version.to_owned()]) {
            Ok(_) => Ok(version),
            Err(why) => Err(why.to_string()),
        });
        match known {
            Ok(version) => versions.push(version),
            Err(why) => wrong = wrong.or(Some(why)),
        }
    }
    if let (Some(why), true) = (&wrong, versions.is_empty()) {
        return Err(RpcError::invalid_params(format_args!("`protocolVersions`: {why}")));
    }
    if let Some(why) = wrong {
        tracing::warn!(why, "an entry of `protocolVersions` was passed over");
    }
    let highest = versions
        .into_iter()
        .filter_map(|version| {
            let number = number_of(version)?;
            Some((number, Dialect::of(number, newest)?, version))
        })
        .max_by_key(|(number, ..)| *number);
    let Some((_, dialect, version)) = highest else { return Err(unsupported(newest)) };
    let mut choice = Negotiation { dialect, answer: version.into(), doubtful: false };
    // The examples of all crates since 0.2.0 offer 0.1.0, which has no `channel`. A client that
    // copied them speaks a later version, most likely a late one.
    if dialect == Dialect::V0_1_0 && params.contains_key("channel") {
        choice.dialect = assumed.filter(|assumed| assumed.names_channels()).unwrap_or(Dialect::V0_5_1);
        tracing::warn!(
            assumed = choice.dialect.name(),
            "a client offers 0.1.0 in the shape of a later version; --assume-version says which"
        );
    }
    Ok(choice)
}

/// Returns which of the two versions that call themselves 1 the params of `initialize` fit.
fn integer_sign_in_handshake(params: &Object) -> Option<Dialect> {
    let wanted = params.get("initialSubscriptions").and_then(Value::as_array);
    wanted
        .into_iter()
        .flatten()
        .find_map(|uri| root_sign(uri.as_str()?))
        .or_else(|| params.contains_key("locale").then_some(Dialect::Integer))
}

fn root_sign(uri: &str) -> Option<Dialect> {
    match uri {
        "agenthost:root" => Some(Dialect::Draft),
        "agenthost:/root" | "root:/" => Some(Dialect::Integer),
        _ => None,
    }
}

/// Returns which of the two versions that call themselves 1 a message fits.
pub fn integer_sign(method: &str, params: &Object) -> Option<Dialect> {
    let either = |draft| Some(if draft { Dialect::Draft } else { Dialect::Integer });
    match method {
        "subscribe" | "unsubscribe" => root_sign(params.get("resource")?.as_str()?),
        "fetchContent" | "browseDirectory" => Some(Dialect::Draft),
        "createSession" => match params.get("model") {
            Some(model) => either(model.is_string()),
            None => ["workingDirectory", "config", "activeClient", "fork"]
                .iter()
                .any(|member| params.contains_key(*member))
                .then_some(Dialect::Integer),
        },
        "fetchTurns" => match (params.contains_key("range"), params.contains_key("before")) {
            (true, _) => Some(Dialect::Draft),
            (false, true) => Some(Dialect::Integer),
            _ => None,
        },
        "dispatchAction" => {
            let action = params.get("action")?;
            match action.get("type")?.as_str()? {
                "session/permissionResolved" => Some(Dialect::Draft),
                "session/modelChanged" => either(action.get("model")?.is_string()),
                "session/turnStarted" => {
                    let attachment = action.get("userMessage")?.get("attachments")?.get(0)?;
                    match (attachment.get("path"), attachment.get("uri")) {
                        (Some(_), _) => Some(Dialect::Draft),
                        (None, Some(_)) => Some(Dialect::Integer),
                        _ => None,
                    }
                }
                "session/turnCancelled" => None,
                // The first page has no other client actions.
                _ => Some(Dialect::Integer),
            }
        }
        "initialize" | "reconnect" | "disposeSession" | "listSessions" | "ping" => None,
        _ => Some(Dialect::Integer),
    }
}

/// Returns the version that the shape of a `reconnect` shows, if any.
pub fn reconnect_sign(params: &Object) -> Option<Dialect> {
    if params.contains_key("channel") {
        return None;
    }
    let subscriptions = params.get("subscriptions").and_then(Value::as_array);
    subscriptions.into_iter().flatten().find_map(|uri| match uri.as_str()? {
        // Two versions have this name. Clients of both can read the later one.
        "agenthost:/root" => Some(Dialect::V0_1_0),
        uri => root_sign(uri),
    })
}

fn unsupported(newest: Dialect) -> RpcError {
    let served = |dialect: &&Dialect| (Dialect::V0_1_0..=newest).contains(*dialect);
    let names = Dialect::ALL.iter().rev().filter(served);
    RpcError::unsupported_protocol_version(&names.map(|dialect| dialect.name()).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn choose(params: Value) -> Result<(Dialect, Value), i32> {
        let Value::Object(params) = params else { panic!("params are an object") };
        negotiate(&params, None, Dialect::NEWEST)
            .map(|choice| (choice.dialect, choice.answer))
            .map_err(|error| error.code)
    }

    /// Chooses among offers as a host does whose preview of 1.1.0 is on.
    fn choose_in_preview(offered: &[&str]) -> Result<(Dialect, Value), i32> {
        let Value::Object(params) = json!({ "protocolVersions": offered }) else { unreachable!() };
        negotiate(&params, None, Dialect::spoken(Dialect::preview("1.1")))
            .map(|choice| (choice.dialect, choice.answer))
            .map_err(|error| error.code)
    }

    #[test]
    fn preview_serves_its_version_to_those_that_offer_it_and_to_no_others() {
        for offered in
            [&["1.1.0", "1.0.0", "0.9.0"], &["0.9.0", "1.0.0", "1.1.0"], &["1.0.0", "1.1.0", "2.0.0"]]
        {
            assert_eq!(choose_in_preview(offered), Ok((Dialect::V1_1_0, json!("1.1.0"))), "{offered:?}");
            assert_eq!(choose_from(offered), Ok((Dialect::V1_0_0, json!("1.1.0"))), "{offered:?}");
        }
        assert_eq!(choose_in_preview(&["1.10.0", "1.9.9"]), Ok((Dialect::V1_1_0, json!("1.10.0"))));
        assert_eq!(choose_in_preview(&["1.0.0", "1.0.7"]), Ok((Dialect::V1_0_0, json!("1.0.7"))));
        assert_eq!(choose_in_preview(&["0.9.5", "0.8.0"]), Ok((Dialect::V0_9_0, json!("0.9.5"))));
        for offered in [&[][..], &["2.0.0", "0.10.0"], &["2.1.0"]] {
            assert_eq!(choose_in_preview(offered), Err(-32005), "{offered:?}");
        }
    }

    #[test]
    fn malformed_versions_are_refused_in_preview_too() {
        for wrong in
            ["1.1", "1.1.0.0", "v1.1.0", "01.1.0", "1.1.0-rc.1", "1.1.0+x", " 1.1.0", "1.1.0\n", "1..0", ""]
        {
            assert_eq!(choose_in_preview(&[wrong]), Err(-32602), "{wrong:?}");
            assert_eq!(choose_from(&[wrong]), Err(-32602), "{wrong:?}");
            assert_eq!(choose_in_preview(&[wrong, "1.1.0"]), Ok((Dialect::V1_1_0, json!("1.1.0"))));
        }
    }

    fn choose_from(offered: &[&str]) -> Result<(Dialect, Value), i32> {
        choose(json!({ "protocolVersions": offered }))
    }

    #[test]
    fn the_highest_compatible_offer_wins_whatever_the_order() {
        assert_eq!(choose_from(&["0.9.0", "1.0.0"]), Ok((Dialect::V1_0_0, json!("1.0.0"))));
        assert_eq!(choose_from(&["1.0.0", "1.7.3", "0.9.9"]), Ok((Dialect::V1_0_0, json!("1.7.3"))));
        assert_eq!(choose_from(&["2.0.0", "0.9.4"]), Ok((Dialect::V0_9_0, json!("0.9.4"))));
        assert_eq!(choose_from(&["0.5.1", "0.5.0"]), Ok((Dialect::V0_5_1, json!("0.5.1"))));
        assert_eq!(choose_from(&["0.4.0", "0.3.0"]), Ok((Dialect::V0_4_0, json!("0.4.0"))));
    }

    #[test]
    fn offers_that_are_too_old_too_new_or_no_versions_are_told_apart() {
        assert_eq!(choose_from(&[]), Err(-32005));
        assert_eq!(choose_from(&["0.0.9", "2.0.0", "0.10.0"]), Err(-32005));
        assert_eq!(choose_from(&["1.0"]), Err(-32602));
        assert_eq!(choose_from(&["zebra", "9.9.9"]), Err(-32005));
        assert_eq!(choose_from(&["1.0.0-rc.1"]), Err(-32602));
        assert_eq!(choose_from(&["01.0.0"]), Err(-32602));
        assert_eq!(choose(json!({ "protocolVersion": 2 })), Err(-32005));
        assert_eq!(choose(json!({ "protocolVersion": "1" })), Err(-32602));
        assert_eq!(choose(json!({})), Err(-32602));
    }

    #[test]
    fn an_entry_that_is_no_version_does_not_spoil_the_others() {
        assert_eq!(choose_from(&["1.0", "zebra", "0.9.0"]), Ok((Dialect::V0_9_0, json!("0.9.0"))));
        let mixed = json!({ "protocolVersions": [5, null, "0.3.0"] });
        assert_eq!(choose(mixed), Ok((Dialect::V0_3_0, json!("0.3.0"))));
        let both = json!({ "protocolVersion": 1, "protocolVersions": ["2.0.0"] });
        assert_eq!(choose(both), Ok((Dialect::Integer, json!(1))));
        assert_eq!(choose(json!({ "protocolVersion": 2, "protocolVersions": ["zebra"] })), Err(-32005));
    }

    #[test]
    fn what_calls_itself_the_same_is_told_apart_by_its_shape() {
        assert_eq!(choose(json!({ "protocolVersion": 1 })), Ok((Dialect::Integer, json!(1))));
        let draft = json!({ "protocolVersion": 1, "initialSubscriptions": ["agenthost:root"] });
        assert_eq!(choose(draft), Ok((Dialect::Draft, json!(1))));
        let pages = json!({ "protocolVersions": ["0.1.0"] });
        assert_eq!(choose(pages), Ok((Dialect::V0_1_0, json!("0.1.0"))));
        let copied = json!({ "protocolVersions": ["0.1.0"], "channel": "ahp-root://" });
        assert_eq!(choose(copied), Ok((Dialect::V0_5_1, json!("0.1.0"))));
    }
}
