//! Entry in an editor's registry of the hosts on this machine.
//!
//! Owns: the entry that Visual Studio Code looks for. It exists while a listener is active, and is
//! left behind if the process is killed.
//! Never: touches other entries, or lets other users read the entry, which holds the token.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use serde_json::json;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::notice::PublishedFile;
use crate::os::private;

/// Version of the registry's format.
const SCHEMA: u32 = 2;

/// Type of an entry for a host that no editor has started.
const TYPE: &str = "standalone";

/// Newest protocol version that Visual Studio Code 1.139.1 speaks.
const PROTOCOL: &str = "0.9.0";

/// Announces a listener and its token in this user data folder until the result is dropped.
pub fn announce(user_data: &Path, at: SocketAddr, token: &str) -> io::Result<PublishedFile> {
    let folder = user_data.join("agent-host").join("local-endpoint").join("entries");
    private::create_folders(&folder)?;
    let (process, instance) = (std::process::id(), Uuid::new_v4().to_string());
    let path = folder.join(name(process, &instance));
    let entry = json!({
        "schemaVersion": SCHEMA,
        "type": TYPE,
        "pid": process,
        "instanceId": instance,
        "protocolVersion": PROTOCOL,
        "connectionToken": token,
        "endpoint": { "type": "tcp", "host": reachable(at.ip()), "port": at.port() },
    });
    PublishedFile::write(path, &serde_json::to_vec(&entry)?)
}

fn name(process: u32, instance: &str) -> String {
    let digest = Sha256::digest(format!("{TYPE}\0{process}\0{instance}"));
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    hex + ".json"
}

/// Returns the address by which this machine reaches the listener.
fn reachable(ours: IpAddr) -> IpAddr {
    match ours {
        IpAddr::V4(ours) if ours.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ours) if ours.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ours => ours,
    }
}
