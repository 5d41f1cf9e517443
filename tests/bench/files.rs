//! Cost of reads, writes and watches of files.
//!
//! Owns: many small files, large ones against `cp` in the same run, and watches: how soon a change
//! is told, and what many folders cost while nothing is done in them.
//! Never: uses files that another measurement has left.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use memchr::memmem;

use super::client::Client;
use super::stored::folder;
use super::{median, milliseconds, per_second, Outcome, Table};

/// Number of small files, and bytes of each.
const SMALL: usize = 2_000;
const SMALL_BYTES: usize = 1_000;
/// Number of large files, and bytes of each.
const LARGE: usize = 8;
const LARGE_BYTES: usize = 12 << 20;
/// Maximum number of pending requests.
const AT_ONCE: usize = 200;
/// Number of changes waited for.
const CHANGES: usize = 20;
/// Number of watched folders, and duration of the measurement.
const FOLDERS: usize = 8_000;
const IDLE: Duration = Duration::from_secs(5);

/// Measures all of it.
pub fn measure(table: &mut Table) -> Outcome<()> {
    let folder = folder()?;
    let top = folder.path().canonicalize()?;
    let root = top.to_str().ok_or("a path that is no text")?;
    let mut client = Client::open_with(["--ephemeral", "--write-root", root])?;
    let name = |at: usize| format!("file://{root}/{at}");
    let small = "x".repeat(SMALL_BYTES);
    let time = all(&mut client, SMALL, |at| write(&name(at), &small))?;
    table.row("files of 1 kB written a second", per_second(SMALL, time), "", "")?;
    let time = all(&mut client, SMALL, |at| ask("resourceRead", &format!(r#""uri":"{}""#, name(at))))?;
    table.row("  and read", per_second(SMALL, time), "", "")?;
    large(table, &mut client, &top)?;
    watches(table, &top)
}

/// Files that are about as large as may be, and `cp` beside them.
fn large(table: &mut Table, client: &mut Client, top: &Path) -> Outcome<()> {
    let name = |at: usize| format!("file://{}/large-{at}", top.display());
    let text = "x".repeat(LARGE_BYTES);
    let written = all(client, LARGE, |at| write(&name(at), &text))?;
    let read = all(client, LARGE, |at| ask("resourceRead", &format!(r#""uri":"{}""#, name(at))))?;
    let copied = all(client, LARGE, |at| {
        ask("resourceCopy", &format!(r#""source":"{}","destination":"{}-copy""#, name(at), name(at)))
    })?;
    let start = Instant::now();
    for at in 0..LARGE {
        let from = top.join(format!("large-{at}"));
        if !Command::new("cp").arg(&from).arg(top.join(format!("by-cp-{at}"))).status()?.success() {
            return Err("`cp` has failed".into());
        }
    }
    let by_cp = start.elapsed();
    table.row("MB written a second, files of 12 MiB", megabytes_a_second(written), "", "")?;
    table.row("  read", megabytes_a_second(read), "", "")?;
    table.row("  copied by resourceCopy", megabytes_a_second(copied), "", "")?;
    table.row("  copied by cp", megabytes_a_second(by_cp), "", "")?;
    let share = by_cp.as_secs_f64() / copied.as_secs_f64() * 100.0;
    table.row("  resourceCopy of cp", format!("{share:.0} %"), "50 %", "")
}

/// How soon a change is told, and what it costs to wait for one.
fn watches(table: &mut Table, top: &Path) -> Outcome<()> {
    let watched = top.join("watched");
    for at in 0..FOLDERS {
        fs::create_dir_all(watched.join(format!("{}/{at}", at % 100)))?;
    }
    let mut client = Client::open()?;
    let uri = format!("file://{}", watched.display());
    client.say(ask("createResourceWatch", &format!(r#""uri":"{uri}","recursive":true"#)).as_bytes())?;
    let answer = String::from_utf8_lossy(client.line()?).into_owned();
    let channel = answer.split('"').find(|word| word.starts_with("ahp-resource-watch:"));
    let channel = channel.ok_or("no watch was made")?;
    let start = Instant::now();
    client.subscribe(channel)?;
    table.row("a watch of 8,000 folders begins", milliseconds(start.elapsed()), "", "")?;
    let mut times = Vec::new();
    for at in 0..CHANGES {
        let start = Instant::now();
        fs::write(watched.join(format!("7/changed-{at}")), "x")?;
        client.line_with(format!("/changed-{at}\"").as_bytes())?;
        times.push(start.elapsed());
    }
    table.row("  a change is told, median", milliseconds(median(times)), "100 ms", "")?;
    let before = client.processor_time()?;
    thread::sleep(IDLE);
    let idle = client.processor_time()?.saturating_sub(before);
    table.row("  processor time of 5 s in which nothing is done", milliseconds(idle), "0 ms", "")
}

/// The time from the first byte of so many requests to the last one of their answers. No more than
/// a few wait.
fn all(client: &mut Client, count: usize, request: impl Fn(usize) -> String) -> Outcome<Duration> {
    let start = Instant::now();
    for first in (0..count).step_by(AT_ONCE) {
        let last = count.min(first + AT_ONCE);
        client.send_in_background((first..last).map(&request).collect::<String>().into_bytes());
        for _ in first..last {
            let line = client.line()?;
            if memmem::find(&line[..line.len().min(100)], b"\"error\":").is_some() {
                return Err(super::excerpt(line).into());
            }
        }
    }
    Ok(start.elapsed())
}

fn write(uri: &str, text: &str) -> String {
    ask("resourceWrite", &format!(r#""uri":"{uri}","encoding":"utf-8","data":"{text}""#))
}

/// A request, as a line.
fn ask(method: &str, params: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":3,"method":"{method}","params":{{"channel":"ahp-root://",{params}}}}}
"#
    )
}

fn megabytes_a_second(time: Duration) -> String {
    format!("{:.0}", (LARGE * LARGE_BYTES) as f64 / 1e6 / time.as_secs_f64())
}
