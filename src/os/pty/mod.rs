//! Pseudo terminals.
//!
//! Owns: opening one, starting a program in it, its input and output as bytes, its size, and what
//! its foreground program is.
//! Never: interprets what a program prints.

#[cfg(test)]
mod tests;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
use unix as half;
#[cfg(windows)]
use windows as half;

#[cfg(all(test, unix))]
pub use half::{ends_of, open_terminal};
pub use half::{
    foreground, name_of, open, seems_to_await_input, set_size, write, ForegroundGroup, Printed, Typing,
};

/// Number of columns and rows.
pub type PtySize = (u16, u16);
