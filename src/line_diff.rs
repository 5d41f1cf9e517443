//! Comparisons of two texts, line by line.
//!
//! Owns: which lines differ, in time that does not grow with the square of their number, and the
//! unified format.
//! Never: reads a file, or limits the size of a text; the callers do.

use std::ops::Range;

use imara_diff::{Algorithm, Diff, Hunk, InternedInput, Token};

/// Number of unchanged lines around a change.
const CONTEXT_LINES: u32 = 3;

/// Number of occurrences on the other side from which the library may call a line frequent: fewer
/// are frequent only in texts that are too short to take long.
const FREQUENT: u32 = 64;

/// Maximum number of lines that the library may examine because of frequent ones.
const EXAMINED_LINES_MAX: u64 = 20_000_000;

/// Returns the numbers of added and removed lines.
pub fn count(before: &str, after: &str) -> (u32, u32) {
    let changed = hunks(Algorithm::Myers, &InternedInput::new(before, after));
    let lines = |range: &Range<u32>| range.end - range.start;
    (
        changed.iter().map(|hunk| lines(&hunk.after)).sum(),
        changed.iter().map(|hunk| lines(&hunk.before)).sum(),
    )
}

/// Appends the differences as `diff -u` writes them, without the names of the files.
pub fn push_unified(text: &mut Vec<u8>, before: &[u8], after: &[u8]) {
    let lines = InternedInput::new(before, after);
    let is_near = |hunk: &Hunk, next: &Hunk| next.before.start - hunk.before.end <= 2 * CONTEXT_LINES;
    for hunks in hunks(Algorithm::Histogram, &lines).chunk_by(is_near) {
        push_hunks(text, hunks, &lines);
    }
}

/// Compares two texts. Where lines repeat so often that this would take long, everything between
/// the first and the last difference counts as changed.
fn hunks<T: AsRef<[u8]> + std::hash::Hash + Eq>(algorithm: Algorithm, lines: &InternedInput<T>) -> Vec<Hunk> {
    let (before, after) = (&lines.before, &lines.after);
    if examined(before, after).max(examined(after, before)) > EXAMINED_LINES_MAX {
        let same = |(one, other): &(&Token, &Token)| one == other;
        let start = before.iter().zip(after).take_while(same).count();
        let rest = before[start..].iter().rev().zip(after[start..].iter().rev());
        let end = rest.take_while(same).count();
        if start == before.len() && start == after.len() {
            return Vec::new();
        }
        let changed = |side: &[Token]| start as u32..(side.len() - end) as u32;
        return vec![Hunk { before: changed(before), after: changed(after) }];
    }
    let mut diff = Diff::compute(algorithm, lines);
    diff.postprocess_lines(lines);
    diff.hunks().collect()
}

/// Returns the number of lines of a side that the library examines because of frequent ones: for
/// each of these, all lines up to the nearest one that is on both sides and not frequent.
fn examined(side: &[Token], other: &[Token]) -> u64 {
    let mut counts = Vec::new();
    for token in other {
        let place = token.0 as usize;
        counts.resize(counts.len().max(place + 1), 0_u32);
        counts[place] += 1;
    }
    let (mut total, mut run) = (0, 0);
    for token in side {
        match counts.get(token.0 as usize).copied().unwrap_or_default() {
            0 => run += 1,
            1..FREQUENT => run = 0,
            FREQUENT.. => {
                run += 1;
                total += run;
            }
        }
    }
    total
}

/// Appends adjacent changes as one hunk. (The printer of `imara_diff` gives the first hunk a wrong
/// header if it starts 4 to 6 lines into the file.)
fn push_hunks(text: &mut Vec<u8>, hunks: &[Hunk], lines: &InternedInput<&[u8]>) {
    let (Some(first), Some(last)) = (hunks.first(), hunks.last()) else { return };
    // Context lines are the same on both sides.
    let above = first.before.start.min(CONTEXT_LINES);
    let below = (lines.before.len() as u32 - last.before.end).min(CONTEXT_LINES);
    let side = |first: &Range<u32>, last: &Range<u32>| {
        let (start, end) = (first.start - above, last.end + below);
        // Line numbers start at 1; an empty side is given the number of the line before it.
        format!("{},{}", if start == end { start } else { start + 1 }, end - start)
    };
    let (old, new) = (side(&first.before, &last.before), side(&first.after, &last.after));
    text.extend_from_slice(format!("@@ -{old} +{new} @@\n").as_bytes());
    let mut push = |mark: u8, side: &[Token], range: Range<u32>| {
        for line in &side[range.start as usize..range.end as usize] {
            let line = lines.interner[*line];
            text.push(mark);
            text.extend_from_slice(line);
            if !line.ends_with(b"\n") {
                text.extend_from_slice(b"\n\\ No newline at end of file\n");
            }
        }
    };
    let mut done = first.before.start - above;
    for hunk in hunks {
        push(b' ', &lines.before, done..hunk.before.start);
        push(b'-', &lines.before, hunk.before.clone());
        push(b'+', &lines.after, hunk.after.clone());
        done = hunk.before.end;
    }
    push(b' ', &lines.before, done..done + below);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns 100,000 lines, each of them one of two, in an order that does not repeat.
    fn two_valued(mut seed: u32) -> String {
        let line = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if seed >> 31 == 0 {
                "a\n"
            } else {
                "b\n"
            }
        };
        std::iter::repeat_with(line).take(100_000).collect()
    }

    #[test]
    fn lines_that_repeat_too_often_are_not_compared_one_by_one() {
        let (one, other) = (two_valued(1), two_valued(2));
        let [before, after] = [&one, &other].map(|text| format!("start\n{text}end\n"));
        let lines = InternedInput::new(before.as_str(), after.as_str());
        assert!(examined(&lines.before, &lines.after) > 1_000_000_000);
        let hunks = hunks(Algorithm::Myers, &lines);
        assert!(matches!(hunks.as_slice(), [hunk] if hunk.before.start > 0 && hunk.before.end < 100_002));
        assert_eq!(count(&before, &before), (0, 0));
        let (added, removed) = count(&before, &after);
        assert!(added == removed && (99_900..=100_000).contains(&added), "{added} and {removed}");
    }

    #[test]
    fn long_text_with_frequent_lines_is_compared_line_by_line() {
        let block = |number: u32| format!("fn f{number}() {{\n}}\n\n");
        let before: String = (0..50_000).map(block).collect();
        let after = before.replace("fn f30000()", "fn g()");
        assert_eq!(count(&before, &after), (1, 1));
        let mut text = Vec::new();
        push_unified(&mut text, before.as_bytes(), after.as_bytes());
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.starts_with("@@ -89998,7 +89998,7 @@\n") && text.contains("\n-fn f30000() {\n+fn g() {\n"),
            "{text}"
        );
    }
}
