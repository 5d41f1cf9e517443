//! Cost of terminals, compared with direct use of a system terminal in the same run.
//!
//! Owns: terminals with programs that print much, that print without end, that echo, and that do
//! nothing.
//! Never: measures a shell: the programs are those that do the least.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use rustix::pty::{grantpt, openpt, ptsname, unlockpt, OpenptFlags};

use super::client::{memory_of, Client, PING};
use super::listening::Host;
use super::stored::folder;
use super::{median, megabytes, microseconds, milliseconds, Outcome, Table};

/// The terminal that is measured.
const TERMINAL: &str = "bench:/terminal";
/// Number of printed lines, and bytes of each with its end.
const LINES: usize = 4_000_000;
const LINE_BYTES: usize = 64;
/// Repetitions of printing alternately directly and through the host.
const RACES: usize = 3;
/// Repetitions that sum up to more than a gigabyte.
const TIMES: usize = 4;
/// Number of clients subscribed to one terminal.
const CLIENTS: usize = 5;
/// Number of typed keys, and the pause between them.
const KEYS: usize = 200;
const APART: Duration = Duration::from_millis(20);
/// Number of clients with idle terminals, and of terminals of each: the limits of a client and of a
/// host.
const IDLE_CLIENTS: usize = 4;
const IDLE_OF_CLIENT: usize = 8;
/// Number of pings during an endless output, and duration of the pause of the reader.
const PINGS: usize = 5_000;
const UNREAD: Duration = Duration::from_secs(3);

/// Measures all of it.
pub fn measure(table: &mut Table) -> Outcome<()> {
    let folder = folder()?;
    let scripts = Scripts::write(&folder.path().canonicalize()?)?;
    much(table, &scripts)?;
    keys(table, &scripts)?;
    idle(table)?;
    without_end(table)
}

/// Scripts that run in terminals.
struct Scripts {
    /// Prints all lines, once and several times.
    print: PathBuf,
    print_often: PathBuf,
    /// Says that it is ready, and prints each byte that it reads.
    echo: PathBuf,
}

impl Scripts {
    fn write(folder: &Path) -> Outcome<Self> {
        let mut line = [b'x'; LINE_BYTES];
        line[LINE_BYTES - 1] = b'\n';
        let mut lines = File::create(folder.join("lines"))?;
        for _ in 0..LINES / 1000 {
            lines.write_all(&line.repeat(1000))?;
        }
        let file = folder.join("lines").display().to_string();
        let write = |name: &str, script: String| -> Outcome<PathBuf> {
            fs::write(folder.join(name), script)?;
            Ok(folder.join(name))
        };
        Ok(Self {
            print: write("print", format!("stty raw -echo; cat {file}"))?,
            print_often: write(
                "print-often",
                format!("stty raw -echo; cat {}", [file.as_str(); TIMES].join(" ")),
            )?,
            echo: write("echo", "stty raw -echo; printf ready; exec cat".to_owned())?,
        })
    }
}

/// Number of letters in the lines, without line ends, which take more than a byte in transit.
const LETTERS: usize = LINES * (LINE_BYTES - 1);

fn letters(bytes: &[u8]) -> usize {
    memchr::memchr_iter(b'x', bytes).count()
}

/// Measures fast output.
fn much(table: &mut Table, scripts: &Scripts) -> Outcome<()> {
    let (mut direct, mut through) = (Vec::new(), Vec::new());
    for _ in 0..RACES {
        direct.push(print_directly(scripts)?);
        through.push(print(&mut Client::open()?, &scripts.print, 1)?);
    }
    let (direct, through, shared) = (median(direct), median(through), print_to_many(scripts)?);
    let share = |time: Duration| format!("{:.0} %", direct.as_secs_f64() / time.as_secs_f64() * 100.0);
    table.row("MB read from a terminal a second, directly", megabytes_a_second(direct, 1), "", "")?;
    table.row("  by one client", megabytes_a_second(through, 1), "", "")?;
    table.row("  of directly", share(through), "60 %", "")?;
    table.row("  by each of five WebSocket clients", megabytes_a_second(shared, 1), "", "")?;
    table.row("  of directly", share(shared), "", "")?;
    let mut client = Client::open()?;
    let often = print(&mut client, &scripts.print_often, TIMES)?;
    table.row("  1 GB by one client", megabytes_a_second(often, TIMES), "", "")?;
    // Of that 32 MiB are for clients that come back.
    table.row("  memory after it", megabytes(client.memory()), "60 MB", "")
}

/// A program in a terminal of the system's, and our side of that.
struct Direct {
    master: File,
    child: Child,
}

impl Direct {
    fn start(script: &Path) -> Outcome<Self> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let name = ptsname(&master, Vec::new())?.into_string()?;
        let terminal = File::options().read(true).write(true).open(name)?;
        let mut command = Command::new("/bin/sh");
        command.arg(script).stdin(terminal.try_clone()?).stdout(terminal.try_clone()?).stderr(terminal);
        let child = command.spawn()?;
        // Only the program has the other side from here on.
        drop(command);
        Ok(Self { master: master.into(), child })
    }

    /// Reads until this has come.
    fn until(&mut self, wanted: &[u8]) -> Outcome<()> {
        let mut all = Vec::new();
        let mut byte = [0];
        while !all.ends_with(wanted) {
            self.master.read_exact(&mut byte)?;
            all.push(byte[0]);
        }
        Ok(())
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The time from the start of the program to the last byte.
fn print_directly(scripts: &Scripts) -> Outcome<Duration> {
    let start = Instant::now();
    let mut direct = Direct::start(&scripts.print)?;
    let (mut buffer, mut read) = (vec![0; 64 << 10], 0);
    while read < LETTERS {
        let count = direct.master.read(&mut buffer)?;
        read += letters(&buffer[..count]);
    }
    Ok(start.elapsed())
}

/// Measures the time from the input that starts the script to its last letter.
fn print(client: &mut Client, script: &Path, times: usize) -> Outcome<Duration> {
    client.say(create(TERMINAL, "bench").as_bytes())?;
    client.line_with(b"\"id\":4")?;
    client.subscribe(TERMINAL)?;
    let start = Instant::now();
    client.say(type_text(TERMINAL, &runs(script)).as_bytes())?;
    let mut read = 0;
    while read < times * LETTERS {
        read += letters(data(client.line()?));
    }
    Ok(start.elapsed())
}

/// Measures the time until the last of several clients has received all output.
fn print_to_many(scripts: &Scripts) -> Outcome<Duration> {
    let host = Host::start(&["--ephemeral"])?;
    let mut all = Vec::new();
    for number in 0..CLIENTS {
        all.push(host.connect(&number.to_string())?);
    }
    all[0].ask(&create(TERMINAL, "0"))?;
    for client in &mut all {
        client.ask(&subscribe(TERMINAL))?;
    }
    let start = Instant::now();
    all[0].say(type_text(TERMINAL, &runs(&scripts.print)).as_bytes())?;
    let reading = all.into_iter().map(|mut client| {
        thread::spawn(move || -> Result<(), String> {
            let mut read = 0;
            while read < LETTERS {
                read += letters(data(client.message().map_err(|error| error.to_string())?));
            }
            Ok(())
        })
    });
    for client in reading.collect::<Vec<_>>() {
        client.join().map_err(|_| "a client has failed")??;
    }
    Ok(start.elapsed())
}

/// How soon what is typed is shown.
fn keys(table: &mut Table, scripts: &Scripts) -> Outcome<()> {
    let mut direct = Direct::start(&scripts.echo)?;
    direct.until(b"ready")?;
    let own = typed(|| {
        direct.master.write_all(b"k")?;
        direct.until(b"k")
    })?;
    let mut client = Client::open()?;
    client.say(create(TERMINAL, "bench").as_bytes())?;
    client.line_with(b"\"id\":4")?;
    client.subscribe(TERMINAL)?;
    client.say(type_text(TERMINAL, &runs(&scripts.echo)).as_bytes())?;
    client.line_with(b"ready\"")?;
    let key = type_text(TERMINAL, "k");
    let through = typed(|| {
        client.say(key.as_bytes())?;
        client.line_with(b"terminal/data")
    })?;
    table.row("a key typed and shown, directly, p50", microseconds(own), "", "")?;
    table.row("  by a client, p50", microseconds(through), "", "")?;
    table.row("  more than directly", microseconds(through.saturating_sub(own)), "1 ms", "")
}

/// The time that half of the keys stay within.
fn typed(mut one: impl FnMut() -> Outcome<()>) -> Outcome<Duration> {
    let mut times = Vec::new();
    for _ in 0..KEYS {
        // Nobody types faster, and what is printed at once is gathered.
        thread::sleep(APART);
        let start = Instant::now();
        one()?;
        times.push(start.elapsed());
    }
    Ok(median(times))
}

/// Measures the memory of idle terminals.
fn idle(table: &mut Table) -> Outcome<()> {
    let host = Host::start(&["--ephemeral"])?;
    let mut clients = Vec::new();
    for number in 0..IDLE_CLIENTS {
        clients.push(host.connect(&number.to_string())?);
    }
    let before = host.memory().map(|memory| memory.private_kb);
    for (number, client) in clients.iter_mut().enumerate() {
        for at in 0..IDLE_OF_CLIENT {
            let uri = format!("bench:/{number}/{at}");
            client.ask(&create(&uri, &number.to_string()))?;
            client.ask(&subscribe(&uri))?;
        }
    }
    thread::sleep(Duration::from_secs(1));
    let count = (IDLE_CLIENTS * IDLE_OF_CLIENT) as u64;
    let in_host =
        before.and_then(|before| Ok(host.memory()?.private_kb.saturating_sub(before) * 1024 / count));
    let (Ok(in_host), Ok(in_guards)) = (in_host, guards(host.process())) else {
        return table.row("memory of an idle terminal", "unknown here".to_owned(), "600 kB", "");
    };
    let in_guard = in_guards * 1024 / count;
    let kilobytes = |bytes: u64| format!("{:.0} kB", bytes as f64 / 1e3);
    table.row("memory of an idle terminal, host and guard", kilobytes(in_host + in_guard), "600 kB", "")?;
    table.row("  of that the host's", kilobytes(in_host), "", "")
}

/// Returns the memory of the guards of this host's terminals, in kB.
fn guards(host: u32) -> Outcome<u64> {
    let mut all = 0;
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(process) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // It may have ended meanwhile. What stands before the parent is a name in parentheses.
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1));
        if parent == Some(host.to_string().as_str()) {
            all += memory_of(process)?.private_kb;
        }
    }
    Ok(all)
}

/// Measures the cost of a program with endless output.
fn without_end(table: &mut Table) -> Outcome<()> {
    let host = Host::start(&["--ephemeral"])?;
    let mut reader = host.connect("reader")?;
    reader.ask(&create(TERMINAL, "reader"))?;
    reader.ask(&subscribe(TERMINAL))?;
    reader.say(type_text(TERMINAL, "yes\\r").as_bytes())?;
    let mut other = host.connect("other")?;
    reader.until(b"y\\r\\ny\\r\\n")?;
    // It ends when the host is gone.
    let reading = thread::spawn(move || while reader.message().is_ok() {});
    let p99 = pings(|| other.ask(std::str::from_utf8(PING)?))?;
    table.row("ping p99 of another client while `yes` is read", milliseconds(p99), "5 ms", "")?;
    drop((host, other));
    reading.join().map_err(|_| "a client has failed")?;

    let mut client = Client::open()?;
    client.say(create(TERMINAL, "bench").as_bytes())?;
    client.line_with(b"\"id\":4")?;
    client.subscribe(TERMINAL)?;
    client.say(type_text(TERMINAL, "yes\\r").as_bytes())?;
    client.line_with(b"y\\r\\ny\\r\\n")?;
    let p99 = pings(|| {
        client.say(PING)?;
        client.line_with(b"\"id\":7")
    })?;
    table.row("  of the client that reads it", milliseconds(p99), "", "")?;
    thread::sleep(UNREAD);
    table.row("memory after 3 s in which nobody reads `yes`", megabytes(client.memory()), "150 MB", "")
}

/// The time that all but one in a hundred pings stay within.
fn pings(mut ping: impl FnMut() -> Outcome<()>) -> Outcome<Duration> {
    let mut times = Vec::new();
    for _ in 0..PINGS {
        let start = Instant::now();
        ping()?;
        times.push(start.elapsed());
    }
    times.sort();
    Ok(times[PINGS * 99 / 100])
}

/// Returns the program output in a line.
fn data(line: &[u8]) -> &[u8] {
    let head = &line[..line.len().min(300)];
    if memchr::memmem::find(head, b"terminal/data").is_some() {
        line
    } else {
        &[]
    }
}

/// Returns the input, as part of a JSON string, that makes a shell run this script.
fn runs(script: &Path) -> String {
    format!("exec /bin/sh {}\\r", script.display())
}

fn create(uri: &str, client: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":4,"method":"createTerminal","params":{{"channel":"{uri}","claim":{{"kind":"client","clientId":"{client}"}}}}}}
"#
    )
}

fn subscribe(uri: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":3,"method":"subscribe","params":{{"channel":"{uri}"}}}}"#)
}

/// Types a text, which is the inside of a JSON string.
fn type_text(uri: &str, text: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"dispatchAction","params":{{"channel":"{uri}","clientSeq":1,"action":{{"type":"terminal/input","data":"{text}"}}}}}}
"#
    )
}

fn megabytes_a_second(time: Duration, times: usize) -> String {
    format!("{:.0}", (times * LINES * LINE_BYTES) as f64 / 1e6 / time.as_secs_f64())
}
