//! Command lines, taken apart into the commands that a shell would run.
//!
//! Owns: the words of a line, by the grammar of POSIX shells, and the commands behind other ones,
//! such as `env`, `sudo` and `sh -c`.
//! Never: expands or runs anything, or guesses: a line of which only a shell knows what it runs is
//! an error. What a program or a script does is not visible in a line.

use std::iter::Peekable;
use std::str::Chars;

use crate::os::paths::HAS_DRIVES;

/// Reason why a line cannot be taken apart, as a clause about it.
pub type Opaque = &'static str;

/// Characters by which a shell runs more than one command, or writes to a file.
pub const SHELL: [char; 11] = [';', '|', '&', '<', '>', '`', '$', '(', ')', '\n', '\r'];

/// Characters of other shells of Windows that change the meaning of a line.
const SHELL_OF_WINDOWS: [char; 3] = ['\\', '^', '%'];

/// Maximum number of lines within lines.
const DEPTH_MAX: usize = 16;

/// Words before a command that belong to the grammar.
const RESERVED: [&str; 13] =
    ["if", "then", "elif", "else", "fi", "while", "until", "do", "done", "esac", "{", "}", "!"];

/// Commands that give later commands a meaning that their names do not tell, or run an argument.
const REDEFINING: [&str; 11] = [
    "alias",
    "function",
    "coproc",
    "trap",
    "hash",
    "let",
    "mapfile",
    "readarray",
    "compgen",
    "complete",
    "repeat",
];

/// Variables whose values name or contain commands.
const RUN_VARIABLES: [&str; 3] = ["BASH_ENV", "ENV", "PROMPT_COMMAND"];

/// Programs that take a line as an argument, or read lines.
const SHELLS: [&str; 7] = ["sh", "bash", "dash", "zsh", "ksh", "ash", "fish"];

/// Commands whose arguments contain another command.
#[rustfmt::skip]
const WRAPPERS: [&str; 63] = [
    "env", "sudo", "doas", "su", "runuser", "pkexec", "gosu", "setpriv", "fakeroot", "command", "exec", "builtin",
    "nohup", "nice", "ionice", "chrt", "time", "timeout", "stdbuf", "unbuffer", "setsid", "xargs", "chroot",
    "unshare", "nsenter", "bwrap", "firejail", "proot", "setarch", "linux32", "linux64", "prlimit", "systemd-run",
    "strace", "ltrace", "valgrind", "busybox", "toybox", "ssh", "script", "watch", "entr", "parallel", "flock",
    "caffeinate", "taskset", "numactl", "eatmydata", "rlwrap", "winpty", "dbus-run-session",
    "chronic", "sg", "systemd-inhibit", "hyperfine", "tmux", "screen", "noglob",
    "nocorrect", "i386", "x86_64", "choom", "perf",
];

/// Members of [`WRAPPERS`] with arguments that may be lines.
const LINE_WRAPPERS: [&str; 13] = [
    "su",
    "runuser",
    "ssh",
    "script",
    "watch",
    "entr",
    "parallel",
    "flock",
    "env",
    "sg",
    "hyperfine",
    "tmux",
    "screen",
];

/// Members of [`WRAPPERS`] that add arguments which they read.
const READING_WRAPPERS: [&str; 2] = ["xargs", "parallel"];

/// Options of shells that have a long name and no value.
const LONG_OPTIONS: [&str; 6] =
    ["--login", "--noediting", "--noprofile", "--norc", "--posix", "--restricted"];

/// Arguments of `find` that a command follows.
const EXECUTES: [&str; 4] = ["-exec", "-execdir", "-ok", "-okdir"];

/// Word of a command, without its quotes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Word {
    text: String,
    /// Set if a shell replaces a part of the word.
    is_expanded: bool,
}

/// Returns the words of a line that is one simple command; `None` if it is anything else. A command
/// that is passed to a shell alone (`bash -lc 'git status'`) is that command.
pub fn plain_words(line: &str) -> Option<Vec<String>> {
    if line.contains(SHELL) || line.chars().any(char::is_control) {
        return None;
    }
    let mut commands = commands_of(line, 0).ok()?;
    let words = commands.pop().filter(|_| commands.is_empty())?;
    let words: Vec<String> = words.into_iter().map(|word| word.text).collect();
    match words.as_slice() {
        [shell, flag, line] if is_shell(shell) && ["-c", "-lc"].contains(&flag.as_str()) => plain_words(line),
        _ => Some(words),
    }
}

/// Returns whether a word names a shell of the system: by its name alone, or in one of its folders.
/// Another program of that name may do anything with a line.
fn is_shell(word: &str) -> bool {
    let folder = word.strip_suffix(name_of(word)).unwrap_or_default();
    SHELLS.contains(&name_of(word)) && ["", "/bin/", "/usr/bin/", "/usr/local/bin/"].contains(&folder)
}

/// Returns whether a line runs a command that begins with these words, wherever in the line.
/// Further words may be between them.
///
/// # Errors
/// When the line cannot be taken apart.
pub fn runs(line: &str, command: &[String]) -> Result<bool, Opaque> {
    runs_at(line, command, 0)
}

fn runs_at(line: &str, command: &[String], depth: usize) -> Result<bool, Opaque> {
    let mut found = Ok(false);
    for words in commands_of(line, depth)? {
        match runs_words(&words, command, depth) {
            // A match precedes a part that is not understood.
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(why) => found = Err(why),
        }
    }
    found
}

fn runs_words(words: &[Word], command: &[String], depth: usize) -> Result<bool, Opaque> {
    if words.iter().any(|word| is_evaluated(&word.text)) {
        return Err("a text in it is one that shells evaluate");
    }
    let is_before = |word: &&Word| RESERVED.contains(&word.text.as_str()) || is_assignment(&word.text);
    let words = &words[words.iter().take_while(is_before).count()..];
    let Some(first) = words.first() else { return Ok(false) };
    // In zsh, `=name` is the path of a program.
    if first.is_expanded || first.text.starts_with('=') {
        return Err("only a shell knows the name of one of its commands");
    }
    let name = name_of(&first.text);
    if !WRAPPERS.contains(&name) {
        return runs_one(words, command, depth);
    }
    let is_reading = READING_WRAPPERS.contains(&name);
    let read = is_reading.then(|| Word { text: String::new(), is_expanded: true });
    let all: Vec<Word> = words.iter().cloned().chain(read).collect();
    // Options of a wrapper may have values, so each word may be the command.
    for at in 0..words.len() {
        if runs_one(&all[at..], command, depth)? {
            return Ok(true);
        }
    }
    let ends_with_wrapper = words[1..].last().is_some_and(|word| WRAPPERS.contains(&name_of(&word.text)));
    if words.iter().any(|word| word.is_expanded) || is_reading && ends_with_wrapper {
        return Err("only a shell knows the words of a command behind another one");
    }
    let mut lines = words[1..].iter().filter(|_| LINE_WRAPPERS.contains(&name));
    lines.try_fold(false, |found, word| Ok(found || runs_argument(&word.text, command, depth + 1)?))
}

/// Returns whether an argument that may be a line, or an option with one, runs a command.
fn runs_argument(argument: &str, command: &[String], depth: usize) -> Result<bool, Opaque> {
    if !argument.starts_with('-') {
        return runs_at(argument, command, depth);
    }
    if argument.contains(SHELL) || argument.contains(char::is_whitespace) {
        return Err("a line in it is part of an option");
    }
    let value = argument.split_once('=').map_or(argument.get(2..), |(_, value)| Some(value));
    value.map_or(Ok(false), |value| runs_at(value, command, depth))
}

/// Returns whether a command runs another one, apart from those behind wrappers.
fn runs_one(words: &[Word], command: &[String], depth: usize) -> Result<bool, Opaque> {
    let Some(first) = words.first().filter(|word| !word.is_expanded) else { return Ok(false) };
    if begins_with(words, command) {
        return Ok(true);
    }
    let arguments = &words[1..];
    match name_of(&first.text) {
        name if REDEFINING.contains(&name) => Err("it gives commands another meaning"),
        "eval" if arguments.iter().any(|word| word.is_expanded) => {
            Err("only a shell knows what it evaluates")
        }
        "eval" => {
            let arguments = arguments.iter().map(|word| word.text.as_str());
            let line: Vec<&str> = arguments.skip_while(|word| *word == "--").collect();
            runs_at(&line.join(" "), command, depth + 1)
        }
        "find" => {
            let is_executing = |word: &Word| EXECUTES.contains(&word.text.as_str());
            let places = (0..arguments.len()).filter(|at| is_executing(&arguments[*at]));
            places
                .map(|at| runs_words(&arguments[at + 1..], command, depth))
                .try_fold(false, |found, runs| Ok(found || runs?))
        }
        "." | "source" => arguments.iter().find(|word| word.text != "--").map_or(Ok(false), runs_file),
        name if SHELLS.contains(&name) => runs_in_shell(arguments, command, depth),
        _ => Ok(false),
    }
}

fn runs_in_shell(arguments: &[Word], command: &[String], depth: usize) -> Result<bool, Opaque> {
    const READS: Opaque = "a shell in it reads commands from elsewhere";
    let mut rest = arguments.iter();
    let mut takes_line = false;
    let first = loop {
        let Some(word) = rest.next() else { break None };
        let Some(flags) = word.text.strip_prefix(['-', '+']).filter(|_| !word.is_expanded) else {
            break Some(word);
        };
        if flags.is_empty() || word.text == "--" {
            break rest.next();
        }
        if LONG_OPTIONS.contains(&word.text.as_str()) {
            continue;
        }
        if !flags.bytes().all(|flag| flag.is_ascii_alphabetic() && !b"sC".contains(&flag)) {
            return Err(READS);
        }
        takes_line |= flags.contains('c');
        // Shells do not agree on a value in the same word, or on two values.
        match flags.find(['o', 'O']).map(|at| at + 1 == flags.len()) {
            Some(true) => _ = rest.next(),
            Some(false) => return Err("shells do not agree on an option in it"),
            None => {}
        }
    };
    match first {
        Some(line) if takes_line && !line.is_expanded => runs_at(&line.text, command, depth + 1),
        _ if takes_line => Err("only a shell knows the line that it passes to a shell"),
        Some(file) => runs_file(file),
        None => Err(READS),
    }
}

/// Returns that a script runs nothing that a line shows, unless the file is one of open files.
fn runs_file(file: &Word) -> Result<bool, Opaque> {
    let mut folders = file.text.split('/').filter(|name| !matches!(*name, "" | "."));
    let is_open_file =
        file.text.starts_with('/') && folders.next().is_some_and(|it| ["dev", "proc"].contains(&it));
    match file.is_expanded || is_open_file || file.text.contains("..") {
        true => Err("only a shell knows the file with the commands that it reads"),
        false => Ok(false),
    }
}

/// Returns whether a command has the name and, in their order, the words of a rule.
fn begins_with(words: &[Word], command: &[String]) -> bool {
    let [first, rest @ ..] = words else { return false };
    let [name, expected @ ..] = command else { return false };
    // Some file systems do not distinguish case.
    let is_named = name_of(&first.text).eq_ignore_ascii_case(name_of(name));
    let mut rest = rest.iter();
    is_named && expected.iter().all(|expected| rest.any(|word| word.is_expanded || word.text == *expected))
}

/// Returns the name of a program without its folder.
fn name_of(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

fn is_assignment(word: &str) -> bool {
    let Some((name, _)) = word.split_once('=') else { return false };
    let name = name.strip_suffix('+').unwrap_or(name);
    let is_name = |char: char| char.is_ascii_alphanumeric() || char == '_';
    !name.is_empty() && name.chars().all(is_name) && !name.starts_with(|char: char| char.is_ascii_digit())
}

/// Returns whether a shell may evaluate a quoted text: the value of a variable, or an index.
fn is_evaluated(word: &str) -> bool {
    let is_name = |name: &str| name.chars().all(|char| char.is_ascii_alphanumeric() || "_+-".contains(char));
    let has_commands = |text: &str| ["$(", "${", "`"].iter().any(|sign| text.contains(sign));
    let sets = word.split_once('=').filter(|_| is_assignment(word));
    let runs = |(name, value): (&str, &str)| {
        RUN_VARIABLES.contains(&name.trim_end_matches('+')) || has_commands(value)
    };
    sets.is_some_and(runs) || word.split_once('[').is_some_and(|(name, at)| is_name(name) && has_commands(at))
}

/// Returns the commands of a line, those in substitutions before the ones around them.
fn commands_of(line: &str, depth: usize) -> Result<Vec<Vec<Word>>, Opaque> {
    if HAS_DRIVES && line.contains(SHELL_OF_WINDOWS) {
        return Err("the shells of Windows do not agree on it");
    }
    let rest = line.chars().peekable();
    let mut reader = LineReader { rest, commands: Vec::new(), depth, has_pattern: false, arithmetic: 0 };
    reader.read_list(None)?;
    Ok(reader.commands)
}

/// Reader of a line.
struct LineReader<'a> {
    rest: Peekable<Chars<'a>>,
    commands: Vec<Vec<Word>>,
    depth: usize,
    /// Set once a parenthesis may have been part of a word, so that `#` need not begin a comment.
    has_pattern: bool,
    /// Number of open parentheses in which some shells read arithmetic and others commands.
    arithmetic: usize,
}

/// Command that is being read.
#[derive(Debug, Default)]
struct OpenCommand {
    words: Vec<Word>,
    word: Option<Word>,
    /// Set if the next word names the file of a redirection.
    redirects: bool,
}

impl OpenCommand {
    fn word(&mut self) -> &mut Word {
        self.word.get_or_insert_default()
    }

    fn end_word(&mut self) {
        let Some(mut word) = self.word.take() else { return };
        // Braces without these are ordinary characters.
        word.is_expanded |= word.text.contains('{') && (word.text.contains(',') || word.text.contains(".."));
        if !std::mem::take(&mut self.redirects) {
            self.words.push(word);
        }
    }

    /// Ends the word before a redirection, which may be the number of a file, or `{name}`.
    fn begin_redirection(&mut self) {
        let is_file = |word: &Word| {
            let name = word.text.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
            name.unwrap_or(&word.text).bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
                && (name.is_some() || word.text.bytes().all(|byte| byte.is_ascii_digit()))
        };
        if self.word.as_ref().is_some_and(is_file) {
            self.word = None;
        }
        self.end_word();
        self.redirects = true;
    }
}

impl LineReader<'_> {
    /// Reads commands up to a closing character, or to the end of the line.
    fn read_list(&mut self, closing: Option<char>) -> Result<(), Opaque> {
        if self.depth > DEPTH_MAX {
            return Err("it has too many commands within commands");
        }
        self.depth += 1;
        let mut open = OpenCommand::default();
        loop {
            let char = self.rest.next();
            if char == closing {
                self.end_command(&mut open);
                self.depth -= 1;
                return Ok(());
            }
            match char {
                None => return Err("a parenthesis in it is not closed"),
                Some(' ' | '\t') => open.end_word(),
                Some('\n' | ';' | '&' | '|' | ')') => self.end_command(&mut open),
                Some('\r') => match self.rest.peek() {
                    Some('\n') => open.end_word(),
                    _ => return Err("it has a carriage return"),
                },
                Some('(') => {
                    self.note_pattern(&open);
                    self.end_command(&mut open);
                    self.read_parenthesis()?;
                }
                Some(sign @ ('<' | '>')) => self.read_redirection(sign, &mut open)?,
                Some('#') if open.word.is_none() => self.skip_comment()?,
                // Neither a word nor an end of one.
                Some('\\') if self.rest.next_if_eq(&'\n').is_some() => {}
                Some(char) => self.read_in_word(char, open.word())?,
            }
        }
    }

    /// Notes if a parenthesis that follows may be part of a word, such as a list or a pattern.
    fn note_pattern(&mut self, open: &OpenCommand) {
        let is_name = |char: char| char.is_ascii_alphanumeric() || "_-".contains(char);
        let is_function = |word: &Word| word.text.chars().all(is_name);
        let follows_word = open
            .word
            .as_ref()
            .is_some_and(|word| word.is_expanded || !is_function(word) || self.rest.peek() != Some(&')'));
        let is_in_test = open.words.iter().any(|word| word.text == "[[");
        self.has_pattern |= follows_word || is_in_test;
    }

    /// Reads up to the parenthesis that closes an open one.
    fn read_parenthesis(&mut self) -> Result<(), Opaque> {
        let is_arithmetic = self.arithmetic > 0 || self.rest.peek() == Some(&'(');
        self.arithmetic += usize::from(is_arithmetic);
        self.read_list(Some(')'))?;
        self.arithmetic -= usize::from(is_arithmetic);
        Ok(())
    }

    /// Skips a comment up to the end of its line. In a comment, quotes and backslashes are ordinary
    /// characters.
    fn skip_comment(&mut self) -> Result<(), Opaque> {
        if HAS_DRIVES {
            return Err("the shells of Windows do not agree on `#`");
        }
        if self.has_pattern || self.arithmetic > 0 {
            return Err("only a shell knows whether a `#` in it begins a comment");
        }
        while let Some(char) = self.rest.next_if(|char| *char != '\n') {
            // Some shells end a line here.
            if char == '\r' && self.rest.peek().is_some_and(|next| *next != '\n') {
                return Err("a comment in it has a carriage return");
            }
        }
        Ok(())
    }

    fn end_command(&mut self, open: &mut OpenCommand) {
        open.end_word();
        open.redirects = false;
        let words = std::mem::take(&mut open.words);
        if !words.is_empty() {
            self.commands.push(words);
        }
    }

    fn read_redirection(&mut self, sign: char, open: &mut OpenCommand) -> Result<(), Opaque> {
        if self.rest.next_if_eq(&'(').is_some() {
            open.word().is_expanded = true;
            return self.read_parenthesis();
        }
        open.begin_redirection();
        if sign == '<' && self.rest.next_if_eq(&'<').is_some() {
            return match self.rest.next_if_eq(&'<') {
                Some(_) => Ok(()),
                None => Err("it has a document in it (`<<`)"),
            };
        }
        while self.rest.next_if(|char| ['>', '&', '|'].contains(char)).is_some() {}
        Ok(())
    }

    /// Reads a part of a word that begins with this character.
    fn read_in_word(&mut self, char: char, word: &mut Word) -> Result<(), Opaque> {
        match char {
            '\'' | '"' | '\\' if self.arithmetic > 0 => Err("shells do not agree on quotes in arithmetic"),
            '\'' => loop {
                match self.rest.next() {
                    Some('\'') => return Ok(()),
                    Some(char) => word.text.push(char),
                    None => return Err("a quote in it is not closed"),
                }
            },
            '"' => self.read_quoted(word),
            '\\' => match self.rest.next() {
                Some('\n') => Ok(()),
                Some(char) => {
                    word.text.push(char);
                    Ok(())
                }
                None => Err("it ends with a backslash"),
            },
            '$' => self.read_expansion(word),
            '`' => self.read_backquoted(word),
            char => {
                let is_test = word.text.bytes().all(|byte| byte == b'[');
                // An index may have any text.
                self.has_pattern |= char == '[' && !is_test;
                word.is_expanded |= matches!(char, '*' | '?') || char == '[' && !is_test;
                word.text.push(char);
                Ok(())
            }
        }
    }

    fn read_quoted(&mut self, word: &mut Word) -> Result<(), Opaque> {
        loop {
            match self.rest.next() {
                Some('"') => return Ok(()),
                Some('$') => self.read_expansion(word)?,
                Some('`') => self.read_backquoted(word)?,
                Some('\\') => match self.rest.next_if(|char| ['$', '`', '"', '\\', '\n'].contains(char)) {
                    Some('\n') => {}
                    escaped => word.text.push(escaped.unwrap_or('\\')),
                },
                Some(char) => word.text.push(char),
                None => return Err("a quote in it is not closed"),
            }
        }
    }

    /// Reads what follows a `$`.
    fn read_expansion(&mut self, word: &mut Word) -> Result<(), Opaque> {
        let is_name = |char: &char| char.is_ascii_alphanumeric() || *char == '_';
        match self.rest.peek() {
            Some('(') => {
                self.rest.next();
                word.is_expanded = true;
                self.read_parenthesis()
            }
            Some('[') => Err("it has arithmetic in brackets (`$[`)"),
            Some('{') => {
                word.is_expanded = true;
                self.rest.next();
                if self.rest.peek().is_some_and(|char| char.is_whitespace() || *char == '|') {
                    return Err("it has commands in braces (`${ `)");
                }
                loop {
                    match self.rest.next() {
                        Some('}') => return Ok(()),
                        Some('@') if self.rest.peek().is_some_and(char::is_ascii_alphabetic) => {
                            return Err("an expansion in it evaluates a text (`@P`)")
                        }
                        Some('$' | '`' | '\'' | '"' | '\\') | None => {
                            return Err("an expansion in it (`${`) is not a plain one")
                        }
                        Some(_) => {}
                    }
                }
            }
            Some('\'') => Err("it has a text with escapes (`$'`)"),
            Some(char) if is_name(char) => {
                word.is_expanded = true;
                while self.rest.next_if(is_name).is_some() {}
                Ok(())
            }
            Some('?' | '$' | '!' | '#' | '*' | '@' | '-' | '"') => {
                word.is_expanded = true;
                self.rest.next_if(|char| *char != '"');
                Ok(())
            }
            _ => {
                word.text.push('$');
                Ok(())
            }
        }
    }

    fn read_backquoted(&mut self, word: &mut Word) -> Result<(), Opaque> {
        word.is_expanded = true;
        let mut line = String::new();
        loop {
            match self.rest.next() {
                Some('`') => break,
                Some('\\') | None => return Err("a command in backquotes is not a plain one"),
                Some(char) => line.push(char),
            }
        }
        self.commands.extend(commands_of(&line, self.depth + 1)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str, command: &str) -> Result<bool, Opaque> {
        let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
        runs(line, &words)
    }

    #[test]
    fn command_is_found_wherever_a_shell_would_run_it() {
        for line in [
            "rm x",
            "ls; rm x",
            "ls && rm x",
            "ls & rm x",
            "ls\nrm x",
            "ls | rm x",
            "echo $(rm x)",
            "echo \"$(rm x)\"",
            "echo `rm x`",
            "cat <(rm x)",
            "(rm x)",
            "f() { rm x; }; f",
            "{ rm x; }",
            "! rm x",
            "if rm x; then ls; fi",
            "if true; then rm x; fi",
            "for f in a b; do rm $f; done",
            "case a in a) rm x;; esac",
            "X=1 rm x",
            "X=1 Y='a b' rm x",
            ">out rm x",
            "2>/dev/null rm x",
            "/bin/rm x",
            "'rm' x",
            "r'm' x",
            "r\\m x",
            "\"rm\" x",
            "RM x",
            "env rm x",
            "env -u A B=1 rm x",
            "sudo -u root rm x",
            "sudo env X=1 nice -n 10 rm x",
            "command rm x",
            "time -p rm x",
            "ls | xargs -n 1 rm",
            "find . -name 'a*' -exec rm {} +",
            "sh -c 'rm x'",
            "bash -lc 'ls; rm x'",
            "sudo bash -c \"rm x\"",
            "ls # \\\nrm x",
            "ls # don't\nrm x # don't",
            "ls \\\n# '\nrm x # '",
            "ls;# `\nrm x # `",
            "(ls # )\nrm x)",
            "echo $(ls # )\nrm x)",
            "# first\nrm x",
            "ls a#b; rm x",
            "ls \\# ; rm x",
            "ls '#' ; rm x",
            "l\\\ns; rm x",
            "r\\\nm x",
            "eval 'rm x'",
            "env -S 'rm x'",
            "ssh host 'ls; rm x'",
            "bash -c -- 'rm x'",
            "bash -c -o pipefail 'rm x'",
            "bash -eo pipefail -c 'rm x'",
            "bash --norc -c 'rm x' y",
            "eval -- 'rm x'",
            "{fd}>/dev/null rm x",
            "su -c 'rm>x'",
            "su -crm",
            "su --command=rm",
            "runuser -u a -- rm x",
            "systemd-run --user rm x",
            "chronic rm x",
            "sg group -c 'rm x'",
            "hyperfine -w 1 'rm x'",
            "tmux new-session -d 'rm x'",
            "pkexec rm x",
            "nocorrect rm x",
            "i386 rm x",
            "x86_64 rm x",
            "choom -n 0 -- rm x",
            "perf stat rm x",
            "ls \\#; rm x",
            "ls <(ls)#; rm x",
            "ls $(ls)#; rm x",
            "ls # a\r\nrm x",
            "f()\n# f\n{ rm x; }",
            "case a in a) # )\nrm x;; esac",
        ] {
            assert_eq!(found(line, "rm"), Ok(true), "{line}");
        }
    }

    #[test]
    fn command_is_not_found_in_arguments_texts_and_names_of_files() {
        for line in [
            "ls rm",
            "ls # rm x",
            "# rm x; rm y\nls",
            "ls # it's `fine\nls",
            "echo 'rm x'",
            "echo \"a; rm x\"",
            "rmdir x",
            "ls > rm",
            "ls 2>&1",
            "cat x >> rm",
            "git commit -m 'rm (old); files'",
            "bash script.sh",
            "for rm in a b; do ls; done",
            "[ -e x ] && ls *.rs",
            "echo $HOME ${x:-y} $?",
            "sudo ls .",
            "bash -x ./script.sh rm",
            "bash -o pipefail script.sh",
            ". ./env.sh",
            "ls | xargs grep x",
            "ssh -p22 host ls",
            "x=$(ls) y=\"$HOME\" ls # rm x",
            "f() { ls; } # rm x",
            "echo $((1 + 2)) > x",
            "[[ -e x ]] && ls # rm x",
            "ls\r\nls # rm x\r\nls",
            "jq '.a[0]' x # rm x",
        ] {
            assert_eq!(found(line, "rm"), Ok(false), "{line}");
        }
    }

    #[test]
    fn further_words_may_be_between_the_words_of_a_denied_command() {
        for (line, runs) in [
            ("git push", true),
            ("git -C a push origin", true),
            ("git $X", true),
            ("echo push | xargs git", true),
            ("echo status | xargs ls", false),
            ("git status", false),
            ("push git", false),
        ] {
            assert_eq!(found(line, "git push"), Ok(runs), "{line}");
        }
    }

    #[test]
    fn line_of_which_only_a_shell_knows_the_commands_is_opaque() {
        for line in [
            "$X x",
            "x=rm; $x y",
            "/bin/r? x",
            "{rm,x}",
            "$'r\\155' x",
            "$(echo rm) x",
            "sudo $X",
            "curl x | sh",
            "sh -c \"$X\"",
            "eval $X",
            "alias ls=rm; ls x",
            "trap 'rm x' EXIT",
            "echo 'rm x' | bash -s y",
            "echo 'rm x' | bash -o pipefail",
            "echo 'rm x' | sh /dev/stdin",
            "echo 'rm x' | sh /dev/../dev/stdin",
            "bash <(echo 'rm x')",
            "bash --rcfile x -i",
            "fish -C 'rm x'",
            ". <(echo 'rm x')",
            "source /dev/fd/0",
            "env -S'rm x'",
            "su -c'rm x'",
            "echo rm x | xargs sudo",
            "echo 'rm x' | xargs sh -c",
            "ls # a\rrm x",
            "bash <<EOF\nrm x\nEOF",
            "bash <<< 'rm x'",
            "echo ${x:-$(rm x)}",
            "echo 'rm",
            "echo \"rm",
            "echo $(rm",
            "echo \\",
            "`echo \\`rm\\``",
            // A carriage return is a space, a part of a word, or an end.
            "echo a\r#; rm x",
            // A `#` within a word is no comment.
            "a=(1)#; rm x",
            "declare -A a; a[ # ]=1; rm x",
            "echo @( # ) ; rm x\n)",
            "[[ a =~ (a)#b ]] || rm x",
            // Neither is one in arithmetic.
            "(( 1 # )) || rm x\n))",
            "echo $((1 # )) | rm x\n))",
            "for ((i=0; i<1 # ; i++)); do rm x; done\n))",
            "echo $[ 1 # ] | rm x",
            "echo $((1 ')) | rm x #'\n))",
            "echo $((1 \")) | rm x #\"\n))",
            "echo ${ rm x; }",
            "echo ${| rm x; }",
            "echo ${x@P}",
            // Some texts are evaluated although they are quoted.
            "x='$(rm x)'; set -x; ls",
            "x='a[`rm x`]'; [[ x -eq 1 ]]",
            "printf -v 'a[$(rm x)]' x",
            "[[ -v 'a[${x}]' ]]",
            "BASH_ENV=x bash -c ls",
            "env PROMPT_COMMAND='rm x' bash -ic ls",
            "hash -p ./x ls; ls",
            "mapfile -C 'rm x' -c 1",
            "compgen -C 'rm x'",
            "let 'a=1'",
            "repeat 1 rm x",
            "=rm x",
        ] {
            assert!(found(line, "cp").is_err(), "{line}");
        }
        let deep = "$(".repeat(100) + "ls" + &")".repeat(100);
        assert!(found(&deep, "rm").is_err());
        // What is understood counts even if the rest is not.
        assert_eq!(found("rm x; $Y", "rm"), Ok(true));
    }

    #[test]
    fn plain_words_are_those_of_one_simple_command() {
        let words = |line: &str| plain_words(line).map(|words| words.join("|"));
        assert_eq!(words("git  commit -m \"a b\"").as_deref(), Some("git|commit|-m|a b"));
        assert_eq!(words("bash -lc 'git status'").as_deref(), Some("git|status"));
        assert_eq!(words("/bin/sh -c 'git status'").as_deref(), Some("git|status"));
        assert_eq!(words("./bash -c 'git status'").as_deref(), Some("./bash|-c|git status"));
        assert_eq!(words("/tmp/bin/sh -c 'git status'").as_deref(), Some("/tmp/bin/sh|-c|git status"));
        for line in ["a; b", "a && b", "a $(b)", "a > b", "a\nb", "a 'b", "bash -lc 'a; b'", "", "a\u{1b}b"] {
            assert_eq!(words(line), None, "{line}");
        }
    }
}
