//! One version's official crates behind one trait, so that the judge is written once.
//!
//! Owns: what parsing strictly means, the short list of what a crate cannot parse although the host
//! is right, and [`official!`], which makes a judge of a crate pair.
//! Never: knows more of a version than the names of its crates' modules and types. All of them have
//! the same ones, but for the wrapped notifications of 0.1.0 and the chats that came with 0.4.0.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

use anyhow::{bail, Context, Result};
use serde::de::DeserializeOwned;
use serde::Serialize;
use serde_json::Value;

use super::dialect::{Dialect, V0_1_0, V0_6_0, V1_0_0};
use super::process::Pipes;

/// The crates `ahp` and `ahp-types` of one version. Values go in and come out as the crates' types
/// write them.
pub trait Official: Send + Sync {
    fn dialect(&self) -> Dialect;

    /// Params as the crate writes them; fails when its type does not hold all of them.
    fn says(&self, method: &str, params: &Value) -> Result<Value>;

    /// A line as one of the four shapes of a message.
    fn reads_message(&self, line: &str) -> Result<Value>;

    /// The result of this method.
    fn reads_result(&self, method: &str, result: &Value) -> Result<Value>;

    /// The params of a notification.
    fn reads_notification(&self, method: &str, params: &Value) -> Result<Value>;

    /// A state that the crate's reducers go on with.
    fn holds(&self, snapshot: &Value) -> Result<Box<dyn Held>>;

    /// The crate's client, on a child's pipes.
    fn connects(&self, pipes: Pipes) -> Later<'static, Box<dyn OfficialClient>>;
}

/// A channel's state, as the crate's types hold it.
pub trait Held: Debug {
    /// Returns the kind of the state: the variant of the crate's `SnapshotState`.
    fn kind(&self) -> Kind;

    /// Applies an action with the crate's reducer and returns what the reducer says, as its crate
    /// spells it.
    fn apply(&mut self, action: &Value) -> Result<String>;

    /// The state as the crate's types write it.
    fn view(&self) -> Result<Value>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Root,
    Session,
    Chat,
    Annotations,
    Watch,
    Terminal,
}

pub type Later<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + 'a>>;

/// The crate's own client, as its users use it.
pub trait OfficialClient {
    fn initialize(&self, client_id: &str, channels: Vec<String>) -> Later<'_, Value>;
    fn reconnect(&self, client_id: &str, cursor: i64, channels: Vec<String>) -> Later<'_, Value>;
    fn subscribe(&self, channel: &str) -> Later<'_, (Value, Box<dyn Subscription>)>;
    fn request(&self, method: &'static str, params: Value) -> Later<'_, Value>;
    fn dispatch(&self, channel: &str, action: &Value) -> Later<'_, ()>;
    fn shutdown(&self) -> Later<'_, ()>;
}

/// Subscription of the crate's client to one channel.
pub trait Subscription {
    /// The next envelope of an action.
    fn next(&mut self) -> Later<'_, Value>;

    /// The next envelope, if one has been delivered.
    fn waiting(&mut self) -> Result<Option<Value>>;
}

/// Something that a crate reads as `Unknown` although the host is right.
struct Tolerated {
    since: Dialect,
    until: Dialect,
    /// Marker of the unknown value in the debug output.
    mark: &'static str,
}

/// The whole list.
const TOLERATED: [Tolerated; 2] = [
    // The pages of 0.1.0 have this part, and its crate does not.
    Tolerated { since: V0_1_0, until: V0_1_0, mark: r#""kind": String("systemNotification")"# },
    // The struct of this tool call wants a second member `status`, which the tag of its union has
    // consumed: no such call parses as itself, not even one that the crate has written.
    Tolerated { since: V0_6_0, until: V1_0_0, mark: r#""status": String("auth-required")"# },
];

/// Reads all of a value as `T`, in which nothing is unknown.
pub fn strictly<T: DeserializeOwned + Debug>(dialect: Dialect, value: &Value) -> Result<T> {
    let name = std::any::type_name::<T>();
    let read = T::deserialize(value).with_context(|| format!("no {name}: {value}"))?;
    let shown = format!("{read:?}");
    for unknown in unknowns(&shown) {
        let known =
            TOLERATED.iter().any(|it| (it.since..=it.until).contains(&dialect) && unknown.contains(it.mark));
        if !known {
            bail!("{name} has something unknown in it: {unknown}\nin {value}");
        }
    }
    Ok(read)
}

/// Reads a value strictly, and writes it as `T` does.
pub fn rewritten<T: DeserializeOwned + Serialize + Debug>(dialect: Dialect, value: &Value) -> Result<Value> {
    Ok(serde_json::to_value(strictly::<T>(dialect, value)?)?)
}

/// Writes a value as `T` does, and fails when that leaves something out: a mistake of the judge.
pub fn spoken<T: DeserializeOwned + Serialize + Debug>(dialect: Dialect, value: &Value) -> Result<Value> {
    let written = rewritten::<T>(dialect, value)?;
    anyhow::ensure!(
        written == *value,
        "not {}: {value}\nit is written {written}",
        std::any::type_name::<T>()
    );
    Ok(written)
}

/// Every variant `Unknown` in debug output, with what it holds. All unions and open enums of the
/// crates call what they do not know so, and all their types show themselves by the derived
/// `Debug`; strings are quoted.
fn unknowns(shown: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut open: Vec<(usize, usize)> = Vec::new();
    let (mut depth, mut word, mut in_string, mut escaped) = (0, 0, false, false);
    for (at, byte) in shown.bytes().enumerate() {
        if in_string {
            (in_string, escaped) = (escaped || byte != b'"', !escaped && byte == b'\\');
            word = at + 1;
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'(' => {
                if &shown[word..at] == "Unknown" {
                    open.push((depth, word));
                }
                depth += 1;
            }
            b')' => {
                depth -= 1;
                if open.last().is_some_and(|(opened, _)| *opened == depth) {
                    found.extend(open.pop().map(|(_, start)| &shown[start..=at]));
                }
            }
            _ => {}
        }
        if !(byte.is_ascii_alphanumeric() || byte == b'_') {
            word = at + 1;
        }
    }
    found
}

/// Makes a judge named `$name` of the crates `$ahp` and `$types`; the last word is `wrapped` for
/// 0.1.0, `sessions` for the versions without chats, and `chats` for all others.
macro_rules! official {
    ($name:ident, $dialect:expr, $ahp:ident, $types:ident, $family:ident) => {
        #[derive(Debug)]
        pub struct $name;

        const _: () = {
            use anyhow::{bail, Context, Result};
            use serde_json::Value;
            use $ahp::reducers;
            use $types::{actions, commands, messages, state};

            use super::shared::official::{
                rewritten, spoken, strictly, Held, Kind, Later, Official, OfficialClient, Subscription,
            };
            use super::shared::process::Pipes;

            const DIALECT: Dialect = $dialect;

            impl Official for $name {
                fn dialect(&self) -> Dialect {
                    DIALECT
                }

                fn says(&self, method: &str, params: &Value) -> Result<Value> {
                    match method {
                        "initialize" => spoken::<commands::InitializeParams>(DIALECT, params),
                        "reconnect" => spoken::<commands::ReconnectParams>(DIALECT, params),
                        "subscribe" => spoken::<commands::SubscribeParams>(DIALECT, params),
                        "unsubscribe" => spoken::<commands::UnsubscribeParams>(DIALECT, params),
                        "createSession" => spoken::<commands::CreateSessionParams>(DIALECT, params),
                        "disposeSession" => spoken::<commands::DisposeSessionParams>(DIALECT, params),
                        "listSessions" => spoken::<commands::ListSessionsParams>(DIALECT, params),
                        "dispatchAction" => spoken::<commands::DispatchActionParams>(DIALECT, params),
                        "createTerminal" => spoken::<commands::CreateTerminalParams>(DIALECT, params),
                        "disposeTerminal" => spoken::<commands::DisposeTerminalParams>(DIALECT, params),
                        "resourceRead" => spoken::<commands::ResourceReadParams>(DIALECT, params),
                        "resourceList" => spoken::<commands::ResourceListParams>(DIALECT, params),
                        "resourceWrite" => spoken::<commands::ResourceWriteParams>(DIALECT, params),
                        "resourceCopy" => spoken::<commands::ResourceCopyParams>(DIALECT, params),
                        "resourceMove" => spoken::<commands::ResourceMoveParams>(DIALECT, params),
                        "resourceDelete" => spoken::<commands::ResourceDeleteParams>(DIALECT, params),
                        other => official!(@says $family, commands, other, params),
                    }
                }

                fn reads_message(&self, line: &str) -> Result<Value> {
                    rewritten::<messages::JsonRpcMessage>(
                        DIALECT,
                        &serde_json::from_str(line).context("not JSON")?,
                    )
                }

                fn reads_result(&self, method: &str, result: &Value) -> Result<Value> {
                    match method {
                        "initialize" => rewritten::<commands::InitializeResult>(DIALECT, result),
                        "reconnect" => rewritten::<commands::ReconnectResult>(DIALECT, result),
                        "subscribe" => rewritten::<commands::SubscribeResult>(DIALECT, result),
                        "listSessions" => rewritten::<commands::ListSessionsResult>(DIALECT, result),
                        "createSession" | "disposeSession" | "createTerminal" | "disposeTerminal"
                        | "ping" | "createChat" | "disposeChat" | "unsubscribe" | "dispatchAction" => {
                            rewritten::<()>(DIALECT, result)
                        }
                        "authenticate" => rewritten::<commands::AuthenticateResult>(DIALECT, result),
                        "fetchTurns" => rewritten::<commands::FetchTurnsResult>(DIALECT, result),
                        "resolveSessionConfig" => {
                            rewritten::<commands::ResolveSessionConfigResult>(DIALECT, result)
                        }
                        "sessionConfigCompletions" => {
                            rewritten::<commands::SessionConfigCompletionsResult>(DIALECT, result)
                        }
                        "resourceRead" => rewritten::<commands::ResourceReadResult>(DIALECT, result),
                        "resourceList" => rewritten::<commands::ResourceListResult>(DIALECT, result),
                        "resourceWrite" => rewritten::<commands::ResourceWriteResult>(DIALECT, result),
                        "resourceCopy" => rewritten::<commands::ResourceCopyResult>(DIALECT, result),
                        "resourceMove" => rewritten::<commands::ResourceMoveResult>(DIALECT, result),
                        "resourceDelete" => rewritten::<commands::ResourceDeleteResult>(DIALECT, result),
                        other => official!(@result $family, commands, other, result),
                    }
                }

                fn reads_notification(&self, method: &str, params: &Value) -> Result<Value> {
                    official!(@notification $family, $types, method, params)
                }

                fn holds(&self, snapshot: &Value) -> Result<Box<dyn Held>> {
                    let snapshot: state::Snapshot = strictly(DIALECT, snapshot)?;
                    Ok(Box::new(State(snapshot.state)))
                }

                fn connects(&self, pipes: Pipes) -> Later<'static, Box<dyn OfficialClient>> {
                    // Large enough that a whole turn fits before anybody looks.
                    let config = $ahp::ClientConfig { subscription_buffer: 1 << 14, ..Default::default() };
                    Box::pin(async move {
                        let client = $ahp::Client::connect(pipes, config).await?;
                        Ok(Box::new(Connected(client)) as Box<dyn OfficialClient>)
                    })
                }
            }

            #[derive(Debug)]
            struct State(state::SnapshotState);

            impl Held for State {
                fn kind(&self) -> Kind {
                    official!(@kind $family, state, &self.0)
                }

                fn apply(&mut self, action: &Value) -> Result<String> {
                    let action: actions::StateAction = strictly(DIALECT, action)?;
                    Ok(format!("{:?}", official!(@reduce $family, state, reducers, &mut self.0, &action)))
                }

                fn view(&self) -> Result<Value> {
                    Ok(serde_json::to_value(&self.0)?)
                }
            }

            struct Connected($ahp::Client);

            struct Subscribed($ahp::SessionSubscription);

            impl OfficialClient for Connected {
                fn initialize(&self, client_id: &str, channels: Vec<String>) -> Later<'_, Value> {
                    let (client_id, version) = (client_id.to_owned(), official!(@offer $family, DIALECT));
                    Box::pin(async move {
                        Ok(serde_json::to_value(self.0.initialize(client_id, version, channels).await?)?)
                    })
                }

                fn reconnect(&self, client_id: &str, cursor: i64, channels: Vec<String>) -> Later<'_, Value> {
                    let client_id = client_id.to_owned();
                    Box::pin(async move {
                        Ok(serde_json::to_value(self.0.reconnect(client_id, cursor, channels).await?)?)
                    })
                }

                fn subscribe(&self, channel: &str) -> Later<'_, (Value, Box<dyn Subscription>)> {
                    let channel = channel.to_owned();
                    Box::pin(async move {
                        let (result, subscription) = self.0.subscribe(channel).await?;
                        Ok((
                            serde_json::to_value(result)?,
                            Box::new(Subscribed(subscription)) as Box<dyn Subscription>,
                        ))
                    })
                }

                fn request(&self, method: &'static str, params: Value) -> Later<'_, Value> {
                    Box::pin(async move { Ok(self.0.request(method, $name.says(method, &params)?).await?) })
                }

                fn dispatch(&self, channel: &str, action: &Value) -> Later<'_, ()> {
                    let params = DIALECT.dispatch(channel, 0, action);
                    Box::pin(async move {
                        let params: commands::DispatchActionParams = strictly(DIALECT, &params)?;
                        official!(@dispatch $family, self.0, params);
                        Ok(())
                    })
                }

                fn shutdown(&self) -> Later<'_, ()> {
                    Box::pin(async move {
                        self.0.shutdown().await;
                        Ok(())
                    })
                }
            }

            impl Subscription for Subscribed {
                fn next(&mut self) -> Later<'_, Value> {
                    Box::pin(async move {
                        loop {
                            let event = self.0.recv().await.context("the subscription has ended")?;
                            if let $ahp::SubscriptionEvent::Action(envelope) = event {
                                return Ok(serde_json::to_value(envelope)?);
                            }
                        }
                    })
                }

                fn waiting(&mut self) -> Result<Option<Value>> {
                    let mut next = self.next();
                    match next.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
                        std::task::Poll::Ready(envelope) => envelope.map(Some),
                        std::task::Poll::Pending => Ok(None),
                    }
                }
            }

            impl $ahp::Transport for Pipes {
                async fn send(
                    &mut self,
                    message: $ahp::TransportMessage,
                ) -> Result<(), $ahp::TransportError> {
                    let $ahp::TransportMessage::Text(text) =
                        $ahp::TransportMessage::encode(&message.into_parsed()?)?
                    else {
                        return Err($ahp::TransportError::Protocol("not text".to_owned()));
                    };
                    self.say(&text).await.map_err(|_| $ahp::TransportError::Closed)
                }

                async fn recv(&mut self) -> Result<Option<$ahp::TransportMessage>, $ahp::TransportError> {
                    let line = self.hear().await.map_err(|_| $ahp::TransportError::Closed)?;
                    Ok(line.map($ahp::TransportMessage::Text))
                }

                async fn close(&mut self) -> Result<(), $ahp::TransportError> {
                    self.end();
                    Ok(())
                }
            }
        };
    };

    (@says wrapped, $commands:ident, $method:ident, $params:ident) => {
        bail!("nobody says {}", $method)
    };
    (@says $family:ident, $commands:ident, $method:ident, $params:ident) => {
        match $method {
            "resourceMkdir" => spoken::<$commands::ResourceMkdirParams>(DIALECT, $params),
            "resourceResolve" => spoken::<$commands::ResourceResolveParams>(DIALECT, $params),
            "resourceRequest" => spoken::<$commands::ResourceRequestParams>(DIALECT, $params),
            "createResourceWatch" => spoken::<$commands::CreateResourceWatchParams>(DIALECT, $params),
            other => bail!("nobody says {other}"),
        }
    };

    (@result wrapped, $commands:ident, $method:ident, $result:ident) => {
        bail!("nobody asked {}", $method)
    };
    (@result $family:ident, $commands:ident, $method:ident, $result:ident) => {
        match $method {
            "resourceMkdir" => rewritten::<$commands::ResourceMkdirResult>(DIALECT, $result),
            "resourceResolve" => rewritten::<$commands::ResourceResolveResult>(DIALECT, $result),
            "resourceRequest" => rewritten::<$commands::ResourceRequestResult>(DIALECT, $result),
            "createResourceWatch" => rewritten::<$commands::CreateResourceWatchResult>(DIALECT, $result),
            "completions" => rewritten::<$commands::CompletionsResult>(DIALECT, $result),
            "invokeChangesetOperation" => {
                rewritten::<$commands::InvokeChangesetOperationResult>(DIALECT, $result)
            }
            other => bail!("nobody asked {other}"),
        }
    };

    (@notification wrapped, $types:ident, $method:ident, $params:ident) => {
        match $method {
            "action" => rewritten::<$types::messages::ActionNotificationParams>(DIALECT, $params),
            "notification" => rewritten::<$types::messages::NotificationMethodParams>(DIALECT, $params),
            other => bail!("this version knows no notification {other}"),
        }
    };
    (@notification $family:ident, $types:ident, $method:ident, $params:ident) => {{
        use $types::notifications;
        match $method {
            "action" => rewritten::<$types::messages::ActionNotificationParams>(DIALECT, $params),
            "root/sessionAdded" => rewritten::<notifications::SessionAddedParams>(DIALECT, $params),
            "root/sessionRemoved" => rewritten::<notifications::SessionRemovedParams>(DIALECT, $params),
            "root/sessionSummaryChanged" => {
                rewritten::<notifications::SessionSummaryChangedParams>(DIALECT, $params)
            }
            "auth/required" => rewritten::<notifications::AuthRequiredParams>(DIALECT, $params),
            "otlp/exportLogs" => rewritten::<notifications::OtlpExportLogsParams>(DIALECT, $params),
            other => bail!("nothing here says {other}"),
        }
    }};

    (@kind chats, $state:ident, $held:expr) => {
        match $held {
            $state::SnapshotState::Root(_) => Kind::Root,
            $state::SnapshotState::Session(_) => Kind::Session,
            $state::SnapshotState::Chat(_) => Kind::Chat,
            $state::SnapshotState::Annotations(_) => Kind::Annotations,
            $state::SnapshotState::ResourceWatch(_) => Kind::Watch,
            $state::SnapshotState::Terminal(_) => Kind::Terminal,
            other => unreachable!("nobody asked for {other:?}"),
        }
    };
    (@kind $family:ident, $state:ident, $held:expr) => {
        match $held {
            $state::SnapshotState::Root(_) => Kind::Root,
            $state::SnapshotState::Session(_) => Kind::Session,
            $state::SnapshotState::Terminal(_) => Kind::Terminal,
            other => unreachable!("nobody asked for {other:?}"),
        }
    };

    (@reduce chats, $state:ident, $reducers:ident, $held:expr, $action:expr) => {
        match $held {
            $state::SnapshotState::Root(root) => $reducers::apply_action_to_root(root, $action),
            $state::SnapshotState::Session(session) => $reducers::apply_action_to_session(session, $action),
            $state::SnapshotState::Terminal(it) => $reducers::apply_action_to_terminal(it, $action),
            $state::SnapshotState::Chat(chat) => $reducers::apply_action_to_chat(chat, $action),
            $state::SnapshotState::Annotations(all) => $reducers::apply_action_to_annotations(all, $action),
            other => bail!("nobody asked for {other:?}"),
        }
    };
    (@reduce $family:ident, $state:ident, $reducers:ident, $held:expr, $action:expr) => {
        match $held {
            $state::SnapshotState::Root(root) => $reducers::apply_action_to_root(root, $action),
            $state::SnapshotState::Session(session) => $reducers::apply_action_to_session(session, $action),
            $state::SnapshotState::Terminal(it) => $reducers::apply_action_to_terminal(it, $action),
            other => bail!("nobody asked for {other:?}"),
        }
    };

    (@offer wrapped, $dialect:expr) => {
        1
    };
    (@offer $family:ident, $dialect:expr) => {
        vec![$dialect.name()]
    };

    (@dispatch wrapped, $client:expr, $params:ident) => {
        $client.dispatch($params.action).await?
    };
    (@dispatch $family:ident, $client:expr, $params:ident) => {
        $client.dispatch($params.channel, $params.action).await?
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_values_are_found_anywhere_except_in_strings() {
        let shown = r#"A { b: Unknown(Object {"x": String("a)\"")}), c: "Unknown(", d: NotUnknown(1), e: [Unknown("y")] }"#;
        assert_eq!(unknowns(shown), [r#"Unknown(Object {"x": String("a)\"")})"#, r#"Unknown("y")"#]);
        assert!(unknowns("A { b: Known(Some(\"Unknown(1)\")) }").is_empty());
    }
}
