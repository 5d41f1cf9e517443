//! Patches in the form of `git apply`.
//!
//! Owns: the text of a patch for one file, with modes and binary contents.
//! Never: reads a file, or runs git.

use crate::line_diff::push_unified;

/// Mode of a regular file.
pub const REGULAR: u32 = 0o100_644;

/// Part of a mode that says which kind of file it is.
const KIND_OF_FILE: u32 = 0o170_000;

/// Digits of git's base 85.
const DIGITS: &[u8; 85] =
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";

/// Maximum number of bytes in a line of a binary patch.
const BINARY_LINE: usize = 52;

/// Maximum number of bytes in a stored block of a deflate stream.
const STORED_BLOCK: usize = 0xffff;

/// One side of a changed file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatchSide {
    /// Mode as git has it; `None` if unknown.
    pub mode: Option<u32>,
    /// Object id; `None` if unknown, and then the content must be text.
    pub id: Option<String>,
    /// Content; of a symbolic link, its target.
    pub content: Vec<u8>,
}

/// Returns the patch of one file; `None` if it is binary and an object id is unknown.
pub fn patch_of(path: &[u8], before: Option<&PatchSide>, after: Option<&PatchSide>) -> Option<Vec<u8>> {
    let kind = |side: &PatchSide| side.mode.map(|mode| mode & KIND_OF_FILE);
    match (before, after) {
        // A file that became a link is removed and added.
        (Some(old), Some(new)) if kind(old).zip(kind(new)).is_some_and(|(old, new)| old != new) => {
            Some([patch_of(path, before, None)?, patch_of(path, None, after)?].concat())
        }
        _ => one_patch(path, before, after),
    }
}

fn one_patch(path: &[u8], before: Option<&PatchSide>, after: Option<&PatchSide>) -> Option<Vec<u8>> {
    let (old_name, new_name) = (quoted("a/", path), quoted("b/", path));
    let mut patch = format!("diff --git {old_name} {new_name}\n");
    let mode = |side: &PatchSide| side.mode.unwrap_or(REGULAR);
    let mut common_mode = String::new();
    match (before, after) {
        (None, Some(new)) => patch += &format!("new file mode {:o}\n", mode(new)),
        (Some(old), None) => patch += &format!("deleted file mode {:o}\n", mode(old)),
        (Some(old), Some(new)) => match old.mode.zip(new.mode) {
            Some((old, new)) if old != new => patch += &format!("old mode {old:o}\nnew mode {new:o}\n"),
            Some((mode, _)) => common_mode = format!(" {mode:o}"),
            None => {}
        },
        (None, None) => return Some(Vec::new()),
    }
    let content = |side: Option<&PatchSide>| side.map(|side| side.content.clone()).unwrap_or_default();
    let (old, new) = (content(before), content(after));
    if old == new && before.is_some() && after.is_some() {
        return Some(patch.into_bytes());
    }
    let ids = ids(before, after);
    if let Some((old, new)) = &ids {
        patch += &format!("index {old}..{new}{common_mode}\n");
    }
    let mut patch = patch.into_bytes();
    if old.contains(&0) || new.contains(&0) {
        ids?;
        patch.extend_from_slice(b"GIT binary patch\n");
        push_binary(&mut patch, &new);
        push_binary(&mut patch, &old);
    } else if old != new {
        let name = |side: Option<&PatchSide>, name: &str| match side {
            // A name with a space ends at the tab.
            Some(_) if name.contains(' ') => format!("{name}\t"),
            Some(_) => name.to_owned(),
            None => "/dev/null".to_owned(),
        };
        let (old_name, new_name) = (name(before, &old_name), name(after, &new_name));
        patch.extend_from_slice(format!("--- {old_name}\n+++ {new_name}\n").as_bytes());
        push_unified(&mut patch, &old, &new);
    }
    Some(patch)
}

/// Returns the object ids of both sides; the one of a missing side is all zeros.
fn ids(before: Option<&PatchSide>, after: Option<&PatchSide>) -> Option<(String, String)> {
    let id = |side: Option<&PatchSide>| side.map(|side| side.id.clone());
    match (id(before), id(after)) {
        (Some(old), Some(new)) => old.zip(new),
        (None, Some(new)) => new.map(|new| ("0".repeat(new.len()), new)),
        (Some(old), None) => old.map(|old| (old.clone(), "0".repeat(old.len()))),
        (None, None) => None,
    }
}

/// Returns a name as git writes it: quoted, if it has characters that end a name or is not UTF-8.
fn quoted(side: &str, path: &[u8]) -> String {
    let plain = std::str::from_utf8(path)
        .ok()
        .filter(|path| !path.chars().any(|char| char.is_control() || matches!(char, '"' | '\\')));
    if let Some(path) = plain {
        return format!("{side}{path}");
    }
    let mut text = format!("\"{side}");
    for byte in path {
        match byte {
            b'"' | b'\\' => text.extend(['\\', char::from(*byte)]),
            b' '..=b'~' => text.push(char::from(*byte)),
            byte => text += &format!("\\{byte:03o}"),
        }
    }
    text.push('"');
    text
}

/// Appends a content as a literal: a zlib stream of stored blocks, in base 85.
fn push_binary(patch: &mut Vec<u8>, content: &[u8]) {
    patch.extend_from_slice(format!("literal {}\n", content.len()).as_bytes());
    for line in zlib(content).chunks(BINARY_LINE) {
        let length = line.len() as u8;
        patch.push(if length <= 26 { b'A' + length - 1 } else { b'a' + length - 27 });
        for group in line.chunks(4) {
            let mut bytes = [0; 4];
            bytes[..group.len()].copy_from_slice(group);
            let mut number = u32::from_be_bytes(bytes);
            let mut digits = [0; 5];
            for digit in digits.iter_mut().rev() {
                *digit = DIGITS[(number % 85) as usize];
                number /= 85;
            }
            patch.extend_from_slice(&digits);
        }
        patch.push(b'\n');
    }
    patch.push(b'\n');
}

/// Returns a zlib stream of a content, which is not compressed: that needs no further library.
fn zlib(content: &[u8]) -> Vec<u8> {
    let mut stream = vec![0x78, 0x01];
    let mut blocks = content.chunks(STORED_BLOCK).peekable();
    if blocks.peek().is_none() {
        stream.extend_from_slice(&[1, 0, 0, 0xff, 0xff]);
    }
    while let Some(block) = blocks.next() {
        let length = block.len() as u16;
        stream.push(u8::from(blocks.peek().is_none()));
        stream.extend_from_slice(&length.to_le_bytes());
        stream.extend_from_slice(&(!length).to_le_bytes());
        stream.extend_from_slice(block);
    }
    let (mut one, mut other) = (1u32, 0u32);
    for byte in content {
        one = (one + u32::from(*byte)) % 65521;
        other = (other + one) % 65521;
    }
    stream.extend_from_slice(&((other << 16) | one).to_be_bytes());
    stream
}
