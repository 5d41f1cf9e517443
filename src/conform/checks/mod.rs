//! Laws that a host is judged by, each with the page of the specification that has it.
//!
//! Owns: the list of checks, in the order of the chapters.
//! Never: starts a host: each check gets a bench.

mod asking;
mod catalogue;
mod changes;
mod files;
mod handshake;
mod hostile;
mod messages;
mod play;
mod reconnects;
mod sessions;
mod subscriptions;
mod terminals;
mod transport;
mod turns;

use super::bench::{Bench, BenchSettings};
use super::stop::Judged;

/// Law and how it is tried.
#[derive(Debug)]
pub struct HostCheck {
    /// Name of the check.
    pub name: &'static str,
    /// Chapter of the specification.
    pub chapter: &'static str,
    /// Law, as a sentence.
    pub law: &'static str,
    trial: CheckTrial,
}

/// Way in which a law is tried.
#[derive(Debug)]
enum CheckTrial {
    /// Once, with a host that may have several clients.
    Once(fn(&mut Bench) -> Judged<()>),
    /// Once, with a host that has one client and is killed with it.
    Alone(fn(&mut Bench) -> Judged<()>),
    /// Some times with random steps, which are made fewer if the law is broken.
    Play,
}

impl HostCheck {
    /// Makes the check; returns also the transcripts of its clients.
    pub fn judge(&self, settings: &BenchSettings) -> (Judged<()>, Vec<String>) {
        let (alone, run) = match self.trial {
            CheckTrial::Once(run) => (false, run),
            CheckTrial::Alone(run) => (true, run),
            CheckTrial::Play => return play::judge(settings),
        };
        let mut bench = match Bench::new(settings, alone) {
            Ok(bench) => bench,
            Err(error) => return (Err(error.into()), Vec::new()),
        };
        let judged = run(&mut bench);
        (judged, bench.transcripts())
    }
}

macro_rules! checks {
    ($($chapter:literal { $($name:literal $kind:ident($run:path): $law:literal;)* })*) => {
        /// All checks, by chapters.
        pub const CHECKS: &[HostCheck] = &[$($(
            HostCheck { name: $name, chapter: $chapter, law: $law, trial: CheckTrial::$kind($run) },
        )*)*
            HostCheck {
                name: "play",
                chapter: "Write-ahead reconciliation",
                law: "whatever several clients do, each mirror equals a fresh snapshot, and each action is answered once",
                trial: CheckTrial::Play,
            },
        ];
    };
}

checks! {
    "Transport" {
        "transport-split" Once(transport::split): "a message that comes in several pieces is one message";
        "transport-joined" Once(transport::joined): "several messages in one write are all served";
        "transport-line-ends" Once(transport::line_ends): "CR LF ends a line too, and a blank line is no message";
        "transport-large" Once(transport::large): "a message of one MiB is served";
        "transport-ping" Once(transport::ping): "`ping` is answered before and after `initialize`";
    }
    "Base protocol" {
        "rpc-parse-error" Once(messages::parse_error): "what is no JSON is answered with -32700 and without an id";
        "rpc-invalid" Once(messages::invalid): "JSON that is no request is answered with -32600";
        "rpc-unknown-method" Once(messages::unknown_method): "an unknown method is answered with -32601";
        "rpc-bad-params" Once(messages::bad_params): "params of a wrong form are answered with -32602";
        "rpc-ids" Once(messages::ids): "an answer has the id of its request, of whatever form";
        "rpc-notifications" Once(messages::notifications): "a notification is not answered";
    }
    "Connection lifecycle" {
        "initialize" Once(handshake::initialize): "`initialize` answers with an offered version, a number, and the asked snapshots";
        "initialize-first" Once(handshake::first): "before `initialize`, a request is answered with an error";
        "initialize-twice" Once(handshake::twice): "a second `initialize` is answered, and the connection goes on";
        "reconnect-unknown" Once(reconnects::unknown): "a client that the host does not know gets an error or snapshots, no replay";
        "reconnect-replay" Once(reconnects::replay): "`reconnect` makes up for all that was missed";
        "reconnect-missing" Once(reconnects::missing): "`reconnect` says which channels are gone";
        "reconnect-beyond" Once(reconnects::beyond): "a number that the host has not reached is answered with snapshots";
        "reconnect-goes-on" Once(reconnects::goes_on): "after `reconnect`, actions on the named channels come";
        "reconnect-killed" Alone(reconnects::killed): "a host that keeps its sessions has them after it was killed, and its numbers grow";
    }
    "Versioning" {
        "version-unsupported" Once(handshake::unsupported): "unsupported versions are answered with -32005 and those that are supported";
        "version-highest" Once(handshake::highest): "the highest compatible version is chosen, as it was offered, in whatever order";
    }
    "Channels and subscriptions" {
        "subscribe" Once(subscriptions::subscribe): "`subscribe` answers with a snapshot of the channel";
        "subscribe-unknown" Once(subscriptions::unknown): "an unknown channel is answered with -32001 or -32008";
        "subscribe-twice" Once(subscriptions::twice): "subscribing twice is answered twice, and each action comes once";
        "subscribe-fresh" Once(subscriptions::fresh): "a snapshot has all that was acknowledged before";
        "subscribe-numbers" Once(subscriptions::numbers): "actions after a snapshot have higher numbers than it";
        "unsubscribe" Once(subscriptions::unsubscribe): "after `unsubscribe` no action on the channel comes";
        "subscribe-alone" Once(subscriptions::alone): "actions come to subscribers of their channel alone";
        "subscribe-none" Once(subscriptions::none): "a client that follows nothing hears nothing of sessions, terminals, changes and files";
    }
    "Root channel" {
        "root-agents" Once(sessions::agents): "the root channel names the agents";
        "root-list" Once(catalogue::list): "`listSessions` has each session once, as long as it exists";
        "root-pages" Once(catalogue::pages): "the pages of `listSessions` together have each session once, and end";
        "root-summaries" Once(catalogue::contents): "`listSessions` says of a session what its state says";
        "root-notices" Once(catalogue::notices): "each subscriber of the root channel hears once of a session that comes or goes";
        "root-changes" Once(catalogue::summaries): "the changes of summaries that subscribers of the root channel get lead to the list";
    }
    "Session channel" {
        "session-create" Once(sessions::create): "a created session becomes ready, or says why not";
        "session-exists" Once(sessions::exists): "a URI that is in use is answered with -32003";
        "session-no-agent" Once(sessions::no_agent): "an unknown agent is answered with -32002";
        "session-dispose" Once(sessions::dispose): "a session that was disposed of cannot be subscribed to";
        "session-config" Once(asking::session_config): "options of a new session are resolved, with the values of those that are announced to have some";
        "session-title" Once(sessions::title_comes_back): "a text comes back as it was said, from the echo and from the snapshot";
    }
    "Actions" {
        "action-origin" Once(turns::origin): "the echo of an action names its client and number; other subscribers get the same";
        "action-own" Once(turns::own): "what the host does by itself has no origin";
        "action-rejected" Once(turns::rejected): "an action that is not possible is rejected to its sender alone, and changes nothing";
        "action-server-only" Once(turns::server_only): "an action that only hosts send is not accepted from a client";
        "action-unknown-channel" Once(turns::unknown_channel): "an action on a channel that does not exist does no harm";
    }
    "Chat channel" {
        "turn" Once(turns::turn): "a turn has exactly one ending, and the mirror of its chat equals a snapshot";
        "turn-cancel" Once(turns::cancel): "a turn that is cancelled ends, once";
        "turn-window" Once(turns::window): "older turns are loaded by `fetchTurns`, if a snapshot leaves them out";
        "chat-create" Once(turns::second_chat): "a session whose agent has several chats gets and loses them";
    }
    "Completions and authentication" {
        "completions" Once(asking::completions): "completions behind an announced character replace a part of the text, in UTF-16 code units";
        "authenticate" Once(asking::authenticate): "a token for a resource that the host has not named is an error";
    }
    "Terminal channel" {
        "terminal" Once(terminals::terminal): "a terminal says what its program prints, and its mirror equals a snapshot";
        "terminal-unknown" Once(terminals::unknown): "a terminal that was disposed of cannot be subscribed to";
    }
    "Resources" {
        "files" Once(files::files): "a file is written, read, listed and deleted";
        "files-missing" Once(files::missing): "a file that does not exist is answered with -32008";
        "watch" Once(files::watch): "a watch says what changes";
    }
    "Other channels" {
        "changesets" Once(changes::changesets): "a changeset that a session announces has a snapshot";
        "annotations" Once(changes::annotations): "annotations are set, and the mirror equals a snapshot";
        "telemetry" Once(changes::telemetry): "an announced telemetry channel can be subscribed to";
        "automations" Once(changes::automations): "announced automations have a snapshot";
    }
    "Hostile input" {
        "hostile-nesting" Once(hostile::nesting): "a message that is nested deeply ends nothing";
        "hostile-utf8" Once(hostile::utf8): "bytes that are no UTF-8 end nothing";
        "hostile-flood" Once(hostile::flood): "a thousand requests at once are all answered";
        "hostile-mutations" Once(hostile::mutations): "damaged messages end nothing, and each request is answered once";
    }
}
