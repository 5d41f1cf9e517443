//! Command lines, taken apart into the commands that a shell would run.
//!
//! Owns: the commands behind other ones, such as `env`, `sudo` and `sh -c`, and the words that a
//! rule matches.
//! Never: expands or runs anything, or guesses: a line of which only a shell knows what it runs is
//! an error. What a program or a script does is not visible in a line.

use super::lines::{has_substitution, read_line, LineCommand, ReadLine, Word};
use super::windows_shells::{self, SHELLS_OF_WINDOWS};
use super::xargs::{self, OptionValue};

pub use super::lines::Opaque;

/// Maximum number of words that a search examines; a word counts for each command whose arguments
/// are examined and may contain it. Behind each `find -exec` and each unknown option of `xargs` may
/// be all later ones, so without a limit the time would double with each of them. The limit bounds
/// the recursion, too.
const EXAMINED_WORDS_MAX: usize = 100_000;

/// Number of steps of comparisons that count as one examined word. A step concerns a character.
const STEPS_PER_WORD: usize = 256;

const TOO_MANY_WORDS: Opaque = "it has too many words in commands within commands";

/// Characters by which a shell runs more than one command, or writes to a file.
pub const SHELL: [char; 11] = [';', '|', '&', '<', '>', '`', '$', '(', ')', '\n', '\r'];

const UNKNOWN_NAME: Opaque = "only a shell knows the name of one of its commands";

const UNKNOWN_WORDS: Opaque = "only a shell knows the words of a command behind another one";

/// Words that a command may follow at once: those of the grammar of POSIX shells, of zsh (`-`), and
/// of fish.
#[rustfmt::skip]
const RESERVED: [&str; 18] = [
    "if", "then", "elif", "else", "fi", "while", "until", "do", "done", "esac", "{", "}", "!", "-", "begin", "and",
    "or", "not",
];

/// Commands that give later commands a meaning that their names do not tell, or run an argument.
#[rustfmt::skip]
const REDEFINING: [&str; 14] = [
    "alias", "coproc", "hash", "compgen", "complete", "repeat", "fc", "history", "emulate", "zmodload", "autoload",
    "zpty", "zargs", "enable",
];

/// Further commands whose arguments are examined.
#[rustfmt::skip]
const EXAMINED: [&str; 10] = [
    "mapfile", "readarray", "jobs", "print", "git", "trap", "eval", "find", ".", "source",
];

/// Commands that may evaluate a text with an index.
const EVALUATING: [&str; 14] = [
    "printf", "test", "[", "[[", "unset", "declare", "typeset", "local", "export", "readonly", "read", "let",
    "wait", "getopts",
];

/// Operators of tests that evaluate their operands.
const EVALUATED: [&str; 7] = ["-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-v"];

/// Variables whose values name or contain commands.
const RUN_VARIABLES: [&str; 15] = [
    "BASH_ENV",
    "ENV",
    "PROMPT_COMMAND",
    "PS0",
    "PS1",
    "PS2",
    "PS4",
    "BASH_CMDS",
    "BASH_ALIASES",
    "NULLCMD",
    "READNULLCMD",
    "functions",
    "commands",
    "aliases",
    "galiases",
];

/// Programs that take a line as an argument, or read lines.
#[rustfmt::skip]
const SHELLS: [&str; 19] = [
    "sh", "bash", "dash", "zsh", "ksh", "ash", "fish", "rbash", "rksh", "rzsh", "mksh", "lksh", "pdksh", "oksh",
    "posh", "yash", "ksh93", "csh", "tcsh",
];

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

/// Members of [`WRAPPERS`] that have only options and variables before the command.
#[rustfmt::skip]
const PLAIN_WRAPPERS: [&str; 20] = [
    "env", "sudo", "doas", "command", "exec", "builtin", "nohup", "nice", "ionice", "time", "timeout", "stdbuf",
    "unbuffer", "setsid", "fakeroot", "eatmydata", "caffeinate", "chronic", "noglob", "nocorrect",
];

/// Members of [`PLAIN_WRAPPERS`] that have one more argument before the command.
const OPERAND_WRAPPERS: [&str; 1] = ["timeout"];

/// Programs whose first argument that is no option says what they do.
#[rustfmt::skip]
const SUBCOMMAND_PROGRAMS: [&str; 15] = [
    "git", "gh", "glab", "cargo", "docker", "podman", "kubectl", "helm", "go", "systemctl", "apt", "apt-get", "brew",
    "pip", "pip3",
];

/// Options of shells that have a long name and no value.
const LONG_OPTIONS: [&str; 6] =
    ["--login", "--noediting", "--noprofile", "--norc", "--posix", "--restricted"];

/// End of the names of programs of Windows.
const EXE: &str = ".exe";

/// Arguments of `find` that a command follows.
const EXECUTES: [&str; 4] = ["-exec", "-execdir", "-ok", "-okdir"];

/// Returns the words of a line that is one simple command; `None` if it is anything else. A command
/// that is passed to a shell alone (`bash -lc 'git status'`) is that command.
pub fn plain_words(line: &str) -> Option<Vec<String>> {
    if line.contains(SHELL) || line.chars().any(char::is_control) {
        return None;
    }
    let mut commands = read_line(line, 0).ok()?.commands;
    let command = commands.pop().filter(|_| commands.is_empty())?;
    let words: Vec<String> = command.words.into_iter().map(|word| word.text).collect();
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
    CommandSearch { command, words_left: EXAMINED_WORDS_MAX }.runs_line(line, 0)
}

/// Combines the results about parts of a line: a match precedes a part that is not understood.
fn any(parts: impl IntoIterator<Item = Result<bool, Opaque>>) -> Result<bool, Opaque> {
    let mut found = Ok(false);
    for part in parts {
        match part {
            Ok(false) => {}
            Err(why) if why != TOO_MANY_WORDS => found = part,
            Ok(true) | Err(_) => return part,
        }
    }
    found
}

/// Search of a line for a command.
struct CommandSearch<'a> {
    /// First words of the command.
    command: &'a [String],
    /// Number of words that may still be examined.
    words_left: usize,
}

impl CommandSearch<'_> {
    fn runs_line(&mut self, line: &str, depth: usize) -> Result<bool, Opaque> {
        let mut read = read_line(line, depth)?;
        // A word of the rule itself is compared as it is written.
        let words = read.commands.iter_mut().flat_map(|command| &mut command.words);
        words.filter(|word| !self.command.contains(&word.text)).for_each(write_name_in_lower_case);
        let hidden = evaluates_hidden(&read).then_some("a text in it is one that shells evaluate");
        let commands =
            read.commands.iter().map(|LineCommand { words, is_fed }| match self.runs_words(words, depth) {
                Ok(false) if *is_fed => match self.runs_its_input(words) {
                    Ok(true) => Err("a program in it runs what it reads"),
                    runs => runs,
                },
                runs => runs,
            });
        any(commands.chain(hidden.map(Err)))
    }

    /// Counts words that are examined.
    fn count(&mut self, words: &[Word]) -> Result<(), Opaque> {
        self.words_left = self.words_left.checked_sub(words.len()).ok_or(TOO_MANY_WORDS)?;
        Ok(())
    }

    /// Returns whether these words are the command of the rule, and counts the comparisons.
    fn is_command(&mut self, words: &[Word]) -> Result<bool, Opaque> {
        let mut steps = 0;
        if begins_with(words, self.command, &mut steps) {
            return Ok(true);
        }
        self.words_left = self.words_left.checked_sub(steps / STEPS_PER_WORD).ok_or(TOO_MANY_WORDS)?;
        Ok(false)
    }

    fn runs_words(&mut self, words: &[Word], depth: usize) -> Result<bool, Opaque> {
        self.count(words)?;
        if words.iter().any(|word| sets_commands(&word.text)) {
            return Err("a variable in it names or contains commands");
        }
        let is_before = |word: &&Word| RESERVED.contains(&word.text.as_str()) || is_assignment(&word.text);
        let words = &words[words.iter().take_while(is_before).count()..];
        let Some(first) = words.first() else { return Ok(false) };
        let name = name_of(&first.text);
        if name == "function" {
            // Some shells give a function several names.
            let body = words.iter().position(|word| word.text == "{").map_or(2, |brace| brace + 1);
            return words.get(body..).map_or(Ok(false), |rest| self.runs_words(rest, depth));
        }
        // In zsh, a command may follow an opening brace, and names may be patterns with these.
        if first.is_expanded || first.text.starts_with('{') || name.contains(['#', '^']) {
            return Err(UNKNOWN_NAME);
        }
        if !WRAPPERS.contains(&name) {
            return self.runs_one(words, depth);
        }
        if name == "xargs" {
            return self.runs_behind_xargs(&words[1..], depth);
        }
        if name == "command" && words.get(1).is_some_and(|word| ["-v", "-V"].contains(&word.text.as_str())) {
            return Ok(false);
        }
        let certain = certain_command(words);
        // It adds words that it reads.
        let is_reading = name == "parallel";
        let all: Vec<Word> = words.iter().cloned().chain(is_reading.then(Word::unknown)).collect();
        // Options of a wrapper may have values, so each word up to the command may be the command.
        let places = 0..certain.map_or(words.len(), |at| at + 1);
        let found = any(places.map(|at| self.runs_one(&all[at..], depth)));
        if certain.is_some() || found != Ok(false) {
            return found;
        }
        if let Some(at) = words.iter().position(|word| name_of(&word.text) == "xargs") {
            return self.runs_behind_xargs(&words[at + 1..], depth);
        }
        let ends_with_wrapper = words[1..].last().is_some_and(|word| WRAPPERS.contains(&name_of(&word.text)));
        if words.iter().any(|word| word.is_expanded) || is_reading && ends_with_wrapper {
            return Err(UNKNOWN_WORDS);
        }
        let takes_lines = |word: &Word| LINE_WRAPPERS.contains(&name_of(&word.text));
        let lines = words.iter().skip_while(|word| !takes_lines(word)).skip(1);
        any(lines.map(|word| self.runs_argument(&word.text, depth + 1)))
    }

    /// Returns whether a command that reads a text runs it.
    fn runs_its_input(&mut self, words: &[Word]) -> Result<bool, Opaque> {
        for (at, word) in words.iter().enumerate() {
            let rest = &words[at + 1..];
            match runs_its_input(name_of(&word.text), rest) {
                Some(true) => return Ok(true),
                Some(false) => self.count(rest)?,
                None => {}
            }
        }
        Ok(false)
    }

    /// Returns whether `xargs` with these arguments runs a command.
    fn runs_behind_xargs(&mut self, arguments: &[Word], depth: usize) -> Result<bool, Opaque> {
        // Texts that are replaced by what it reads, and places where the command may begin.
        let (mut signs, mut places, mut may_be_value, mut at) = (vec!["{}"], Vec::new(), false, 0);
        while let Some(word) = arguments.get(at) {
            let next = arguments.get(at + 1);
            match word.text.strip_prefix('-') {
                Some(option) => {
                    let value = match word.is_expanded {
                        true if xargs::may_name_sign(word.known_start()) => return Err(UNKNOWN_WORDS),
                        true => OptionValue::Unknown,
                        false => xargs::value_of_option(option),
                    };
                    may_be_value = value == OptionValue::Unknown;
                    match value {
                        OptionValue::Sign(sign) => signs.push(sign),
                        OptionValue::NextWord if option.ends_with(['I', 'J']) => {
                            if next.is_some_and(|sign| sign.is_expanded) {
                                return Err(UNKNOWN_WORDS);
                            }
                            signs.extend(next.map(|sign| sign.text.as_str()));
                        }
                        OptionValue::None | OptionValue::NextWord | OptionValue::Unknown => {}
                    }
                    at += usize::from(value == OptionValue::NextWord);
                }
                None => {
                    places.push(at);
                    if !std::mem::take(&mut may_be_value) {
                        break;
                    }
                }
            }
            at += 1;
        }
        any(places.into_iter().map(|place| self.runs_for_each(&arguments[place..], &signs, depth)))
    }

    /// Returns whether `xargs` runs a command by this one, in which it replaces signs by what it
    /// reads.
    fn runs_for_each(&mut self, behind: &[Word], signs: &[&str], depth: usize) -> Result<bool, Opaque> {
        let is_replaced = |word: &Word| signs.iter().any(|sign| !sign.is_empty() && word.text.contains(sign));
        let name = name_of(&behind[0].text);
        if is_replaced(&behind[0]) || runs_arguments(name) && behind.iter().any(is_replaced) {
            return Err(UNKNOWN_WORDS);
        }
        let all: Vec<Word> = behind.iter().cloned().chain([Word::unknown()]).collect();
        self.runs_words(&all, depth)
    }

    /// Returns whether an argument that may be a line, or an option with one, runs a command.
    fn runs_argument(&mut self, argument: &str, depth: usize) -> Result<bool, Opaque> {
        if !argument.starts_with('-') {
            return self.runs_line(argument, depth);
        }
        if argument.contains(SHELL) || argument.contains(char::is_whitespace) {
            return Err("a line in it is part of an option");
        }
        let value = argument.split_once('=').map_or(argument.get(2..), |(_, value)| Some(value));
        value.map_or(Ok(false), |value| self.runs_line(value, depth))
    }

    /// Returns whether the arguments of a command are examined.
    fn examines_arguments(&self, program: &str) -> bool {
        let name = name_of(program);
        let lists = [&EXAMINED[..], &EVALUATING, &SHELLS, &SHELLS_OF_WINDOWS];
        lists.iter().any(|names| names.contains(&name))
            || self.command.first().is_some_and(|it| is_named(program, it))
    }

    /// Returns whether a command runs another one, apart from those behind wrappers.
    fn runs_one(&mut self, words: &[Word], depth: usize) -> Result<bool, Opaque> {
        let Some(first) = words.first().filter(|word| !word.is_expanded) else { return Ok(false) };
        // Each word behind a wrapper may be a command, so the arguments of others are not counted.
        if self.examines_arguments(&first.text) {
            self.count(words)?;
        }
        if self.is_command(words)? {
            return Ok(true);
        }
        let arguments = &words[1..];
        let has_option = |letter: char| {
            arguments
                .iter()
                .any(|word| word.is_unknown || word.text.starts_with('-') && word.text.contains(letter))
        };
        let is_evaluated = |word: &Word| word.text.contains('[') && has_substitution(&word.text);
        match name_of(&first.text) {
            // In zsh, `=name` is the path of a program; `find` replaces braces.
            name if name.starts_with('=') || name == "{}" => Err(UNKNOWN_NAME),
            name if REDEFINING.contains(&name) => Err("it gives commands another meaning"),
            "mapfile" | "readarray" if has_option('C') => Err("it gives commands another meaning"),
            "jobs" if has_option('x') => Err("it gives commands another meaning"),
            "print" if has_option('P') => Err("a text in it is one that shells evaluate"),
            "git" if arguments.iter().any(|word| names_alias(word) && word.text.contains('!')) => {
                Err("an alias of git in it runs a command")
            }
            name if name.starts_with("ld-linux") || name.starts_with("ld-musl") => {
                Err("a program in it loads another one")
            }
            name if EVALUATING.contains(&name) && arguments.iter().any(is_evaluated) => {
                Err("a text in it is one that shells evaluate")
            }
            "trap" if arguments.iter().any(|word| word.is_expanded) => {
                Err("only a shell knows the line of a trap in it")
            }
            // The line may begin with `-`, too, and the names of signals are no commands.
            "trap" => any(arguments.iter().map(|word| self.runs_line(&word.text, depth + 1))),
            "eval" if arguments.iter().any(|word| word.is_expanded) => {
                Err("only a shell knows what it evaluates")
            }
            "eval" => {
                let arguments = arguments.iter().map(|word| word.text.as_str());
                let line: Vec<&str> = arguments.skip_while(|word| *word == "--").collect();
                self.runs_line(&line.join(" "), depth + 1)
            }
            "find" => {
                let is_executing = |word: &Word| EXECUTES.contains(&word.text.as_str());
                let places = (0..arguments.len()).filter(|at| is_executing(&arguments[*at]));
                any(places.map(|at| self.runs_words(&arguments[at + 1..], depth)))
            }
            "." | "source" => arguments.iter().find(|word| word.text != "--").map_or(Ok(false), runs_file),
            name if SHELLS.contains(&name) => self.runs_in_shell(arguments, depth),
            name if SHELLS_OF_WINDOWS.contains(&name) => {
                // These shells have many commands that run another one.
                let readings = windows_shells::readings(name, arguments)?;
                let places = readings.iter().flat_map(|words| (0..words.len()).map(|at| &words[at..]));
                any(places.map(|words| self.is_command(words)))
            }
            _ => Ok(false),
        }
    }

    fn runs_in_shell(&mut self, arguments: &[Word], depth: usize) -> Result<bool, Opaque> {
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
            // In an interactive zsh, `#` begins no comment.
            if flags.contains('i') && arguments.iter().any(|word| word.text.contains('#')) {
                return Err("only a shell knows whether a `#` in it begins a comment");
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
            Some(line) if takes_line && !line.is_expanded => self.runs_line(&line.text, depth + 1),
            _ if takes_line => Err("only a shell knows the line that it passes to a shell"),
            Some(file) => runs_file(file),
            None => Err(READS),
        }
    }
}

/// Writes the name of a program that runs others as the lists here have it: file systems of macOS
/// do not distinguish case, and Windows has an ending.
fn write_name_in_lower_case(word: &mut Word) {
    let name = name_of(&word.text);
    let lower = name.to_ascii_lowercase();
    let plain = lower.strip_suffix(EXE).unwrap_or(&lower);
    let special = ["find", "trap", "at", "batch", "crontab", "newgrp", "git"];
    if name != plain && (runs_arguments(plain) || special.contains(&plain)) {
        word.text = format!("{}{plain}", word.text.strip_suffix(name).unwrap_or_default());
        word.known_from = word.known_from.min(word.text.len());
    }
}

/// Returns whether a program with these arguments runs a text that it reads; `None` if no program
/// of this name does.
fn runs_its_input(name: &str, rest: &[Word]) -> Option<bool> {
    let is_option = |word: &&Word| word.text.starts_with('-');
    let has_line = |rest: &[Word]| rest.iter().filter(is_option).any(|word| word.text.contains('c'));
    Some(match name {
        "su" | "runuser" | "newgrp" | "sg" | "script" => !has_line(rest),
        "sudo" | "doas" => rest.iter().all(|word| is_option(&word)),
        "ssh" => {
            let is_value = |at: usize| at > 0 && is_option(&&rest[at - 1]);
            (0..rest.len()).filter(|at| !is_option(&&rest[*at]) && !is_value(*at)).count() < 2
        }
        "at" | "batch" | "crontab" | "parallel" => true,
        name if SHELLS_OF_WINDOWS.contains(&name) => windows_shells::reads_input(name, rest),
        name if SHELLS.contains(&name) => rest.iter().all(|word| is_option(&word)),
        _ => return None,
    })
}

/// Returns whether a line evaluates texts, as arithmetic does, and has a quoted one with a
/// substitution.
fn evaluates_hidden(read: &ReadLine) -> bool {
    let compares = |words: &[Word]| {
        let is_test = |word: &Word| ["test", "[", "[["].contains(&word.text.as_str());
        words.iter().any(is_test) && words.iter().any(|word| EVALUATED.contains(&word.text.as_str()))
    };
    let has_index =
        |words: &[Word]| words.iter().any(|word| word.text.contains('[') && is_assignment(&word.text));
    let evaluates = |LineCommand { words, .. }: &LineCommand| compares(words) || has_index(words);
    read.has_hidden && (read.evaluates || read.commands.iter().any(evaluates))
}

/// Returns whether a word may name an alias of git, in any case.
fn names_alias(word: &Word) -> bool {
    word.text.to_ascii_lowercase().contains("alias.")
}

/// Returns the place of the command behind wrappers; `None` if options make it uncertain.
fn certain_command(words: &[Word]) -> Option<usize> {
    let (mut wrapper, mut at, mut is_behind_option) = (0, 1, false);
    let mut operands = usize::from(OPERAND_WRAPPERS.contains(&name_of(&words[0].text)));
    loop {
        let name = name_of(&words[wrapper].text);
        let has_options = words.get(wrapper + 1).is_none_or(|next| next.text.starts_with('-'));
        let takes_lines = name == "env" && has_options;
        if takes_lines || !PLAIN_WRAPPERS.contains(&name) {
            return None;
        }
        let word = words.get(at)?;
        let own = name_of(&word.text);
        let may_run = runs_arguments(own);
        if is_assignment(&word.text) || RESERVED.contains(&word.text.as_str()) {
            is_behind_option = false;
        } else if word.is_expanded {
            return None;
        } else if word.text.starts_with('-') {
            is_behind_option = !word.text.contains('=');
        } else if is_behind_option {
            // It is the value of the option, or the command.
            if may_run {
                return None;
            }
            is_behind_option = false;
        } else if operands > 0 {
            // Behind an option without a value, the operand was taken for that.
            if may_run {
                return None;
            }
            operands -= 1;
        } else if WRAPPERS.contains(&own) {
            wrapper = at;
            operands = usize::from(OPERAND_WRAPPERS.contains(&own));
        } else {
            return Some(at);
        }
        at += 1;
    }
}

/// Returns that a script runs nothing that a line shows, unless the file is one of open files.
fn runs_file(file: &Word) -> Result<bool, Opaque> {
    let mut folders = file.text.split('/').filter(|name| !matches!(*name, "" | "."));
    let is_open_file = folders.any(|it| ["dev", "proc"].contains(&it));
    // The end of a path tells that it is none of them.
    let end = &file.text[file.known_from..];
    let name = name_of(end);
    let is_named = end.starts_with('/') && name.contains(char::is_alphabetic) && !name.starts_with("std");
    let is_known = !file.is_expanded && file.text != "stdin" || file.is_unknown && is_named;
    match !is_known || is_open_file && !file.is_unknown || file.text.contains("..") {
        true => Err("only a shell knows the file with the commands that it reads"),
        false => Ok(false),
    }
}

/// Returns whether a program has the name of another one, in any case: some file systems do not
/// distinguish it.
fn is_named(program: &str, other: &str) -> bool {
    let (run, name) = (name_of(program), name_of(other));
    let is_same = |run: &str| run.eq_ignore_ascii_case(name);
    is_same(run) || run.to_ascii_lowercase().strip_suffix(EXE).is_some_and(is_same)
}

/// Returns whether a command has the name and, in their order, the words of a rule. Words may be
/// between them, except before the first argument of a program with subcommands. Adds the number of
/// compared characters to `steps`.
fn begins_with(words: &[Word], command: &[String], steps: &mut usize) -> bool {
    let [first, rest @ ..] = words else { return false };
    let [name, expected @ ..] = command else { return false };
    if !is_named(&first.text, name) {
        return false;
    }
    let name = name_of(name);
    *steps += rest.iter().map(|word| 1 + word.text.len()).sum::<usize>();
    let has_all = |rest: &[Word], expected: &[String], steps: &mut usize| {
        let mut rest = rest.iter();
        expected.iter().all(|expected| rest.any(|word| may_be(word, expected, steps)))
    };
    match expected {
        [subcommand, expected @ ..]
            if SUBCOMMAND_PROGRAMS.contains(&name) && !subcommand.starts_with('-') =>
        {
            // An alias may stand for any subcommand.
            let has_alias = name == "git" && rest.iter().any(names_alias);
            // Behind the first place are all words that are behind a later one.
            let place = places_of_subcommand(name, rest).find(|at| may_be(&rest[*at], subcommand, steps));
            has_alias || place.is_some_and(|at| has_all(&rest[at + 1..], expected, steps))
        }
        _ => has_all(rest, expected, steps),
    }
}

/// Returns the places of the words that may be a subcommand: each one behind an option may be the
/// value of that option. The options of git are known.
fn places_of_subcommand<'a>(name: &'a str, words: &'a [Word]) -> impl Iterator<Item = usize> + 'a {
    #[rustfmt::skip]
    const WITH_VALUES: [&str; 8] = [
        "-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path", "--config-env", "--attr-source",
    ];
    let (mut is_behind_option, mut is_over) = (false, false);
    (0..words.len()).filter(move |at| {
        let word = &words[*at];
        if name == "git" && std::mem::take(&mut is_behind_option) {
            return false;
        }
        let is_option = !word.is_unknown && word.text.starts_with(['-', '+']);
        let may_be = !is_over && (!is_option || word.is_expanded);
        is_over |= !is_option && !is_behind_option && !word.is_unknown;
        is_behind_option = is_option && word.text.starts_with('-') && !word.text.contains('=');
        is_behind_option &= name != "git" || WITH_VALUES.contains(&word.text.as_str());
        may_be
    })
}

/// Returns whether a shell may replace a word with this text, or it is that.
fn may_be(word: &Word, text: &str, steps: &mut usize) -> bool {
    word.is_unknown || word.text == text || word.is_expanded && may_match(&word.text, text, steps)
}

/// Returns whether a pattern of file names may match a text. Adds about the product of both lengths
/// to `steps`, at most.
fn may_match(pattern: &str, text: &str, steps: &mut usize) -> bool {
    if pattern.contains('[') {
        return true;
    }
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut at, mut place) = (0, 0);
    // The place behind the last `*`, and the end of what that stands for. An earlier `*` need not
    // stand for more: the last one can.
    let mut star = None;
    while let Some(char) = text.get(place) {
        *steps += 1;
        match (pattern.get(at), &mut star) {
            (Some('*'), _) => {
                at += 1;
                star = Some((at, place));
            }
            (Some(expected), _) if *expected == '?' || expected == char => (at, place) = (at + 1, place + 1),
            (_, Some((behind, end))) => {
                *end += 1;
                (at, place) = (*behind, *end);
            }
            (_, None) => return false,
        }
    }
    *steps += pattern.len() - at;
    pattern[at..].iter().all(|char| *char == '*')
}

/// Returns whether a program of this name may run its arguments as a command or a line.
fn runs_arguments(name: &str) -> bool {
    [&WRAPPERS[..], &SHELLS, &SHELLS_OF_WINDOWS, &["eval"]].iter().any(|names| names.contains(&name))
}

/// Returns the name of a program without its folder.
fn name_of(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

fn is_assignment(word: &str) -> bool {
    let Some((name, _)) = word.split_once('=') else { return false };
    let name = name.strip_suffix('+').unwrap_or(name);
    let name = name.strip_suffix(']').and_then(|name| name.split('[').next()).unwrap_or(name);
    let is_name = |char: char| char.is_ascii_alphanumeric() || char == '_';
    !name.is_empty() && name.chars().all(is_name) && !name.starts_with(|char: char| char.is_ascii_digit())
}

/// Returns whether a word sets or names a variable whose value names or contains commands.
fn sets_commands(word: &str) -> bool {
    let name = word.split(['=', '+', '[']).next().unwrap_or(word);
    let sign = word[name.len()..].chars().next();
    // The names of zsh are ordinary ones elsewhere.
    let is_set = match name {
        "ENV" => sign.is_some(),
        name if name.starts_with(|char: char| char.is_ascii_lowercase()) => {
            sign.is_some_and(|sign| sign != '=')
        }
        _ => true,
    };
    is_set && RUN_VARIABLES.contains(&name) || name.starts_with("BASH_FUNC_")
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
            "if [[ x ]] then rm x; fi",
            "while [[ x ]] && [[ y ]] do rm x; break; done",
            "if [[ x ]] rm x",
            ">&-rm x",
            "2>&-rm x",
            "env >&-rm x",
            "ls &!rm x",
            "rbash -c 'rm x'",
            "mksh -c 'rm x'",
            "trap 'rm x' EXIT",
            "trap -- '-; rm x' EXIT",
            "timeout 5 ssh host 'rm x'",
            "timeout -k5 10 ssh host 'rm x'",
            "timeout --foreground 5 su root -c 'rm x'",
            "timeout -v 5 watch 'rm x'",
            "ls | xargs -rn 1 rm",
            "ls | xargs -0P 4 rm",
            "ls | xargs -n1 rm",
            "ls | xargs --max-args 1 rm",
            "ls | xargs --delimiter x rm",
            "ls | xargs --null rm",
            "ls | xargs --max-lines rm",
            "ls | xargs --some-option 1 rm",
            "ls | xargs -P$(nproc) rm x",
            "ls | xargs -n $N rm x",
            "ls | xargs -n$N rm x",
            "SUDO rm x",
            "/usr/bin/ENV RM x",
            "/bin/BASH -c 'rm x'",
            "rm.exe x",
            "sudo.exe rm x",
            "- rm x",
            "fish -c 'ls; and rm x'",
            "not rm x",
            "sudo su -c 'rm x'",
            "ls | sudo xargs -n 1 rm",
            "sudo flock -c x 'rm x'",
            "nice env -S 'rm x'",
            "xargs -n 1 timeout 5 rm < x",
            "cmd /c rm x",
            "CMD.EXE //C 'rm x'",
            "cmd /c start rm x",
            "cmd /c rm/s/q x",
            "cmd /c rm.x",
            "cmd /crm x",
            "cmd /Rrm x",
            "cmd /s/crm/q x",
            "cmd //crm/q x",
            "env A=1 pwsh -c rm x",
            "powershell -NoProfile -Command 'rm x'",
            "/mnt/c/Windows/System32/WindowsPowerShell/v1.0/powershell.exe -c rm",
            "function f { rm x; }; f",
            "function f() { rm x; }; f",
            "function f g { rm x; }; g",
            "cat <<'EOF'\n$(x)\nEOF\nrm x",
            "cat <<-EOF > y\n\t$x\n\tEOF\nrm x",
            "cat <<A - <<B && rm x\na\nA\nb\nB",
            "git commit -m \"$(cat <<'EOF'\na) b\nEOF\n)\" && rm x",
            "case $x in *) rm x;; esac",
            "sudo -u timeout rm x",
            "sudo env X=1 timeout -k 5 10 nice -n 10 rm \"$X\"",
            "timeout 60 rm \"$X\"",
            "time { rm x; }",
            "echo $(( $(rm \"x\") + 1 ))",
            "IFS=$'\\n' rm x",
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
            "ls | xargs -I{} cp {} x",
            "ls | xargs -I % -n 1 cp % x",
            "ls | xargs -rn1 cp -t x",
            "ls | xargs --max-args 1 grep rm",
            "ls | xargs -é grep x",
            "ls | xargs -n1 sha1sum",
            "ls | xargs -P$(nproc) -n$N ls",
            "ls | xargs --max-procs=$(nproc) ls",
            "ls | xargs -P/git.exe$X ls",
            "ls | xargs -rP2 b2sum",
            "ls | xargs --max-args=1 sha1sum",
            "cmd /c dir",
            "cmd /c 'git commit -m a'",
            "pwsh -NoProfile -Command 'git status --short'",
            "cmd /q /c dir /b src/run",
            "echo x | pwsh -NoLogo -File x.ps1",
            "echo x | pwsh -c sort",
            "echo x | cmd /q/csort x",
            "pwsh -c ls /usr/env",
            "go build ./cmd",
            "ls | xargs -ex rex x",
            "while read x; do echo $x; done < y",
            "echo x | (cat; ls)",
            "echo x | { read y; ssh host ls; }",
            "ssh -p22 host ls",
            "x=$(ls) y=\"$HOME\" ls # rm x",
            "f() { ls; } # rm x",
            "echo $((1 + 2)) > x",
            "[[ -e x ]] && ls # rm x",
            "ls\r\nls # rm x\r\nls",
            "jq '.a[0]' x # rm x",
            "cat > x <<'EOF'\nrm x $(y) `z` \\\nEOF\nls",
            "git commit -m \"$(cat <<'EOF'\nremove (rm) it's\nEOF\n)\"",
            "python3 - <<EOF\nprint($x)\nEOF",
            "sudo chown -R $USER .",
            "timeout 60 cargo test \"$T\"",
            "sudo cp \"$F\" /etc/",
            "timeout 60 grep rm x",
            "env A=1 ls \"$X\"",
            "source \"$HOME/.cargo/env\"",
            ". \"$NVM_DIR/nvm.sh\"",
            "grep $'\\t' x",
            "trap 'ls x' EXIT",
            "trap - EXIT",
            "function f { ls; }",
            "mapfile -t x < y",
            "case $x in a | b) ls;; *) ls;; esac",
            "a[0]=1",
            "git commit -m 'a[$(x)] title=`x`'",
            "awk '{print $(NF)}' x",
            "commands=5; ls ~/x",
            "let n=n+1",
            "set -ex; git commit -m 'use `x` and $(y)'",
            "command -v rm",
            "tar c . | ssh -p 22 host 'tar x'",
            "echo x | sudo tee /etc/x",
            "echo x | ssh host cat",
            "bash x.sh < y",
        ] {
            assert_eq!(found(line, "rm"), Ok(false), "{line}");
        }
    }

    #[test]
    fn options_that_are_joined_to_a_command_of_cmd_are_words() {
        assert_eq!(found("cmd /c rd/s/q build", "rd /s"), Ok(true));
        assert_eq!(found("cmd /c rd build", "rd /s"), Ok(false));
    }

    #[test]
    fn word_of_a_denied_command_is_met_as_it_is_written() {
        assert_eq!(found("make BASH", "make BASH"), Ok(true));
        assert_eq!(found("make bash", "make BASH"), Ok(false));
    }

    #[test]
    fn further_words_may_be_between_the_words_of_a_denied_command() {
        for (line, runs) in [
            ("git push", true),
            ("git -C a push origin", true),
            ("git --attr-source HEAD push", true),
            ("git.exe push", true),
            ("GIT push", true),
            ("git $X", true),
            ("echo push | xargs git", true),
            ("echo status | xargs ls", false),
            ("git status", false),
            ("push git", false),
            ("git $X push", true),
            ("git add *.rs", false),
            ("git p*", true),
            ("git p?sh", true),
            ("git commit -m \"$X\"", false),
            ("git stash push", false),
            ("git log --grep push", false),
            ("git --no-pager push", true),
            ("git --no-pager stash push", false),
            ("git -C \"$D\" status", false),
            ("git -C \"$D\" push", true),
            ("git -c a.b=\"$X\" -P $X", true),
            ("git --git-dir=x $X", true),
            ("git -c alias.z=push z", true),
            ("make test push", false),
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
            // Signs of other shells than POSIX ones.
            "~ x",
            "eval ~",
            "sh -c ~",
            "~- x",
            "/bin/r@(m) x",
            "/bin/r(m|z) x",
            "/bin/rm# x",
            "$=x",
            "{rm x}",
            "{ ls } always { rm x }",
            "nohup =rm x",
            "jobs -x rm x",
            "fc -s ls=rm",
            "BASH_CMDS+=(ls /bin/rm); ls x",
            "printf -v 'BASH_CMDS[ls]' /bin/rm; ls x",
            "functions+=(ls 'rm x'); ls",
            "commands[ls]=/bin/rm; ls",
            "NULLCMD=rm; > x",
            "emulate sh -c 'rm x'",
            "echo /(e:'rm x':)",
            "bash +O interactive_comments -ic 'ls # ; rm x'",
            "zsh -ic 'ls # ; rm x'",
            "echo ${(e)x}",
            "setopt promptsubst; print -P '$(rm x)'",
            "git -c alias.z='!rm x' z",
            "/lib64/ld-linux-x86-64.so.2 /bin/dash -c 'rm x'",
            // Texts that become arithmetic or a prompt.
            "[[ ' a[$(rm x)0]' -eq 1 ]]",
            "x='a[$'; x+='(rm x)0]'; echo $((x))",
            "read x <<< 'a[$(rm x)0]'; echo $((x))",
            "echo ' a[$(rm x)0]' | { read i; echo $((i)); }",
            "echo ' a[$(rm x)0]' | { read i; echo ${y:i:1}; }",
            "x=$'a[$(rm x)0]'; echo $((x))",
            "a['x[$(rm x)]']=1",
            "for PS4 in '$(rm x)'; do set -x; ls; done",
            "for BASH_ENV in '`rm x`'; do export BASH_ENV; bash -c ls; done",
            // Documents that are run, or that shells read in different ways.
            "bash <<'EOF'\nrm x\nEOF",
            "cat <<'EOF' | sh\nrm x\nEOF",
            "ssh host <<'EOF'\nrm x\nEOF",
            "docker exec -i x sh <<EOF\nrm x\nEOF",
            "cat <<EOF\n$(rm x)\nEOF",
            "cat <<EOF\n`rm x`\nEOF",
            "cat <<EOF\nx\\\nEOF\nrm x\nEOF",
            "cat <<'E O'\nrm x\nE O",
            "cat <<$X\nrm x\n",
            "cat <<'EOF'\nEOF x",
            "cat <<'EOF' 'a\nEOF\nrm x'\nEOF",
            "cat <<'EOF' \\\nEOF\nEOF",
            "(cat <<'EOF')\nEOF",
            "echo \"$(case a in a) rm x;; esac)\"",
            "echo \"$(case a in a) echo esac; rm x;; esac)\"",
            "ssh host <<< 'rm x'",
            "echo 'rm x' | (ssh host)",
            "echo 'rm x' | (ls; su user)",
            "echo 'rm x' | { ls; ssh host; }",
            "(ssh host) <<< 'rm x'",
            "{ ssh host; } <<'EOF'
rm x
EOF",
            "while true; do bash; done < x",
            "ls | xargs -rI % %",
            "echo 'rm x' | ssh host",
            "echo 'rm x' | su user",
            "script <<EOF\nrm x\nEOF",
            "parallel <<EOF\nrm x\nEOF",
            "xargs env A=1 < x",
            "xargs timeout 5 < x",
            "xargs -I% sh -c % < x",
            "find . -exec env {} +",
            "cd /; . dev/stdin",
            "git -c Alias.z='!rm x' z",
            "env 'BASH_FUNC_ls%%=() { rm x; }' bash -c ls",
            "sudo -E timeout 5 $X",
            "setarch x86_64 $X",
            "xargs -n 1 -I % % < x",
            "timeout $X rm x",
            "xargs -I{} {} < x",
            "cmd",
            "cmd /c 'dir & r^m x'",
            "cmd /k dir < x",
            "echo 'rm x' | pwsh -WorkingDirectory .",
            "echo 'rm x' | pwsh -ConfigurationName x -WorkingDirectory .",
            "echo 'rm x' | powershell -Version 5.1",
            "echo 'rm x' | cmd /c cmd",
            "cmd /q x < y",
            "cmd /kdir",
            "cmd /s/kdir",
            "cmd /c del=x",
            "pwsh -c Start-Process -FilePath:rm x",
            "pwsh -NoLogo",
            "pwsh -Command - x < x",
            "pwsh -c \"& ('r' + 'm') x\"",
            "pwsh -c $X",
            "powershell -enc cgBtACAAeAA=",
            "PowerShell.exe -c 'iex $x'",
            "ls | xargs cmd /c",
            "ls | xargs -I% pwsh -c %",
            "cat x | xargs -I[] sh -c 'echo []'",
            "echo rm | xargs -I? '?' x",
            "echo rm | xargs -i* x",
            "echo rm | xargs -J* x",
            "echo rm | xargs -rI* x",
            "echo rm | xargs -r$X x",
            "echo rm | xargs -* x",
            "echo rm | xargs $X-n x",
            "echo rm | xargs -{n1,I%} sh -c 'echo %'",
            "echo rm | xargs --rep$X x",
            "echo rm | xargs --replace=$X x",
            "xargs -I\"$S\" q < x",
            "xargs -I $S q < x",
            "xargs -rJ \"$S\" q < x",
            "xargs -i% % < x",
            "xargs -ri% % < x",
            "xargs -J% % < x",
            "xargs --replace=% % < x",
            "xargs --rep=% % < x",
            ". $X",
            ". $X/0",
            "cd /dev; bash stdin",
            "bash BASH.EXE$X",
            ". /dev/fd/$X",
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
            "PS4='$(rm x)'; set -x; ls",
            "ls | sudo xargs -I{} {}",
            "x='a[`rm x`]'; [[ x -eq 1 ]]",
            "printf -v 'a[$(rm x)]' x",
            "[[ -v 'a[${x}]' ]]",
            "BASH_ENV=x bash -c ls",
            "env PROMPT_COMMAND='rm x' bash -ic ls",
            "hash -p ./x ls; ls",
            "mapfile -C 'rm x' -c 1",
            "compgen -C 'rm x'",
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
    fn commands_that_are_read_from_each_one_before_them_end_the_search() {
        for repeated in ["find -exec ", "xargs -Z ", "find -exec xargs -Z ", "sudo -x find -exec "] {
            assert!(found(&(repeated.repeat(40) + "ls"), "cp").is_err(), "{repeated}");
        }
        for repeated in ["find -exec ", "xargs -Z ", "xargs ", "function f ", "env -u find ", "ssh eval "] {
            assert!(found(&(repeated.repeat(20_000) + "ls"), "cp").is_err(), "{repeated}");
        }
        assert!(found(&("env -u ".to_owned() + &"git ".repeat(20_000)), "git push").is_err());
        assert_eq!(found(&"ls a b c; ".repeat(10_000), "cp"), Ok(false));
    }

    /// Returns the result of a search, and how many words it has counted.
    fn counted(line: &str, command: &str) -> (Result<bool, Opaque>, usize) {
        let command: Vec<String> = command.split(' ').map(str::to_owned).collect();
        let mut search = CommandSearch { command: &command, words_left: EXAMINED_WORDS_MAX };
        let found = search.runs_line(line, 0);
        (found, EXAMINED_WORDS_MAX - search.words_left)
    }

    #[test]
    fn pattern_is_compared_in_steps_of_the_product_of_both_lengths() {
        let text = "--force-with-lease-of-the-branch";
        for (pattern, matches) in [
            ("*?".repeat(14) + "Z", false),
            ("*?".repeat(14) + "h", true),
            ("*-".repeat(8) + "*", false),
            ("*-".repeat(7) + "*", true),
            ("*".repeat(40), true),
            ("?".repeat(40), false),
            ("-*h*h".to_owned(), true),
            ("*".to_owned() + text, true),
            (String::new(), false),
        ] {
            let mut steps = 0;
            assert_eq!(may_match(&pattern, text, &mut steps), matches, "{pattern}");
            assert!(steps <= (pattern.len() + 1) * (text.len() + 1), "{pattern}: {steps}");
        }
        assert!(may_match("", "", &mut 0) && may_match("**", "", &mut 0) && !may_match("?", "", &mut 0));
    }

    #[test]
    fn comparisons_with_thousands_of_patterns_are_counted() {
        let word = "*?".repeat(14) + "Z ";
        let rule = "git push --force-with-lease-of-the-branch";
        assert_eq!(counted(&format!("git push {word}"), rule), (Ok(false), 6));
        let (found, count) = counted(&format!("git push {}", word.repeat(10_000)), rule);
        assert!(found == Ok(false) && count < 80_000, "{found:?} {count}");
        let (found, count) = counted(&format!("docker {}", "-a p* ".repeat(10_000)), "docker push x");
        assert!(found == Ok(false) && count < 50_000, "{found:?} {count}");
        // Each of these could be the command, so that all later words are compared with each.
        for line in ["pwsh git", "env -u git", "ssh -t git"] {
            let line = line.to_owned() + &" git".repeat(20_000);
            assert_eq!(counted(&line, "git push").0, Err(TOO_MANY_WORDS), "{line:.20}");
        }
        let fed = "ssh h ls ".repeat(20_000) + "< x";
        assert_eq!(counted(&fed, "cp").0, Err(TOO_MANY_WORDS));
    }

    #[test]
    fn thousands_of_arguments_behind_a_wrapper_are_examined() {
        for start in
            ["env -u X prog", "strace -f prog", "parallel gzip :::", "sudo -u x prog", "xargs -Z prog"]
        {
            let line = start.to_owned() + &" a.rs".repeat(3_000);
            assert_eq!(found(&line, "cp"), Ok(false), "{start}");
            assert_eq!(found(&(line + " ; cp x"), "cp"), Ok(true), "{start}");
        }
        for wrapper in ["sudo ", "ssh "] {
            assert_eq!(found(&(wrapper.repeat(20_000) + "ls"), "cp"), Ok(false), "{wrapper}");
        }
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
