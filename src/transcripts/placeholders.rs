//! Placeholders of a transcript with a folder of its own, and the values behind them.
//!
//! Owns: what stands in a transcript for the folder's URI, for the tokens and times of files, and
//! for the channel of a watch.
//! Never: creates a folder.

/// Placeholder of the folder's URI.
const FOLDER: &str = "file:///FOLDER";

/// Placeholder of the folder's path in other URIs.
const PATH: &str = "/FOLDER";

/// Placeholder of a file's version token.
const ETAG: &str = "ETAG";

/// Placeholder of the channel of a watch.
const WATCH: &str = "ahp-resource-watch:/WATCH";

/// Placeholder of a file's time.
const TIME: &str = "TIME";

/// Values of the placeholders.
#[derive(Debug)]
pub(super) struct Placeholders {
    /// Path of the folder, as URIs have it; `None` without a folder.
    folder: Option<String>,
    /// Last received version token.
    etag: String,
    /// Last received channel of a watch.
    watch: String,
}

impl Placeholders {
    /// Creates the placeholders for a folder, given by its path as URIs have it.
    pub(super) fn new(folder: Option<String>) -> Self {
        Self { folder, etag: String::new(), watch: WATCH.to_owned() }
    }

    /// Replaces the placeholders of a written line by their values.
    pub(super) fn fill(&self, line: &str) -> String {
        let Some(folder) = &self.folder else { return line.to_owned() };
        let line = line.replace(WATCH, &self.watch).replace(FOLDER, &format!("file://{folder}"));
        line.replace(PATH, folder).replace(ETAG, &self.etag)
    }

    /// Replaces the values in a received line by their placeholders.
    pub(super) fn put_in(&mut self, line: String) -> String {
        let Some(folder) = &self.folder else { return line };
        let mut line = line.replace(&format!("file://{folder}"), FOLDER).replace(folder, PATH);
        if let Some(etag) = replace_value(&mut line, "etag", ETAG) {
            self.etag = etag;
        }
        // The channel contains the folder's URI, encoded.
        for name in ["channel", "resource"] {
            if line.contains(&format!("\"{name}\":\"ahp-resource-watch:")) {
                self.watch = replace_value(&mut line, name, WATCH).unwrap_or_default();
            }
        }
        replace_value(&mut line, "mtime", TIME);
        // Not every file system has it.
        if replace_value(&mut line, "ctime", TIME).is_some() {
            line = line.replace(r#""ctime":"TIME","#, "");
        }
        line
    }
}

/// Puts another text under this name; returns the previous one.
fn replace_value(line: &mut String, name: &str, other: &str) -> Option<String> {
    let before = format!("\"{name}\":\"");
    let from = line.find(&before)? + before.len();
    let to = from + line[from..].find('"')?;
    let was = line[from..to].to_owned();
    line.replace_range(from..to, other);
    Some(was)
}
