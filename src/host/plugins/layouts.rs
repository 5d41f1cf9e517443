//! Parts of a plugin, in the four layouts that plugins have.
//!
//! Owns: recognizing the layout, where each has its parts, and which files must be read for them.
//! Never: requests a file, repeats a value of one in a problem, or lets one invalid part cost
//! another one.
//!
//! | layout | manifest | servers |
//! | --- | --- | --- |
//! | [Agent Plugins](https://agent-plugins.org) | `plugin.json` with that `$schema` | `mcp.json` |
//! | [Open Plugins](https://open-plugins.com) | `.plugin/plugin.json` | `.mcp.json` |
//! | Claude | `.claude-plugin/plugin.json` | `.mcp.json` |
//! | bare | none, or another `plugin.json` | `.mcp.json` |
//!
//! Agent Plugins have skills and servers alone, at fixed places. The manifests of the other layouts
//! may name further places.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::front_matter::FrontMatter;
use super::servers::{transport_of, PluginServer};
use super::tree::{inside, join, shown, Tree};
use crate::wire::text::{self, first_bytes};

/// Beginning of the `$schema` of Agent Plugins.
const AGENT_PLUGINS: &str = "https://agent-plugins.org/schemas/";

/// Maximum number of parts of a plugin; the rest is not shown.
pub(super) const PARTS_MAX: usize = 256;

/// Maximum size of what the parts of a plugin say, in bytes; the rest is not shown.
pub(super) const PARTS_BYTES_MAX: usize = 1 << 20;

/// Maximum number of problems of a plugin that are kept.
const PROBLEMS_MAX: usize = 64;

/// Maximum number of paths that a member of a manifest names.
const PATHS_MAX: usize = 256;

/// Maximum length of a name of a part, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// Maximum length of a description, in bytes.
const DESCRIPTION_BYTES_MAX: usize = 512;

/// Plugin as its files describe it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::host) struct ParsedPlugin {
    /// Version in the manifest.
    pub(in crate::host) version: Option<String>,
    /// Parts, in the order of their kinds, then of their names.
    pub(in crate::host) parts: Vec<Part>,
    /// Problems that did not keep other parts from being read, for people.
    pub(in crate::host) problems: Vec<String>,
}

/// Part of a plugin.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::host) struct Part {
    /// Kind, with the members of that kind.
    pub(in crate::host) kind: PartKind,
    /// Name, unique among the parts of its kind.
    pub(in crate::host) name: String,
    /// Path of its file inside the plugin.
    pub(in crate::host) path: String,
    /// Description for people.
    pub(in crate::host) description: Option<String>,
    /// Set if only the user may use it.
    pub(in crate::host) not_for_model: Option<bool>,
    /// Set if only the agent may use it.
    pub(in crate::host) not_for_user: Option<bool>,
}

/// Kind of a part.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::host) enum PartKind {
    Agent {
        model: Option<String>,
        tools: Option<Vec<String>>,
    },
    Skill,
    Prompt,
    Rule {
        always_applies: Option<bool>,
        globs: Option<Vec<String>>,
    },
    Hook,
    /// MCP server; the error is the reason why it is unusable, for people.
    Server(Result<PluginServer, String>),
}

impl PartKind {
    /// Returns the name of the kind in ids.
    pub(in crate::host) fn name(&self) -> &'static str {
        match self {
            Self::Agent { .. } => "agent",
            Self::Skill => "skill",
            Self::Prompt => "prompt",
            Self::Rule { .. } => "rule",
            Self::Hook => "hook",
            Self::Server(_) => "mcp",
        }
    }
}

/// Result of parsing as far as the contents are known.
pub(super) enum Parsing {
    /// Files that must be read first.
    Needs(Vec<String>),
    Done(ParsedPlugin),
}

/// Parses the files of a plugin.
pub(super) fn parse(tree: &Tree) -> Parsing {
    let mut parser = PluginParser {
        tree,
        missing: RefCell::default(),
        documents: BTreeSet::new(),
        plugin: ParsedPlugin::default(),
        parts_bytes: 0,
        further_parts: 0,
        further_problems: 0,
    };
    tree.refused().iter().for_each(|refused| parser.note(refused.clone()));
    parser.parse();
    let mut missing = parser.missing.into_inner();
    if !missing.is_empty() {
        let mut paths = BTreeSet::new();
        missing.retain(|path| paths.insert(path.clone()));
        return Parsing::Needs(missing);
    }
    let PluginParser { mut plugin, further_parts, further_problems, .. } = parser;
    if further_parts > 0 {
        let read = plugin.parts.len();
        let count = read + further_parts;
        plugin.problems.insert(0, format!("only the first {read} of its {count} parts are read"));
    }
    if further_problems > 0 {
        plugin.problems.push(format!("there are {further_problems} further problems"));
    }
    Parsing::Done(plugin)
}

struct PluginParser<'a> {
    tree: &'a Tree,
    /// Files that the parser needs and that were not read, some of them repeatedly.
    missing: RefCell<Vec<String>>,
    /// Documents that were added, by the name of their kind and their path.
    documents: BTreeSet<(&'static str, &'a str)>,
    plugin: ParsedPlugin,
    /// Size of the parts, in bytes.
    parts_bytes: usize,
    /// Number of parts beyond the limits.
    further_parts: usize,
    /// Number of problems beyond the limit.
    further_problems: usize,
}

impl<'a> PluginParser<'a> {
    fn parse(&mut self) {
        let at_root = self.object("plugin.json");
        if self.lacks_manifest() {
            return;
        }
        let schema = at_root.as_ref().and_then(|manifest| manifest.get("$schema")?.as_str());
        if schema.is_some_and(|schema| schema.starts_with(AGENT_PLUGINS)) {
            self.take_version(at_root.as_ref());
            self.add_skills("skills");
            return self.add_servers_of_file("mcp.json");
        }
        let places = [".plugin/plugin.json", ".claude-plugin/plugin.json"];
        let place = places.into_iter().find(|path| self.tree.find(path).is_some());
        let manifest = place.map_or(at_root, |path| self.object(path)).unwrap_or_default();
        if self.lacks_manifest() {
            return;
        }
        let place = place.unwrap_or("plugin.json");
        self.take_version(Some(&manifest));
        for folder in self.places(&manifest, "agents", &["agents"]) {
            let new = || PartKind::Agent { model: None, tools: None };
            self.add_documents(&folder, &[".agent.md", ".md"], &new);
        }
        for folder in self.places(&manifest, "skills", &["skills"]) {
            self.add_skills(&folder);
        }
        for folder in self.places(&manifest, "commands", &["commands"]) {
            self.add_documents(&folder, &[".prompt.md", ".md"], &|| PartKind::Prompt);
        }
        for folder in self.places(&manifest, "rules", &["rules"]) {
            let new = || PartKind::Rule { always_applies: None, globs: None };
            self.add_documents(&folder, &[".instructions.md", ".mdc", ".md"], &new);
        }
        self.add_all((place, &manifest), "hooks", &["hooks/hooks.json", "hooks.json"], Self::add_hooks);
        self.add_all((place, &manifest), "mcpServers", &[".mcp.json"], Self::add_servers);
    }

    /// Returns whether the manifest, which says which other files are read, must be read first.
    fn lacks_manifest(&self) -> bool {
        !self.missing.borrow().is_empty()
    }

    fn take_version(&mut self, manifest: Option<&Map<String, Value>>) {
        let version = manifest.and_then(|manifest| manifest.get("version")?.as_str());
        self.plugin.version = version.map(|version| cut(version, NAME_BYTES_MAX));
    }

    /// Returns the content of a file; `None` if there is none, if it was not read yet, or if
    /// it is no text.
    fn read(&self, path: &str) -> Option<&'a str> {
        if self.tree.is_unread(path) {
            self.missing.borrow_mut().push(path.to_owned());
        }
        self.tree.content(path)
    }

    /// Returns the object that a file of JSON has.
    fn object(&mut self, path: &str) -> Option<Map<String, Value>> {
        let content = self.read(path)?;
        // Editors of Windows begin a file with a byte order mark.
        let content = content.strip_prefix('\u{feff}').unwrap_or(content);
        match serde_json::from_str::<Value>(content) {
            Ok(Value::Object(object)) => Some(object),
            Ok(_) => self.problem(format!("{} is no JSON object", shown(path))),
            Err(error) => {
                let (line, column) = (error.line(), error.column());
                self.problem(format!("{} is not JSON: line {line}, column {column}", shown(path)))
            }
        }
    }

    fn problem<T>(&mut self, problem: String) -> Option<T> {
        self.note(problem);
        None
    }

    fn note(&mut self, problem: String) {
        if self.plugin.problems.len() < PROBLEMS_MAX {
            self.plugin.problems.push(problem);
        } else {
            self.further_problems += 1;
        }
    }

    /// Returns the folders and files that have the parts of a kind: the default ones, unless the
    /// manifest replaces them, and those that it names.
    fn places(&mut self, manifest: &Map<String, Value>, member: &str, default: &[&str]) -> Vec<String> {
        let (named, is_exclusive) = match manifest.get(member) {
            // Open Plugins write `{ "paths": […], "exclusive": … }`, too, and VS Code reads it.
            Some(Value::Object(object)) => {
                let paths = object.get("paths");
                (paths, paths.is_some() && object.get("exclusive") == Some(&Value::Bool(true)))
            }
            value => (value, false),
        };
        let default = default.iter().filter(|_| !is_exclusive);
        let mut places: Vec<String> = default.map(|path| (*path).to_owned()).collect();
        for path in self.named(named, member) {
            // Many manifests name the default place, too.
            if !places.contains(&path) {
                places.push(path);
            }
        }
        places
    }

    /// Returns the paths that a member of the manifest names.
    fn named(&mut self, value: Option<&Value>, member: &str) -> Vec<String> {
        let values = match value {
            Some(Value::Array(values)) => values.as_slice(),
            Some(value) => std::slice::from_ref(value),
            None => &[],
        };
        let mut paths = Vec::new();
        if values.len() > PATHS_MAX {
            self.note(format!("only the first {PATHS_MAX} paths of `{member}` are read"));
        }
        for path in values.iter().take(PATHS_MAX).filter_map(Value::as_str) {
            match inside(path) {
                Ok(path) => paths.push(path),
                Err(why) => {
                    self.note(format!("`{member}` names {}: {why}", shown(path)));
                }
            }
        }
        paths
    }

    /// Adds what the files at the places of a kind have, and what the manifest itself has.
    fn add_all(
        &mut self,
        (place, manifest): (&str, &Map<String, Value>),
        member: &str,
        default: &[&str],
        add: fn(&mut Self, &str, &Map<String, Value>),
    ) {
        for path in self.places(manifest, member, default) {
            if let Some(object) = self.object(&path) {
                add(self, &path, &object);
            }
        }
        let inline = manifest.get(member).and_then(Value::as_object);
        let inline = inline.filter(|object| !object.contains_key("paths"));
        if let Some(object) = inline {
            add(self, place, object);
        }
    }

    fn add(&mut self, part: Part) {
        // After the first part beyond a limit, parts are only counted: a file may have very many.
        if self.further_parts > 0 {
            self.further_parts += 1;
            return;
        }
        let is_same = |other: &Part| other.name == part.name && other.kind.name() == part.kind.name();
        if let Some(other) = self.plugin.parts.iter().find(|other| is_same(other)) {
            if other.path == part.path {
                // The manifest names what is at a default place.
                return;
            }
            let name = shown(&part.name);
            let problem = format!("there are two parts ({}) with the name {name}", part.kind.name());
            return self.note(problem);
        }
        let bytes = self.parts_bytes + part.bytes();
        if self.plugin.parts.len() >= PARTS_MAX || bytes > PARTS_BYTES_MAX {
            self.further_parts = 1;
            return;
        }
        self.parts_bytes = bytes;
        self.plugin.parts.push(part);
    }

    /// Adds the documents in a folder, or the one at this path.
    fn add_documents(&mut self, place: &str, endings: &[&str], new: &dyn Fn() -> PartKind) {
        let tree = self.tree;
        let own = tree.find(place).map(|path| (path, path.rsplit('/').next().unwrap_or(path)));
        for (path, rest) in own.into_iter().chain(tree.below(place)) {
            if let Some(name) = endings.iter().find_map(|ending| rest.strip_suffix(ending)) {
                self.add_document(path, &name.replace('/', ":"), new());
            }
        }
    }

    /// Adds the skills in the folders of a folder, or the one in this folder.
    fn add_skills(&mut self, place: &str) {
        const FILE: &str = "SKILL.md";
        let tree = self.tree;
        if let Some(own) = tree.find(&join(place, FILE)) {
            let name = place.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("skill");
            return self.add_document(own, name, PartKind::Skill);
        }
        for (path, rest) in tree.below(place) {
            let folder = rest.strip_suffix(FILE).and_then(|rest| rest.strip_suffix('/'));
            if let Some(name) = folder.filter(|name| !name.contains('/')) {
                self.add_document(path, name, PartKind::Skill);
            }
        }
    }

    /// Adds a document, once for each kind: a manifest may name places below one another.
    fn add_document(&mut self, path: &'a str, name: &str, mut kind: PartKind) {
        if !self.documents.insert((kind.name(), path)) {
            return;
        }
        let Some(content) = self.read(path) else { return };
        let matter = FrontMatter::of(content);
        match &mut kind {
            PartKind::Agent { model, tools } => {
                *model = matter.text("model").map(|model| cut(&model, NAME_BYTES_MAX));
                *tools = matter.list("tools");
            }
            PartKind::Rule { always_applies, globs } => {
                *always_applies = matter.flag("alwaysApply");
                *globs = matter.list("globs").or_else(|| matter.list("applyTo"));
            }
            _ => {}
        }
        let name = matter.text("name").filter(|name| !name.is_empty()).unwrap_or_else(|| name.to_owned());
        let description = matter.text("description").map(|it| cut(&it, DESCRIPTION_BYTES_MAX));
        self.add(Part {
            kind,
            name: cut(&name, NAME_BYTES_MAX),
            path: path.to_owned(),
            description,
            not_for_model: matter.flag("disable-model-invocation"),
            not_for_user: matter.flag("user-invocable").map(|may| !may),
        });
    }

    fn add_hooks(&mut self, path: &str, file: &Map<String, Value>) {
        let hooks = file.get("hooks").and_then(Value::as_object).unwrap_or(file);
        let events: Vec<&String> = hooks.iter().filter(|(_, it)| it.is_array()).map(|it| it.0).collect();
        for event in events {
            self.add(Part::bare(PartKind::Hook, event, path));
        }
    }

    fn add_servers_of_file(&mut self, path: &str) {
        if let Some(object) = self.object(path) {
            self.add_servers(path, &object);
        }
    }

    fn add_servers(&mut self, path: &str, file: &Map<String, Value>) {
        let servers = match file.get("mcpServers") {
            Some(Value::Object(servers)) => servers,
            Some(_) => {
                let problem = format!("`mcpServers` of {} is no object", shown(path));
                return self.note(problem);
            }
            None => file,
        };
        let servers: BTreeMap<&String, &Value> =
            servers.iter().filter(|(name, it)| it.is_object() && !name.starts_with('$')).collect();
        for (name, entry) in servers {
            let server = transport_of(name, entry);
            if let Err(why) = &server {
                self.note(format!("the server {}: {why}", shown(name)));
            }
            self.add(Part::bare(PartKind::Server(server), name, path));
        }
    }
}

impl Part {
    /// Returns the size of what it says, in bytes.
    fn bytes(&self) -> usize {
        let texts = |texts: &Option<Vec<String>>| texts.iter().flatten().map(String::len).sum();
        let of_kind: usize = match &self.kind {
            PartKind::Agent { tools, .. } => texts(tools),
            PartKind::Rule { globs, .. } => texts(globs),
            PartKind::Server(Ok(server)) => server.bytes(),
            PartKind::Server(Err(why)) => why.len(),
            PartKind::Skill | PartKind::Prompt | PartKind::Hook => 0,
        };
        of_kind + self.name.len() + self.path.len() + self.description.as_ref().map_or(0, String::len)
    }

    fn bare(kind: PartKind, name: &str, path: &str) -> Self {
        Self {
            kind,
            name: cut(name, NAME_BYTES_MAX),
            path: path.to_owned(),
            description: None,
            not_for_model: None,
            not_for_user: None,
        }
    }
}

/// Returns a text without control characters, cut to a length.
fn cut(text: &str, bytes_max: usize) -> String {
    first_bytes(&text::message(text).replace('\n', " "), bytes_max).to_owned()
}
