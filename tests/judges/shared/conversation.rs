//! A whole conversation by the crate's own client, over the pipes of the real program.
//!
//! Owns: a turn with everything that the version has, one that is cancelled with a message queued
//! behind it, one that fails, coming back, and the comparison of what the crate's reducers built
//! with fresh snapshots.
//! Never: looks at a line. The ears on the pipes do, at every one.

use std::sync::{Arc, Mutex};

use anyhow::{ensure, Context, Result};
use serde_json::{json, Value};

use super::dialect::Dialect;
use super::ears::Ears;
use super::hung;
use super::masks;
use super::moves::calls;
use super::official::{Held, Official, OfficialClient, Subscription};
use super::process::{Judged, Pipes};

const SCRIPT: &str = "Hello, world\n/think hmm\n/tool ls {\"path\":\"/\"}\n/ask rm {\"path\":\"/x\"}\n/review cat\n\
    /question [{\"kind\":\"text\",\"id\":\"name\",\"message\":\"Who?\",\"required\":true}]\n/usage 3 4\n/title Greetings";

/// Judges by one conversation.
pub fn run(official: &'static dyn Official) {
    conversing(official, async |client| talk(official, client).await);
}

/// Has the crate's client talk to a host of its own. What passed the pipes must be right, and the
/// host end well.
pub fn conversing(
    official: &'static dyn Official,
    talk: impl AsyncFnOnce(&dyn OfficialClient) -> Result<()>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(converse(official, talk)),
        Err(error) => Err(error.into()),
    };
    if let Err(why) = outcome {
        panic!("{}: {why:#}", official.dialect().name());
    }
}

/// A channel's state, kept up to date by what the client delivers.
pub struct Followed {
    pub held: Box<dyn Held>,
    subscription: Box<dyn Subscription>,
    seen: u64,
}

impl Followed {
    pub async fn new(official: &dyn Official, client: &dyn OfficialClient, channel: &str) -> Result<Self> {
        let (result, subscription) = client.subscribe(channel).await?;
        let snapshot = &result["snapshot"];
        let seen = snapshot["fromSeq"].as_u64().context("no number")?;
        Ok(Self { held: official.holds(snapshot)?, subscription, seen })
    }

    /// Applies what comes until the state is as wanted, and returns it.
    pub async fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        loop {
            let view = self.held.view()?;
            if wanted(&view) {
                return Ok(view);
            }
            let envelope = tokio::time::timeout(hung(), self.subscription.next())
                .await
                .with_context(|| format!("nothing comes to {view}"))??;
            self.take(&envelope)?;
        }
    }

    fn take(&mut self, envelope: &Value) -> Result<()> {
        ensure!(envelope.get("rejectionReason").is_none_or(Value::is_null), "refused: {envelope}");
        // What was on its way when the snapshot was taken is in it.
        if envelope["serverSeq"].as_u64().context("no number")? > self.seen {
            self.held.apply(&envelope["action"])?;
        }
        Ok(())
    }
}

async fn converse(
    official: &'static dyn Official,
    talk: impl AsyncFnOnce(&dyn OfficialClient) -> Result<()>,
) -> Result<()> {
    let (mut child, pipes, judged) = Pipes::start(Ears::new(official), &[])?;
    let client = official.connects(pipes).await?;
    let outcome = talk(&*client).await;
    client.shutdown().await?;
    check(&judged)?;
    outcome?;
    let status = child.wait().await?;
    ensure!(status.success(), "the program ended with {status}");
    Ok(())
}

/// Checks that all lines on the pipes were valid and that there was at least one.
fn check(judged: &Arc<Mutex<Judged>>) -> Result<()> {
    let Ok(mut judged) = judged.lock() else { anyhow::bail!("a judge has panicked") };
    if let Some(wrong) = judged.wrong.take() {
        return Err(wrong);
    }
    ensure!(judged.heard > 0, "nothing was heard");
    Ok(())
}

async fn talk(official: &'static dyn Official, client: &dyn OfficialClient) -> Result<()> {
    let dialect = official.dialect();
    let root = dialect.root().to_owned();
    let opened = client.initialize("tester", vec![root.clone()]).await?;
    ensure!(opened["protocolVersion"] == dialect.answered(), "answered {}", opened["protocolVersion"]);
    let agents = &opened["snapshots"][0]["state"]["agents"];
    ensure!(agents[0]["provider"] == "script", "the agents are {agents}");

    let uri = dialect.session("a-conversation");
    let params = dialect.params("createSession", &uri, json!({ "provider": "script" }));
    client.request("createSession", params).await?;
    let mut session = Followed::new(official, client, &uri).await?;
    let chat = session.held.view()?["defaultChat"].as_str().map(str::to_owned);
    ensure!(chat.is_some() == dialect.has_chats(), "the default chat is {chat:?}");
    let channel = chat.clone().unwrap_or_else(|| uri.clone());
    let mut talk = match &chat {
        Some(chat) => Followed::new(official, client, chat).await?,
        None => Followed::new(official, client, &uri).await?,
    };

    whole_turn(dialect, client, &channel, &mut talk).await?;
    let titled = session.until(|view| dialect.session_member(view, "title") == "Greetings").await?;
    ensure!(titled["lifecycle"] == "ready", "the session is {}", titled["lifecycle"]);
    cancelled_turn(dialect, client, &channel, &mut talk).await?;
    let before =
        [Followed::new(official, client, &uri).await?, Followed::new(official, client, &channel).await?];
    failed_turn(dialect, client, &channel, &mut talk).await?;
    reconnect_and_compare(official, client, (&uri, &channel), before).await?;
    for (channel, followed) in [(&uri, &mut session), (&channel, &mut talk)] {
        catch_up(official, client, channel, followed)
            .await
            .with_context(|| format!("following {channel}"))?;
    }

    let params = dialect.params("listSessions", &root, json!({}));
    let listed = client.request("listSessions", params).await?;
    ensure!(listed["items"].as_array().map(Vec::len) == Some(1), "listed are {listed}");
    ensure!(listed["items"][0]["title"] == "Greetings", "listed are {listed}");
    client.request("disposeSession", dialect.params("disposeSession", &uri, json!({}))).await?;
    ensure!(client.subscribe(&uri).await.is_err(), "the session is still there");
    Ok(())
}

/// A turn with everything that a turn can have.
async fn whole_turn(
    dialect: Dialect,
    client: &dyn OfficialClient,
    channel: &str,
    talk: &mut Followed,
) -> Result<()> {
    client.dispatch(channel, &dialect.turn_started("turn-1", SCRIPT)).await?;
    let view = talk.until(|view| !calls(view, "pending-confirmation").is_empty()).await?;
    let call = &calls(&view, "pending-confirmation")[0];
    ensure!(call["options"].to_string().contains("allow-always"), "the options are {}", call["options"]);
    let members = json!({
        "turnId": "turn-1", "toolCallId": call["toolCallId"], "approved": true, "selectedOptionId": "allow-always",
    });
    client.dispatch(channel, &dialect.act("toolCallConfirmed", members)).await?;

    let view = talk.until(|view| !calls(view, "pending-result-confirmation").is_empty()).await?;
    let call = &calls(&view, "pending-result-confirmation")[0];
    let members = json!({ "turnId": "turn-1", "toolCallId": call["toolCallId"], "approved": true });
    client.dispatch(channel, &dialect.act("toolCallResultConfirmed", members)).await?;

    let view = talk.until(|view| !dialect.questions(view).is_empty()).await?;
    let answer = json!({ "state": "submitted", "value": { "kind": "text", "value": "Ada" } });
    let members = json!({
        "requestId": dialect.questions(&view)[0]["id"], "response": "accept", "answers": { "name": answer },
    });
    client.dispatch(channel, &dialect.act("inputCompleted", members)).await?;

    let view = talk.until(|view| turns(view).len() == 1).await?;
    let turn = &turns(&view)[0];
    ensure!(turn["state"] == "complete", "the turn is {turn}");
    ensure!(dialect.text_of(turn) == SCRIPT, "the message became {turn}");
    ensure!(text_of(turn) == "Hello, world|name: Ada", "the text is {}", text_of(turn));
    ensure!(
        turn["usage"]["inputTokens"] == 3 && turn["usage"]["outputTokens"] == 4,
        "the usage is in {turn}"
    );
    let parts = turn["responseParts"].as_array().context("no parts")?;
    let thought = |part: &&Value| part["kind"] == "reasoning" && part["content"] == "hmm";
    ensure!(parts.iter().any(|part| thought(&part)), "no thought in {turn}");
    let completed = parts.iter().filter(|part| part["toolCall"]["status"] == "completed").count();
    ensure!(completed == 3, "{completed} calls are completed in {turn}");
    Ok(())
}

/// A turn that is cancelled, with a message queued behind it.
async fn cancelled_turn(
    dialect: Dialect,
    client: &dyn OfficialClient,
    channel: &str,
    talk: &mut Followed,
) -> Result<()> {
    client.dispatch(channel, &dialect.turn_started("turn-2", "/say before\n/hang")).await?;
    let begun =
        |view: &Value| view["activeTurn"]["responseParts"].as_array().is_some_and(|it| !it.is_empty());
    talk.until(begun).await?;
    let queued = dialect.pending_message_set("queued", "queued-1", "/say from the queue");
    client.dispatch(channel, &queued).await?;
    let view = talk.until(|view| !view["queuedMessages"].is_null()).await?;
    let waiting = &view["queuedMessages"][0];
    ensure!(dialect.text_of(waiting) == "/say from the queue", "queued is {waiting}");
    client.dispatch(channel, &dialect.turn_cancelled("turn-2")).await?;
    let view = talk.until(|view| turns(view).len() == 3).await?;
    let [_, cancelled, from_queue] = &turns(&view)[..] else { anyhow::bail!("not three turns: {view}") };
    ensure!(cancelled["state"] == "cancelled", "cancelled is {cancelled}");
    ensure!(text_of(from_queue) == "from the queue", "from the queue came {from_queue}");
    Ok(())
}

/// A turn that fails; where the version can, it is resumed.
async fn failed_turn(
    dialect: Dialect,
    client: &dyn OfficialClient,
    channel: &str,
    talk: &mut Followed,
) -> Result<()> {
    let script = "/say one\n/error-resumable flaky\n/say two";
    client.dispatch(channel, &dialect.turn_started("turn-4", script)).await?;
    let view = talk.until(|view| turns(view).len() == 4).await?;
    let failed = &turns(&view)[3];
    ensure!(failed["state"] == "error", "failed is {failed}");
    ensure!(failed.to_string().contains("flaky"), "what failed is not said in {failed}");
    if dialect.can_resume() {
        ensure!(dialect.is_resumable(failed), "it cannot be resumed: {failed}");
        client.dispatch(channel, &dialect.act("turnResume", json!({ "turnId": "turn-4" }))).await?;
        let over = |view: &Value| turns(view).get(3).is_some_and(|turn| turn["state"] == "complete");
        let view = talk.until(over).await?;
        ensure!(text_of(&turns(&view)[3]) == "one|two", "resumed is {view}");
    }
    Ok(())
}

/// Comes back with what was held before the turn that failed: what was missed is replayed, and
/// leads to what the host shows now.
async fn reconnect_and_compare(
    official: &'static dyn Official,
    client: &dyn OfficialClient,
    (session, channel): (&str, &str),
    mut before: [Followed; 2],
) -> Result<()> {
    let dialect = official.dialect();
    let gone = dialect.session("gone");
    let mut channels = vec![session.to_owned(), gone.clone()];
    channels.extend((session != channel).then(|| channel.to_owned()));
    let cursor = i64::try_from(before[0].seen.min(before[1].seen))?;
    let back = client.reconnect("tester", cursor, channels).await?;
    ensure!(back["type"] == "replay", "not a replay: {back}");
    // 0.1.0 has no such member.
    let missing = &back["missing"];
    ensure!(missing.is_null() || *missing == json!([gone]), "missing is {missing}");
    let actions = back["actions"].as_array().context("no actions")?;
    let numbers: Vec<_> = actions.iter().filter_map(|it| it["serverSeq"].as_i64()).collect();
    ensure!(numbers.is_sorted() && numbers.iter().all(|seq| *seq > cursor), "since {cursor}: {numbers:?}");
    for (uri, followed) in [session, channel].into_iter().zip(&mut before) {
        let missed = actions.iter().filter(|envelope| dialect.channel_of(envelope) == uri);
        let missed: Vec<_> = missed.filter(|it| it["serverSeq"].as_u64() > Some(followed.seen)).collect();
        ensure!(!missed.is_empty(), "nothing on {uri} is replayed: {back}");
        for envelope in missed {
            followed.held.apply(&envelope["action"])?;
        }
        // Nothing has happened since.
        let fresh = Followed::new(official, client, uri).await?;
        compare(dialect, followed, &fresh).with_context(|| format!("the replay on {uri}"))?;
    }
    Ok(())
}

/// Waits until the mirrors equal the host's current snapshots.
async fn catch_up(
    official: &'static dyn Official,
    client: &dyn OfficialClient,
    channel: &str,
    followed: &mut Followed,
) -> Result<()> {
    let fresh = Followed::new(official, client, channel).await?;
    // What was delivered before the answer waits in the subscription.
    while let Some(envelope) = followed.subscription.waiting()? {
        followed.take(&envelope)?;
    }
    compare(official.dialect(), followed, &fresh)
}

fn compare(dialect: Dialect, held: &Followed, fresh: &Followed) -> Result<()> {
    masks::compare(dialect, fresh.held.kind(), &held.held.view()?, &fresh.held.view()?)
}

fn turns(view: &Value) -> Vec<Value> {
    view["turns"].as_array().cloned().unwrap_or_default()
}

fn text_of(turn: &Value) -> String {
    let parts = turn["responseParts"].as_array().into_iter().flatten();
    let texts = parts.filter(|part| part["kind"] == "markdown").filter_map(|part| part["content"].as_str());
    texts.collect::<Vec<_>>().join("|")
}
