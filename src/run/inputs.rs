//! Files and commands that the input of a tool call names.
//!
//! Each agent has members of its own, so names are compared word by word. A member that is taken
//! for a file by mistake can only refuse a grant; one that is overlooked could grant too much.
//!
//! Owns: which members of an input name files, contain patches or are a command with its arguments.
//! Never: follows a path, or decides about a call.

use std::collections::BTreeSet;

use serde_json::Value;

use super::patched::names_in_patch;

/// Members with a command.
const COMMANDS: [&str; 2] = ["command", "cmd"];

/// Other members that may have a command, in lower case and without separators.
const OTHER_COMMANDS: [&str; 5] = ["commands", "cmds", "commandline", "commandlines", "script"];

/// Members with the arguments of a command, besides it.
const ARGUMENTS: [&str; 7] = ["args", "arg", "arguments", "argument", "argv", "parameters", "params"];

/// Words by which a member names files, wherever they are in its name.
const FILE_WORDS: [&str; 24] = [
    "path",
    "paths",
    "pathname",
    "file",
    "files",
    "filename",
    "filenames",
    "filepath",
    "filepaths",
    "dir",
    "dirs",
    "directory",
    "directories",
    "folder",
    "folders",
    "uri",
    "uris",
    "src",
    "dst",
    "dest",
    "source",
    "destination",
    "target",
    "targets",
];

/// Names of members that name files, in lower case and without separators, beside those with such
/// words.
const FILE_NAMES: [&str; 7] = ["from", "to", "newname", "renameto", "moveto", "location", "symlink"];

/// Ends of names in which no capital separates the words, such as `destpath`.
const FILE_ENDS: [&str; 6] = ["path", "paths", "file", "files", "dir", "folder"];

/// Last words of members that are about a file and name none, and whole names of such members.
const NO_FILES: [&str; 35] = [
    "text",
    "content",
    "contents",
    "code",
    "data",
    "body",
    "string",
    "diff",
    "patch",
    "type",
    "types",
    "kind",
    "language",
    "extension",
    "extensions",
    "pattern",
    "glob",
    "regex",
    "mode",
    "format",
    "encoding",
    "version",
    "branch",
    "line",
    "lines",
    "size",
    "count",
    "limit",
    "depth",
    "hash",
    "description",
    "explanation",
    "profile",
    "newsource",
    "oldsource",
];

/// Words of members whose texts may be patches.
const PATCH_WORDS: [&str; 12] = [
    "patch",
    "patches",
    "patchtext",
    "input",
    "diff",
    "diffs",
    "udiff",
    "changes",
    "command",
    "cmd",
    "args",
    "arguments",
];

/// Members with objects whose names are files, in lower case and without separators.
const NAMES_ARE_FILES: [&str; 4] = ["changes", "filechanges", "files", "paths"];

/// Ends of the names of members with a folder that a call works in, in lower case and without
/// separators.
const WORKING_ENDS: [&str; 10] = [
    "cwd",
    "pwd",
    "workdir",
    "workingdir",
    "workingdirectory",
    "workdirectory",
    "currentdir",
    "currentdirectory",
    "root",
    "workspace",
];

/// Words of members that name a folder below which other members of the input may be.
const FOLDER_WORDS: [&str; 9] =
    ["dir", "directory", "folder", "cwd", "root", "workspace", "project", "base", "parent"];

/// Words of members that name a folder for the result of a call.
const RESULT_WORDS: [&str; 7] = ["dst", "dest", "destination", "target", "to", "new", "output"];

/// Maximum number of folders in an input below which its other files may be.
const FOLDERS_MAX: usize = 8;

/// Maximum depth of lists and objects in an input that are searched for files.
const DEPTH_MAX: usize = 32;

/// Command that a call runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamedCommand {
    /// The input has no command.
    None,
    /// The input has a command that is not understood as a whole.
    Hidden,
    /// Command line.
    Line(String),
}

/// Returns the command in the input of a tool. A text is a command line; a list is its words.
pub fn command_in(input: &Value) -> NamedCommand {
    match input {
        Value::Object(members) => {
            let mut named = COMMANDS.iter().filter_map(|name| members.get(*name).map(|it| (*name, it)));
            match named.find(|(_, value)| !value.is_null()) {
                None if members.keys().any(|name| is_other_command(name)) => NamedCommand::Hidden,
                None => NamedCommand::None,
                Some((name, Value::String(line))) => with_arguments(line, Some(input), name),
                Some((name, words)) => match joined(words) {
                    Some(line) => with_arguments(&line, Some(input), name),
                    None => NamedCommand::Hidden,
                },
            }
        }
        Value::String(line) => NamedCommand::Line(line.clone()),
        Value::Array(_) => joined(input).map_or(NamedCommand::Hidden, NamedCommand::Line),
        _ => NamedCommand::Hidden,
    }
}

/// Returns a command line with the arguments that the input has apart; the line is the member of
/// this name. Arguments that are not a list of words, or a second command, hide the command.
pub fn with_arguments(line: &str, input: Option<&Value>, name: &str) -> NamedCommand {
    let members = input.and_then(Value::as_object).into_iter().flatten();
    let mut more = members.filter(|(other, value)| {
        let key = joined_words(other);
        let is_command = COMMANDS.contains(&&*key) && *other != name || is_other_command(other);
        (is_command || ARGUMENTS.contains(&&*key)) && !is_empty(value)
    });
    match (more.next(), more.next()) {
        (None, _) => NamedCommand::Line(line.to_owned()),
        (Some((other, value)), None) if ARGUMENTS.contains(&&*joined_words(other)) => match joined(value) {
            Some(words) => NamedCommand::Line(format!("{line} {words}")),
            None => NamedCommand::Hidden,
        },
        _ => NamedCommand::Hidden,
    }
}

fn is_other_command(name: &str) -> bool {
    OTHER_COMMANDS.contains(&&*joined_words(name))
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        _ => false,
    }
}

/// Returns a list of words as a line, in which they are quoted.
fn joined(words: &Value) -> Option<String> {
    let words: Option<Vec<&str>> = words.as_array()?.iter().map(Value::as_str).collect();
    Some(shell_words::join(words?))
}

/// Meaning of the texts in a part of an input.
#[derive(Debug, Clone, Copy, Default)]
struct TextsOf {
    /// Set if texts in lists are files, and a member `name` of an object is one.
    files: bool,
    /// Set if texts are folders below which other files of the input may be.
    folders: bool,
    /// Set if texts may be patches.
    patches: bool,
}

/// Files that inputs name.
#[derive(Debug, Default)]
pub struct NamedFiles {
    /// Paths and URIs, as they are written.
    pub names: Vec<String>,
    /// Folders that the call works in. Such a folder alone is no file that the call concerns.
    pub working: BTreeSet<String>,
    /// Members of `names` that are folders below which others may be.
    pub folders: BTreeSet<String>,
    /// Set if a part of an input is too deep in it to be examined.
    pub is_too_deep: bool,
}

impl NamedFiles {
    /// Adds the files that an input names, also deeper in it and in patches.
    pub fn add(&mut self, input: &Value) {
        self.search(input, DEPTH_MAX, TextsOf { patches: !input.is_object(), ..TextsOf::default() });
    }

    /// Returns whether a part of an input was not examined, or has more folders than are.
    pub fn is_too_large(&self) -> bool {
        self.is_too_deep || self.working.len() + self.folders.len() > FOLDERS_MAX
    }

    fn search(&mut self, value: &Value, depth: usize, texts: TextsOf) {
        let Some(depth) = depth.checked_sub(1) else {
            self.is_too_deep = true;
            return;
        };
        match value {
            Value::String(text) => {
                if texts.files {
                    self.names.push(text.clone());
                }
                if texts.folders && !text.is_empty() {
                    let folders = if texts.files { &mut self.folders } else { &mut self.working };
                    folders.insert(text.clone());
                }
                if texts.patches {
                    self.names.extend(names_in_patch(text));
                }
            }
            Value::Array(items) => items.iter().for_each(|item| self.search(item, depth, texts)),
            Value::Object(members) => {
                for (name, value) in members {
                    let of_member = texts.of_member(name);
                    if value.is_object() && NAMES_ARE_FILES.contains(&&*joined_words(name)) {
                        self.names
                            .extend(value.as_object().into_iter().flatten().map(|(key, _)| key.clone()));
                    }
                    self.search(value, depth, of_member);
                }
            }
            _ => {}
        }
    }
}

impl TextsOf {
    /// Returns the meaning of the texts in a member.
    fn of_member(self, name: &str) -> Self {
        let (words, joined) = (words_of(name), joined_words(name));
        let has = |known: &[&str]| words.iter().any(|word| known.contains(&&**word));
        let last = words.last().map_or("", String::as_str);
        let names_none = NO_FILES.contains(&last) || NO_FILES.contains(&&*joined);
        let ends = FILE_ENDS.iter().any(|end| joined.ends_with(end));
        let files = has(&FILE_WORDS) || FILE_NAMES.contains(&&*joined) || ends;
        let files = files || self.files && last == "name";
        let is_working = WORKING_ENDS.iter().any(|end| joined.ends_with(end));
        let is_folder = is_working || files && has(&FOLDER_WORDS) && !has(&RESULT_WORDS);
        let is_patch = has(&PATCH_WORDS) || PATCH_WORDS.contains(&&*joined);
        Self {
            files: files && !names_none && !is_working,
            folders: !names_none && (is_folder || self.folders && (files || last == "name")),
            patches: is_patch || self.patches && (!names_none || last == "text"),
        }
    }
}

/// Returns the words of a member's name, in lower case: they are separated by capitals, or by
/// characters other than letters and digits.
fn words_of(name: &str) -> Vec<String> {
    let (mut words, mut word, mut was_lower) = (Vec::new(), String::new(), false);
    for char in name.chars() {
        if !char.is_alphanumeric() || char.is_uppercase() && was_lower {
            words.push(std::mem::take(&mut word));
        }
        if char.is_alphanumeric() {
            word.extend(char.to_lowercase());
        }
        was_lower = !char.is_uppercase();
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

/// Returns the name of a member in lower case and without separators.
fn joined_words(name: &str) -> String {
    words_of(name).concat()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn files_in(input: Value) -> Vec<String> {
        let mut files = NamedFiles::default();
        files.add(&input);
        assert!(!files.is_too_deep);
        files.names
    }

    #[test]
    fn member_with_a_word_for_a_file_names_one() {
        for name in [
            "path",
            "new_file_path",
            "output_path",
            "outputFile",
            "source_file",
            "destination_file",
            "to_path",
            "src",
            "dst",
            "dest",
            "dir",
            "new-path",
            "File Path",
            "absolutepath",
            "from",
            "fileUri",
            "srcPath",
            "targetDirectory",
            "files_to_edit",
            "URI",
            "notebook_path",
            "destpath",
            "outputdir",
            "newfile",
            "renameTo",
        ] {
            assert_eq!(files_in(json!({ name: "/x" })), ["/x"], "{name}");
            assert_eq!(files_in(json!({ "edits": [{ name: ["/x"] }] })), ["/x"], "{name}");
        }
        assert_eq!(files_in(json!({ "file": { "name": "/x", "size": "1" } })), ["/x"]);
    }

    #[test]
    fn working_folder_is_one_below_which_files_are_and_no_file() {
        for name in [
            "cwd",
            "CWD",
            "pwd",
            "shell_cwd",
            "workdir",
            "workDir",
            "work_dir",
            "working_dir",
            "workingDir",
            "working_directory",
            "workingDirectory",
            "working-directory",
            "current_directory",
            "currentDir",
            "root",
            "projectRoot",
            "workspace",
        ] {
            let mut files = NamedFiles::default();
            files.add(&json!({ name: "/x", "path": "y" }));
            assert_eq!(
                (files.names.join(" "), files.working),
                ("y".to_owned(), ["/x".to_owned()].into()),
                "{name}"
            );
        }
        for name in ["dir", "directory", "dir_path", "folderPath", "projectPath", "base_path"] {
            let mut files = NamedFiles::default();
            files.add(&json!({ name: "/x" }));
            assert_eq!(
                (files.names.join(" "), files.folders),
                ("/x".to_owned(), ["/x".to_owned()].into()),
                "{name}"
            );
        }
        for name in ["path", "file", "destination_folder", "target_dir", "directoryType"] {
            let mut files = NamedFiles::default();
            files.add(&json!({ name: "/x" }));
            assert!(files.folders.is_empty() && files.working.is_empty(), "{name}");
        }
    }

    #[test]
    fn member_of_an_ordinary_call_that_names_no_file_is_none() {
        for name in [
            "content",
            "file_text",
            "new_source",
            "old_string",
            "new_string",
            "fileType",
            "file_pattern",
            "source_code",
            "target_branch",
            "name",
            "profile",
            "pattern",
            "description",
            "cell_type",
            "url",
        ] {
            assert_eq!(files_in(json!({ name: "x" })), [""; 0], "{name}");
        }
    }

    #[test]
    fn patch_is_read_in_each_member_that_may_have_one() {
        let patch = "*** Begin Patch\n*** Update File: /x\n";
        for name in ["patch", "patch_text", "input", "udiff", "unified_diff", "patchContent", "changes"] {
            assert_eq!(files_in(json!({ name: patch })), ["/x"], "{name}");
            assert_eq!(files_in(json!({ name: [patch] })), ["/x"], "{name}");
            assert_eq!(files_in(json!({ name: [{ "text": patch }] })), ["/x"], "{name}");
        }
        assert_eq!(files_in(json!(patch)), ["/x"]);
        assert_eq!(files_in(json!({ "command": ["apply_patch", patch] })), ["/x"]);
        for name in ["content", "file_text", "new_string", "prompt"] {
            assert_eq!(files_in(json!({ name: patch })), [""; 0], "{name}");
        }
        let changes = json!({ "changes": { "/a": { "update": { "move_path": "/b", "content": patch } } } });
        assert_eq!(files_in(changes), ["/a", "/b"]);
    }

    #[test]
    fn input_that_is_too_deep_counts_as_not_examined() {
        let nested = |depth: usize| (0..depth).fold(json!({ "path": "/x" }), |deep, _| json!({ "x": deep }));
        assert_eq!(files_in(nested(DEPTH_MAX - 2)), ["/x"]);
        let mut files = NamedFiles::default();
        files.add(&nested(DEPTH_MAX));
        assert!(files.is_too_deep);
    }

    #[test]
    fn command_is_a_text_a_list_of_words_or_hidden() {
        let line = |line: &str| NamedCommand::Line(line.to_owned());
        for (input, command) in [
            (json!("rm x"), line("rm x")),
            (json!(["rm", "a b"]), line("rm 'a b'")),
            (json!(["rm", 5]), NamedCommand::Hidden),
            (json!(5), NamedCommand::Hidden),
            (json!({ "path": "x" }), NamedCommand::None),
            (json!({ "command": null, "cmd": "rm" }), line("rm")),
            (json!({ "command": { "x": 1 } }), NamedCommand::Hidden),
            (json!({ "command": "ls", "cmd": "rm x" }), NamedCommand::Hidden),
            (json!({ "command": "sudo", "args": ["rm", "x"] }), line("sudo rm x")),
            (json!({ "command": ["sudo"], "argv": ["rm"] }), line("sudo rm")),
            (json!({ "command": "npm test", "args": [], "arguments": {}, "cwd": "/" }), line("npm test")),
            (json!({ "command": "npm test", "args": "; rm x" }), NamedCommand::Hidden),
            (json!({ "command": "sudo", "args": ["rm", "x", 5] }), NamedCommand::Hidden),
            (json!({ "command": "sudo", "args": ["rm"], "argv": ["x"] }), NamedCommand::Hidden),
            (json!({ "command": "sudo", "arguments": { "x": "rm" } }), NamedCommand::Hidden),
        ] {
            assert_eq!(command_in(&input), command, "{input}");
        }
    }
}
