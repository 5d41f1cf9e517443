//! All tests that need more than one module: one binary, so that it is linked once.

mod client;
mod laws;
mod process;
mod support;
mod tidy;
mod transcripts;
