//! Options of `xargs`.
//!
//! Owns: which options have a value, and which values are texts that it replaces by what it reads.
//! Never: knows the command behind them.

/// Options of `xargs` of one letter and without a value.
const XARGS_FLAGS: [char; 6] = ['0', 'r', 't', 'p', 'x', 'o'];

/// Value of an option of `xargs`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum OptionValue<'a> {
    /// None, or one that is part of the word.
    None,
    /// Text that is replaced by what `xargs` reads, part of the word.
    Sign(&'a str),
    NextWord,
    /// The next word may be the value.
    Unknown,
}

/// Returns the value of an option of `xargs`, given without its first `-`.
pub(super) fn value_of_option(option: &str) -> OptionValue<'_> {
    #[rustfmt::skip]
    const WITHOUT: [&str; 10] = [
        "null", "no-run-if-empty", "verbose", "interactive", "exit", "open-tty", "show-limits", "replace", "eof",
        "max-lines",
    ];
    #[rustfmt::skip]
    const WITH: [&str; 6] = [
        "max-args", "max-procs", "max-chars", "delimiter", "arg-file", "process-slot-var",
    ];
    if let Some(long) = option.strip_prefix('-') {
        return match long.split_once('=') {
            // Options may be shortened; no other one begins so.
            Some((name, sign)) if "replace".starts_with(name) => OptionValue::Sign(sign),
            Some(_) => OptionValue::None,
            None if WITHOUT.contains(&long) => OptionValue::None,
            None if WITH.contains(&long) => OptionValue::NextWord,
            None => OptionValue::Unknown,
        };
    }
    let mut letters = option.trim_start_matches(XARGS_FLAGS).chars();
    let Some(letter) = letters.next() else { return OptionValue::None };
    let value = letters.as_str();
    match letter {
        'i' => OptionValue::Sign(value),
        'I' | 'J' if !value.is_empty() => OptionValue::Sign(value),
        // Their value is part of the word, if there is one.
        'e' | 'l' => OptionValue::None,
        'I' | 'J' | 'n' | 'P' | 'L' | 's' | 'd' | 'a' | 'E' | 'R' | 'S' => match value {
            "" => OptionValue::NextWord,
            _ => OptionValue::None,
        },
        _ => OptionValue::Unknown,
    }
}

/// Returns whether an option of `xargs` that begins so may name a sign, which only a shell knows.
pub(super) fn may_name_sign(start: &str) -> bool {
    match start.strip_prefix("--") {
        Some(long) => "replace".starts_with(long.split('=').next().unwrap_or(long)),
        None => {
            let letters = start.trim_start_matches('-').trim_start_matches(XARGS_FLAGS);
            letters.is_empty() || letters.starts_with(['I', 'J', 'i'])
        }
    }
}
