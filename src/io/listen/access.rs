//! Access control of WebSocket listeners.
//!
//! Owns: the token, and the check of a request's token, `Origin` (the page that makes it) and
//! `Host` (the name by which it addresses this host).
//! Never: logs the token; waits.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;

use anyhow::{bail, Context};
use base64::prelude::{Engine, BASE64_URL_SAFE_NO_PAD};
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use tokio_tungstenite::tungstenite::handshake::server::Request;
use tokio_tungstenite::tungstenite::http::header::{HeaderName, AUTHORIZATION, HOST, ORIGIN};
use tokio_tungstenite::tungstenite::http::StatusCode;

use crate::files::small;
use crate::os::facts::{self, Facts};
use crate::os::private;

const TOKEN_BYTES: usize = 32;

/// Secret that a client must present to connect.
#[derive(Clone, Serialize, Deserialize)]
pub struct AccessToken(String);

impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl AccessToken {
    /// Creates a token of 256 random bits.
    ///
    /// # Errors
    /// When the system provides no random bytes.
    pub fn fresh() -> anyhow::Result<Self> {
        let mut bytes = [0; TOKEN_BYTES];
        getrandom::fill(&mut bytes).map_err(anyhow::Error::msg).context("cannot make a token")?;
        Ok(Self(BASE64_URL_SAFE_NO_PAD.encode(bytes)))
    }

    /// Reads the token from a file, trimming white space.
    ///
    /// # Errors
    /// When other users can read the file, when it cannot be read, or when it holds no valid token.
    pub fn from_file(file: &Path) -> anyhow::Result<Self> {
        let name = file.display();
        let opened = small::open(file).with_context(|| format!("cannot read `{name}`"))?;
        check_is_private(&facts::of(&opened)?, file)?;
        let token = small::read(opened).with_context(|| format!("cannot read `{name}`"))?;
        Self::parse(token.trim()).with_context(|| format!("`{name}` contains no valid token"))
    }

    /// Parses a token given by the user.
    ///
    /// # Errors
    /// When it has fewer than 16 characters, or others than letters, digits and `-._~`.
    pub fn parse(token: &str) -> anyhow::Result<Self> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        if token.len() < 16 || !token.bytes().all(is_plain) {
            bail!("a token has at least 16 letters, digits and -._~, and nothing else");
        }
        Ok(Self(token.to_owned()))
    }

    /// Returns the token as text, for those who are to have it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns whether both tokens are equal. The comparison takes constant time.
    pub fn equals(&self, other: &Self) -> bool {
        self.is(other.0.as_bytes())
    }

    /// Compares in constant time, so that the duration reveals nothing about the token.
    fn is(&self, other: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(other).into()
    }
}

fn check_is_private(file: &Facts, path: &Path) -> anyhow::Result<()> {
    let path = path.display();
    if !private::is_ours(file) {
        let owner = file.user;
        bail!("`{path}` belongs to another user ({owner}), who can read the token: copy it, and `chmod 600` the copy");
    }
    let mode = private::mode_for_others(file) & 0o777;
    if mode & 0o077 != 0 {
        bail!(
            "`{path}` is accessible to other users (mode {mode:04o}), who can read the token: `chmod 600 {path}`"
        );
    }
    Ok(())
}

/// Conditions under which a client may connect.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Access {
    /// Token that clients must present; `None` if they need none.
    pub token: Option<AccessToken>,
    /// Origins of web pages that may connect, as browsers send them: `https://example.com`.
    pub origins: Vec<String>,
}

/// Reason to refuse a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessRefusal {
    /// HTTP status of the response.
    pub status: StatusCode,
    /// Reason as text for people.
    pub why: &'static str,
    /// Set if the token is missing or wrong. The response is then delayed to slow down guessing.
    pub is_wrong_token: bool,
}

const fn refused(status: StatusCode, why: &'static str) -> AccessRefusal {
    AccessRefusal { status, why, is_wrong_token: false }
}

impl Access {
    /// Checks a request that arrived at the local address `ours`. `name` is the host name that the
    /// listener was configured with.
    pub fn check_request(&self, request: &Request, name: &str, ours: IpAddr) -> Result<(), AccessRefusal> {
        if request.uri().path() != "/" {
            return Err(refused(StatusCode::NOT_FOUND, "only the path `/` is served"));
        }
        let host = only(request, &HOST)
            .ok_or(refused(StatusCode::BAD_REQUEST, "a request needs exactly one `Host` header"))?;
        // Prevents DNS rebinding: a page could have a name of its own resolve to this machine.
        if !is_ours(host, name, ours) {
            return Err(refused(
                StatusCode::FORBIDDEN,
                "the `Host` header names no address of this listener",
            ));
        }
        let origins = request.headers().get_all(ORIGIN);
        if !origins.iter().all(|origin| self.origins.iter().any(|ours| ours.as_bytes() == origin.as_bytes()))
        {
            return Err(refused(
                StatusCode::FORBIDDEN,
                "the `Origin` header names no page that --allow-origin allows",
            ));
        }
        match &self.token {
            Some(token) if !has_token(request, token) => Err(AccessRefusal {
                status: StatusCode::UNAUTHORIZED,
                why: "the token is missing or wrong: send it as ?tkn= or as Authorization: Bearer",
                is_wrong_token: true,
            }),
            _ => Ok(()),
        }
    }
}

fn only<'a>(request: &'a Request, name: &HeaderName) -> Option<&'a str> {
    let mut values = request.headers().get_all(name).iter();
    values.next().filter(|_| values.next().is_none())?.to_str().ok()
}

fn has_token(request: &Request, token: &AccessToken) -> bool {
    let bearer = only(request, &AUTHORIZATION).and_then(|value| value.split_once(' '));
    let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let members = request.uri().query().unwrap_or_default().split('&');
    let mut members = members.filter_map(|member| member.strip_prefix("tkn="));
    bearer.is_some_and(|(_, value)| token.is(value.trim().as_bytes()))
        || members.any(|value| token.is(&percent_decode_str(value).collect::<Vec<u8>>()))
}

/// Returns whether `host` names this listener: by its configured name, by the connection's local
/// address, or by `localhost` on a loopback address. A tunnel may change the port.
fn is_ours(host: &str, name: &str, ours: IpAddr) -> bool {
    let bare = match host.rsplit_once(':') {
        Some((bare, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !bare.ends_with(':') => bare,
        _ => host,
    };
    let bare = bare.strip_prefix('[').and_then(|bare| bare.strip_suffix(']')).unwrap_or(bare);
    let is_local = ours.to_canonical().is_loopback();
    bare.eq_ignore_ascii_case(name)
        || bare.parse::<IpAddr>().is_ok_and(|address| {
            address.to_canonical() == ours.to_canonical() || is_local && address.to_canonical().is_loopback()
        })
        || is_local && bare.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn request(target: &str, headers: &[(&'static str, &str)]) -> Request {
        let mut request = Request::new(());
        *request.uri_mut() = target.parse().unwrap();
        for (name, value) in headers {
            request.headers_mut().append(*name, value.parse().unwrap());
        }
        request
    }

    #[test]
    fn tokens_are_256_random_bits_and_shown_to_nobody() {
        let (one, two) = (AccessToken::fresh().unwrap(), AccessToken::fresh().unwrap());
        assert_ne!(one.reveal(), two.reveal());
        assert_eq!(BASE64_URL_SAFE_NO_PAD.decode(one.reveal()).unwrap().len(), 32);
        let access = Access { token: Some(one.clone()), origins: Vec::new() };
        assert!(!format!("{access:?}").contains(one.reveal()));
    }

    #[test]
    fn token_is_accepted_in_either_place() {
        let token = AccessToken("0123456789abcdef".to_owned());
        let access = Access { token: Some(token), origins: Vec::new() };
        let judge = |target: &str, authorization: Option<&str>| {
            let mut headers = vec![("host", "127.0.0.1:1")];
            headers.extend(authorization.map(|value| ("authorization", value)));
            access
                .check_request(&request(target, &headers), "127.0.0.1", OURS)
                .map_err(|refusal| refusal.is_wrong_token)
        };
        assert_eq!(judge("/?tkn=0123456789abcdef", None), Ok(()));
        assert_eq!(judge("/?a=b&tkn=%30123456789abcdef", None), Ok(()));
        assert_eq!(judge("/", Some("Bearer 0123456789abcdef")), Ok(()));
        assert_eq!(judge("/", Some("bearer  0123456789abcdef")), Ok(()));
        let wrong =
            ["/", "/?tkn=", "/?tkn=0123456789abcde", "/?tkn=0123456789abcdef0", "/?tkn=0123456789abcdeg"];
        for target in wrong {
            assert_eq!(judge(target, None), Err(true), "{target}");
        }
        assert_eq!(judge("/", Some("Basic 0123456789abcdef")), Err(true));
        assert_eq!(judge("/other?tkn=0123456789abcdef", None), Err(false));
    }

    #[test]
    fn pages_are_refused_unless_they_are_named() {
        let access = Access { token: None, origins: vec!["https://a.example".to_owned()] };
        let judge = |origins: &[&str]| {
            let mut headers = vec![("host", "localhost")];
            headers.extend(origins.iter().map(|origin| ("origin", *origin)));
            access.check_request(&request("/", &headers), "127.0.0.1", OURS).is_ok()
        };
        assert!(judge(&[]) && judge(&["https://a.example"]));
        for origins in
            [&["null"][..], &["https://b.example"], &["https://a.example.b"], &["https://a.example", "null"]]
        {
            assert!(!judge(origins), "{origins:?}");
        }
    }

    #[test]
    fn we_are_called_by_a_name_of_ours() {
        let judge = |hosts: &[&str], name: &str, ours: &str| {
            let headers: Vec<_> = hosts.iter().map(|host| ("host", *host)).collect();
            let access = Access { token: None, origins: Vec::new() };
            access.check_request(&request("/", &headers), name, ours.parse().unwrap()).is_ok()
        };
        for host in ["127.0.0.1:80", "127.0.0.1", "localhost:9", "LOCALHOST", "[::1]:7", "me.example:7"] {
            assert!(judge(&[host], "me.example", "127.0.0.1"), "{host}");
        }
        for host in ["", "evil.example", "evil.example:80", "10.0.0.1", "localhost.evil.example", "[::2]"] {
            assert!(!judge(&[host], "127.0.0.1", "127.0.0.1"), "{host}");
        }
        assert!(
            judge(&["10.0.0.1:8"], "0.0.0.0", "10.0.0.1") && judge(&["10.0.0.1"], "::", "::ffff:10.0.0.1")
        );
        assert!(!judge(&["localhost"], "0.0.0.0", "10.0.0.1"));
        assert!(
            !judge(&[], "localhost", "127.0.0.1")
                && !judge(&["localhost", "localhost"], "localhost", "127.0.0.1")
        );
    }
}
