//! Command lines, read by the grammar of POSIX shells.
//!
//! Owns: the words of each command of a line, in substitutions and groups, too, and the documents
//! (`<<`) behind it.
//! Never: expands or runs anything, or guesses: a line that shells read in different ways is an
//! error.

use std::collections::VecDeque;
use std::iter::Peekable;
use std::str::Chars;

use crate::os::paths::HAS_DRIVES;

/// Reason why a line cannot be taken apart, as a clause about it.
pub type Opaque = &'static str;

/// Characters of other shells of Windows that change the meaning of a line.
const SHELL_OF_WINDOWS: [char; 3] = ['\\', '^', '%'];

/// Maximum number of lines within lines.
const DEPTH_MAX: usize = 16;

/// Word of a command, without its quotes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Word {
    /// Text, without the parts that a shell replaces, except for patterns of file names.
    pub text: String,
    /// Set if a shell replaces a part of the word.
    pub is_expanded: bool,
    /// Set if more than a pattern of file names is replaced, so that the word may become any text.
    pub is_unknown: bool,
    /// Start of the text behind the last replaced part.
    pub known_from: usize,
    /// Start of the first replaced part, in an expanded word.
    known_until: usize,
    has_tilde: bool,
}

impl Word {
    /// Returns a word that may become any text.
    pub fn unknown() -> Self {
        let mut word = Self::default();
        word.expand();
        word
    }

    /// Returns the text before the first part that a shell replaces.
    pub fn known_start(&self) -> &str {
        // The text may have been shortened since.
        let start = self.text.get(..self.known_until).filter(|_| self.is_expanded);
        start.unwrap_or(&self.text)
    }

    /// Marks a part, behind the text so far, that a shell replaces.
    fn expand(&mut self) {
        self.begin_pattern();
        (self.is_unknown, self.known_from) = (true, self.text.len());
    }

    /// Marks a pattern of file names behind the text so far.
    fn begin_pattern(&mut self) {
        if !std::mem::replace(&mut self.is_expanded, true) {
            self.known_until = self.text.len();
        }
    }
}

/// Command of a line.
#[derive(Debug, Default)]
pub(super) struct LineCommand {
    pub words: Vec<Word>,
    /// Set if the command reads a text of the line, a file or the output of another command.
    pub is_fed: bool,
}

/// Commands of a line.
#[derive(Debug, Default)]
pub(super) struct ReadLine {
    /// Commands, those in substitutions before the ones around them.
    pub commands: Vec<LineCommand>,
    /// Set if a quoted text has a substitution, which is one where a shell evaluates the text.
    pub has_hidden: bool,
    /// Set if an expansion evaluates texts, as arithmetic does.
    pub evaluates: bool,
}

/// Takes a line apart.
///
/// # Errors
/// When shells do not agree on it, or only a shell knows its meaning.
pub(super) fn read_line(line: &str, depth: usize) -> Result<ReadLine, Opaque> {
    if HAS_DRIVES && line.contains(SHELL_OF_WINDOWS) {
        return Err("the shells of Windows do not agree on it");
    }
    if line.to_ascii_lowercase().replace('_', "").contains("interactivecomments") {
        return Err("it changes what a comment is");
    }
    let rest = line.chars().peekable();
    let read = ReadLine::default();
    let mut reader = LineReader {
        rest,
        read,
        depth,
        has_pattern: false,
        arithmetic: 0,
        documents: VecDeque::new(),
        feeds_all: false,
    };
    reader.read_list(None)?;
    Ok(reader.read)
}

/// Returns whether a text contains a substitution.
pub(super) fn has_substitution(text: &str) -> bool {
    ["$(", "${", "$[", "`"].iter().any(|sign| text.contains(sign))
}

/// Words that begin a group of commands.
const GROUPS: [&str; 9] = ["{", "while", "until", "if", "for", "select", "case", "begin", "!"];

/// Reader of a line.
struct LineReader<'a> {
    rest: Peekable<Chars<'a>>,
    read: ReadLine,
    depth: usize,
    /// Set once a parenthesis may have been part of a word, so that `#` need not begin a comment.
    has_pattern: bool,
    /// Number of open parentheses in which some shells read arithmetic and others commands.
    arithmetic: usize,
    /// Documents that begin behind the next end of a line.
    documents: VecDeque<Document>,
    /// Set once a group, whose end is not looked for, may read a text.
    feeds_all: bool,
}

/// Document in a line (`<<`).
struct Document {
    delimiter: String,
    /// Set if nothing in it is replaced.
    is_literal: bool,
    /// Set if tabs before its lines are dropped (`<<-`).
    drops_tabs: bool,
}

/// Command that is being read.
#[derive(Debug, Default)]
struct OpenCommand {
    command: LineCommand,
    word: Option<Word>,
    /// Set if the next word names the file of a redirection.
    redirects: bool,
    /// Set if a text of it has a substitution.
    has_hidden: bool,
    /// Place of the first command of the group in parentheses before it.
    group: Option<usize>,
}

impl OpenCommand {
    fn word(&mut self) -> &mut Word {
        self.word.get_or_insert_default()
    }

    fn end_word(&mut self) {
        let Some(mut word) = self.word.take() else { return };
        // Braces without these are ordinary characters.
        let brace = word.text.find('{');
        if let Some(at) = brace.filter(|_| word.text.contains(',') || word.text.contains("..")) {
            word.expand();
            word.known_until = word.known_until.min(at);
        }
        // The folder of a user, or an earlier one.
        if word.has_tilde && !word.text.contains('/') {
            word.expand();
        }
        // What ends with `$` may become a part of a substitution.
        self.has_hidden |= has_substitution(&word.text) || word.text.ends_with('$');
        if !std::mem::take(&mut self.redirects) {
            self.command.words.push(word);
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
        const NOT_CLOSED: Opaque = "a parenthesis in it is not closed";
        if self.depth > DEPTH_MAX {
            return Err("it has too many commands within commands");
        }
        if !self.documents.is_empty() {
            return Err("commands follow the sign of a document (`<<`)");
        }
        self.depth += 1;
        let mut open = OpenCommand::default();
        loop {
            let char = self.rest.next();
            if char == closing {
                self.end_command(&mut open);
                self.depth -= 1;
                return match self.documents.is_empty() {
                    true => Ok(()),
                    false => Err("a document in it (`<<`) does not end"),
                };
            }
            match char {
                None => return Err(NOT_CLOSED),
                Some(' ' | '\t') => open.end_word(),
                Some('\n') => {
                    self.end_command(&mut open);
                    self.skip_documents()?;
                }
                // The pattern of a `case`.
                Some(')') => {
                    open.end_word();
                    self.read.has_hidden |= open.has_hidden;
                    open = OpenCommand::default();
                }
                Some('&') => {
                    self.end_command(&mut open);
                    // In zsh, `&!` and `&|` are one sign.
                    self.rest.next_if(|char| ['!', '|'].contains(char));
                }
                Some(';') => self.end_command(&mut open),
                Some('|') => {
                    self.end_command(&mut open);
                    open.command.is_fed = true;
                }
                Some('\r') => match self.rest.peek() {
                    Some('\n') => open.end_word(),
                    _ => return Err("it has a carriage return"),
                },
                Some('(') => {
                    self.check_parenthesis(&open)?;
                    let is_fed = open.command.is_fed;
                    self.end_command(&mut open);
                    let first = self.read.commands.len();
                    self.read_parenthesis()?;
                    if is_fed {
                        self.feed_from(first);
                    }
                    open.group = Some(first);
                }
                Some(sign @ ('<' | '>')) => self.read_redirection(sign, &mut open)?,
                Some('#') if open.word.is_none() => self.skip_comment()?,
                // Neither a word nor an end of one.
                Some('\\') if self.rest.next_if_eq(&'\n').is_some() => self.check_newline()?,
                Some('}') if open.word.is_none() && self.ends_word() && !open.command.words.is_empty() => {
                    return Err("shells do not agree on a brace in it");
                }
                Some(char) => self.read_in_word(char, open.word())?,
            }
        }
    }

    /// Returns whether no character of the word follows.
    fn ends_word(&mut self) -> bool {
        self.rest.peek().is_none_or(|next| next.is_whitespace() || ";&|()<>".contains(*next))
    }

    /// Checks an end of a line that ends no command.
    fn check_newline(&self) -> Result<(), Opaque> {
        match self.documents.is_empty() {
            true => Ok(()),
            false => Err("a text follows the sign of a document (`<<`)"),
        }
    }

    /// Checks a parenthesis that follows a word or is part of a test.
    fn check_parenthesis(&mut self, open: &OpenCommand) -> Result<(), Opaque> {
        let is_in_test = open.command.words.iter().any(|word| word.text == "[[");
        self.has_pattern |= is_in_test;
        let Some(word) = open.word.as_ref().filter(|_| !is_in_test) else { return Ok(()) };
        let is_list = word.text.ends_with('=');
        self.has_pattern |= is_list;
        let is_function = !word.is_expanded && self.rest.peek() == Some(&')');
        match is_list || is_function {
            true => Ok(()),
            false => Err("a word in it has a pattern in parentheses"),
        }
    }

    /// Reads up to the parenthesis that closes an open one.
    fn read_parenthesis(&mut self) -> Result<(), Opaque> {
        let is_arithmetic = self.arithmetic > 0 || self.rest.peek() == Some(&'(');
        self.read.evaluates |= is_arithmetic;
        self.arithmetic += usize::from(is_arithmetic);
        self.read_list(Some(')'))?;
        self.arithmetic -= usize::from(is_arithmetic);
        Ok(())
    }

    /// Reads a substitution, up to the parenthesis that closes it.
    fn read_substitution(&mut self) -> Result<(), Opaque> {
        let around = self.arithmetic;
        if self.rest.peek() != Some(&'(') {
            self.arithmetic = 0;
        }
        let first = self.read.commands.len();
        self.read_parenthesis()?;
        self.arithmetic = around;
        let inner = &self.read.commands[first..];
        let begun = inner.iter().filter(|it| it.words.iter().any(|word| word.text == "case")).count();
        let ended =
            inner.iter().filter(|it| it.words.first().is_some_and(|word| word.text == "esac")).count();
        match begun > ended {
            true => Err("it has a `case` in a substitution"),
            false => Ok(()),
        }
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
        let OpenCommand { command, has_hidden, group, .. } = std::mem::take(open);
        self.read.has_hidden |= has_hidden;
        let LineCommand { mut words, mut is_fed } = command;
        // A text that a group reads is read by its commands.
        match words.first().map(|word| word.text.as_str()) {
            None if is_fed => group.into_iter().for_each(|first| self.feed_from(first)),
            Some("}" | "fi" | "done" | "esac") if is_fed => self.feed_from(0),
            Some(first) if is_fed && GROUPS.contains(&first) => self.feeds_all = true,
            _ => {}
        }
        is_fed |= self.feeds_all;
        // A command may follow a test without a sign between.
        if let Some(end) = words.iter().position(|word| word.text == "]]") {
            let behind = words.split_off(end + 1);
            if !behind.is_empty() {
                self.read.commands.push(LineCommand { words, is_fed });
                words = behind;
            }
        }
        if !words.is_empty() {
            self.read.commands.push(LineCommand { words, is_fed });
        }
    }

    /// Notes that the commands from this one on may read a text.
    fn feed_from(&mut self, first: usize) {
        self.read.commands.iter_mut().skip(first).for_each(|command| command.is_fed = true);
    }

    fn read_redirection(&mut self, sign: char, open: &mut OpenCommand) -> Result<(), Opaque> {
        if self.rest.next_if_eq(&'(').is_some() {
            open.word().expand();
            return self.read_substitution();
        }
        open.begin_redirection();
        if sign == '<' && self.rest.next_if_eq(&'<').is_some() {
            open.command.is_fed = true;
            return match self.rest.next_if_eq(&'<') {
                Some(_) => Ok(()),
                None => self.read_delimiter(open),
            };
        }
        open.command.is_fed |= sign == '<';
        let mut last = sign;
        while let Some(char) = self.rest.next_if(|char| ['>', '&', '|'].contains(char)) {
            last = char;
        }
        // Some shells end a redirection here.
        if last == '&' && self.rest.next_if_eq(&'-').is_some() {
            open.redirects = false;
        }
        Ok(())
    }

    /// Reads the delimiter of a document, behind `<<`.
    fn read_delimiter(&mut self, open: &mut OpenCommand) -> Result<(), Opaque> {
        if self.arithmetic > 0 {
            return Err("only a shell knows whether it has a document (`<<`)");
        }
        open.redirects = false;
        let drops_tabs = self.rest.next_if_eq(&'-').is_some();
        while self.rest.next_if(|char| [' ', '\t'].contains(char)).is_some() {}
        let quote = self.rest.next_if(|char| ['\'', '"', '\\'].contains(char));
        let is_part = |char: &char| char.is_ascii_alphanumeric() || "_-.".contains(*char);
        let mut delimiter = String::new();
        while let Some(char) = self.rest.next_if(is_part) {
            delimiter.push(char);
        }
        let is_closed = match quote {
            Some(quote @ ('\'' | '"')) => self.rest.next_if_eq(&quote).is_some(),
            _ => true,
        };
        if !is_closed || delimiter.is_empty() || !self.ends_word() {
            return Err("a document in it (`<<`) has an unusual delimiter");
        }
        self.documents.push_back(Document { delimiter, is_literal: quote.is_some(), drops_tabs });
        Ok(())
    }

    /// Skips the documents that begin here.
    fn skip_documents(&mut self) -> Result<(), Opaque> {
        while let Some(document) = self.documents.pop_front() {
            loop {
                let (mut line, mut has_ended) = (String::new(), false);
                for char in self.rest.by_ref() {
                    has_ended = char == '\n';
                    if has_ended {
                        break;
                    }
                    line.push(char);
                }
                let text = if document.drops_tabs { line.trim_start_matches('\t') } else { &line };
                if text == document.delimiter {
                    break;
                }
                if !has_ended {
                    return Err("a document in it (`<<`) does not end");
                }
                self.read.has_hidden |= has_substitution(&line);
                let is_replaced = has_substitution(&line) || line.ends_with('\\');
                if line.contains('\r') || !document.is_literal && is_replaced {
                    return Err("only a shell knows a document in it (`<<`)");
                }
            }
        }
        Ok(())
    }

    /// Reads a part of a word that begins with this character.
    fn read_in_word(&mut self, char: char, word: &mut Word) -> Result<(), Opaque> {
        match char {
            '\'' | '"' | '\\' if self.arithmetic > 0 => Err("shells do not agree on quotes in arithmetic"),
            '\'' => loop {
                match self.rest.next() {
                    Some('\'') => return Ok(()),
                    Some(char) => {
                        if char == '\n' {
                            self.check_newline()?;
                        }
                        word.text.push(char);
                    }
                    None => return Err("a quote in it is not closed"),
                }
            },
            '"' => self.read_quoted(word),
            '\\' => match self.rest.next() {
                Some('\n') => self.check_newline(),
                Some(char) => {
                    word.text.push(char);
                    Ok(())
                }
                None => Err("it ends with a backslash"),
            },
            '$' => self.read_expansion(word),
            '`' => self.read_backquoted(word),
            char => {
                let is_first = word.text.is_empty() && !word.is_expanded;
                let is_test = word.text.bytes().all(|byte| byte == b'[');
                // An index may have any text.
                self.has_pattern |= char == '[' && !is_test;
                if matches!(char, '*' | '?') || char == '[' && !is_test {
                    word.begin_pattern();
                }
                word.has_tilde |= char == '~' && is_first;
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
                    Some('\n') => self.check_newline()?,
                    escaped => word.text.push(escaped.unwrap_or('\\')),
                },
                Some(char) => {
                    if char == '\n' {
                        self.check_newline()?;
                    }
                    word.text.push(char);
                }
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
                word.expand();
                self.read_substitution()
            }
            Some('[') => Err("it has arithmetic in brackets (`$[`)"),
            Some('{') => {
                word.expand();
                self.rest.next();
                self.read_braces()
            }
            Some('\'') => {
                word.expand();
                self.rest.next();
                self.skip_escaped()
            }
            Some(char) if is_name(char) => {
                word.expand();
                while self.rest.next_if(is_name).is_some() {}
                Ok(())
            }
            // In zsh, some signs before a name change what it is replaced with.
            Some('?' | '$' | '!' | '#' | '*' | '@' | '-' | '"' | '=' | '~' | '^' | '+') => {
                word.expand();
                self.rest.next_if(|char| *char != '"');
                Ok(())
            }
            _ => {
                word.text.push('$');
                Ok(())
            }
        }
    }

    /// Skips a text with escapes, behind `$'`.
    fn skip_escaped(&mut self) -> Result<(), Opaque> {
        loop {
            self.read.has_hidden |= self.rest.peek().is_some_and(|char| ['$', '`', '\\'].contains(char));
            match self.rest.next() {
                Some('\'') => return Ok(()),
                // Shells without such texts end it here.
                Some('\\') if self.rest.peek() == Some(&'\'') => {
                    return Err("it has a text with an escaped quote (`$'`)");
                }
                Some('\\') => drop(self.rest.next()),
                Some('\n') => self.check_newline()?,
                Some(_) => {}
                None => return Err("a quote in it is not closed"),
            }
        }
    }

    /// Reads an expansion in braces, behind `${`.
    fn read_braces(&mut self) -> Result<(), Opaque> {
        if self.rest.peek().is_some_and(|char| char.is_whitespace() || *char == '|') {
            return Err("it has commands in braces (`${ `)");
        }
        let mut before = '{';
        loop {
            let char = self.rest.next();
            match char {
                Some('}') => return Ok(()),
                Some('@') if self.rest.peek().is_some_and(char::is_ascii_alphabetic) => {
                    return Err("an expansion in it evaluates a text (`@P`)");
                }
                Some('$' | '`' | '\'' | '"' | '\\' | '(') | None => {
                    return Err("an expansion in it (`${`) is not a plain one");
                }
                // An index or an offset is arithmetic.
                Some('[') => self.read.evaluates = true,
                Some(char) => {
                    self.read.evaluates |= before == ':' && !"-=?+".contains(char);
                    before = char;
                }
            }
        }
    }

    fn read_backquoted(&mut self, word: &mut Word) -> Result<(), Opaque> {
        word.expand();
        let mut line = String::new();
        loop {
            match self.rest.next() {
                Some('`') => break,
                Some('\\') | None => return Err("a command in backquotes is not a plain one"),
                Some(char) => line.push(char),
            }
        }
        if line.contains('\n') {
            self.check_newline()?;
        }
        let inner = read_line(&line, self.depth + 1)?;
        self.read.commands.extend(inner.commands);
        self.read.has_hidden |= inner.has_hidden;
        self.read.evaluates |= inner.evaluates;
        Ok(())
    }
}
