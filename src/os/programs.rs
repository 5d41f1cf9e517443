//! Program files and command lines.
//!
//! Owns: which files can be started, how their names may be shortened, and how a command line is
//! split into words.
//! Never: starts a program, or searches folders.

pub use half::{git_is_missing, program_at, split};

/// Error: a command line with an open quote.
#[derive(Debug, thiserror::Error)]
#[error("missing closing quote")]
pub struct OpenQuote;

#[cfg(unix)]
mod half {
    use std::path::{Path, PathBuf};
    use std::process::Stdio;

    use rustix::fs::{access, Access};

    use super::OpenQuote;

    /// Returns the program file that a path names; `None` if there is none. On Windows, the ending
    /// of its name may be left out.
    pub fn program_at(path: &Path) -> Option<PathBuf> {
        (path.is_file() && access(path, Access::EXEC_OK).is_ok()).then(|| path.to_owned())
    }

    /// Returns whether a program named `git` is the stub of macOS, which opens a window that asks
    /// to install the developer tools.
    pub fn git_is_missing(path: &Path) -> bool {
        let asked = || {
            let mut asked = std::process::Command::new("/usr/bin/xcode-select");
            asked.arg("-p").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            asked.status().is_ok_and(|status| status.success())
        };
        cfg!(target_os = "macos") && path == Path::new("/usr/bin/git") && !asked()
    }

    /// Splits a command line by the rules of the system: those of a shell, without expansions, and
    /// on Windows those by which programs parse their arguments.
    ///
    /// # Errors
    /// When a quote is open at the end.
    pub fn split(line: &str) -> Result<Vec<String>, OpenQuote> {
        shell_words::split(line).map_err(|_| OpenQuote)
    }
}

#[cfg(windows)]
mod half {
    use std::path::{Path, PathBuf};

    use super::OpenQuote;

    /// Endings of programs where the environment names none.
    const ENDINGS: &str = ".COM;.EXE;.BAT;.CMD";

    pub fn program_at(path: &Path) -> Option<PathBuf> {
        let endings = std::env::var("PATHEXT").unwrap_or_else(|_| ENDINGS.to_owned());
        let endings = || endings.split(';').filter(|ending| ending.len() > 1);
        let has_ending = path.extension().is_some_and(|own| {
            endings().any(|ending| own.eq_ignore_ascii_case(ending.trim_start_matches('.')))
        });
        if has_ending && path.is_file() {
            return Some(path.to_owned());
        }
        let with = |ending: &str| {
            let mut name = path.as_os_str().to_owned();
            name.push(ending.to_ascii_lowercase());
            PathBuf::from(name)
        };
        endings().map(with).find(|file| file.is_file())
    }

    pub fn git_is_missing(_path: &Path) -> bool {
        false
    }

    pub fn split(line: &str) -> Result<Vec<String>, OpenQuote> {
        super::split_by_backslashes(line)
    }
}

/// Splits a command line as programs on Windows do: quotes group words, and backslashes stand for
/// themselves unless a quote follows.
#[cfg(any(windows, test))]
fn split_by_backslashes(line: &str) -> Result<Vec<String>, OpenQuote> {
    let mut words: Vec<String> = Vec::new();
    let (mut word, mut is_quoted, mut backslashes) = (None::<String>, false, 0);
    let mut chars = line.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '\\' => {
                backslashes += 1;
                continue;
            }
            '"' => {
                let word = word.get_or_insert_default();
                word.extend(std::iter::repeat_n('\\', backslashes / 2));
                if backslashes % 2 == 1 {
                    word.push('"');
                } else if is_quoted && chars.next_if_eq(&'"').is_some() {
                    // Two quotes inside quotes stand for one.
                    word.push('"');
                } else {
                    is_quoted = !is_quoted;
                }
                backslashes = 0;
                continue;
            }
            _ => {}
        }
        if backslashes > 0 {
            word.get_or_insert_default().extend(std::iter::repeat_n('\\', backslashes));
            backslashes = 0;
        }
        if char.is_ascii_whitespace() && !is_quoted {
            words.extend(word.take());
        } else {
            word.get_or_insert_default().push(char);
        }
    }
    if backslashes > 0 {
        word.get_or_insert_default().extend(std::iter::repeat_n('\\', backslashes));
    }
    words.extend(word);
    if is_quoted {
        return Err(OpenQuote);
    }
    Ok(words)
}

/// Returns a word as programs on Windows find it in a command line.
#[cfg(any(windows, test))]
pub fn quote(word: &str) -> String {
    if !word.is_empty() && !word.contains([' ', '\t', '"']) {
        return word.to_owned();
    }
    let mut quoted = "\"".to_owned();
    let mut backslashes = 0;
    for char in word.chars() {
        if char == '"' {
            // Those before a quote count twice, and one escapes the quote.
            quoted.extend(std::iter::repeat_n('\\', backslashes + 1));
        }
        backslashes = if char == '\\' { backslashes + 1 } else { 0 };
        quoted.push(char);
    }
    quoted.extend(std::iter::repeat_n('\\', backslashes));
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_words_are_split_into_themselves() {
        let words =
            ["", "a", r"C:\Program Files\a.exe", r"ends with \", r#"say "hi" \"now\\""#, r"\\server\a b\\"];
        let line: Vec<String> = words.iter().map(|word| quote(word)).collect();
        assert_eq!(split_by_backslashes(&line.join(" ")).unwrap(), words);
    }

    #[test]
    fn words_of_the_shell_are_split() {
        assert_eq!(split("agent --acp 'a b'").unwrap(), ["agent", "--acp", "a b"]);
        assert!(split("agent 'a").is_err());
    }

    #[test]
    fn words_of_windows_keep_their_backslashes() {
        let cases: [(&str, &[&str]); 8] = [
            (r"Z:\x\agent.cmd --acp", &[r"Z:\x\agent.cmd", "--acp"]),
            (r#""C:\Program Files\a.exe"  b"#, &[r"C:\Program Files\a.exe", "b"]),
            (r#"a "b c\\" d"#, &["a", r"b c\", "d"]),
            (r#"a\"b c"#, &[r#"a"b"#, "c"]),
            (r#"a\\\"b"#, &[r#"a\"b"#]),
            (r#""a ""b"" c""#, &[r#"a "b" c"#]),
            (r#"a "" b"#, &["a", "", "b"]),
            (r"a\\ b\", &[r"a\\", r"b\"]),
        ];
        for (line, words) in cases {
            assert_eq!(split_by_backslashes(line).unwrap(), words, "{line}");
        }
        assert!(split_by_backslashes(r#"a "b"#).is_err());
    }
}
