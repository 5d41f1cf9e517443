//! Paths of Windows: drives, shares, the long form, and names that mean something else.
//!
//! A URI has a small letter for a drive, and a plain colon behind it; a path has a capital one.
//!
//! Owns: the half for Windows, as pure functions.
//! Never: asks the file system.

use percent_encoding::{utf8_percent_encode, AsciiSet};

/// Characters escaped in a path, as in the canonical spelling of URIs.
const ESCAPED: &AsciiSet = &super::ESCAPED_IN_SEGMENT.remove(b'/');

/// Maximum length of a path, in bytes: 32,767 UTF-16 units.
const BYTES_MAX: usize = 3 * 32_767;

/// Maximum length of a path in the short form, in UTF-16 units, as for a folder.
const SHORT_MAX: usize = 247;

/// Prefixes of the long form, in which names mean nothing but themselves.
const LONG: &str = r"\\?\";
const LONG_SHARE: &str = r"\\?\UNC\";

/// Returns the letter of the drive with which a path begins, and the rest, which begins with a
/// backslash or is empty.
fn drive_of(path: &str) -> Option<(char, &str)> {
    let letter = path.chars().next().filter(char::is_ascii_alphabetic)?;
    let rest = path.get(1..)?.strip_prefix(':')?;
    (rest.is_empty() || rest.starts_with('\\')).then_some((letter, rest))
}

pub(super) fn escaped(path: &str) -> String {
    utf8_percent_encode(&path.replace('\\', "/"), ESCAPED).to_string()
}

pub(super) fn to_uri(path: &str) -> String {
    let path = path.replace('/', r"\");
    let share = path.strip_prefix(LONG_SHARE);
    let path =
        share.map_or_else(|| path.strip_prefix(LONG).unwrap_or(&path).to_owned(), |it| format!(r"\\{it}"));
    match (drive_of(&path), path.strip_prefix(r"\\")) {
        (Some((letter, rest)), _) => {
            let rest = if rest.is_empty() { r"\" } else { rest };
            format!("/{}:{}", letter.to_ascii_lowercase(), escaped(rest))
        }
        // The name of the server stands where a URI has it.
        (None, Some(share)) => escaped(share),
        (None, None) => escaped(&path),
    }
}

pub(super) fn of_uri(path: &str) -> Result<String, &'static str> {
    let bytes = super::decoded(path, BYTES_MAX)?;
    let path = String::from_utf8(bytes).map_err(|_| "is no UTF-8")?;
    if path.contains('\\') {
        return Err("has a backslash in a name");
    }
    let path = path.replace('/', r"\");
    let (letter, rest) =
        path.strip_prefix('\\').and_then(drive_of).ok_or("names no drive of this machine")?;
    rest.split('\\').try_for_each(must_be_name)?;
    let rest = if rest.is_empty() { r"\" } else { rest };
    Ok(format!("{}:{rest}", letter.to_ascii_uppercase()))
}

/// Refuses names that Windows takes for something else: a stream of a file, a pattern, or a file of
/// another name. A device's name is one of these.
fn must_be_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() || name == "." || name == ".." {
        return Ok(());
    }
    if name.contains(|it: char| it.is_ascii_control() || r#"<>:"|?*"#.contains(it)) {
        return Err("has a character in a name that no file's name has");
    }
    if name.ends_with(['.', ' ']) {
        return Err("has a name that ends with a dot or a space");
    }
    if is_device(name) {
        return Err("has the name of a device");
    }
    Ok(())
}

/// Returns whether a name is that of a device, with any extension.
fn is_device(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or(name).trim_end_matches(' ').to_ascii_uppercase();
    if matches!(&*stem, "CON" | "PRN" | "AUX" | "NUL" | "CONIN$" | "CONOUT$") {
        return true;
    }
    let number = stem.strip_prefix("COM").or_else(|| stem.strip_prefix("LPT"));
    number.is_some_and(|number| {
        let mut digits = number.chars();
        matches!((digits.next(), digits.next()), (Some('1'..='9' | '¹' | '²' | '³'), None))
    })
}

/// Returns the short form of a path in the long form; `None` if that names another file, or none.
pub(super) fn shortened(path: &str) -> Option<String> {
    let rest = match path.strip_prefix(LONG_SHARE) {
        Some(share) => format!(r"\\{share}"),
        None => path.strip_prefix(LONG).filter(|path| drive_of(path).is_some())?.to_owned(),
    };
    let names = rest.trim_start_matches('\\').split('\\');
    let is_plain = |name: &str| must_be_name(name).is_ok() && name != "." && name != "..";
    let is_short = rest.encode_utf16().count() <= SHORT_MAX;
    let skipped = usize::from(drive_of(&rest).is_some());
    (is_short && names.skip(skipped).all(is_plain)).then_some(rest)
}
