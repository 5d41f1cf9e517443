//! The host's side of a terminal, with the test in place of the program.
//!
//! Owns: a terminal whose program side the test holds.
//! Never: starts a program.

use std::fs::File;
use std::io::{Read, Write};

use futures_util::FutureExt;
use rustix::termios::{tcgetattr, tcgetwinsize, tcsetattr, OptionalActions};

use super::*;

/// Returns both directions of a terminal in raw mode, and its program side.
fn opened() -> (Printed, Typing, File) {
    let (master, terminal) = open_terminal().unwrap();
    let mut modes = tcgetattr(&terminal).unwrap();
    modes.make_raw();
    tcsetattr(&terminal, OptionalActions::Now, &modes).unwrap();
    let (printed, typing) = ends_of(master).unwrap();
    (printed, typing, terminal.into())
}

#[tokio::test]
async fn bytes_pass_both_ways_and_the_size_reaches_the_program() {
    let (printed, mut typing, mut program) = opened();
    let mut buffer = [0; 8];
    assert_eq!(write(&mut typing, b"typed").await.unwrap(), 5);
    program.read_exact(&mut buffer[..5]).unwrap();
    assert_eq!(&buffer[..5], b"typed");
    program.write_all(b"printed").unwrap();
    printed.readable().await.unwrap();
    assert_eq!(printed.try_read(&mut buffer).unwrap(), 7);
    assert_eq!(&buffer[..7], b"printed");
    set_size(&typing, (7, 5)).unwrap();
    let size = tcgetwinsize(&program).unwrap();
    assert_eq!((size.ws_col, size.ws_row), (7, 5));
}

#[tokio::test]
async fn write_that_is_dropped_while_it_waits_has_written_nothing() {
    let (_printed, mut typing, mut program) = opened();
    typing.writable().await.unwrap();
    let mut written = 0;
    while let Some(count) = write(&mut typing, &[b'x'; 1000]).now_or_never() {
        written += count.unwrap();
    }
    assert!(written > 0);
    let mut read = vec![0; written];
    program.read_exact(&mut read).unwrap();
    assert!(read.iter().all(|byte| *byte == b'x'));
    assert_eq!(write(&mut typing, b"end").await.unwrap(), 3);
    program.read_exact(&mut read[..3]).unwrap();
    assert_eq!(&read[..3], b"end");
}
