//! Transport: how bytes become messages.
//!
//! Owns: the laws of lines on stdin and stdout, and of `ping`.
//! Never: says anything but requests that every host serves.

use serde_json::json;

use crate::conform::bench::Bench;
use crate::conform::client::{JudgeClient, ROOT};
use crate::conform::stop::{must, not_offered, Judged};

/// Number of pieces in which a message comes.
const PIECES: usize = 4;

/// Length of a large message, in bytes.
const LARGE_BYTES: usize = 1 << 20;

/// Returns a client whose bytes reach the host as they are.
fn client_of_lines(bench: &mut Bench) -> Judged<JudgeClient> {
    if !bench.settings.plan.has_stdio() {
        return not_offered("the host is not spoken to on its stdin and stdout");
    }
    bench.client()
}

pub fn split(bench: &mut Bench) -> Judged<()> {
    let mut client = client_of_lines(bench)?;
    let (id, request) = client.prepare("ping", json!({ "channel": ROOT, "_meta": { "text": "größer" } }));
    let line = format!("{request}\n").into_bytes();
    for piece in line.chunks(line.len().div_ceil(PIECES)) {
        client.say_bytes(piece.to_vec())?;
    }
    let answer = client.answer_to(&json!(id))?;
    must!(answer.is_ok(), "a `ping` in several pieces is answered with an error");
    Ok(())
}

pub fn joined(bench: &mut Bench) -> Judged<()> {
    let mut client = client_of_lines(bench)?;
    let (mut ids, mut bytes) = (Vec::new(), String::new());
    for _ in 0..10 {
        let (id, request) = client.prepare("ping", json!({ "channel": ROOT }));
        ids.push(id);
        bytes += &format!("{request}\n");
    }
    client.say_bytes(bytes.into_bytes())?;
    for id in ids {
        let answer = client.answer_to(&json!(id))?;
        must!(answer.is_ok(), "a `ping` among others is answered with an error");
    }
    Ok(())
}

pub fn line_ends(bench: &mut Bench) -> Judged<()> {
    let mut client = client_of_lines(bench)?;
    let (id, request) = client.prepare("ping", json!({ "channel": ROOT }));
    // A host may call the blank lines invalid, but must go on.
    client.say_wrong(b"\n".to_vec())?;
    client.say_wrong(b"\r\n".to_vec())?;
    client.say_bytes(format!("{request}\r\n").into_bytes())?;
    let answer = client.answer_to(&json!(id))?;
    must!(answer.is_ok(), "a line that ends with CR LF is answered with an error");
    client.sync()
}

pub fn large(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.client()?;
    let padding = "x".repeat(LARGE_BYTES);
    client.must_ask("ping", json!({ "channel": ROOT, "_meta": { "padding": padding } }))?;
    client.sync()
}

pub fn ping(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.client()?;
    client.sync()?;
    client.initialize(&bench.settings.versions.clone(), &[])?;
    client.sync()
}
