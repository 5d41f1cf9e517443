//! Files that a patch names.
//!
//! Owns: the lines of patches that name files, in the forms of `git`, `diff` and `apply_patch`.
//! Never: applies a patch, or follows a path.

/// Ends of lines, for one program or another.
const LINE_ENDS: [char; 7] = ['\n', '\r', '\u{b}', '\u{c}', '\u{85}', '\u{2028}', '\u{2029}'];

/// Beginnings of the lines of git that name a file as it is.
const GIT_LINES: [&str; 7] =
    ["rename from ", "rename to ", "rename old ", "rename new ", "copy from ", "copy to ", "Index: "];

/// Verbs of the lines of `apply_patch`, in lower case.
const VERBS: [&str; 6] = ["add", "update", "delete", "move", "rename", "copy"];

/// File that stands for none.
const NO_FILE: &str = "/dev/null";

/// Returns the files that a patch names; none if the text is no patch.
pub fn names_in_patch(text: &str) -> Vec<String> {
    // Programs follow patches that are indented, too.
    let lines: Vec<&str> = text.split(LINE_ENDS).map(str::trim_start).collect();
    let begins = |at: Option<usize>, mark: &str| {
        at.and_then(|at| lines.get(at)).is_some_and(|line| line.starts_with(mark))
    };
    let mut names = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let (before, after) = (at.checked_sub(1), Some(at + 1));
        if let Some(name) = of_apply_patch(line) {
            names.push(name.to_owned());
        } else if let Some(names_of_git) = line.strip_prefix("diff --git ") {
            names.extend(of_git(names_of_git));
        } else if let Some(name) = GIT_LINES.iter().find_map(|begin| line.strip_prefix(begin)) {
            names.push(unquoted(name));
        } else if let Some(name) = line.strip_prefix("+++ ") {
            names.extend(of_side(name));
        } else if let Some(name) = line.strip_prefix("--- ") {
            // Otherwise the line removes one that begins with `-- `.
            if name.starts_with("a/") || begins(after, "+++ ") || begins(before, "*** ") {
                names.extend(of_side(name));
            }
        } else if let Some(name) = line.strip_prefix("*** ").filter(|_| begins(after, "--- ")) {
            names.extend(of_side(name));
        }
    }
    names
}

/// Returns the file of a line as `*** Add File: name`. Programs ignore space before it.
fn of_apply_patch(line: &str) -> Option<&str> {
    let (what, name) = line.trim_start().strip_prefix("***")?.split_once(':')?;
    let mut words = what.split_whitespace();
    let verb = words.next()?.to_lowercase();
    let is_known = VERBS.contains(&&*verb) && ["file", "to"].contains(&&*words.next()?.to_lowercase());
    (is_known && words.next().is_none()).then_some(name.trim())
}

/// Returns the file of one side, without the folder that stands for it. Other folders may be real,
/// so the name counts with and without its first one.
fn of_side(name: &str) -> Vec<String> {
    // A time may follow; behind a blank, it may be a part of the name.
    let name = name.split('\t').next().unwrap_or_default();
    let time = name.find(" 19").or_else(|| name.find(" 20")).map(|at| &name[..at]);
    let names = [Some(name), time].into_iter().flatten();
    names.flat_map(|name| with_and_without_folder(unquoted(name))).collect()
}

fn with_and_without_folder(name: String) -> Vec<String> {
    if name == NO_FILE {
        return Vec::new();
    }
    if let Some(name) = name.strip_prefix("a/").or_else(|| name.strip_prefix("b/")) {
        return vec![name.to_owned()];
    }
    // Programs drop the first folder, whatever its name.
    let bare = name.split_once('/').map(|(_, bare)| bare.to_owned()).filter(|bare| !bare.is_empty());
    [name].into_iter().chain(bare).collect()
}

/// Returns the files of the first line for a file: `a/name b/name`, also if both have spaces.
fn of_git(names: &str) -> Vec<String> {
    let names = names.trim_end();
    if let Some((first, second)) = halves(names) {
        return [of_side(first), of_side(second)].concat();
    }
    // A name that has changed: also the other lines have it.
    let sides = names.split_once(" b/").map(|(first, second)| vec![first.to_owned(), format!("b/{second}")]);
    let sides = sides.unwrap_or_else(|| names.split(' ').map(str::to_owned).collect());
    sides.iter().flat_map(|name| of_side(name)).collect()
}

/// Returns both names of a line if they are the same but for the folder of their side.
fn halves(names: &str) -> Option<(&str, &str)> {
    let (first, second) = (names.get(..names.len() / 2)?, names.get(names.len() / 2 + 1..)?);
    let is_between = names.as_bytes().get(names.len() / 2) == Some(&b' ');
    let bare = |name: &str| of_side(name).pop();
    (is_between && bare(first) == bare(second)).then_some((first, second))
}

/// Returns a name without the quotes and escapes of git.
fn unquoted(name: &str) -> String {
    let name = name.trim();
    let Some(quoted) = name.strip_prefix('"') else { return name.to_owned() };
    let (mut bytes, mut rest) = (Vec::new(), quoted.as_bytes());
    while let [byte, others @ ..] = rest {
        rest = others;
        match byte {
            b'"' => break,
            b'\\' => {
                let digits = rest.iter().take(3).take_while(|byte| (b'0'..=b'7').contains(byte)).count();
                if digits == 3 {
                    let value =
                        rest[..3].iter().fold(0u32, |value, digit| value * 8 + u32::from(digit - b'0'));
                    bytes.push(value as u8);
                    rest = &rest[3..];
                } else if let [escaped, others @ ..] = rest {
                    rest = others;
                    bytes.push(match escaped {
                        b'n' => b'\n',
                        b't' => b'\t',
                        b'r' => b'\r',
                        other => *other,
                    });
                }
            }
            byte => bytes.push(*byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_named_by_each_line_that_patch_programs_follow() {
        for (patch, names) in [
            ("*** Add File: x y\n+a", &["x y"][..]),
            (" *** Add File: x\n", &["x"]),
            ("\t*** Update File: x\n*** Move to: y\n", &["x", "y"]),
            ("*** Rename File: x\n*** Copy to:y\n*** update file: z", &["x", "y", "z"]),
            ("\r*** Delete File: x\u{2028}*** Add File: y", &["x", "y"]),
            ("rename from x\nrename to y\ncopy from v\ncopy to w\n", &["x", "y", "v", "w"]),
            ("--- a/x\t2020\n+++ b/y\t2020\n", &["x", "y"]),
            ("--- x\n+++ /etc/y\n", &["x", "/etc/y", "etc/y"]),
            ("--- old/x\n+++ new/x\n", &["old/x", "x", "new/x", "x"]),
            ("  --- a/x\n  +++ b/x 20-1\n", &["x", "x 20-1", "x"]),
            ("+++ b/x 20/../../y\n", &["x 20/../../y", "x"]),
            ("rename old x\nrename new y\n", &["x", "y"]),
            ("--- /dev/null\n+++ x\n", &["x"]),
            ("+++ \"b/a\\303\\244\\\"\\t/x\"\n", &["aä\"\t/x"]),
            ("--- w/x\n+++ i/x", &["w/x", "x", "i/x", "x"]),
            ("*** x\n--- y\n", &["x", "y"]),
            ("diff --git a/x b/x\nold mode 100644\n", &["x", "x"]),
            ("diff --git a/x b b/y b/x b b/y", &["x b b/y", "x b b/y"]),
            ("diff --git a/x b/y", &["x", "y"]),
            ("diff --git x y", &["x", "y"]),
            ("diff --git \"a/\\303\\244\" \"b/\\303\\244\"", &["ä", "ä"]),
            ("Index: x\n", &["x"]),
        ] {
            assert_eq!(names_in_patch(patch), names, "{patch}");
        }
    }

    #[test]
    fn changed_line_that_resembles_a_name_is_none() {
        for patch in
            ["@@\n--- drop table\n-a\n", "*** End Patch", "*** Begin Patch", "*** End of File\n", "---"]
        {
            assert_eq!(names_in_patch(patch), [""; 0], "{patch}");
        }
    }
}
