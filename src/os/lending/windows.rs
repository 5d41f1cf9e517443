//! Windows: nothing can be lent, since no host listens for fronts.
//!
//! Owns: the error.
//! Never: opens anything.

use std::fs::File;
use std::io;
use std::process::Command;

use super::Printing;
use crate::os::sockets::{BlockingStream, LocalListener, Stream};

pub type LentFile = File;

#[derive(Debug)]
pub struct LentPipes(());

impl LentPipes {
    pub fn prepare() -> io::Result<Self> {
        Ok(Self(()))
    }

    pub fn lend(&self, stream: &BlockingStream, _line: &[u8]) -> io::Result<()> {
        match *stream {}
    }

    pub fn carry(self, _files: (File, File)) -> io::Result<Printing> {
        Ok(Printing(None))
    }
}

pub fn receive(_stream: &Stream, _line: &mut Vec<u8>, _lent: &mut Vec<LentFile>) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}

pub fn hand_over(_command: &mut Command, _lock: File, listener: LocalListener) {
    match listener {}
}
