//! Git's configuration, read as data.
//!
//! Owns: the syntax of its files, their includes and conditions, and the paths of the user's and
//! the system's files.
//! Never: starts a program, or reads anything but regular files.

use std::collections::HashSet;
use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::os::paths::{canonical, from_bytes, home};
use crate::os::walk;
use globset::{escape, GlobBuilder};

const FILE_BYTES_MAX: u64 = 16 << 20;

/// Maximum number of files read for one repository, includes among them.
const FILES_MAX: usize = 100;

/// Maximum depth of includes; the same as git's.
const DEPTH_MAX: usize = 10;

/// A setting, as git lists it: `section.name` or `section.subsection.name`, in lower case except
/// for the subsection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitSetting {
    /// Key, with its section.
    pub key: Vec<u8>,
    /// Value; `None` if the file has only the name, which means `true`.
    pub value: Option<Vec<u8>>,
}

/// Settings in the order in which git reads them; the last one of a key wins.
#[derive(Debug, Clone, Default)]
pub struct GitSettings(Vec<GitSetting>);

impl GitSettings {
    /// Parses the content of one file, without its includes.
    ///
    /// # Errors
    /// The number of the line that git would refuse.
    pub fn parse(text: &[u8]) -> Result<Self, usize> {
        Parser::new(text).settings().map(Self)
    }

    /// Returns the value of a key, which must be in lower case.
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        let found = self.0.iter().rev().find(|setting| setting.key == key.as_bytes())?;
        Some(found.value.as_deref().unwrap_or(b"true"))
    }

    /// Returns whether git takes the value of a key for true; `None` if it is not set.
    pub fn is_true(&self, key: &str) -> Option<bool> {
        let value = String::from_utf8_lossy(self.get(key)?).to_ascii_lowercase();
        Some(!matches!(value.as_str(), "false" | "no" | "off" | "0" | ""))
    }

    /// Returns all settings, in reading order.
    pub fn iter(&self) -> impl Iterator<Item = &GitSetting> {
        self.0.iter()
    }

    /// Returns the distinct subsections of a section that set one of these names.
    pub fn subsections(&self, section: &str, names: &[&str]) -> HashSet<&[u8]> {
        let found = self.0.iter().filter_map(|setting| {
            let (before, name) = split_key(&setting.key)?;
            let is_one = names.iter().any(|one| one.as_bytes() == name);
            before.strip_prefix(section.as_bytes())?.strip_prefix(b".").filter(|_| is_one)
        });
        found.collect()
    }
}

fn split_key(key: &[u8]) -> Option<(&[u8], &[u8])> {
    let dot = key.iter().rposition(|byte| *byte == b'.')?;
    Some((&key[..dot], &key[dot + 1..]))
}

impl GitSetting {
    /// Formats the setting as lines of a configuration file; `None` if git could not read them
    /// back.
    pub fn lines(&self) -> Option<Vec<u8>> {
        let (section, name) = split_key(&self.key)?;
        // A subsection may contain any other byte.
        if section.iter().any(|byte| matches!(byte, 0 | b'\n')) {
            return None;
        }
        let mut lines = match section.iter().position(|byte| *byte == b'.') {
            None => [b"[", section, b"]\n"].concat(),
            Some(dot) => {
                let mut heading = [b"[", &section[..dot], b" \""].concat();
                for byte in &section[dot + 1..] {
                    if matches!(byte, b'"' | b'\\') {
                        heading.push(b'\\');
                    }
                    heading.push(*byte);
                }
                heading.extend(b"\"]\n");
                heading
            }
        };
        lines.extend(name);
        if let Some(value) = &self.value {
            lines.extend(b" = \"");
            for byte in value {
                match byte {
                    b'"' | b'\\' => lines.extend([b'\\', *byte]),
                    b'\n' => lines.extend(b"\\n"),
                    0 => return None,
                    byte => lines.push(*byte),
                }
            }
            lines.push(b'"');
        }
        lines.push(b'\n');
        Some(lines)
    }
}

/// Parser of git's configuration files, after git's `config.c`.
struct Parser<'a> {
    text: &'a [u8],
    at: usize,
    line: usize,
}

impl<'a> Parser<'a> {
    fn new(text: &'a [u8]) -> Self {
        Self { text: text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text), at: 0, line: 1 }
    }

    /// Returns the next byte, with `\r\n` as one `\n`; `None` at the end of the text.
    fn next(&mut self) -> Option<u8> {
        let mut byte = *self.text.get(self.at)?;
        self.at += 1;
        if byte == b'\r' && self.text.get(self.at) == Some(&b'\n') {
            self.at += 1;
            byte = b'\n';
        }
        if byte == b'\n' {
            self.line += 1;
        }
        Some(byte)
    }

    fn settings(mut self) -> Result<Vec<GitSetting>, usize> {
        let mut found = Vec::new();
        let mut section = Vec::new();
        loop {
            let line = self.line;
            let Some(byte) = self.next() else { return Ok(found) };
            let read = match byte {
                byte if is_space(byte) => Some(()),
                b'#' | b';' => {
                    while self.next().is_some_and(|byte| byte != b'\n') {}
                    Some(())
                }
                b'[' => self.section().map(|heading| section = heading),
                byte if byte.is_ascii_alphabetic() => {
                    self.setting(byte, &section).map(|setting| found.push(setting))
                }
                _ => None,
            };
            read.ok_or(line)?;
        }
    }

    /// Parses the rest of a heading. Returns the section with its subsection.
    fn section(&mut self) -> Option<Vec<u8>> {
        let mut name = Vec::new();
        loop {
            match self.next()? {
                b']' => return (!name.is_empty()).then_some(name),
                byte if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.') => {
                    name.push(byte.to_ascii_lowercase());
                }
                b' ' | b'\t' => break,
                _ => return None,
            }
        }
        let quote = loop {
            match self.next()? {
                b' ' | b'\t' => {}
                other => break other,
            }
        };
        if quote != b'"' {
            return None;
        }
        name.push(b'.');
        loop {
            match self.next()? {
                b'\n' => return None,
                b'"' => break,
                b'\\' => name.push(self.next().filter(|byte| *byte != b'\n')?),
                byte => name.push(byte),
            }
        }
        (self.next()? == b']').then_some(name)
    }

    fn setting(&mut self, first: u8, section: &[u8]) -> Option<GitSetting> {
        let mut key = section.to_vec();
        if !key.is_empty() {
            key.push(b'.');
        }
        key.push(first.to_ascii_lowercase());
        let mut byte = self.next();
        while let Some(part) = byte.filter(|byte| byte.is_ascii_alphanumeric() || *byte == b'-') {
            key.push(part.to_ascii_lowercase());
            byte = self.next();
        }
        while matches!(byte, Some(b' ' | b'\t')) {
            byte = self.next();
        }
        let value = match byte {
            None | Some(b'\n') => None,
            Some(b'=') => Some(self.value()?),
            Some(_) => return None,
        };
        Some(GitSetting { key, value })
    }

    fn value(&mut self) -> Option<Vec<u8>> {
        let mut value = Vec::new();
        // Length of the value without trailing spaces; `None` if there are none.
        let mut spaces = None;
        let (mut is_quoted, mut is_comment) = (false, false);
        loop {
            let byte = self.next();
            match byte {
                None | Some(b'\n') if is_quoted => return None,
                None | Some(b'\n') => {
                    value.truncate(spaces.unwrap_or(value.len()));
                    return Some(value);
                }
                Some(_) if is_comment => {}
                Some(byte) if is_space(byte) && !is_quoted => {
                    spaces.get_or_insert(value.len());
                    if !value.is_empty() {
                        value.push(byte);
                    }
                }
                Some(b'#' | b';') if !is_quoted => is_comment = true,
                Some(byte) => {
                    spaces = None;
                    match byte {
                        b'"' => is_quoted = !is_quoted,
                        b'\\' => match self.next() {
                            None | Some(b'\n') => {}
                            Some(b't') => value.push(b'\t'),
                            Some(b'b') => value.push(8),
                            Some(b'n') => value.push(b'\n'),
                            Some(byte @ (b'\\' | b'"')) => value.push(byte),
                            Some(_) => return None,
                        },
                        byte => value.push(byte),
                    }
                }
            }
        }
    }
}

/// Returns whether git takes a byte for a space; C's `isspace` accepts two more.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// Facts of a repository that conditional includes depend on.
#[derive(Debug, Clone, Copy)]
pub struct IncludedFor<'a> {
    /// Git directory, with symbolic links resolved.
    pub git_dir: &'a Path,
    /// Checked-out branch; `None` if it is not known or `HEAD` is detached.
    pub branch: Option<&'a str>,
}

/// Reads these files in order, with all that they include for a repository.
///
/// # Errors
/// Which file cannot be read, and why, for people.
pub fn read_all(files: &[PathBuf], included_for: IncludedFor<'_>) -> Result<GitSettings, String> {
    let read = |urls: Option<Vec<Vec<u8>>>| {
        let home = home();
        let mut reader = SettingsReader {
            included_for,
            home,
            urls,
            asks_for_urls: false,
            files_left: FILES_MAX,
            found: Vec::new(),
        };
        files.iter().try_for_each(|file| reader.file(file, 0))?;
        Ok((reader.asks_for_urls, GitSettings(reader.found)))
    };
    let (asks_for_urls, found) = read(None)?;
    if !asks_for_urls {
        return Ok(found);
    }
    let is_url = |setting: &&GitSetting| {
        split_key(&setting.key).is_some_and(|(before, name)| name == b"url" && before.starts_with(b"remote."))
    };
    let urls = found.iter().filter(is_url).filter_map(|setting| setting.value.clone()).collect();
    read(Some(urls)).map(|(_, found)| found)
}

struct SettingsReader<'a> {
    included_for: IncludedFor<'a>,
    home: Option<PathBuf>,
    /// URLs of all remotes; `None` in the first pass, before they are known.
    urls: Option<Vec<Vec<u8>>>,
    /// Set if an include depends on the URLs of remotes.
    asks_for_urls: bool,
    files_left: usize,
    found: Vec<GitSetting>,
}

impl SettingsReader<'_> {
    fn file(&mut self, path: &Path, depth: usize) -> Result<(), String> {
        let failed = |why: &dyn std::fmt::Display| format!("its configuration `{}`: {why}", path.display());
        let Some(text) = content_of(path).map_err(|error| failed(&error))? else { return Ok(()) };
        if depth > DEPTH_MAX || self.files_left == 0 {
            return Err(failed(&"more files are included than are read"));
        }
        self.files_left -= 1;
        let GitSettings(settings) =
            GitSettings::parse(&text).map_err(|line| failed(&format_args!("line {line} cannot be read")))?;
        for setting in settings {
            let included = self.included(&setting, path);
            self.found.push(setting);
            if let Some(included) = included {
                self.file(&included, depth + 1)?;
            }
        }
        Ok(())
    }

    /// Returns the file that a setting includes; `file` is the file of the setting.
    fn included(&mut self, setting: &GitSetting, file: &Path) -> Option<PathBuf> {
        let (before, name) = split_key(&setting.key)?;
        if name != b"path" {
            return None;
        }
        let is_met = match before {
            b"include" => true,
            before => self.is_met(&String::from_utf8_lossy(before.strip_prefix(b"includeif.")?), file),
        };
        let named = setting.value.as_ref().filter(|named| is_met && !named.is_empty())?;
        let named = from_bytes(named);
        let named = Path::new(&named);
        Some(match named.strip_prefix("~") {
            Ok(below) => self.home.as_ref()?.join(below),
            Err(_) => file.parent()?.join(named),
        })
    }

    fn is_met(&mut self, condition: &str, file: &Path) -> bool {
        let git_dir = self.included_for.git_dir;
        if let Some(pattern) = condition.strip_prefix("gitdir:") {
            return self.is_git_dir(pattern, git_dir, false, file);
        }
        if let Some(pattern) = condition.strip_prefix("gitdir/i:") {
            return self.is_git_dir(pattern, git_dir, true, file);
        }
        if let Some(pattern) = condition.strip_prefix("onbranch:") {
            let branch = self.included_for.branch;
            return branch.is_some_and(|branch| is_match(&whole(pattern), Path::new(branch), false));
        }
        let Some(pattern) = condition.strip_prefix("hasconfig:remote.*.url:") else { return false };
        self.asks_for_urls = true;
        let mut urls = self.urls.iter().flatten();
        urls.any(|url| is_match(pattern, Path::new(&from_bytes(url)), false))
    }

    fn is_git_dir(&self, pattern: &str, git_dir: &Path, in_any_case: bool, file: &Path) -> bool {
        let literal = |folder: &Path, rest: &str| {
            let folder = canonical(folder).unwrap_or_else(|_| folder.to_owned());
            format!("{}/{rest}", escape(&folder.to_string_lossy()))
        };
        let pattern = match (pattern.strip_prefix("~/"), pattern.strip_prefix("./")) {
            (Some(rest), _) => match &self.home {
                Some(home) => literal(home, rest),
                None => return false,
            },
            (None, Some(rest)) => {
                let file = canonical(file).unwrap_or_else(|_| file.to_owned());
                file.parent().map_or_else(String::new, |folder| literal(folder, rest))
            }
            (None, None) if Path::new(pattern).has_root() => pattern.to_owned(),
            (None, None) => format!("**/{pattern}"),
        };
        is_match(&whole(&pattern), git_dir, in_any_case)
    }
}

/// Completes a pattern: one that ends with a slash matches everything below.
fn whole(pattern: &str) -> String {
    format!("{pattern}{}", if pattern.ends_with('/') { "**" } else { "" })
}

/// Returns whether a path matches a pattern as git reads it: without alternatives in braces.
fn is_match(pattern: &str, path: &Path, in_any_case: bool) -> bool {
    let pattern = pattern.replace('{', "[{]").replace('}', "[}]");
    let mut glob = GlobBuilder::new(&pattern);
    glob.literal_separator(true).backslash_escape(true).case_insensitive(in_any_case);
    glob.build().is_ok_and(|glob| glob.compile_matcher().is_match(path))
}

/// Returns the content of a file; `None` if it does not exist, may not be read, or is not regular.
fn content_of(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let is_nothing = |kind| {
        matches!(
            kind,
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::PermissionDenied
        )
    };
    match read_config(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if is_nothing(error.kind()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads a configuration file.
///
/// # Errors
/// When it is no regular file, cannot be read, or is too large.
pub fn read_config(path: &Path) -> io::Result<Vec<u8>> {
    let text = read_regular(path, FILE_BYTES_MAX + 1)?;
    match text.len() as u64 > FILE_BYTES_MAX {
        true => Err(io::Error::other(format!("it has more than {} MiB", FILE_BYTES_MAX >> 20))),
        false => Ok(text),
    }
}

/// Opens a regular file of a repository, following links. Never blocks: the repository's author
/// may have put a pipe or a device there.
///
/// # Errors
/// When it cannot be opened; anything but a regular file counts as not found.
pub fn open_followed(path: &Path) -> io::Result<File> {
    let file = walk::open_nonblocking(path, true)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Reads the first `bytes_max` bytes of a regular file.
pub fn read_regular(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    open_followed(path)?.take(bytes_max).read_to_end(&mut text)?;
    Ok(text)
}

/// Returns the configuration files of the system and the user, in the order in which git reads
/// them. `system` is the system's file unless the environment names another.
pub fn files_of_the_user(system: Option<&Path>) -> Vec<PathBuf> {
    let named = |name: &str| env::var_os(name).map(PathBuf::from);
    let is_set = |value: OsString| {
        let text = [b"[a]\nb = ", value.as_encoded_bytes(), b"\n"].concat();
        GitSettings::parse(&text).ok().and_then(|found| found.is_true("a.b"))
    };
    let without_system = env::var_os("GIT_CONFIG_NOSYSTEM").and_then(is_set).unwrap_or(false);
    let system = named("GIT_CONFIG_SYSTEM").or_else(|| system.map(Path::to_owned));
    let mut files: Vec<PathBuf> = system.filter(|_| !without_system).into_iter().collect();
    match named("GIT_CONFIG_GLOBAL") {
        Some(file) => files.push(file),
        None => {
            let home = home().filter(|home| home.is_absolute());
            let of_programs = named("XDG_CONFIG_HOME").filter(|folder| !folder.as_os_str().is_empty());
            let of_programs = of_programs.or_else(|| Some(home.as_ref()?.join(".config")));
            files.extend(of_programs.map(|folder| folder.join("git/config")));
            files.extend(home.map(|home| home.join(".gitconfig")));
        }
    }
    files
}

/// Returns the path that a setting names, with `~` expanded; `None` if it names another user's
/// home.
pub fn path_in(value: &[u8]) -> Option<PathBuf> {
    match value.strip_prefix(b"~") {
        None => Some(PathBuf::from(from_bytes(value).into_owned())),
        Some(below) => {
            let below = from_bytes(below.strip_prefix(b"/").or(below.is_empty().then_some(below))?);
            Some(home()?.join(&*below))
        }
    }
}
