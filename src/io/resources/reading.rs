//! Reads of this machine's files, and of `data:` URIs, for clients.
//!
//! Owns: the content of a file, the entries of a folder, the metadata of either, and the errors.
//! Never: writes, or reads anything but regular files: a pipe or a device may have no end.

use std::fs::{self, Metadata};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use ahp_types::commands::{
    ContentEncoding, DirectoryEntry, ResourceListResult, ResourceReadResult, ResourceResolveResult,
    ResourceType,
};
use base64::engine::general_purpose::STANDARD;
use base64::Engine;
use jiff::Timestamp;
use percent_encoding::percent_decode_str;

use super::changing::by_errno;
use crate::files::facts::etag;
use crate::files::uris::{path_of, uri_of};
use crate::os::facts::{self, Facts};
use crate::os::{paths, walk};
use crate::wire::errors::RpcError;

/// Maximum size of a file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Maximum number of entries in a folder that is listed. A larger folder is an error, since a
/// truncated list would deny that the rest exists.
const ENTRIES_MAX: usize = 100_000;

/// Reads a file or a `data:` URI, as text if it is UTF-8 and no other encoding was requested.
pub(super) fn read(uri: &str, encoding: Option<&ContentEncoding>) -> Result<ResourceReadResult, RpcError> {
    let (content, content_type) = match uri.strip_prefix("data:") {
        Some(data) => inline_of(data)?,
        None => (read_file(uri)?, None),
    };
    Ok(ResourceReadResult { content_type, ..read_content(content, encoding) })
}

/// Encodes content, as text if it is UTF-8 and no other encoding was requested.
pub(super) fn read_content(content: Vec<u8>, encoding: Option<&ContentEncoding>) -> ResourceReadResult {
    let text = if encoding == Some(&ContentEncoding::Base64) { Err(content) } else { as_text(content) };
    let (data, encoding) = match text {
        Ok(text) => (text, ContentEncoding::Utf8),
        Err(content) => (STANDARD.encode(content), ContentEncoding::Base64),
    };
    ResourceReadResult { data, encoding, content_type: None }
}

/// Returns the metadata of content of this size, in bytes, that is not a file.
pub(super) fn resolve_content(uri: &str, bytes: usize) -> ResourceResolveResult {
    let (uri, r#type, size) = (uri.to_owned(), ResourceType::File, i64::try_from(bytes).ok());
    ResourceResolveResult { uri, r#type, size, mtime: None, ctime: None, content_type: None, etag: None }
}

fn inline_of(data: &str) -> Result<(Vec<u8>, Option<String>), RpcError> {
    inline(data).ok_or_else(|| RpcError::invalid_params("this `data:` URI cannot be read"))
}

/// Decodes a `data:` URI (RFC 2397) to its content and media type. Some clients return the URI with
/// more characters encoded and a slash before it.
fn inline(data: &str) -> Option<(Vec<u8>, Option<String>)> {
    let data: Vec<u8> = percent_decode_str(data.trim_start_matches('/')).collect();
    let comma = data.iter().position(|byte| *byte == b',')?;
    let kind = std::str::from_utf8(&data[..comma]).ok()?;
    let content = data[comma + 1..].to_vec();
    let (kind, content) = match kind.strip_suffix(";base64") {
        Some(kind) => (kind, STANDARD.decode(content).ok()?),
        None => (kind, content),
    };
    let kind = kind.split(';').next().filter(|kind| !kind.is_empty());
    Some((content, kind.map(str::to_owned)))
}

fn read_file(uri: &str) -> Result<Vec<u8>, RpcError> {
    let path = path_of(uri)?;
    let failed = |error| by_errno(uri, &error);
    if !fs::metadata(&path).map_err(failed)?.is_file() {
        return Err(RpcError::invalid_params(format_args!("`{uri}` is not a file")));
    }
    let file = walk::open_nonblocking(&path, true).map_err(failed)?;
    // The file may have been replaced in between.
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(RpcError::invalid_params(format_args!("`{uri}` is not a file")));
    }
    let mut content = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut content).map_err(failed)?;
    if content.len() as u64 > FILE_BYTES_MAX {
        return Err(RpcError::invalid_params(format_args!("`{uri}` is larger than {FILE_BYTES_MAX} bytes")));
    }
    Ok(content)
}

fn as_text(content: Vec<u8>) -> Result<String, Vec<u8>> {
    String::from_utf8(content).map_err(|error| error.into_bytes())
}

/// Lists the entries of a folder by name. A symbolic link counts as its target.
pub(super) fn list(uri: &str) -> Result<ResourceListResult, RpcError> {
    let path = path_of(uri)?;
    let failed = |error| by_errno(uri, &error);
    if !fs::metadata(&path).map_err(failed)?.is_dir() {
        return Err(RpcError::invalid_params(format_args!("`{uri}` is not a directory")));
    }
    let mut entries = Vec::new();
    for entry in fs::read_dir(&path).map_err(failed)? {
        if entries.len() == ENTRIES_MAX {
            let message = format_args!("`{uri}` has more than {ENTRIES_MAX} entries");
            return Err(RpcError::invalid_params(message));
        }
        entries.push(entry_of(&entry.map_err(failed)?.path()));
    }
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(ResourceListResult { entries })
}

fn entry_of(path: &Path) -> DirectoryEntry {
    DirectoryEntry {
        name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        r#type: if path.is_dir() { "directory" } else { "file" }.to_owned(),
    }
}

/// Returns the metadata of a file or folder, or of a link if links are not followed. `content` is
/// the `data:` URI of content that the URI displays, if it is not a file.
pub(super) fn resolve(
    uri: &str,
    content: Option<&str>,
    follows_links: bool,
) -> Result<ResourceResolveResult, RpcError> {
    if let Some(data) = content.unwrap_or(uri).strip_prefix("data:") {
        let (content, content_type) = inline_of(data)?;
        return Ok(ResourceResolveResult { content_type, ..resolve_content(uri, content.len()) });
    }
    let path = path_of(uri)?;
    let failed = |error| by_errno(uri, &error);
    let (resolved_uri, itself) = if follows_links {
        let real = paths::canonical(&path).map_err(failed)?;
        (uri_of(&real), real)
    } else {
        // A slash at the end would follow a link.
        (uri.to_owned(), path.components().collect::<PathBuf>())
    };
    let known = fs::symlink_metadata(&itself).map_err(failed)?;
    let facts = facts::complete(&known, &itself).map_err(failed)?;
    Ok(facts_of(resolved_uri, &known, &facts))
}

fn facts_of(uri: String, known: &Metadata, facts: &Facts) -> ResourceResolveResult {
    let (r#type, size) = match known.file_type() {
        kind if kind.is_dir() => (ResourceType::Directory, None),
        kind if kind.is_symlink() => (ResourceType::Symlink, None),
        _ => (ResourceType::File, i64::try_from(known.len()).ok()),
    };
    ResourceResolveResult {
        uri,
        r#type,
        size,
        mtime: known.modified().ok().and_then(time),
        ctime: known.created().ok().and_then(time),
        content_type: None,
        etag: Some(etag(facts)),
    }
}

fn time(time: SystemTime) -> Option<String> {
    let time = Timestamp::try_from(time).ok()?;
    Some(format!("{time:.3}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_uri_is_what_it_holds() {
        let read = |uri| read(uri, None).map(|read| (read.data, read.content_type)).map_err(|it| it.code);
        let text = Ok(("a\u{e4}\n".to_owned(), Some("text/plain".to_owned())));
        assert_eq!(read("data:text/plain;charset=utf-8;base64,YcOkCg=="), text);
        assert_eq!(read("data:/text/plain%3Bcharset%3Dutf-8%3Bbase64%2CYcOkCg%3D%3D"), text);
        assert_eq!(read("data:,a%C3%A4%0A"), Ok(("a\u{e4}\n".to_owned(), None)));
        assert_eq!(read("data:;base64,?"), Err(-32602));
        assert_eq!(read("data:nothing"), Err(-32602));
    }
}
