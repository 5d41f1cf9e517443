//! MCP servers that a plugin describes.
//!
//! Owns: their form, that of `.mcp.json`, and what is wrong with an entry.
//! Never: repeats a value of an entry in an error, starts a server, or replaces a placeholder: a
//! value of the host's environment would reach whatever the plugin names.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::host::effects::{ClientMcpTransport, Token, CLIENT_TOOLS_SERVER};

/// Maximum length of a server's name, in bytes: agents derive the names of tools from it.
const NAME_BYTES_MAX: usize = 64;

/// Transport of a plugin's server.
pub(in crate::host) type PluginServer = ClientMcpTransport;

/// Reads an entry of `mcpServers`.
///
/// # Errors
/// When it is unusable, with the reason for people, which contains no value.
pub(super) fn transport_of(name: &str, entry: &Value) -> Result<PluginServer, String> {
    check_name(name)?;
    let member = |name: &str| entry.get(name).filter(|value| !value.is_null());
    for unsupported in ["cwd", "envFile"] {
        if member(unsupported).is_some() {
            return Err(format!("`{unsupported}` is not supported"));
        }
    }
    let kind = member("type").map(|kind| kind.as_str().unwrap_or_default());
    match (member("command"), member("url"), kind) {
        (Some(command), None, None | Some("stdio")) => {
            let command = text("command", command)?;
            check_command(&command)?;
            let args = match member("args") {
                None => &[],
                Some(args) => args.as_array().map(Vec::as_slice).ok_or("`args` must be a list")?,
            };
            let args = args.iter().map(|arg| text("args", arg).map(Token::new));
            let args = args.collect::<Result<_, _>>()?;
            Ok(ClientMcpTransport::Program { command, args, env: map("env", member("env"))? })
        }
        (None, Some(url), None | Some("http" | "streamable-http" | "sse")) => {
            let url = text("url", url)?;
            if !["http://", "https://"].iter().any(|scheme| url.starts_with(scheme)) {
                return Err("`url` is no URL of HTTP".to_owned());
            }
            let headers = map("headers", member("headers"))?;
            Ok(ClientMcpTransport::Url { url: Token::new(url), headers, sse: kind == Some("sse") })
        }
        (_, _, Some("stdio")) => Err("`type` `stdio` needs a `command`, and no `url`".to_owned()),
        (_, _, Some("http" | "streamable-http" | "sse")) => {
            Err("a server of this `type` needs a `url`, and no `command`".to_owned())
        }
        (_, _, Some(_)) => Err("`type` must be `stdio`, `http` or `sse`".to_owned()),
        (_, _, None) => Err("it needs either a `command` or a `url`".to_owned()),
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let fits = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    let begins = name.starts_with(|first: char| first.is_ascii_alphanumeric());
    if !begins || !name.chars().all(fits) || name.len() > NAME_BYTES_MAX {
        return Err(format!(
            "the name must begin with a letter or digit, consist of those, `-`, `_` and `.`, and have at most \
             {NAME_BYTES_MAX} bytes"
        ));
    }
    if name == CLIENT_TOOLS_SERVER {
        return Err("the name is reserved for the server of clients' tools".to_owned());
    }
    Ok(())
}

fn check_command(command: &str) -> Result<(), String> {
    let is_absolute =
        command.starts_with('/') || command.get(1..3).is_some_and(|it| [":\\", ":/"].contains(&it));
    match command {
        "" => Err("`command` is empty".to_owned()),
        // The files of a plugin are not stored on this machine.
        _ if command.contains(['/', '\\']) && !is_absolute => {
            Err("`command` is a file of the plugin: the host does not store those".to_owned())
        }
        _ => Ok(()),
    }
}

fn map(member: &str, map: Option<&Value>) -> Result<BTreeMap<String, Token>, String> {
    let Some(map) = map else { return Ok(BTreeMap::new()) };
    let map = map.as_object().ok_or_else(|| format!("`{member}` must be an object"))?;
    map.iter().map(|(name, value)| Ok((name.clone(), Token::new(text(member, value)?)))).collect()
}

fn text(member: &str, value: &Value) -> Result<String, String> {
    let text = value.as_str().ok_or_else(|| format!("`{member}` must be a text"))?;
    if text.contains("${") {
        return Err(format!("`{member}` has a placeholder: the host replaces none for plugins"));
    }
    if text.contains('\0') {
        return Err(format!("`{member}` contains a zero byte"));
    }
    Ok(text.to_owned())
}
