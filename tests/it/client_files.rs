//! The official client, and files: what changes is told to it, and what it serves is asked of it.
//!
//! Owns: one conversation in which two clients of one host do both.
//! Never: looks at raw JSON.

use std::fs;

use ahp::{ResourceRequestHandlers, SubscriptionEvent};
use ahp_types::actions::StateAction;
use ahp_types::commands::{
    ContentEncoding, CreateResourceWatchParams, CreateResourceWatchResult, ResourceReadParams,
    ResourceReadResult,
};
use ahp_types::common::ROOT_RESOURCE_URI;
use ahp_types::state::{ResourceChange, ResourceChangeType, SnapshotState};
use ahp_types::version::SUPPORTED_PROTOCOL_VERSIONS;

use crate::client::connect;
use crate::support::HUNG;

#[tokio::test]
async fn official_client_receives_file_changes_and_serves_resource_reads() {
    let folder = tempfile::tempdir().unwrap();
    let top = folder.path().canonicalize().unwrap();
    let uri = format!("file://{}", top.display());
    let (mut child, client) = connect(&[]).await;
    let versions = SUPPORTED_PROTOCOL_VERSIONS.iter().map(|&version| version.to_owned()).collect();
    client.initialize("me".to_owned(), versions, Vec::new()).await.unwrap();

    let params = CreateResourceWatchParams {
        channel: ROOT_RESOURCE_URI.to_owned(),
        meta: None,
        uri: uri.clone(),
        recursive: Some(true),
        excludes: None,
        includes: None,
    };
    let created: CreateResourceWatchResult = client.request("createResourceWatch", params).await.unwrap();
    let (watch, mut changes) = client.subscribe(created.channel.clone()).await.unwrap();
    let Some(SnapshotState::ResourceWatch(state)) = watch.snapshot.map(|snapshot| snapshot.state) else {
        panic!("no watch's state")
    };
    assert_eq!((&state.root, state.recursive), (&uri, true));
    fs::write(top.join("file"), "x").unwrap();
    let event = tokio::time::timeout(HUNG, changes.recv()).await.expect("nothing comes").unwrap();
    let SubscriptionEvent::Action(envelope) = event else { panic!("no action: {event:?}") };
    let StateAction::ResourceWatchChanged(changed) = envelope.action else { panic!("another action") };
    let items: Vec<ResourceChange> = serde_json::from_value(changed.changes["items"].clone()).unwrap();
    let added = ResourceChange { uri: format!("{uri}/file"), r#type: ResourceChangeType::Added };
    assert_eq!(items, [added]);

    // It asks for what it serves itself: the host does not mind whom it asks.
    let read = || ResourceReadParams {
        channel: ROOT_RESOURCE_URI.to_owned(),
        meta: None,
        uri: "virtual://me/notes".to_owned(),
        encoding: None,
    };
    let nobody = client.request::<_, ResourceReadResult>("resourceRead", read()).await;
    assert!(nobody.unwrap_err().to_string().contains("no handler"), "it serves nothing yet");
    let notes = ResourceReadResult {
        data: "my notes".to_owned(),
        encoding: ContentEncoding::Utf8,
        content_type: None,
    };
    let served = notes.clone();
    client.set_resource_request_handlers(ResourceRequestHandlers::new().on_resource_read(move |params| {
        let served = served.clone();
        async move {
            assert_eq!(params.uri, "virtual://me/notes");
            Ok(served)
        }
    }));
    let read: ResourceReadResult = client.request("resourceRead", read()).await.unwrap();
    assert_eq!(read, notes);
    client.shutdown().await;
    let left = tokio::time::timeout(HUNG, child.wait()).await.expect("it stays").unwrap();
    assert_eq!(left.code(), Some(0));
}
