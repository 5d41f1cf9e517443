//! A folder that a transcript works in, and what differs there from run to run.
//!
//! Owns: what stands in a transcript for the folder's URI, for the tokens and times of files, and
//! for the channel of a watch.
//! Never: makes files, but for a repository; what else is to be there a client asks for.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// Placeholder of the folder's URI.
const FOLDER: &str = "file:///FOLDER";

/// Placeholder of the folder's path in other URIs.
const PATH: &str = "/FOLDER";

/// Placeholder of a file's version token.
const ETAG: &str = "ETAG";

/// Placeholder of the channel of a watch.
const WATCH: &str = "ahp-resource-watch:/WATCH";

/// A transcript's folder, if it has one.
pub struct Shown {
    folder: Option<(TempDir, String)>,
    /// The token that was told last.
    etag: String,
    /// The channel of a watch that was told last.
    watch: String,
}

impl Shown {
    pub fn new(has_folder: bool) -> Self {
        let folder = has_folder.then(|| {
            let folder = tempfile::tempdir().unwrap();
            let uri = format!("file://{}", folder.path().canonicalize().unwrap().display());
            (folder, uri)
        });
        Self { folder, etag: String::new(), watch: WATCH.to_owned() }
    }

    /// Makes the folder a repository in which a file is committed. The user's configuration is in
    /// this home.
    pub fn make_repository(&self, home: &Path) {
        let Some((folder, _)) = &self.folder else { return };
        fs::write(folder.path().join("a"), "one\n").unwrap();
        let commit = ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "x"];
        for arguments in [&["init", "-q", "-b", "main"][..], &["add", "a"], &commit] {
            let mut git = Command::new("git");
            git.args(arguments).current_dir(folder.path()).env_clear().envs(crate::git::environment(home));
            assert!(git.status().unwrap().success(), "git {arguments:?}");
        }
    }

    /// Replaces the placeholders of a written line by their values.
    pub fn meant(&self, line: &str) -> String {
        match &self.folder {
            Some((_, uri)) => {
                let line = line.replace(WATCH, &self.watch).replace(FOLDER, uri);
                line.replace(PATH, &uri["file://".len()..]).replace(ETAG, &self.etag)
            }
            None => line.to_owned(),
        }
    }

    /// Replaces the values in a received line by their placeholders.
    pub fn shown(&mut self, line: String) -> String {
        let Some((_, uri)) = &self.folder else { return line };
        let mut line = line.replace(uri, FOLDER).replace(&uri["file://".len()..], PATH);
        if let Some(etag) = replace_value(&mut line, "etag", ETAG) {
            self.etag = etag;
        }
        // It holds the folder's URI, encoded.
        for name in ["channel", "resource"] {
            if line.contains(&format!("\"{name}\":\"ahp-resource-watch:")) {
                self.watch = replace_value(&mut line, name, WATCH).unwrap_or_default();
            }
        }
        replace_value(&mut line, "mtime", "TIME");
        // Not every file system knows it.
        let created = replace_value(&mut line, "ctime", "TIME");
        if created.is_some() {
            line = line.replace(r#""ctime":"TIME","#, "");
        }
        line
    }
}

/// Puts another text under this name; returns the one that was there.
fn replace_value(line: &mut String, name: &str, other: &str) -> Option<String> {
    let before = format!("\"{name}\":\"");
    let from = line.find(&before)? + before.len();
    let to = from + line[from..].find('"')?;
    let was = line[from..to].to_owned();
    line.replace_range(from..to, other);
    Some(was)
}
