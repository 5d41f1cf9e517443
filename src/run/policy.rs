//! Rules that grant and deny permissions where no person can be asked.
//!
//! Owns: the form of a rule, and which rule applies to a request.
//! Never: asks anyone, or protects from an agent that does not ask: an agent is no prisoner.

use std::path::{Path, PathBuf};

use ahp_types::common::JsonObject;
use ahp_types::state::{FileEditCollection, ToolCallState, ToolInput};
use anyhow::{bail, Context};
use serde_json::Value;

use super::commands::{plain_words, runs, SHELL};
use super::inputs::{command_in, with_arguments, NamedCommand, NamedFiles};
use super::patterns::{path_in, NamedPath, PathPattern};
use crate::wire::text::plain;
use crate::wire::tool_calls::{KIND, LOCATIONS, OMITTED, RAW_INPUT, TOOL_KIND};

/// Separator of rules in one text.
const BETWEEN_RULES: char = ';';

/// Condition with the rest of a rule as its value.
const COMMAND: &str = "command=";

/// Characters that mean nothing in the words of a command, so that a rule with them would never
/// apply.
const NOT_IN_WORDS: [char; 4] = ['\'', '"', '*', '?'];

/// Kinds of tools, as ACP names them.
const KINDS: [&str; 10] =
    ["read", "edit", "delete", MOVE, "search", EXECUTE, "think", "fetch", "switch_mode", "other"];

/// Kind of tools that run commands.
const EXECUTE: &str = "execute";

/// Kind of tools that move files or folders.
const MOVE: &str = "move";

/// Kind of tools of VS Code whose input is a command line.
const TERMINAL: &str = "terminal";

/// Member of an input that clients get as the command line.
const LINE_MEMBER: &str = "command";

/// Kinds of tools that change a folder with everything in it.
const WHOLE: [&str; 2] = ["delete", MOVE];

/// Reason for unknown files: a URI of another machine, or a relative path below an unknown folder.
const FOREIGN: &str = "the call names a file that is not known to be one of this machine";

/// Reason for unknown files: an input of which the run has not all, or that is too deep.
const TOO_LARGE: &str = "the input of the call is too large to be examined";

/// Reason for unknown files: none is named where there must be one.
const UNNAMED: &str = "the call does not name its files";

/// Reason for unknown files: a folder is changed with everything in it.
const WITHIN: &str = "a folder of the call may contain what the rule denies";

/// Kinds of tools of which each call concerns a file.
const OF_FILES: [&str; 4] = ["read", "edit", "delete", MOVE];

/// Facts about a tool call that asks for permission, or for a confirmation of its result.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyRequest {
    /// Name of the tool.
    pub tool: String,
    /// Name of the tool, for people.
    pub display_name: String,
    /// Kind of the tool, as ACP names it; `None` if the agent does not report it.
    pub kind: Option<String>,
    /// Purpose of the call, for people.
    pub title: String,
    /// Command line; `None` if the call runs no command, or does not name it.
    pub command: Option<String>,
    /// Set if the call runs a command that it does not name.
    pub hides_command: bool,
    /// Files that the call concerns, as far as it names them.
    pub paths: Vec<NamedPath>,
    /// Other files that it may concern: the same names below its own folders.
    pub elsewhere: Vec<PathsElsewhere>,
    /// Reason why it may concern other files, too.
    pub other_files: Option<&'static str>,
}

/// Files that a call concerns if its relative paths are below a folder that it names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PathsElsewhere {
    folder: NamedPath,
    /// Set if the folder is the one that the agent works in anyway.
    is_own: bool,
    paths: Vec<NamedPath>,
}

impl PolicyRequest {
    /// Returns the absolute paths of the files that the call concerns.
    pub fn real_paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.paths.iter().map(|path| &path.real)
    }

    /// Returns the new path of a file that the call moves into an existing folder, which itself
    /// stays where it is, if it concerns these files; `None` if the call does anything else.
    fn file_moved_into_folder(&self, paths: &[NamedPath]) -> Option<NamedPath> {
        let [first, second] = paths else { return None };
        let (file, folder) = if first.real.is_dir() { (second, first) } else { (first, second) };
        let is_move = self.kind.as_deref() == Some(MOVE) && file.real.is_file() && folder.real.is_dir();
        let name = file.named.file_name().filter(|_| is_move)?;
        Some(NamedPath::at(&folder.named.join(name)))
    }
}

/// Decision by the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// Set if the permission is granted.
    pub allowed: bool,
    /// Text of the rule.
    pub rule: String,
    /// Reason why the rule applies, where the rule itself does not say it.
    pub reason: Option<String>,
}

/// Rules of a run.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Folder of relative paths; empty if it is unknown.
    directory: PathBuf,
    allow: Vec<PermissionRule>,
    deny: Vec<PermissionRule>,
    allow_all: bool,
}

/// Conditions that must all hold.
#[derive(Debug, Clone)]
struct PermissionRule {
    text: String,
    kind: Option<String>,
    tool: Option<String>,
    path: Option<PathPattern>,
    command: Option<Vec<String>>,
}

impl Policy {
    /// Creates a policy without rules. Relative paths are below `directory`; if that is empty, they
    /// name no known file.
    pub fn new(directory: &Path, allow_all: bool) -> Self {
        Self { directory: directory.to_owned(), allow: Vec::new(), deny: Vec::new(), allow_all }
    }

    /// Returns the same rules with their relative paths below another folder.
    ///
    /// # Errors
    /// When a rule has a relative path, and the folder is unknown.
    pub fn below(&self, directory: &Path) -> anyhow::Result<Self> {
        let mut policy = Self::new(directory, self.allow_all);
        self.allow.iter().try_for_each(|rule| policy.add(true, &rule.text))?;
        self.deny.iter().try_for_each(|rule| policy.add(false, &rule.text))?;
        Ok(policy)
    }

    /// Adds the rules of a text, separated by `;`.
    ///
    /// # Errors
    /// When a rule cannot be understood.
    pub fn add(&mut self, allows: bool, rules: &str) -> anyhow::Result<()> {
        for text in rules.split(BETWEEN_RULES).map(str::trim).filter(|text| !text.is_empty()) {
            let rule = PermissionRule::read(text, &self.directory).with_context(|| format!("`{text}`"))?;
            if allows { &mut self.allow } else { &mut self.deny }.push(rule);
        }
        Ok(())
    }

    /// Returns the decision about a request; `None` if no rule applies.
    pub fn judge(&self, request: &PolicyRequest) -> Option<Judgement> {
        let decided = |allowed, rule: &str, reason| Judgement { allowed, rule: rule.to_owned(), reason };
        for rule in &self.deny {
            match rule.denies(request) {
                RuleDenial::No => {}
                RuleDenial::Yes => return Some(decided(false, &rule.text, None)),
                RuleDenial::Perhaps(why) => return Some(decided(false, &rule.text, Some(why))),
            }
        }
        if let Some(rule) = self.allow.iter().find(|rule| rule.grants(request)) {
            return Some(decided(true, &rule.text, None));
        }
        self.allow_all.then(|| decided(true, "--allow-all", None))
    }

    /// Returns whether all calls are granted, later ones included.
    pub fn grants_all(&self) -> bool {
        self.allow_all && self.deny.is_empty()
    }

    /// Returns the request of a tool call; `None` if the call does not wait for a decision.
    pub fn request_of(&self, call: &ToolCallState) -> Option<PolicyRequest> {
        match call {
            ToolCallState::PendingConfirmation(call) => Some(self.request(
                (&call.tool_name, &call.display_name, plain(&call.invocation_message)),
                call.meta.as_ref(),
                call.tool_input.as_ref(),
                call.edits.as_ref(),
            )),
            ToolCallState::PendingResultConfirmation(call) => Some(self.request(
                (&call.tool_name, &call.display_name, plain(&call.invocation_message)),
                call.meta.as_ref(),
                call.tool_input.as_ref(),
                None,
            )),
            _ => None,
        }
    }

    fn request(
        &self,
        (tool, display_name, title): (&str, &str, &str),
        meta: Option<&JsonObject>,
        input: Option<&ToolInput>,
        edits: Option<&FileEditCollection>,
    ) -> PolicyRequest {
        let member = |name: &str| meta.and_then(|meta| meta.get(name));
        let kind = member(KIND).and_then(Value::as_str).or_else(|| {
            match member(TOOL_KIND).and_then(Value::as_str)? {
                TERMINAL => Some(EXECUTE),
                kind => Some(kind),
            }
        });
        let (input, is_elsewhere) = match input {
            Some(ToolInput::Inline(text)) => (Some(text.as_str()), false),
            input => (None, input.is_some()),
        };
        // The input of a terminal is a command line, whatever it resembles.
        let is_line = member(TOOL_KIND).and_then(Value::as_str) == Some(TERMINAL);
        let value = input.filter(|_| !is_line).and_then(|text| serde_json::from_str::<Value>(text).ok());
        let more = member(RAW_INPUT);
        let is_cut = is_elsewhere || more.is_some_and(|more| more.get(OMITTED).is_some());
        let is_command = is_line || kind == Some(EXECUTE);
        let command = match (&value, input) {
            (Some(value), _) if is_command || value.is_object() => command_in(value),
            (None, Some(line)) if is_command => with_arguments(line, more, LINE_MEMBER),
            _ => NamedCommand::None,
        };
        let (command, hides_command) = match command {
            NamedCommand::None => (None, false),
            NamedCommand::Line(line) if !is_cut => (Some(line), false),
            NamedCommand::Line(_) | NamedCommand::Hidden => (None, true),
        };
        let text = input.filter(|_| value.is_none() && !is_command);
        let text = text.map(|text| Value::String(text.to_owned()));
        let mut named = NamedFiles::default();
        value.iter().chain(&text).chain(more).for_each(|input| named.add(input));
        let is_large = is_cut || named.is_too_large();
        let others = paths_beside_input(member(LOCATIONS), edits);
        let texts: Vec<&str> = named.names.iter().map(String::as_str).chain(others).collect();
        let (paths, mut has_foreign) = paths_below(&self.directory, texts.iter().copied());
        let elsewhere = if is_large { None } else { self.elsewhere(&named, &texts) };
        has_foreign |= elsewhere.is_none();
        PolicyRequest {
            tool: tool.to_owned(),
            display_name: display_name.to_owned(),
            kind: kind.map(str::to_owned),
            title: title.to_owned(),
            command,
            hides_command,
            paths,
            elsewhere: elsewhere.unwrap_or_default(),
            other_files: is_large.then_some(TOO_LARGE).or(has_foreign.then_some(FOREIGN)),
        }
    }

    /// Returns the files that a call concerns if its relative paths are below the folders that its
    /// input names; `None` if one of these is not known to be one of this machine.
    fn elsewhere(&self, named: &NamedFiles, texts: &[&str]) -> Option<Vec<PathsElsewhere>> {
        let own = NamedPath::at(&self.directory);
        let mut found = Vec::new();
        let mut add = |folder: &Path, texts: &mut dyn Iterator<Item = &str>| {
            let (paths, has_foreign) = paths_below(folder, texts);
            let folder = NamedPath::at(folder);
            let is_own = folder.real == own.real;
            found.push(PathsElsewhere { folder, is_own, paths });
            (!has_foreign).then_some(())
        };
        let mut starts = vec![self.directory.clone()];
        for text in &named.working {
            let folder = path_in(text, &self.directory)?;
            add(&folder, &mut texts.iter().copied())?;
            starts.push(folder);
        }
        for text in &named.folders {
            for start in &starts {
                let is_file = |text: &&str| !named.folders.contains(*text);
                add(&path_in(text, start)?, &mut texts.iter().copied().filter(is_file))?;
            }
        }
        Some(found)
    }
}

/// Returns what a call names beside its input: in locations and diffs.
fn paths_beside_input<'a>(
    locations: Option<&'a Value>,
    edits: Option<&'a FileEditCollection>,
) -> impl Iterator<Item = &'a str> {
    let locations = locations.and_then(Value::as_array).into_iter().flatten();
    let of_locations = locations.filter_map(|location| location["path"].as_str());
    let sides = edits.into_iter().flat_map(|edits| &edits.items).flat_map(|edit| [&edit.before, &edit.after]);
    of_locations.chain(sides.flatten().map(|side| side.uri.as_str()))
}

/// Returns the files of texts, and whether others are not known to be files of this machine.
/// Relative ones are below the folder.
fn paths_below<'a>(folder: &Path, texts: impl Iterator<Item = &'a str>) -> (Vec<NamedPath>, bool) {
    let (mut paths, mut has_foreign) = (Vec::new(), false);
    for text in texts {
        match NamedPath::of(text, folder) {
            Some(path) => paths.push(path),
            None => has_foreign = true,
        }
    }
    paths.sort();
    paths.dedup();
    (paths, has_foreign)
}

impl PermissionRule {
    fn read(text: &str, directory: &Path) -> anyhow::Result<Self> {
        let mut rule = Self { text: text.to_owned(), kind: None, tool: None, path: None, command: None };
        let is_at_word = |at: &usize| text[..*at].chars().next_back().is_none_or(char::is_whitespace);
        let command = text.match_indices(COMMAND).map(|(at, _)| at).find(is_at_word);
        let (conditions, command) =
            command.map_or((text, None), |at| (&text[..at], Some(&text[at + COMMAND.len()..])));
        if let Some(command) = command {
            let words: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
            if words.is_empty() || command.contains(SHELL) {
                bail!("`command=` must be followed by the first words of a simple command");
            }
            if command.contains(NOT_IN_WORDS) {
                bail!("`command=` is followed by plain words: quotes and wildcards would never match");
            }
            rule.command = Some(words);
        }
        if conditions.split_whitespace().any(|word| word.starts_with('#')) {
            bail!("a rule has no comments: `#` cannot begin a word");
        }
        let words = shell_words::split(conditions).context("a quote is not closed")?;
        if words.is_empty() && rule.command.is_none() {
            bail!("a rule needs a condition: kind=KIND, tool=NAME, path=PATTERN or command=WORDS");
        }
        for word in words {
            let is_second = match word.split_once('=') {
                Some(("kind", kind)) if !KINDS.contains(&kind) => {
                    bail!("`{kind}` is no kind of tool; there are: {}", KINDS.join(", "))
                }
                Some(("kind", kind)) => rule.kind.replace(kind.to_owned()).is_some(),
                Some(("tool", tool)) => rule.tool.replace(tool.to_owned()).is_some(),
                Some(("path", path)) => rule.path.replace(PathPattern::read(path, directory)?).is_some(),
                _ => bail!("`{word}` is none of kind=KIND, tool=NAME, path=PATTERN and command=WORDS"),
            };
            if is_second {
                bail!("`{word}`: a rule has each condition once; write two rules");
            }
        }
        Ok(rule)
    }

    fn fits_tool(&self, request: &PolicyRequest) -> bool {
        let kind = self.kind.as_ref().is_none_or(|kind| request.kind.as_ref() == Some(kind));
        let names = [&request.tool, &request.display_name];
        kind && self.tool.as_ref().is_none_or(|tool| names.contains(&tool))
    }

    /// Returns whether the rule covers everything that the request names.
    fn grants(&self, request: &PolicyRequest) -> bool {
        let paths = self.path.as_ref().is_none_or(|pattern| {
            let all_match = |paths: &[NamedPath]| paths.iter().all(|path| pattern.grants(path));
            let all_match_elsewhere = request
                .elsewhere
                .iter()
                .all(|it| all_match(&it.paths) && (it.is_own || pattern.grants(&it.folder)));
            all_match(&request.paths)
                && all_match_elsewhere
                && !request.paths.is_empty()
                && request.other_files.is_none()
        });
        let command = self.command.as_ref().is_none_or(|prefix| {
            let words = request.command.as_deref().and_then(plain_words);
            words.is_some_and(|words| words.starts_with(prefix))
        });
        self.fits_tool(request) && paths && command
    }

    /// Returns whether the rule covers some part of the request.
    fn denies(&self, request: &PolicyRequest) -> RuleDenial {
        if !self.fits_tool(request) {
            return RuleDenial::No;
        }
        let path = self.path.as_ref().map_or(RuleDenial::Yes, |pattern| denied_path(pattern, request));
        let command = self.command.as_ref().map_or(RuleDenial::Yes, |words| denied_command(words, request));
        match (path, command) {
            (RuleDenial::No, _) | (_, RuleDenial::No) => RuleDenial::No,
            (RuleDenial::Perhaps(why), _) | (_, RuleDenial::Perhaps(why)) => RuleDenial::Perhaps(why),
            (RuleDenial::Yes, RuleDenial::Yes) => RuleDenial::Yes,
        }
    }
}

/// Effect of a rule of denials on a request.
#[derive(Debug, Clone, PartialEq, Eq)]
enum RuleDenial {
    No,
    Yes,
    /// Denial because nothing shows that the rule does not apply; with the reason.
    Perhaps(String),
}

fn denied_path(pattern: &PathPattern, request: &PolicyRequest) -> RuleDenial {
    let of_names = denied_paths(pattern, request, &request.paths);
    let is_of_files = request.kind.as_deref().is_some_and(|kind| OF_FILES.contains(&kind));
    let unnamed = (request.paths.is_empty() && is_of_files).then_some(UNNAMED);
    let unknown = request.other_files.or(unnamed).map(|why| RuleDenial::Perhaps(why.to_owned()));
    let elsewhere = request.elsewhere.iter().map(|it| match pattern.denies(&it.folder) {
        true => RuleDenial::Yes,
        false => denied_paths(pattern, request, &it.paths),
    });
    let mut denials = vec![of_names];
    denials.extend(elsewhere.chain(unknown));
    match denials.contains(&RuleDenial::Yes) {
        true => RuleDenial::Yes,
        false => denials.into_iter().rfind(|denial| *denial != RuleDenial::No).unwrap_or(RuleDenial::No),
    }
}

/// Returns whether a pattern covers one of the files that a call concerns if they are these.
fn denied_paths(pattern: &PathPattern, request: &PolicyRequest, paths: &[NamedPath]) -> RuleDenial {
    let is_whole = request.kind.as_deref().is_some_and(|kind| WHOLE.contains(&kind));
    let moved = request.file_moved_into_folder(paths);
    let may_be_within = || {
        let has_folder = paths.iter().any(|path| path.real.is_dir());
        // A folder need not exist where another one is moved to.
        let is_folder = |path: &NamedPath| path.real.is_dir() || has_folder && !path.real.exists();
        let is_within = |path: &NamedPath| is_folder(path) && pattern.may_be_within(path);
        is_whole && moved.is_none() && paths.iter().any(is_within)
    };
    let denies = |path| pattern.denies(path) || is_whole && pattern.is_above_pattern(path);
    match paths.iter().any(denies) || moved.as_ref().is_some_and(|path| pattern.denies(path)) {
        true => RuleDenial::Yes,
        false if may_be_within() => RuleDenial::Perhaps(WITHIN.to_owned()),
        false => RuleDenial::No,
    }
}

fn denied_command(words: &[String], request: &PolicyRequest) -> RuleDenial {
    match request.command.as_deref().map(|line| runs(line, words)) {
        Some(Ok(true)) => RuleDenial::Yes,
        Some(Ok(false)) => RuleDenial::No,
        Some(Err(why)) => RuleDenial::Perhaps(format!("the command line cannot be taken apart: {why}")),
        None if request.hides_command || request.kind.as_deref() == Some(EXECUTE) => {
            RuleDenial::Perhaps("the call does not name its command".to_owned())
        }
        None => RuleDenial::No,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use serde_json::json;

    use super::*;

    fn judged(allow: &[&str], deny: &[&str], request: &PolicyRequest) -> Option<bool> {
        let mut policy = Policy::new(Path::new("/repo"), false);
        allow.iter().for_each(|rule| policy.add(true, rule).unwrap());
        deny.iter().for_each(|rule| policy.add(false, rule).unwrap());
        policy.judge(request).map(|judgement| judgement.allowed)
    }

    fn command(line: &str) -> PolicyRequest {
        let (kind, command) = (Some("execute".to_owned()), Some(line.to_owned()));
        PolicyRequest { tool: "bash".to_owned(), kind, command, ..PolicyRequest::default() }
    }

    fn edit(paths: &[&str]) -> PolicyRequest {
        let paths = paths.iter().map(|path| NamedPath::at(Path::new(path))).collect();
        PolicyRequest { kind: Some("edit".to_owned()), paths, ..PolicyRequest::default() }
    }

    #[test]
    fn command_prefix_covers_whole_words_of_simple_commands_only() {
        for (line, allowed) in [
            ("git status", Some(true)),
            ("git  status --short", Some(true)),
            ("git statusx", None),
            ("git", None),
            ("git status; rm -rf /", None),
            ("git status && rm x", None),
            ("git status > /etc/passwd", None),
            ("git status $(rm x)", None),
            ("git status\nrm x", None),
            ("X=1 git status", None),
        ] {
            assert_eq!(judged(&["command=git status"], &[], &command(line)), allowed, "{line}");
        }
    }

    #[test]
    fn denied_command_is_found_in_every_part_of_a_line() {
        for line in ["rm x", "ls; X=1 rm x", "if /bin/rm x; then ls; fi", "echo $(rm x)", "bash -c 'rm x'"] {
            assert_eq!(judged(&["kind=execute"], &["command=rm"], &command(line)), Some(false), "{line}");
        }
        assert_eq!(judged(&["kind=execute"], &["command=rm"], &command("ls rm")), Some(true));
    }

    #[test]
    fn command_that_cannot_be_taken_apart_is_denied_with_the_reason_and_never_granted() {
        let mut policy = Policy::new(Path::new("/repo"), true);
        assert_eq!(policy.judge(&command("$X y")).map(|it| it.allowed), Some(true));
        policy.add(false, "command=rm").unwrap();
        let judgement = policy.judge(&command("$X y")).unwrap();
        assert!(!judgement.allowed && judgement.rule == "command=rm");
        assert!(judgement.reason.unwrap().contains("cannot be taken apart"));
        let unnamed = PolicyRequest { command: None, ..command("") };
        assert_eq!(policy.judge(&unnamed).map(|it| it.allowed), Some(false));
        assert_eq!(judged(&["command=git"], &[], &command("git 'x")), None);
        assert_eq!(judged(&["command=git"], &["command=rm"], &command("git status")), Some(true));
    }

    #[test]
    fn path_that_is_not_of_this_machine_is_denied_and_never_granted() {
        let foreign = PolicyRequest { other_files: Some(FOREIGN), ..edit(&["/repo/src/a"]) };
        assert_eq!(judged(&["path=src"], &[], &foreign), None);
        assert_eq!(judged(&["kind=edit"], &["path=ci"], &foreign), Some(false));
    }

    #[test]
    fn call_that_changes_a_file_and_names_none_is_denied_as_one_without_its_command_is() {
        for (kind, allowed) in [("edit", false), ("delete", false), ("read", false), ("search", true)] {
            let unnamed = PolicyRequest { kind: Some(kind.to_owned()), ..edit(&[]) };
            let mut policy = Policy::new(Path::new("/repo"), true);
            policy.add(false, "path=.github/**").unwrap();
            assert_eq!(policy.judge(&unnamed).map(|it| it.allowed), Some(allowed), "{kind}");
        }
    }

    #[test]
    fn folder_is_not_deleted_or_moved_with_what_is_denied_in_it() {
        let deletion = PolicyRequest { kind: Some("delete".to_owned()), ..edit(&["/repo/ci"]) };
        assert_eq!(judged(&["kind=delete"], &["path=ci/secret/**"], &deletion), Some(false));
        assert_eq!(judged(&["kind=edit"], &["path=ci/secret/**"], &edit(&["/repo/ci"])), Some(true));
    }

    #[test]
    fn folder_that_may_contain_what_a_pattern_denies_is_not_deleted_or_moved() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().canonicalize().unwrap();
        fs::create_dir_all(directory.join("app/deep/lib")).unwrap();
        fs::write(directory.join("app/main.rs"), "").unwrap();
        for (kind, path, denied, allowed) in [
            ("delete", "app", "**/.env", false),
            ("move", "app/deep", "**/.env", false),
            ("delete", "app", "*/.env", false),
            ("delete", "app/deep", "app/*/lib/**", false),
            ("delete", "app/deep", "a*/**/x", false),
            ("delete", "app/deep", "*/.env", true),
            ("delete", "app/deep", "*.env", true),
            ("delete", "app/deep", "src/**/.env", true),
            ("delete", "app/main.rs", "**/.env", true),
            ("delete", "app/missing", "**/.env", true),
            ("edit", "app", "**/.env", true),
            ("delete", "app", "{app/deep,src}/*.rs", false),
        ] {
            let mut policy = Policy::new(&directory, true);
            policy.add(false, &format!("path={denied}")).unwrap();
            let paths = vec![NamedPath::at(&directory.join(path))];
            let request = PolicyRequest { kind: Some(kind.to_owned()), paths, ..edit(&[]) };
            let judgement = policy.judge(&request).unwrap();
            assert_eq!(judgement.allowed, allowed, "{kind} {path}, denied: {denied}");
            assert_eq!(judgement.reason.is_some(), !allowed, "{kind} {path}, denied: {denied}");
        }
    }

    #[test]
    fn file_that_is_moved_into_a_folder_is_denied_by_its_new_path_only() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().canonicalize().unwrap();
        for path in ["app/lib", "tmp", "src"] {
            fs::create_dir_all(directory.join(path)).unwrap();
        }
        fs::write(directory.join("a.rs"), "").unwrap();
        for (paths, denied, allowed) in [
            (&["a.rs", "src"][..], "**/.env", true),
            (&["a.rs", "src"], "*/.env", true),
            (&["src", "a.rs"], "s*/a.rs", false),
            (&["a.rs", "src"], "src/*.rs", false),
            // Folders are moved, too, or may be.
            (&["app", "src"], "**/.env", false),
            (&["app", "new"], "new*/**/.env", false),
            (&["a.rs", "app", "new"], "ap*/**/.env", false),
            (&["a.rs", "app", "new"], "a.*/**/.env", true),
            (&["a.rs", "new.rs"], "**/.env", true),
        ] {
            let mut policy = Policy::new(&directory, true);
            policy.add(false, &format!("path={denied}")).unwrap();
            let paths = paths.iter().map(|path| NamedPath::at(&directory.join(path))).collect();
            let request = PolicyRequest { kind: Some(MOVE.to_owned()), paths, ..edit(&[]) };
            let judgement = policy.judge(&request).unwrap();
            assert_eq!(judgement.allowed, allowed, "{:?}, denied: {denied}", request.paths);
        }
    }

    #[test]
    fn rule_that_could_never_apply_is_refused_with_the_reason() {
        for (rule, why) in [
            ("kind=edti", "`edti` is no kind of tool; there are: read, edit, delete, move"),
            ("command='npm test'", "plain words"),
            ("command=npm *", "plain words"),
            ("path=", "must be followed by a pattern"),
        ] {
            let error = Policy::new(Path::new("/repo"), false).add(false, rule).unwrap_err();
            assert!(format!("{error:#}").contains(why), "{rule}: {error:#}");
        }
    }

    #[test]
    fn rule_without_a_condition_with_a_comment_or_with_one_condition_twice_is_refused() {
        for rule in ["#kind=read", "kind=edit # path=src/**", "kind=edit kind=read", "path=a path=b"] {
            assert!(Policy::new(Path::new("/repo"), false).add(true, rule).is_err(), "{rule}");
        }
    }

    #[test]
    fn path_pattern_must_cover_all_paths_for_a_grant_and_one_for_a_denial() {
        let rule = ["kind=edit path=src/**"];
        assert_eq!(judged(&rule, &[], &edit(&["/repo/src/a/b.rs"])), Some(true));
        assert_eq!(judged(&rule, &[], &edit(&["/repo/src/a.rs", "/repo/Cargo.toml"])), None);
        assert_eq!(judged(&rule, &[], &edit(&["/else/src/a.rs"])), None);
        assert_eq!(judged(&rule, &[], &edit(&[])), None);
        assert_eq!(judged(&["path=*.rs"], &[], &edit(&["/repo/src/a.rs"])), None);
        let deny = ["path=.github/**"];
        let both = edit(&["/repo/src/a.rs", "/repo/.github/workflows/ci.yml"]);
        assert_eq!(judged(&["kind=edit"], &deny, &both), Some(false));
    }

    #[test]
    fn rules_are_separated_by_semicolons_and_conditions_combined() {
        let rules = ["kind=read; tool=bash command=cargo test; path='my dir/*'"];
        assert_eq!(judged(&rules, &[], &command("cargo test --all")), Some(true));
        assert_eq!(judged(&rules, &[], &edit(&["/repo/my dir/x"])), Some(true));
        assert_eq!(judged(&rules, &[], &command("cargo build")), None);
        let mut policy = Policy::new(Path::new("/repo"), false);
        for wrong in ["edit", "kind", "command=", "command=a; b=c", "command=a|b", "path='x", "path=["] {
            assert!(policy.add(true, wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn request_names_command_and_paths_as_agents_report_them() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().canonicalize().unwrap();
        let policy = Policy::new(&directory, false);
        let call = |call: Value| policy.request_of(&serde_json::from_value(call).unwrap()).unwrap();
        let base = |input: &str, meta: Value| {
            json!({ "status": "pending-confirmation", "toolCallId": "1", "toolName": "t", "displayName": "T",
                "invocationMessage": "Do", "toolInput": input, "_meta": meta })
        };
        let found = call(base("ls -l", json!({ "acp.kind": "execute" })));
        assert_eq!((found.command.as_deref(), found.kind.as_deref()), (Some("ls -l"), Some("execute")));
        let found = call(base(r#"{"command":["ls","-l"],"path":"a/../../b"}"#, json!({})));
        assert_eq!((found.command.as_deref(), found.kind.clone()), (Some("ls -l"), None));
        assert_eq!(found.real_paths().collect::<Vec<_>>(), [&directory.parent().unwrap().join("b")]);
        let found = call(base(r#"{"command":["sh","-c","ls -l"],"path":"file:///x/a%20b"}"#, json!({})));
        assert_eq!(found.command.as_deref(), Some("sh -c 'ls -l'"));
        assert_eq!(found.real_paths().collect::<Vec<_>>(), [Path::new("/x/a b")]);
        assert_eq!(call(base(r#"{"path":"remote://x/y"}"#, json!({}))).other_files, Some(FOREIGN));
        let more = json!({ "args": ["rm", "a b"], "path": "/x/y" });
        let found = call(base("env X=1", json!({ "acp.kind": "execute", "acp.rawInput": more })));
        assert_eq!(found.command.as_deref(), Some("env X=1 rm 'a b'"));
        assert_eq!(found.real_paths().collect::<Vec<_>>(), [Path::new("/x/y")]);
        let cut = json!({ "acp.kind": "execute", "acp.rawInput": { "omittedBytes": 100_000 } });
        let found = call(base("env", cut));
        assert_eq!((found.command, found.other_files), (None, Some(TOO_LARGE)));
        let found = call(base(
            r#"{"source":"/x/1","destination":"/x/2","edits":[{"newPath":"/x/3"},{"files":["/x/4",{"path":"/x/5"}]}],
                "patch":"*** Begin Patch\n*** Update File: /x/6\n*** Move to: /x/7\n--- a/8\n+text","line":3,"changes":{"/x/9":{}}}"#,
            json!({}),
        ));
        let mut expected: Vec<PathBuf> = (1..=7).map(|number| format!("/x/{number}").into()).collect();
        expected.extend([directory.join("8"), "/x/9".into()]);
        assert_eq!(found.real_paths().cloned().collect::<BTreeSet<_>>(), expected.into_iter().collect());
        let found = call(base("text", json!({ "acp.kind": "edit", "acp.locations": [{ "path": "/x/y" }] })));
        assert_eq!(found.real_paths().collect::<Vec<_>>(), [Path::new("/x/y")]);
        assert_eq!(found.command, None);
    }

    /// Names of members with the folder that a call works in.
    const WORKING: [&str; 8] = [
        "cwd",
        "workdir",
        "workDir",
        "working_dir",
        "workingDir",
        "working_directory",
        "workingDirectory",
        "projectRoot",
    ];

    /// Returns the decision about a call of this kind with this input, in the folder `/repo`.
    fn judged_input(kind: &str, input: &Value, allow: &[&str], deny: &[&str]) -> Option<bool> {
        let call = json!({ "status": "pending-confirmation", "toolCallId": "1", "toolName": "t",
            "displayName": "T", "invocationMessage": "Do", "toolInput": input.to_string(),
            "_meta": { "acp.kind": kind } });
        let policy = Policy::new(Path::new("/repo"), false);
        judged(allow, deny, &policy.request_of(&serde_json::from_value(call).unwrap()).unwrap())
    }

    #[test]
    fn relative_path_is_denied_below_the_working_folder_of_its_call() {
        let deny = ["path=.github/**"];
        for name in WORKING.into_iter().chain(["directory", "dir_path", "projectPath"]) {
            for (kind, input, allowed) in [
                ("edit", json!({ "path": "x.yml", name: "/repo/.github" }), false),
                ("edit", json!({ "path": "x.yml", name: ".github" }), false),
                ("edit", json!({ "path": "x.yml", name: "file:///repo/.github" }), false),
                ("edit", json!({ "path": ".github/x.yml", name: "/repo" }), false),
                ("edit", json!({ "path": "../.github/x.yml", name: "src" }), false),
                ("edit", json!({ "path": "github/../../.github/x", name: "/repo/src" }), false),
                ("edit", json!({ "edits": [{ "path": "x.yml" }], "options": { name: ".github" } }), false),
                ("edit", json!({ "input": "*** Begin Patch\n*** Update File: x\n", name: ".github" }), false),
                ("edit", json!({ "path": "x.yml", name: "remote://host/x" }), false),
                ("execute", json!({ "command": "ls", name: "/repo/.github" }), false),
                ("edit", json!({ "path": "x.yml", name: "/repo/src" }), true),
                ("edit", json!({ "path": "/repo/src/x.yml", name: "/repo" }), true),
                ("execute", json!({ "command": "ls", name: "/repo" }), true),
            ] {
                assert_eq!(
                    judged_input(kind, &input, &["kind=edit; kind=execute"], &deny),
                    Some(allowed),
                    "{input}"
                );
            }
        }
        for name in WORKING {
            let unnamed = json!({ "text": "x", name: "/repo/src" });
            assert_eq!(judged_input("edit", &unnamed, &["kind=edit"], &deny), Some(false), "{name}");
            for (path, folder, allowed) in
                [("a", "/repo", true), ("github/a", "/repo/x", true), (".", ".", false), ("..", "src", false)]
            {
                let input = json!({ "path": path, name: folder });
                assert_eq!(judged_input("delete", &input, &["kind=delete"], &deny), Some(allowed), "{input}");
            }
        }
    }

    #[test]
    fn relative_path_is_granted_only_if_it_matches_below_the_working_folder_too() {
        for name in WORKING {
            for (input, allowed) in [
                (json!({ "path": "src/a", name: "/repo" }), true),
                (json!({ "path": "src/a", name: "." }), true),
                (json!({ "path": "src/a", name: "src/../" }), true),
                (json!({ "path": "/repo/src/a", name: "/repo/src/b" }), true),
                (json!({ "path": "src/a", name: "" }), true),
                (json!({ "path": "src/a", name: null }), true),
                (json!({ "path": "src/a", name: "/etc" }), false),
                (json!({ "path": "src/a", name: "../" }), false),
                (json!({ "path": "src/a", name: "~/x" }), false),
                (json!({ "path": "src/a", name: "remote://host/repo" }), false),
                (json!({ "path": "src/a", "x": [{ name: "/etc" }] }), false),
                (json!({ name: "/repo/src/b" }), false),
            ] {
                let granted = judged_input("edit", &input, &["kind=edit path=src/**"], &[]);
                assert_eq!(granted, allowed.then_some(true), "{input}");
            }
        }
        let many: Vec<String> = (0..20).map(|number| format!("/repo/src/{number}")).collect();
        let many = json!({ "path": "/repo/src/a", "cwd": many });
        assert_eq!(judged_input("edit", &many, &["path=src/**"], &[]), None);
        assert_eq!(judged_input("edit", &many, &["kind=edit"], &["path=/x"]), Some(false));
    }

    #[test]
    fn command_that_a_call_writes_in_an_unusual_form_is_read_or_denied_and_never_granted() {
        let mut denying = Policy::new(Path::new("/repo"), true);
        denying.add(false, "command=rm").unwrap();
        let mut granting = Policy::new(Path::new("/repo"), false);
        granting.add(true, "command=npm test").unwrap();
        let allowed = |policy: &Policy, input: &str, meta: Value| {
            let call = json!({ "status": "pending-confirmation", "toolCallId": "1", "toolName": "t",
                "displayName": "T", "invocationMessage": "Do", "toolInput": input, "_meta": meta });
            let request = policy.request_of(&serde_json::from_value(call).unwrap()).unwrap();
            policy.judge(&request).is_some_and(|judgement| judgement.allowed)
        };
        let execute = json!({ "acp.kind": "execute" });
        for input in [r#""rm x""#, r#"["rm","x"]"#, r#"["rm",5]"#, "5", "null", r#"{"x":1}"#] {
            assert!(!allowed(&denying, input, execute.clone()), "{input}");
        }
        assert!(allowed(&denying, r#""ls x""#, execute.clone()));
        assert!(allowed(&granting, r#"["npm","test"]"#, execute.clone()));
        let hidden = r#"{"command":"sudo","args":"rm x"}"#;
        assert!(!allowed(&denying, hidden, json!({ "acp.kind": "other" })));
        let terminal =
            |more: Value| json!({ "acp.kind": "execute", "toolKind": "terminal", "acp.rawInput": more });
        for more in [json!({ "args": "; rm x" }), json!({ "argv": ["a", 5] }), json!({ "cmd": "rm x" })] {
            assert!(!allowed(&granting, "npm test", terminal(more.clone())), "{more}");
            assert!(!allowed(&denying, "npm test", terminal(more.clone())), "{more}");
        }
        assert!(allowed(&granting, "npm test", terminal(json!({ "cwd": "/x" }))));
        // A command line that resembles an object is a command line.
        assert!(!allowed(&granting, r#"{"command":"npm test","x":"$(rm x)"}"#, terminal(json!({}))));
    }

    #[test]
    fn input_that_is_nested_too_deeply_is_denied_by_paths_and_never_granted() {
        let deep = (0..40).fold(json!({ "path": "/repo/.github/x" }), |deep, _| json!({ "x": deep }));
        let input = json!({ "path": "/repo/src/a", "more": deep }).to_string();
        let call = json!({ "status": "pending-confirmation", "toolCallId": "1", "toolName": "t",
            "displayName": "T", "invocationMessage": "Do", "toolInput": input, "_meta": { "acp.kind": "edit" } });
        let policy = Policy::new(Path::new("/repo"), false);
        let request = policy.request_of(&serde_json::from_value(call).unwrap()).unwrap();
        assert_eq!(judged(&["path=src/**"], &[], &request), None);
        assert_eq!(judged(&["kind=edit"], &["path=.github/**"], &request), Some(false));
    }
}
