//! The official crates of 0.5.1 judge the host: see the package `versions` next to this one.
#![cfg(test)]

#[macro_use]
#[path = "../../shared/mod.rs"]
mod shared;

/// The host's program, as `make test-versions` tells.
fn program() -> std::path::PathBuf {
    std::env::var_os("AHP_SIDECAR").expect("AHP_SIDECAR says where the program is").into()
}

judgements! {
    v0_5_1: Dialect(0, 5, 1), ahp_0_5_1, ahp_types_0_5_1, chats;
}
