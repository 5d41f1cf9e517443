//! The official crates of 0.5.0 judge the host: see the package `versions` next to this one.
#![cfg(test)]

#[macro_use]
#[path = "../../shared/mod.rs"]
mod shared;

/// The host's program, as `make test-versions` tells.
fn program() -> std::path::PathBuf {
    std::env::var_os("AHP_SIDECAR").expect("AHP_SIDECAR says where the program is").into()
}

judgements! {
    v0_5_0: Dialect(0, 5, 0), ahp_0_5_0, ahp_types_0_5_0, chats;
}
