//! Kinds of channels.
//!
//! Owns: the list of the kinds and their names. All code that differs by kind is generated from
//! this list; a new kind is a line in it and a module in `host::channels`.
//! Never: knows what a kind means.

/// Passes the list of the kinds to a macro, behind further arguments. Each line has the kind's name
/// in the code, its plural there, and its name in the store, which never changes.
macro_rules! with_channel_kinds {
    ($make:ident $($besides:tt)*) => {
        $make! {
            { $($besides)* }
            /// The host as a whole; the only channel of its kind.
            Root, root, "root";
            /// A session.
            Session, sessions, "session";
            /// A chat.
            Chat, chats, "chat";
            /// A watch of files.
            Watch, watches, "watch";
            /// A terminal.
            Terminal, terminals, "terminal";
            /// Changes of files in a session or a turn.
            Changeset, changesets, "changeset";
            /// Annotations of files in a session.
            Annotations, annotations, "annotations";
            /// A page that an agent shows.
            Canvas, canvases, "canvas";
            /// The list of automations; the only channel of its kind.
            Automations, automations, "automations";
            /// A run of an automation.
            AutomationRun, automation_runs, "automationRun";
            /// Kind for tests alone.
            #[cfg(test)]
            Sample, samples, "sample";
        }
    };
}
pub(crate) use with_channel_kinds;

macro_rules! make_channel_kind {
    ({} $($(#[doc = $doc:literal])+ $(#[cfg($cfg:meta)])? $Kind:ident, $channels:ident, $name:literal;)+) => {
        /// A kind of channels.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ChannelKind {
            $($(#[doc = $doc])+ $(#[cfg($cfg)])? $Kind,)+
        }

        impl ChannelKind {
            /// Every kind.
            pub const ALL: &'static [Self] = &[$($(#[cfg($cfg)])? Self::$Kind,)+];

            /// Returns the name of the kind in the store.
            pub fn name(self) -> &'static str {
                match self {
                    $($(#[cfg($cfg)])? Self::$Kind => $name,)+
                }
            }
        }
    };
}
with_channel_kinds!(make_channel_kind);

impl ChannelKind {
    /// Returns the kind with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }
}
