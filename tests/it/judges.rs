//! The official crates judge the host: see `tests/judges/shared`, whose packages judge all other
//! versions.
//!
//! Owns: which versions are judged by every run of the tests.
//! Never: judges by itself.

#[macro_use]
#[path = "../judges/shared/mod.rs"]
mod shared;

#[path = "../judges/shared/stage.rs"]
mod stage;

#[cfg(target_os = "linux")]
#[path = "../judges/shared/sockets.rs"]
mod sockets;

use std::path::PathBuf;

/// The host's program.
fn program() -> PathBuf {
    assert_cmd::cargo::cargo_bin!("ahp-sidecar").to_owned()
}

judgements! {
    v0_3_0: Dialect(0, 3, 0), ahp_0_3_0, ahp_types_0_3_0, sessions;
    v1_0_0: Dialect(1, 0, 0), ahp, ahp_types, chats;
}

#[test]
#[cfg(target_os = "linux")]
fn clients_of_several_versions_on_all_kinds_of_sockets_stay_consistent() {
    sockets::run(&[&v0_3_0::Crates, &v1_0_0::Crates]);
}
