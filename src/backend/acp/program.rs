//! Lookup of an agent's program.
//!
//! Owns: the lookup of the program and its interpreter, as the system would do it; the advice when
//! either is missing; and the search path of the agent.
//! Never: starts the program.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail, Context};

use crate::os::programs::{self, program_at};

/// Maximum number of bytes read to find a script's first line.
const FIRST_LINE_BYTES_MAX: u64 = 512;

const NODE: &str = "node";

/// Finds the file of a command that is started in this directory, with these variables added to the
/// environment. Errors, with advice, if the program or its interpreter is missing.
pub fn find(
    command: &Path,
    directory: Option<&Path>,
    environment: &BTreeMap<String, String>,
) -> anyhow::Result<PathBuf> {
    let found = find_file(command, directory, environment).map_err(|error| {
        let is_path = command.components().count() > 1;
        let words = command.to_str().and_then(|line| programs::split(line).ok()).unwrap_or_default();
        match words.split_first() {
            // A path may contain a space, or be misspelled.
            Some((program, arguments))
                if !arguments.is_empty() && (!is_path || Path::new(program).is_file()) =>
            {
                let (command, arguments) = (command.display(), toml::Value::from(arguments.to_vec()));
                anyhow!(
                    "it is not installed: there is no program `{command}`. If this is a program with arguments, write \
                     `command = \"{program}\"` and `args = {arguments}`"
                )
            }
            _ => error,
        }
    })?;
    if let Some((interpreter, advice)) = missing_interpreter(&found, directory, environment) {
        bail!("the script `{}` needs the interpreter `{interpreter}`, which {advice}", found.display());
    }
    Ok(found)
}

/// Returns a search path to which the folder of this file is appended, so that programs installed
/// beside it are found. `None` if no search path is set, or if it has the folder already.
pub fn search_path_of(found: &Path, environment: &BTreeMap<String, String>) -> Option<OsString> {
    let search_path = search_path(environment)?;
    let folder = found.parent().filter(|folder| folder.is_absolute())?;
    let mut folders: Vec<PathBuf> = std::env::split_paths(&search_path).collect();
    if folders.iter().any(|known| known == folder) {
        return None;
    }
    folders.push(folder.to_owned());
    // Fails if the folder's name contains a colon: no search path can express it.
    std::env::join_paths(folders).ok()
}

fn search_path(environment: &BTreeMap<String, String>) -> Option<OsString> {
    environment.get("PATH").map(OsString::from).or_else(|| std::env::var_os("PATH"))
}

/// Returns the missing interpreter of a script, with advice; `None` if nothing is missing.
fn missing_interpreter(
    script: &Path,
    directory: Option<&Path>,
    environment: &BTreeMap<String, String>,
) -> Option<(String, String)> {
    let mut start = Vec::new();
    File::open(script).ok()?.take(FIRST_LINE_BYTES_MAX).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    let interpreter = Path::new(words.next()?);
    if interpreter.is_absolute() && !interpreter.exists() {
        return Some((interpreter.display().to_string(), "does not exist: install it".to_owned()));
    }
    if interpreter.file_name() != Some(OsStr::new("env")) {
        return None;
    }
    let name = words.find(|word| *word != "-S" && !word.contains('='))?;
    if name.starts_with('-') {
        // Other options may take the next word.
        return None;
    }
    let path = search_path_of(script, environment).or_else(|| search_path(environment))?;
    let environment = BTreeMap::from([("PATH".to_owned(), path.into_string().ok()?)]);
    find_file(Path::new(name), directory, &environment).err()?;
    let what = if name == NODE { "install Node.js" } else { "install it" };
    let advice = format!(
        "is not on the search path: {what}, or add its folder in the configuration, as in \
         `env = {{ PATH = \"/folder/of/{name}:/usr/bin:/bin\" }}`"
    );
    Some((name.to_owned(), advice))
}

fn find_file(
    command: &Path,
    directory: Option<&Path>,
    environment: &BTreeMap<String, String>,
) -> anyhow::Result<PathBuf> {
    let here = directory.unwrap_or(Path::new(""));
    if command.components().count() > 1 {
        let file = here.join(command);
        let what = match (program_at(&file), file.exists()) {
            (Some(file), _) => return Ok(file),
            (None, false) => "does not exist",
            (None, true) if file.is_dir() => "is a folder: configure the path of the program in it",
            (None, true) => "is not executable",
        };
        bail!("it is not installed: the command `{}` {what}", file.display());
    }
    // Without a search path, the system uses its own default.
    let Some(search_path) = search_path(environment) else { return Ok(command.to_owned()) };
    let folders: Vec<PathBuf> = std::env::split_paths(&search_path).map(|folder| here.join(folder)).collect();
    let found = folders.iter().find_map(|folder| program_at(&folder.join(command)));
    found.with_context(|| {
        let folders: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
        format!(
            "it is not installed: the command `{}` is not on the search path ({}). Install it, or configure its \
             absolute path",
            command.display(),
            folders.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_program_is_found_where_the_system_finds_it() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        for place in [&one, &two] {
            fs::create_dir(place).unwrap();
            fs::write(place.join("tool"), "").unwrap();
        }
        let path = format!("{}:{}", one.display(), two.display());
        let environment = BTreeMap::from([("PATH".to_owned(), path)]);
        let find = |command: &str| find(Path::new(command), Some(folder.path()), &environment);
        let message = find("tool").unwrap_err().to_string();
        assert!(message.contains("the command `tool` is not on the search path"), "{message}");
        assert!(message.contains(&format!("({}, {})", one.display(), two.display())), "{message}");
        assert!(find("two/tool").unwrap_err().to_string().contains("is not executable"));
        assert!(find("two/other").unwrap_err().to_string().contains("two/other` does not exist"));
        fs::set_permissions(two.join("tool"), fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find("tool").unwrap(), two.join("tool"));
        assert_eq!(find("two/tool").unwrap(), two.join("tool"));
        let folder = find(two.to_str().unwrap()).unwrap_err().to_string();
        assert!(folder.ends_with("two` is a folder: configure the path of the program in it"), "{folder}");
        for line in ["tool --acp 'a b'".to_owned(), format!("{} --acp 'a b'", two.join("tool").display())] {
            let message = find(&line).unwrap_err().to_string();
            let program = line.split(' ').next().unwrap();
            let advice = format!(r#"write `command = "{program}"` and `args = ["--acp", "a b"]`"#);
            assert!(message.contains(&advice), "{message}");
        }
        assert!(find("no/such folder/tool").unwrap_err().to_string().ends_with("does not exist"));
    }

    #[test]
    fn script_whose_interpreter_is_not_there_is_not_started() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("agent");
        let write = |path: &Path, text: &str| {
            fs::write(path, text).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        };
        let environment = BTreeMap::from([("PATH".to_owned(), "/no/such".to_owned())]);
        let find = || find(&script, None, &environment);
        for first_line in ["#!/usr/bin/env node", "#!/usr/bin/env -S node --quiet"] {
            write(&script, &format!("{first_line}\nrest"));
            let message = find().unwrap_err().to_string();
            assert!(
                message.contains("agent` needs the interpreter `node`, which is not on the search path"),
                "{message}"
            );
            assert!(message.contains("install Node.js") && message.contains("env = { PATH ="), "{message}");
        }
        // Installed beside it.
        write(&folder.path().join("node"), "");
        assert_eq!(find().unwrap(), script);
        let path = search_path_of(&script, &environment).unwrap();
        assert_eq!(path, OsString::from(format!("/no/such:{}", folder.path().display())));
        let known = BTreeMap::from([("PATH".to_owned(), folder.path().to_str().unwrap().to_owned())]);
        assert_eq!(search_path_of(&script, &known), None);
        write(&script, "#!/no/such/interpreter -x\n");
        assert!(find()
            .unwrap_err()
            .to_string()
            .contains("needs the interpreter `/no/such/interpreter`, which does not exist"));
        for others in ["#!/bin/sh\n", "#!", "", "\x7fELF", "#!/usr/bin/env\n"] {
            write(&script, others);
            assert_eq!(find().unwrap(), script, "{others:?}");
        }
    }
}
