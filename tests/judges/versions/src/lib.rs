//! The official crates of most released versions judge the host. `make test-versions` runs this; a
//! lock file holds one 0.5.x only, so 0.5.0 and 0.5.1 have packages of their own.
#![cfg(test)]

#[macro_use]
#[path = "../../shared/mod.rs"]
mod shared;

#[path = "../../shared/stage.rs"]
mod stage;

#[cfg(target_os = "linux")]
#[path = "../../shared/sockets.rs"]
mod sockets;

mod mixed;

/// The host's program, as `make test-versions` tells.
fn program() -> std::path::PathBuf {
    std::env::var_os("AHP_SIDECAR").expect("AHP_SIDECAR says where the program is").into()
}

judgements! {
    v0_1_0: Dialect(0, 1, 0), ahp_0_1_0, ahp_types_0_1_0, wrapped;
    v0_2_0: Dialect(0, 2, 0), ahp_0_2_0, ahp_types_0_2_0, sessions;
    v0_3_0: Dialect(0, 3, 0), ahp_0_3_0, ahp_types_0_3_0, sessions;
    v0_4_0: Dialect(0, 4, 0), ahp_0_4_0, ahp_types_0_4_0, chats;
    v0_5_2: Dialect(0, 5, 2), ahp_0_5_2, ahp_types_0_5_2, chats;
    v0_6_0: Dialect(0, 6, 0), ahp_0_6_0, ahp_types_0_6_0, chats;
    v0_7_0: Dialect(0, 7, 0), ahp_0_7_0, ahp_types_0_7_0, chats;
    v0_8_0: Dialect(0, 8, 0), ahp_0_8_0, ahp_types_0_8_0, chats;
    v0_9_0: Dialect(0, 9, 0), ahp_0_9_0, ahp_types_0_9_0, chats;
    v1_0_0: Dialect(1, 0, 0), ahp_1_0_0, ahp_types_1_0_0, chats;
}

#[test]
#[cfg(target_os = "linux")]
fn clients_of_several_versions_on_all_kinds_of_sockets_stay_consistent() {
    sockets::run(&mixed::OFFICIALS);
}
