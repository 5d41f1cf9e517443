//! What clients of a version call sessions.
//!
//! Owns: the two spellings of a session's URI where a version has one of its own: the provider as its scheme.
//! Never: forgets a name while it is in use, so that a session is called the same in every place.

use std::collections::HashMap;

/// The scheme of sessions since 0.2.0.
const SCHEME: &str = "ahp-session";

/// The spellings that were used so far.
#[derive(Debug, Default)]
pub struct Names {
    /// The providers that there are, the default one first.
    providers: Vec<String>,
    client_of: HashMap<String, String>,
    core_of: HashMap<String, String>,
}

impl Names {
    /// Begins with no names.
    pub fn new(providers: Vec<String>) -> Self {
        Self { providers, ..Self::default() }
    }

    /// The core's name of what a client calls `uri`.
    pub fn up(&mut self, uri: &str) -> String {
        if let Some(core) = self.core_of.get(uri) {
            return core.clone();
        }
        match uri.split_once(':') {
            Some((scheme, path)) if self.providers.iter().any(|provider| provider == scheme) => {
                let core = format!("{SCHEME}:{path}");
                self.learn(&core, uri);
                core
            }
            _ => uri.to_owned(),
        }
    }

    /// Clients of this version call the session as they did when they made it: its scheme is no provider of
    /// ours, or another one than it is made with.
    pub fn keep(&mut self, uri: &str) {
        self.learn(uri, uri);
    }

    /// The clients' name of what the core calls `uri`, a session of this provider; of the default one when
    /// nothing was said of it before.
    pub fn down(&mut self, uri: &str, provider: Option<&str>) -> String {
        if let Some(client) = self.client_of.get(uri) {
            return client.clone();
        }
        let provider = provider.or(self.providers.first().map(String::as_str));
        let client = match (uri.split_once(':'), provider) {
            (Some((SCHEME, path)), Some(provider)) => format!("{provider}:{path}"),
            _ => uri.to_owned(),
        };
        // Taken by another session: a name that cannot be mistaken.
        let client = if self.core_of.contains_key(&client) { uri.to_owned() } else { client };
        self.learn(uri, &client);
        client
    }

    /// Forgets a session that is gone.
    pub fn forget(&mut self, core: &str) {
        if let Some(client) = self.client_of.remove(core) {
            self.core_of.remove(&client);
        }
    }

    fn learn(&mut self, core: &str, client: &str) {
        self.client_of.insert(core.to_owned(), client.to_owned());
        self.core_of.insert(client.to_owned(), core.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_has_one_name_in_each_direction() {
        let mut names = Names::new(vec!["script".to_owned(), "other".to_owned()]);
        assert_eq!(names.up("script:/1"), "ahp-session:/1");
        assert_eq!(names.down("ahp-session:/1", None), "script:/1");
        assert_eq!(names.down("ahp-session:/2", Some("other")), "other:/2");
        assert_eq!(names.up("other:/2"), "ahp-session:/2");
        assert_eq!(names.up("ahp-session:/1"), "ahp-session:/1");
        assert_eq!(names.down("any:x", Some("script")), "any:x");
        // Two sessions of one name: the second keeps its own.
        assert_eq!(names.down("script:/3", Some("script")), "script:/3");
        assert_eq!(names.down("ahp-session:/3", Some("script")), "ahp-session:/3");
        names.forget("ahp-session:/2");
        assert_eq!(names.down("ahp-session:/2", Some("script")), "script:/2");
    }
}
