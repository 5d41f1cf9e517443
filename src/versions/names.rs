//! Names of sessions for clients of a version.
//!
//! Owns: the two spellings of a session's URI in versions where the provider is its scheme.
//! Never: drops a name that is in use, so that a session has one name everywhere.
//!
//! A client's spelling alone shows neither whether the core has the session as `ahp-session:/<id>`
//! or under the same name (a client of a later version may have created it so), nor whether it is
//! of that provider. The name is a guess until a list, a notification or a state shows it.

use std::collections::{HashMap, VecDeque};

use crate::wire::uris::SESSION_SCHEME;

/// Maximum number of guessed names, which answers about unknown sessions repeat.
const GUESSES_MAX: usize = 256;

/// Names of sessions in both directions.
#[derive(Debug, Default, Clone)]
pub struct SessionNames {
    /// Offered providers, the default one first.
    providers: Vec<String>,
    client_of: HashMap<String, String>,
    core_of: HashMap<String, String>,
    /// Names that clients used before the session was sent to them; the newest last.
    guesses: VecDeque<GuessedName>,
    /// Session that was removed last. Its name stays until the next removal, because some
    /// connections may still have to be notified.
    gone: Option<String>,
}

#[derive(Debug, Clone)]
struct GuessedName {
    client: String,
    core: String,
    /// Set while a client creates the session.
    is_made: bool,
}

/// Returns a session's name since 0.2.0; `None` if none of these providers is its scheme.
pub fn plain_name(providers: &[String], uri: &str) -> Option<String> {
    let (scheme, path) = uri.split_once(':')?;
    providers.iter().any(|provider| provider == scheme).then(|| format!("{SESSION_SCHEME}{path}"))
}

impl SessionNames {
    pub fn new(providers: Vec<String>) -> Self {
        Self { providers, ..Self::default() }
    }

    /// Sets the offered providers, the default one first.
    pub fn offer(&mut self, providers: Vec<String>) {
        self.providers = providers;
    }

    /// Returns the core's name of a session that clients are known to call `uri`.
    pub fn known(&self, uri: &str) -> Option<String> {
        self.core_of.get(uri).cloned()
    }

    /// Returns whether the clients' name of the session that the core calls `core` is known.
    pub fn is_named(&self, core: &str) -> bool {
        self.client_of.contains_key(core)
    }

    /// Returns the core's name of the session that a client calls `uri`; guesses if it is unknown.
    pub fn up(&mut self, uri: &str) -> String {
        if let Some(core) = self.core_of.get(uri) {
            return core.clone();
        }
        let guessed = self.guesses.iter().find(|guess| guess.client == uri && guess.is_made);
        if let Some(guess) = guessed.filter(|guess| !self.client_of.contains_key(&guess.core)) {
            return guess.core.clone();
        }
        let Some(core) = plain_name(&self.providers, uri) else {
            if is_plain(uri) {
                self.guess(uri, uri, false);
            }
            return uri.to_owned();
        };
        // With another provider, the same id is another session.
        if self.client_of.contains_key(&core) {
            return uri.to_owned();
        }
        self.guess(uri, &core, false);
        core
    }

    /// Returns all sessions that a client may mean by `uri` if none was sent to it yet.
    pub fn candidates(&mut self, uri: &str) -> Vec<String> {
        let known = self.core_of.contains_key(uri);
        let core = self.up(uri);
        if known || core == uri {
            vec![core]
        } else {
            vec![core, uri.to_owned()]
        }
    }

    /// Notes that a client creates a session under this name. The core uses the same name if the
    /// scheme is not the provider, or if the id is taken.
    pub fn make(&mut self, uri: &str, provider: Option<&str>) {
        if self.core_of.contains_key(uri) {
            return;
        }
        let scheme = uri.split_once(':').map_or("", |(scheme, _)| scheme);
        let core = plain_name(&self.providers, uri);
        let is_taken = |core: &String| {
            let mut made = self.guesses.iter().filter(|guess| guess.is_made && guess.client != uri);
            self.client_of.contains_key(core) || made.any(|guess| guess.core == *core)
        };
        let is_own = provider.is_none_or(|provider| provider == scheme);
        let core = core.filter(|core| is_own && !is_taken(core)).unwrap_or_else(|| uri.to_owned());
        self.guess(uri, &core, true);
    }

    /// Learns the clients' names of these sessions, each with its provider. Sessions with the same
    /// name in both directions go first: their names are not available to the others.
    pub fn learn_sessions<'a>(&mut self, sessions: impl Iterator<Item = (&'a str, Option<&'a str>)> + Clone) {
        for (uri, _) in sessions.clone().filter(|(uri, _)| !is_plain(uri)) {
            self.learn(uri, uri);
        }
        for (uri, provider) in sessions.filter(|(uri, _)| is_plain(uri)) {
            self.down(uri, provider);
        }
    }

    /// Returns the clients' name of the session that the core calls `uri`. Without `provider`,
    /// assumes the default one unless the name is known.
    pub fn down(&mut self, uri: &str, provider: Option<&str>) -> String {
        if let Some(client) = self.client_of.get(uri) {
            let is_of = |provider: &str| client == uri || client.split(':').next() == Some(provider);
            // With another provider, it is another session, made after the known one was removed.
            if !is_plain(uri) || provider.is_none_or(is_of) {
                return client.clone();
            }
        }
        let Some(path) = uri.strip_prefix(SESSION_SCHEME) else {
            if provider.is_some() {
                self.learn(uri, uri);
            }
            return uri.to_owned();
        };
        let guessed = self.guesses.iter().rev().find(|guess| guess.core == uri);
        if let (None, Some(guess)) = (provider, guessed) {
            return guess.client.clone();
        }
        // The client uses the name since 0.2.0.
        if guessed.is_some_and(|guess| guess.client == uri) {
            self.learn(uri, uri);
            return uri.to_owned();
        }
        let Some(scheme) = provider.or(self.providers.first().map(String::as_str)) else {
            return uri.to_owned();
        };
        let client = format!("{scheme}:{path}");
        // If another session has that name, the core's is used, which is unique.
        let client = if self.core_of.contains_key(&client) { uri.to_owned() } else { client };
        // A guess is not stored, so that it cannot hide a fact.
        if provider.is_some() {
            self.learn(uri, &client);
        }
        client
    }

    /// Replaces the names of sessions between the backticks of a sentence by the clients'.
    pub fn down_in(&mut self, sentence: &str) -> String {
        rename_in(sentence, |word| is_plain(word).then(|| self.down(word, None)))
    }

    /// Removes the name of a disposed session, at the next call for another one.
    pub fn forget(&mut self, core: &str) {
        if self.gone.as_deref() == Some(core) {
            return;
        }
        let Some(before) = self.gone.replace(core.to_owned()) else { return };
        if let Some(client) = self.client_of.remove(&before) {
            self.core_of.remove(&client);
        }
    }

    /// Takes over the names of another version, one of whose clients turned out to speak this one.
    pub fn adopt(&mut self, other: &Self) {
        for (core, client) in &other.client_of {
            self.learn(core, client);
        }
        for GuessedName { client, core, is_made } in &other.guesses {
            self.guess(client, core, *is_made);
        }
    }

    fn guess(&mut self, client: &str, core: &str, is_made: bool) {
        self.guesses.retain(|guess| guess.client != client);
        if self.guesses.len() == GUESSES_MAX {
            self.guesses.pop_front();
        }
        self.guesses.push_back(GuessedName { client: client.to_owned(), core: core.to_owned(), is_made });
    }

    /// Stores a name. Keeps the two maps inverse to each other.
    fn learn(&mut self, core: &str, client: &str) {
        if let Some(before) = self.core_of.insert(client.to_owned(), core.to_owned()) {
            if before != core {
                self.client_of.remove(&before);
            }
        }
        if let Some(before) = self.client_of.insert(core.to_owned(), client.to_owned()) {
            if before != client {
                self.core_of.remove(&before);
            }
        }
        if self.gone.as_deref() == Some(core) {
            self.gone = None;
        }
        self.guesses.retain(|guess| guess.client != client && guess.core != core);
    }
}

/// Returns whether a URI has the form of session URIs since 0.2.0.
fn is_plain(uri: &str) -> bool {
    uri.starts_with(SESSION_SCHEME)
}

/// Applies `rename` to each piece of a sentence between backticks; `None` keeps the piece.
pub fn rename_in(sentence: &str, mut rename: impl FnMut(&str) -> Option<String>) -> String {
    let words = sentence.split('`').map(|word| rename(word).unwrap_or_else(|| word.to_owned()));
    words.collect::<Vec<_>>().join("`")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> SessionNames {
        SessionNames::new(vec!["script".to_owned(), "other".to_owned()])
    }

    #[test]
    fn a_session_has_one_name_in_each_direction() {
        let mut names = names();
        assert_eq!(names.up("script:/1"), "ahp-session:/1");
        assert_eq!(names.down("ahp-session:/1", None), "script:/1");
        assert_eq!(names.down("ahp-session:/2", Some("other")), "other:/2");
        assert_eq!(names.up("other:/2"), "ahp-session:/2");
        assert_eq!(names.down("any:x", Some("script")), "any:x");
        assert_eq!(names.down_in("no channel `ahp-session:/2`"), "no channel `other:/2`");
    }

    #[test]
    fn what_is_guessed_gives_way_to_what_is_told() {
        let mut names = names();
        assert_eq!(names.down("ahp-session:/1", None), "script:/1");
        assert_eq!(names.down("ahp-session:/1", Some("other")), "other:/1");
        assert_eq!(names.candidates("script:/2"), ["ahp-session:/2", "script:/2"]);
        names.learn_sessions([("script:/2", Some("script"))].into_iter());
        assert_eq!(names.candidates("script:/2"), ["script:/2"]);
        assert_eq!(names.down("script:/2", None), "script:/2");
    }

    #[test]
    fn one_id_of_two_providers_is_two_sessions() {
        let mut names = names();
        names.make("script:/1", None);
        names.make("other:/1", None);
        assert_eq!(names.up("script:/1"), "ahp-session:/1");
        assert_eq!(names.up("other:/1"), "other:/1");
        assert_eq!(names.down("ahp-session:/1", Some("script")), "script:/1");
        assert_eq!(names.down("other:/1", Some("other")), "other:/1");
        names.learn_sessions([("ahp-session:/3", Some("script")), ("script:/3", Some("script"))].into_iter());
        assert_eq!(names.down("script:/3", None), "script:/3");
        assert_eq!(names.down("ahp-session:/3", None), "ahp-session:/3");
    }

    #[test]
    fn what_is_not_there_takes_no_name_away() {
        let mut names = names();
        assert_eq!(names.candidates("other:/1"), ["ahp-session:/1", "other:/1"]);
        assert_eq!(names.candidates("script:/1"), ["ahp-session:/1", "script:/1"]);
        names.learn_sessions([("ahp-session:/1", Some("script"))].into_iter());
        assert_eq!(names.down("script:/1", None), "script:/1");
        assert_eq!(names.down("ahp-session:/1", None), "script:/1");
        assert_eq!(names.up("script:/1"), "ahp-session:/1");
        assert_eq!(names.up("other:/1"), "other:/1");
    }

    #[test]
    fn a_session_that_is_being_made_is_called_so_at_once() {
        let mut names = names();
        names.make("script:/1", Some("other"));
        assert_eq!(names.up("script:/1"), "script:/1");
        names.make("ahp-session:/2", None);
        assert_eq!(names.down("ahp-session:/2", Some("script")), "ahp-session:/2");
        names.make("other:/3", Some("other"));
        assert_eq!(names.up("other:/3"), "ahp-session:/3");
    }

    #[test]
    fn session_made_again_by_another_provider_gets_the_name_of_that_provider() {
        let mut names = names();
        assert_eq!(names.down("ahp-session:/1", Some("other")), "other:/1");
        names.forget("ahp-session:/1");
        assert_eq!(names.down("ahp-session:/1", Some("script")), "script:/1");
        assert_eq!(names.down("ahp-session:/1", None), "script:/1");
        assert_eq!(names.known("other:/1"), None);
        // A session that has the core's name keeps it.
        names.learn_sessions([("script:/2", Some("script")), ("ahp-session:/2", Some("script"))].into_iter());
        assert_eq!(names.down("ahp-session:/2", Some("script")), "ahp-session:/2");
    }

    #[test]
    fn a_name_is_forgotten_when_the_next_one_is() {
        let mut names = names();
        assert_eq!(names.down("ahp-session:/1", Some("other")), "other:/1");
        names.forget("ahp-session:/1");
        names.forget("ahp-session:/1");
        assert_eq!(names.down("ahp-session:/1", None), "other:/1");
        names.forget("ahp-session:/2");
        assert_eq!(names.down("ahp-session:/1", None), "script:/1");
    }
}
