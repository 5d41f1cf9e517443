//! Rules that grant and deny permissions where no person can be asked.
//!
//! Owns: the form of a rule, and which rule applies to a request.
//! Never: asks anyone, or protects from an agent that does not ask: an agent is no prisoner.

use std::fs;
use std::path::{Component, Path, PathBuf};

use ahp_types::common::JsonObject;
use ahp_types::state::{FileEditCollection, ToolCallState, ToolInput};
use anyhow::{bail, Context};
use globset::{GlobBuilder, GlobMatcher};
use serde_json::Value;

use crate::files::uris::path_of;
use crate::os::paths::canonical;
use crate::wire::text::plain;
use crate::wire::tool_calls::{KIND, LOCATIONS, TOOL_KIND};

/// Maximum number of links that are followed in a path; systems follow fewer.
const LINKS_MAX: usize = 40;

/// Separator of rules in one text.
const BETWEEN_RULES: char = ';';

/// Condition with the rest of a rule as its value.
const COMMAND: &str = "command=";

/// Characters by which a shell runs more than one command, or writes to a file.
const SHELL: [char; 11] = [';', '|', '&', '<', '>', '`', '$', '(', ')', '\n', '\r'];

/// Members of a tool's input that name a file.
const PATH_MEMBERS: [&str; 5] = ["path", "file_path", "filePath", "abs_path", "notebook_path"];

/// Facts about a tool call that asks for permission, or for a confirmation of its result.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PolicyRequest {
    /// Name of the tool.
    pub tool: String,
    /// Name of the tool, for people.
    pub display_name: String,
    /// Kind of the tool, as ACP names it; `None` if the agent does not report it.
    pub kind: Option<String>,
    /// Purpose of the call, for people.
    pub title: String,
    /// Command line; `None` if the call runs no command.
    pub command: Option<String>,
    /// Absolute paths of the files that the call concerns, as far as it names them.
    pub paths: Vec<PathBuf>,
}

/// Decision by the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// Set if the permission is granted.
    pub allowed: bool,
    /// Text of the rule; `None` if no rule applies.
    pub rule: Option<String>,
}

/// Rules of a run.
#[derive(Debug)]
pub struct Policy {
    directory: PathBuf,
    allow: Vec<PermissionRule>,
    deny: Vec<PermissionRule>,
    allow_all: bool,
}

/// Conditions that must all hold.
#[derive(Debug)]
struct PermissionRule {
    text: String,
    kind: Option<String>,
    tool: Option<String>,
    path: Option<GlobMatcher>,
    command: Option<Vec<String>>,
}

impl Policy {
    /// Creates a policy without rules. Relative paths are below `directory`.
    pub fn new(directory: &Path, allow_all: bool) -> Self {
        Self { directory: directory.to_owned(), allow: Vec::new(), deny: Vec::new(), allow_all }
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
        let decided = |allowed: bool, rule: &str| Judgement { allowed, rule: Some(rule.to_owned()) };
        if let Some(rule) = self.deny.iter().find(|rule| rule.covers_part_of(request)) {
            return Some(decided(false, &rule.text));
        }
        if let Some(rule) = self.allow.iter().find(|rule| rule.covers(request)) {
            return Some(decided(true, &rule.text));
        }
        self.allow_all.then(|| decided(true, "--allow-all"))
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
                "terminal" => Some("execute"),
                kind => Some(kind),
            }
        });
        let input = match input {
            Some(ToolInput::Inline(text)) => Some(text.as_str()),
            _ => None,
        };
        let object = input.and_then(|text| serde_json::from_str::<Value>(text).ok()).filter(Value::is_object);
        let command = match &object {
            Some(object) => command_in(object),
            None => input.filter(|_| kind == Some("execute")).map(str::to_owned),
        };
        let of_input =
            object.iter().flat_map(|object| PATH_MEMBERS.iter().filter_map(|name| object[*name].as_str()));
        let locations = member(LOCATIONS).and_then(Value::as_array).into_iter().flatten();
        let of_locations = locations.filter_map(|location| location["path"].as_str());
        let sides = edits.iter().flat_map(|edits| &edits.items).flat_map(|edit| [&edit.before, &edit.after]);
        let of_edits = sides.flatten().filter_map(|side| path_of(&side.uri).ok());
        let mut paths: Vec<PathBuf> = of_input
            .chain(of_locations)
            .map(PathBuf::from)
            .chain(of_edits)
            .map(|path| self.real(&path))
            .collect();
        paths.sort();
        paths.dedup();
        PolicyRequest {
            tool: tool.to_owned(),
            display_name: display_name.to_owned(),
            kind: kind.map(str::to_owned),
            title: title.to_owned(),
            command,
            paths,
        }
    }

    /// Returns the path without `..`, and with the links that exist followed.
    fn real(&self, path: &Path) -> PathBuf {
        let found = followed(&self.directory.join(path));
        let mut rest = Vec::new();
        for folder in found.ancestors() {
            if let Ok(mut real) = canonical(folder) {
                real.extend(rest.iter().rev());
                return real;
            }
            rest.extend(folder.file_name());
        }
        found
    }
}

/// Follows the links in a path as the system does: part by part, and also where their targets do
/// not exist yet, as a write would create those.
fn followed(path: &Path) -> PathBuf {
    let reversed = |path: &Path| -> Vec<PathBuf> {
        path.components().rev().map(|part| PathBuf::from(part.as_os_str())).collect()
    };
    let (mut found, mut parts, mut links) = (PathBuf::new(), reversed(path), 0);
    while let Some(part) = parts.pop() {
        match part.components().next() {
            Some(Component::ParentDir) => {
                found.pop();
            }
            Some(Component::CurDir) | None => {}
            Some(_) => {
                found.push(&part);
                if let Some(target) = fs::read_link(&found).ok().filter(|_| links < LINKS_MAX) {
                    links += 1;
                    found.pop();
                    parts.extend(reversed(&target));
                }
            }
        }
    }
    found
}

/// Returns the command line in the input of a tool, as agents write it.
fn command_in(input: &Value) -> Option<String> {
    match input.get("command").or_else(|| input.get("cmd"))? {
        Value::String(command) => Some(command.clone()),
        Value::Array(words) => Some(words.iter().map(Value::as_str).collect::<Option<Vec<_>>>()?.join(" ")),
        _ => None,
    }
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
                Some(("kind", kind)) => rule.kind.replace(kind.to_owned()).is_some(),
                Some(("tool", tool)) => rule.tool.replace(tool.to_owned()).is_some(),
                Some(("path", path)) => rule.path.replace(pattern(path, directory)?).is_some(),
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

    /// Returns whether the rule covers everything that the request names, for a grant.
    fn covers(&self, request: &PolicyRequest) -> bool {
        let paths = self.path.as_ref().is_none_or(|pattern| {
            !request.paths.is_empty() && request.paths.iter().all(|path| pattern.is_match(path))
        });
        let command = self.command.as_ref().is_none_or(|prefix| {
            let command = request.command.as_deref().filter(|command| !command.contains(SHELL));
            command.is_some_and(|command| begins_with(command, prefix))
        });
        self.fits_tool(request) && paths && command
    }

    /// Returns whether the rule covers some part of the request, for a denial.
    fn covers_part_of(&self, request: &PolicyRequest) -> bool {
        let paths =
            self.path.as_ref().is_none_or(|pattern| request.paths.iter().any(|path| pattern.is_match(path)));
        let command = self.command.as_ref().is_none_or(|prefix| {
            let mut parts = request.command.iter().flat_map(|command| command.split(SHELL));
            parts.any(|part| begins_with(part, prefix))
        });
        self.fits_tool(request) && paths && command
    }
}

fn begins_with(command: &str, prefix: &[String]) -> bool {
    let mut words = command.split_whitespace();
    prefix.iter().all(|word| words.next() == Some(word))
}

/// Returns the pattern of a path; a relative one is below the folder.
fn pattern(path: &str, directory: &Path) -> anyhow::Result<GlobMatcher> {
    let whole = if Path::new(path).is_absolute() {
        path.to_owned()
    } else {
        let path = path.strip_prefix("./").unwrap_or(path);
        let directory = globset::escape(&directory.to_string_lossy());
        format!("{}/{path}", directory.trim_end_matches('/'))
    };
    let glob = GlobBuilder::new(&whole).literal_separator(true).build();
    Ok(glob.with_context(|| format!("path={path}"))?.compile_matcher())
}

#[cfg(test)]
mod tests {
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
        let paths = paths.iter().map(PathBuf::from).collect();
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
        for line in ["rm x", "ls; rm x", "ls && rm x", "echo $(rm x)", "ls | rm x"] {
            assert_eq!(judged(&["kind=execute"], &["command=rm"], &command(line)), Some(false), "{line}");
        }
        assert_eq!(judged(&["kind=execute"], &["command=rm"], &command("ls rm")), Some(true));
    }

    #[test]
    fn rule_without_a_condition_with_a_comment_or_with_one_condition_twice_is_refused() {
        for rule in ["#kind=read", "kind=edit # path=src/**", "kind=edit kind=read", "path=a path=b"] {
            assert!(Policy::new(Path::new("/repo"), false).add(true, rule).is_err(), "{rule}");
        }
    }

    /// The target of one link does not exist yet.
    #[test]
    fn links_are_followed_as_the_system_does() {
        let outer = tempfile::tempdir().unwrap();
        let outer = outer.path().canonicalize().unwrap();
        let work = outer.join("work");
        fs::create_dir_all(work.join("src")).unwrap();
        fs::create_dir_all(outer.join("out/deep")).unwrap();
        let link = |target: &str, name: &str| std::os::unix::fs::symlink(target, work.join(name)).unwrap();
        link("../../out/new", "src/dangling");
        link("../../out/deep", "src/deep");
        link("loop", "src/loop");
        let policy = Policy::new(&work, false);
        for (path, real) in [
            ("src/dangling", "out/new"),
            ("src/deep/../secret", "out/secret"),
            ("src/../src/./a", "work/src/a"),
            ("src/loop/a", "work/src/loop/a"),
        ] {
            assert_eq!(policy.real(Path::new(path)), outer.join(real), "{path}");
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
        let directory = canonical(folder.path()).unwrap();
        let policy = Policy::new(&directory, false);
        let call = |call: Value| policy.request_of(&serde_json::from_value(call).unwrap()).unwrap();
        let base = |input: &str, meta: Value| {
            json!({ "status": "pending-confirmation", "toolCallId": "1", "toolName": "t", "displayName": "T",
                "invocationMessage": "Do", "toolInput": input, "_meta": meta })
        };
        let found = call(base("ls -l", json!({ "acp.kind": "execute" })));
        assert_eq!((found.command.as_deref(), found.kind.as_deref()), (Some("ls -l"), Some("execute")));
        let found = call(base(r#"{"command":["ls","-l"],"path":"a/../../b"}"#, json!({})));
        assert_eq!((found.command.as_deref(), found.kind), (Some("ls -l"), None));
        assert_eq!(found.paths, [directory.parent().unwrap().join("b")]);
        let found = call(base("text", json!({ "acp.kind": "edit", "acp.locations": [{ "path": "/x/y" }] })));
        assert_eq!((found.command, found.paths), (None, vec![PathBuf::from("/x/y")]));
    }
}
