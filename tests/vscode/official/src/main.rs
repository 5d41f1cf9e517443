//! The official client: makes a session, begins a turn in it, and tells what it hears of it.
//!
//!     official URL SESSION PROVIDER FOLDER TEXT
//!
//! Each action on the session's default chat is a line on stdout, as JSON text. It ends when its
//! stdin does.

use std::io::{self, Read, Write};

use ahp::{Client, ClientConfig, SubscriptionEvent};
use ahp_types::actions::StateAction;
use ahp_types::state::SnapshotState;
use ahp_ws::WebSocketTransport;
use anyhow::{bail, Context};
use serde_json::{json, Value};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, session, provider, folder, text] = &arguments[..] else {
        bail!("say: URL SESSION PROVIDER FOLDER TEXT");
    };
    let client = Client::connect(WebSocketTransport::connect(url).await?, ClientConfig::default()).await?;
    client.initialize("official".to_owned(), vec!["1.0.0".to_owned()], Vec::new()).await?;
    let params = json!({ "channel": session, "provider": provider, "workingDirectories": [format!("file://{folder}")] });
    let _created: Value = client.request("createSession", params).await?;

    let (state, _session) = client.subscribe(session.clone()).await?;
    let Some(SnapshotState::Session(state)) = state.snapshot.map(|snapshot| snapshot.state) else {
        bail!("the session has no state");
    };
    let chat = state.default_chat.context("the session has no chat")?;
    let (_, mut events) = client.subscribe(chat.clone()).await?;
    let message = json!({ "text": text, "origin": { "kind": "user" } });
    let turn = json!({ "type": "chat/turnStarted", "turnId": "t1", "startedAt": "2026-01-01T00:00:00Z",
        "message": message });
    client.dispatch(chat, serde_json::from_value::<StateAction>(turn)?).await?;

    let (tell_end, end) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        // However it ends, it is over.
        io::stdin().read_to_end(&mut Vec::new()).ok();
        tell_end.send(()).ok();
    });
    let hear = async {
        while let Some(event) = events.recv().await {
            if let SubscriptionEvent::Action(envelope) = event {
                writeln!(io::stdout(), "{}", serde_json::to_string(&envelope.action)?)?;
            }
        }
        anyhow::Ok(())
    };
    tokio::select! {
        heard = hear => heard?,
        _ = end => {}
    }
    client.shutdown().await;
    Ok(())
}
