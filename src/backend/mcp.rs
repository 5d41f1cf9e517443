//! MCP servers, which agents start or connect to themselves.
//!
//! Owns: the description of a server, its form for clients, and the values in it that are secret:
//! they are read when a conversation opens, and `Debug` shows none.
//! Never: starts a server, speaks MCP, or takes a server from a client or a workspace unasked: the
//! core has decided about the servers of clients' plugins, which are described here as others are.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ahp_types::common::JsonObject;
use ahp_types::state::{
    Customization, CustomizationEnablement, ErrorInfo, McpServerCustomization, McpServerErrorState,
    McpServerState, McpServerStoppedState, TextRange,
};
use anyhow::Context;

use super::script;
use super::secrets::Secret;
use crate::files::small;
use crate::host::effects::{ClientMcpServer, ClientMcpTransport, Token, ASSUMED, SERVER_MISCONFIGURED};

/// Minimum length of a value that is hidden from the log without the text around it, in bytes.
const PIECE_BYTES_MIN: usize = 8;

/// MCP server as the operator or a client's plugin describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct McpServer {
    /// Name, unique among the servers of an agent, which derives tool names from it.
    pub name: String,
    /// Id of the customization of a server in a client's plugin; `None` for the operator's.
    pub client_id: Option<String>,
    /// URI of the file with the description.
    pub uri: String,
    /// Place of the description in the file; `None` if unknown.
    pub range: Option<TextRange>,
    /// Agents that get the server, by provider id; `None` for all but the built-in one.
    pub agents: Option<BTreeSet<String>>,
    /// Set if the server is on where no client has decided.
    pub enabled: bool,
    /// Transport; the error is the reason why the description is unusable, for people.
    pub transport: Result<McpTransport, String>,
}

/// Way to reach an MCP server.
#[derive(Debug, Clone, PartialEq)]
pub enum McpTransport {
    /// Program that speaks MCP on stdin and stdout.
    Stdio {
        /// Path or name of the program; a bare name is looked up on the search path.
        command: SecretText,
        /// Folder to which the path is relative.
        folder: PathBuf,
        /// Command-line arguments.
        args: Vec<SecretText>,
        /// Environment variables added to those of the agent.
        env: BTreeMap<String, SecretText>,
    },
    /// Server at a URL.
    Url {
        /// URL.
        url: SecretText,
        /// Headers of each request.
        headers: BTreeMap<String, SecretText>,
        /// Set for the transport SSE, which precedes HTTP.
        sse: bool,
    },
}

/// Text of the operator that may be, contain or refer to a secret. `Debug` shows a checksum.
#[derive(Clone, Default, PartialEq)]
pub struct SecretText(pub Vec<TextPiece>);

/// Piece of a [`SecretText`].
#[derive(Debug, Clone, PartialEq)]
pub enum TextPiece {
    /// Literal text.
    Literal(String),
    /// Value of an environment variable of the host.
    Variable {
        /// Name of the variable.
        name: String,
        /// Text in place of an unset variable; `None` if the variable must be set.
        default: Option<String>,
    },
    /// Content of a file, without the line end at its end.
    File(PathBuf),
}

impl TextPiece {
    fn read(&self) -> anyhow::Result<String> {
        match self {
            Self::Literal(text) => Ok(text.clone()),
            Self::Variable { name, default } => match (std::env::var(name), default) {
                (Ok(value), _) => Ok(value),
                (Err(_), Some(default)) => Ok(default.clone()),
                (Err(std::env::VarError::NotPresent), None) => {
                    anyhow::bail!("the environment variable `{name}` is not set")
                }
                (Err(_), None) => anyhow::bail!("the environment variable `{name}` is not UTF-8"),
            },
            Self::File(path) => {
                let text = small::open(path).and_then(small::read);
                let mut text = text.with_context(|| format!("`{}` cannot be read", path.display()))?;
                text.truncate(text.trim_end_matches(['\r', '\n']).len());
                Ok(text)
            }
        }
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretText({:08x})", crc32fast::hash(format!("{:?}", self.0).as_bytes()))
    }
}

impl SecretText {
    /// Creates a text without references.
    pub fn literal(text: impl Into<String>) -> Self {
        Self(vec![TextPiece::Literal(text.into())])
    }

    /// Returns whether the text refers to a variable or file.
    pub fn is_reference(&self) -> bool {
        self.0.iter().any(|piece| !matches!(piece, TextPiece::Literal(_)))
    }

    /// Returns the text with all references replaced. Blocks as long as the file systems do.
    ///
    /// # Errors
    /// When a variable is not set, or a file cannot be read; the error names it, and no content.
    pub fn read(&self) -> anyhow::Result<String> {
        self.0.iter().map(TextPiece::read).collect()
    }

    /// Returns the text as by [`Self::read`], and hides it from the log: the whole text, and each
    /// value that is only a piece of it, since a program may repeat that alone. A shorter value,
    /// and a path, as of a home folder, is not hidden alone: it stands in other texts, too.
    ///
    /// # Errors
    /// As of [`Self::read`].
    pub fn read_hidden(&self, secrets: &mut Vec<Arc<Secret>>) -> anyhow::Result<String> {
        let mut whole = String::new();
        for piece in &self.0 {
            let value = piece.read()?;
            let is_reference = !matches!(piece, TextPiece::Literal(_));
            let is_path = Path::new(&value).is_absolute();
            if is_reference && value.len() >= PIECE_BYTES_MIN && !is_path {
                secrets.push(Arc::new(Secret::register(&value)));
            }
            whole += &value;
        }
        secrets.push(Arc::new(Secret::register(&whole)));
        Ok(whole)
    }

    fn variables(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|piece| match piece {
            TextPiece::Variable { name, .. } => Some(name.as_str()),
            _ => None,
        })
    }
}

impl McpServer {
    /// Returns the id of the server's customization.
    pub fn id(&self) -> String {
        self.client_id.clone().unwrap_or_else(|| format!("mcp:{}", self.name))
    }

    /// Returns a server in a client's plugin.
    pub fn of_client(server: ClientMcpServer) -> Self {
        let text = |token: &Token| SecretText::literal(token.secret());
        let texts = |all: &BTreeMap<String, Token>| {
            all.iter().map(|(name, token)| (name.clone(), text(token))).collect()
        };
        let transport = match &server.transport {
            ClientMcpTransport::Program { command, args, env } => McpTransport::Stdio {
                command: SecretText::literal(command),
                folder: PathBuf::new(),
                args: args.iter().map(text).collect(),
                env: texts(env),
            },
            ClientMcpTransport::Url { url, headers, sse } => {
                McpTransport::Url { url: text(url), headers: texts(headers), sse: *sse }
            }
        };
        Self {
            name: server.name,
            client_id: Some(server.id),
            uri: server.uri,
            range: None,
            agents: None,
            enabled: true,
            transport: Ok(transport),
        }
    }

    /// Returns whether an agent gets the server. The built-in agent gets only servers that name it,
    /// since it uses none.
    pub fn is_for(&self, provider: &str) -> bool {
        match &self.agents {
            Some(agents) => agents.contains(provider),
            None => provider != script::PROVIDER,
        }
    }

    /// Returns the environment variables that the description refers to.
    pub fn variables(&self) -> Vec<&str> {
        match &self.transport {
            Ok(McpTransport::Stdio { command, args, env, .. }) => {
                let texts = std::iter::once(command).chain(args).chain(env.values());
                texts.flat_map(SecretText::variables).collect()
            }
            Ok(McpTransport::Url { url, headers, .. }) => {
                std::iter::once(url).chain(headers.values()).flat_map(SecretText::variables).collect()
            }
            Err(_) => Vec::new(),
        }
    }

    /// Returns the server as clients see it where nothing runs.
    pub fn customization(&self) -> Customization {
        let state = match &self.transport {
            Ok(_) => McpServerState::Stopped(McpServerStoppedState {}),
            Err(problem) => McpServerState::Error(McpServerErrorState {
                error: ErrorInfo {
                    error_type: SERVER_MISCONFIGURED.to_owned(),
                    message: problem.clone(),
                    stack: None,
                    meta: None,
                },
            }),
        };
        let off = (!self.enabled).then(|| vec![CustomizationEnablement::Global { enabled: false }]);
        Customization::McpServer(Box::new(McpServerCustomization {
            id: self.id(),
            uri: self.uri.clone(),
            name: self.name.clone(),
            icons: None,
            range: self.range.clone(),
            meta: Some(JsonObject::from_iter([(ASSUMED.to_owned(), true.into())])),
            enablement: off,
            state,
            channel: None,
            mcp_app: None,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_text_is_read_late_and_shown_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "c0ffee\n").unwrap();
        let unset = |default: Option<&str>| TextPiece::Variable {
            name: "AHP_SIDECAR_TEST_UNSET".to_owned(),
            default: default.map(str::to_owned),
        };
        let literal = TextPiece::Literal("Bearer ".to_owned());
        let text = SecretText(vec![literal.clone(), TextPiece::File(file.clone()), unset(Some("!"))]);
        assert_eq!(text.read().unwrap(), "Bearer c0ffee!");
        assert!(text.is_reference() && !SecretText::literal("x").is_reference());
        let shown = format!("{text:?}");
        assert!(!shown.contains("c0ffee") && !shown.contains("Bearer"), "{shown}");
        let mut secrets = Vec::new();
        assert_eq!(text.read_hidden(&mut secrets).unwrap(), "Bearer c0ffee!");
        let shown = |text: &str| crate::backend::secrets::redact(text).into_owned();
        assert_eq!(shown("got Bearer c0ffee! and c0ffee"), "got (secret) and c0ffee", "it is too short");
        std::fs::write(&file, "c0ffee-and-cake\n").unwrap();
        text.read_hidden(&mut secrets).unwrap();
        assert_eq!(shown("got c0ffee-and-cake"), "got (secret)");
        let folder_text = folder.path().to_str().unwrap();
        std::fs::write(&file, folder_text).unwrap();
        text.read_hidden(&mut secrets).unwrap();
        assert_eq!(shown(folder_text), folder_text, "a path stands in other texts, too");
        drop(secrets);
        assert_eq!(shown("got c0ffee-and-cake"), "got c0ffee-and-cake");
        let why = SecretText(vec![unset(None)]).read().unwrap_err().to_string();
        assert!(why.contains("AHP_SIDECAR_TEST_UNSET"), "{why}");
        std::fs::remove_file(&file).unwrap();
        assert!(format!("{:#}", text.read().unwrap_err()).contains("token"));
    }
}
