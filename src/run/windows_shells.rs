//! Lines of the shells of Windows.
//!
//! Owns: which words of such a line may begin a command, and whether the shell runs what it reads.
//! Never: takes a line apart that is not made of plain words.

use super::lines::{read_line, Opaque, Word};

/// Shells of Windows, whose lines are no POSIX ones.
pub(super) const SHELLS_OF_WINDOWS: [&str; 3] = [CMD, "powershell", "pwsh"];

/// Shell of Windows whose words may end at a `/`.
const CMD: &str = "cmd";

/// Returns the words of the line of a shell of this name, once for each way in which it may end
/// them. Each word may begin a command.
///
/// # Errors
/// When the line is not made of plain words, or the shell reads commands from elsewhere.
pub(super) fn readings(shell: &str, arguments: &[Word]) -> Result<Vec<Vec<Word>>, Opaque> {
    const READS: Opaque = "a shell of Windows in it reads its line by rules of its own";
    let is_plain = |char: char| char.is_ascii_alphanumeric() || " -_./".contains(char);
    let line = arguments.iter().map(|word| word.text.as_str()).collect::<Vec<_>>().join(" ");
    if arguments.iter().any(|word| word.is_expanded) || !line.chars().all(is_plain) {
        return Err(READS);
    }
    let words_of = |line: &str| -> Result<Vec<Word>, Opaque> {
        Ok(read_line(line, 0)?.commands.into_iter().flat_map(|it| it.words).collect())
    };
    let words = words_of(&line)?;
    let options = options_of(shell, &words);
    // An encoded command, or commands that it reads.
    let is_opaque = |it: &String| it.is_empty() || it.starts_with(['e', 'k']) || it.starts_with("noe");
    let is_option = |word: &Word| word.text.starts_with(['-', '/']);
    if words.iter().all(is_option) || options.iter().any(is_opaque) {
        return Err(READS);
    }
    let mut readings = vec![words];
    if shell == CMD {
        // A `/` or `.` may end the name of a command, and the line may follow `/c` at once.
        let mut apart = line.replace('/', " /").replace('.', " .");
        for option in ["/c", "/C", "/r", "/R"] {
            apart = apart.replace(option, &format!("{option} "));
        }
        readings.push(words_of(&apart)?);
    }
    Ok(readings)
}

/// Returns whether a shell of this name with these arguments runs what it reads.
pub(super) fn reads_input(shell: &str, arguments: &[Word]) -> bool {
    // A value of an option cannot be distinguished from a file.
    let takes_line = |option: &String| match shell {
        CMD => option.starts_with(['c', 'r']),
        _ => ["command", "file"].iter().any(|it| it.starts_with(option)),
    };
    !options_of(shell, arguments).iter().any(takes_line)
}

/// Returns the options of a shell, in lower case and without the signs that begin them.
fn options_of(shell: &str, words: &[Word]) -> Vec<String> {
    let options = words.iter().filter_map(|word| word.text.strip_prefix(['-', '/']));
    let options = options.map(|option| option.trim_start_matches('/').to_ascii_lowercase());
    match shell {
        // They may follow each other in one word.
        CMD => options.flat_map(|it| it.split('/').map(str::to_owned).collect::<Vec<_>>()).collect(),
        _ => options.collect(),
    }
}
