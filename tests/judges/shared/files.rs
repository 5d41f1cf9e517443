//! Files and annotations by the crate's own client, over the pipes of the real program.
//!
//! Owns: every method about resources that the version has, a watch that is followed, and what is
//! said to a place in a file.
//! Never: repeats what transcripts show: that the crate's types hold what is said and heard, and
//! its reducers what is told.

use std::fs;
use std::path::Path;

use anyhow::{ensure, Context, Result};
use serde_json::{json, Value};

use super::conversation::{conversing, Followed};
use super::dialect::{Dialect, V0_1_0, V0_4_0, V0_7_0, V0_9_0};
use super::hung;
use super::official::{Official, OfficialClient};

/// Judges by one conversation about files.
pub fn run(official: &'static dyn Official) {
    conversing(official, async |client| {
        let folder = tempfile::tempdir()?;
        talk(official, client, &folder.path().canonicalize()?).await
    });
}

async fn talk(official: &'static dyn Official, client: &dyn OfficialClient, top: &Path) -> Result<()> {
    let dialect = official.dialect();
    client.initialize("tester", vec![dialect.root().to_owned()]).await?;
    let session = dialect.session("files");
    let folder = format!("file://{}", top.display());
    let works_in = match dialect {
        _ if dialect >= V0_7_0 => json!({ "workingDirectories": [folder] }),
        _ => json!({ "workingDirectory": folder }),
    };
    client.request("createSession", dialect.params("createSession", &session, works_in)).await?;
    let files = Files { dialect, client, folder };
    files.are_written(top).await.context("writing")?;
    files.are_moved(top).await.context("moving")?;
    if dialect > V0_1_0 {
        files.are_changed(top).await.context("changing")?;
        files.are_watched(official, top).await.context("watching")?;
    }
    if dialect >= V0_4_0 {
        annotate(official, client, &session).await.context("annotating")?;
    }
    Ok(())
}

struct Files<'a> {
    dialect: Dialect,
    client: &'a dyn OfficialClient,
    folder: String,
}

impl Files<'_> {
    async fn ask(&self, method: &'static str, members: Value) -> Result<Value> {
        let params = self.dialect.params(method, self.dialect.root(), members);
        self.client.request(method, params).await.with_context(|| method)
    }

    async fn is_refused(&self, method: &'static str, members: Value, code: i64) -> Result<()> {
        let why = match self.ask(method, members).await {
            Ok(answer) => anyhow::bail!("{method} was answered {answer}"),
            Err(error) => format!("{error:#}"),
        };
        ensure!(why.contains(&code.to_string()), "{method} is refused by {why}, not {code}");
        Ok(())
    }

    fn uri(&self, name: &str) -> String {
        format!("{}/{name}", self.folder)
    }

    fn text(&self, name: &str, text: &str) -> Value {
        json!({ "uri": self.uri(name), "data": text, "encoding": "utf-8" })
    }

    async fn are_written(&self, top: &Path) -> Result<()> {
        self.ask("resourceWrite", self.text("a", "one\n")).await?;
        ensure!(fs::read_to_string(top.join("a"))? == "one\n");
        let read = self.ask("resourceRead", json!({ "uri": self.uri("a") })).await?;
        ensure!(read["data"] == "one\n" && read["encoding"] == "utf-8", "read is {read}");
        let bytes = json!({ "uri": self.uri("b"), "data": "/wA=", "encoding": "base64" });
        self.ask("resourceWrite", bytes).await?;
        ensure!(fs::read(top.join("b"))? == [255, 0]);
        let read = self.ask("resourceRead", json!({ "uri": self.uri("b"), "encoding": "base64" })).await?;
        ensure!(read["data"] == "/wA=" && read["encoding"] == "base64", "read is {read}");
        let mut only_new = self.text("a", "two");
        only_new["createOnly"] = true.into();
        self.is_refused("resourceWrite", only_new, -32010).await?;
        let listed = self.ask("resourceList", json!({ "uri": self.folder })).await?;
        let entries = json!([{ "name": "a", "type": "file" }, { "name": "b", "type": "file" }]);
        ensure!(listed["entries"] == entries, "listed are {listed}");
        let elsewhere = json!({ "uri": "file:///etc/none/of/ours", "data": "", "encoding": "utf-8" });
        self.is_refused("resourceWrite", elsewhere, -32009).await?;
        self.is_refused("resourceRead", json!({ "uri": self.uri("none") }), -32008).await
    }

    async fn are_moved(&self, top: &Path) -> Result<()> {
        let between = |from: &str, to: &str| json!({ "source": self.uri(from), "destination": self.uri(to) });
        self.ask("resourceCopy", between("a", "copy")).await?;
        let mut only_free = between("b", "copy");
        only_free["failIfExists"] = true.into();
        self.is_refused("resourceCopy", only_free, -32010).await?;
        self.ask("resourceMove", between("copy", "moved")).await?;
        ensure!(fs::read_to_string(top.join("moved"))? == "one\n" && !top.join("copy").exists());
        self.ask("resourceDelete", json!({ "uri": self.uri("moved") })).await?;
        self.is_refused("resourceDelete", json!({ "uri": self.uri("moved") }), -32008).await
    }

    async fn are_changed(&self, top: &Path) -> Result<()> {
        self.ask("resourceMkdir", json!({ "uri": self.uri("folder/in") })).await?;
        self.is_refused("resourceDelete", json!({ "uri": self.uri("folder") }), -32602).await?;
        self.ask("resourceDelete", json!({ "uri": self.uri("folder"), "recursive": true })).await?;
        ensure!(!top.join("folder").exists());
        for (mode, position, text) in
            [("append", 1, "one!\n"), ("insert", 0, "!one!\n"), ("truncate", 4, "!one!")]
        {
            let mut write = self.text("a", "!");
            (write["mode"], write["position"]) = (mode.into(), position.into());
            self.ask("resourceWrite", write).await?;
            ensure!(fs::read_to_string(top.join("a"))? == text, "after {mode}");
        }
        let known = self.ask("resourceResolve", json!({ "uri": self.uri("a") })).await?;
        ensure!(
            known["uri"] == self.uri("a") && known["type"] == "file" && known["size"] == 5,
            "it is {known}"
        );
        let mut write = self.text("a", "other");
        write["ifMatch"] = known["etag"].clone();
        self.ask("resourceWrite", write.clone()).await?;
        self.is_refused("resourceWrite", write, -32011).await?;
        self.ask("resourceRequest", json!({ "uri": self.folder, "read": true, "write": true })).await?;
        self.is_refused("resourceRequest", json!({ "uri": "file:///etc", "write": true }), -32009).await
    }

    async fn are_watched(&self, official: &'static dyn Official, top: &Path) -> Result<()> {
        let asked = json!({ "uri": self.folder, "recursive": true });
        let created = self.ask("createResourceWatch", asked).await?;
        let channel = created["channel"].as_str().context("no channel")?;
        let (result, mut told) = self.client.subscribe(channel).await?;
        if self.dialect >= V0_4_0 {
            let watched = official.holds(&result["snapshot"])?.view()?;
            ensure!(watched["root"] == *self.folder && watched["recursive"] == true, "watched is {watched}");
        } else {
            ensure!(
                result.get("snapshot").is_none_or(Value::is_null),
                "a state that there was not: {result}"
            );
        }
        fs::write(top.join("new"), "x")?;
        let envelope = tokio::time::timeout(hung(), told.next()).await.context("nothing is told")??;
        let action = &envelope["action"];
        let items = json!([{ "uri": self.uri("new"), "type": "added" }]);
        ensure!(action["type"] == "resourceWatch/changed", "told is {envelope}");
        ensure!(action["changes"]["items"] == items, "told is {envelope}");
        Ok(())
    }
}

/// Annotates a range of a file and checks that the annotation is in the host's state.
async fn annotate(official: &'static dyn Official, client: &dyn OfficialClient, session: &str) -> Result<()> {
    let dialect = official.dialect();
    let channel = format!("{session}/annotations");
    let mut followed = Followed::new(official, client, &channel).await?;
    ensure!(followed.held.view()?["annotations"] == json!([]));
    let entry = |id: &str| json!({ "id": id, "text": { "markdown": "*so*" } });
    let said = [
        ("set", json!({ "annotation": dialect.annotation("a", session, &[entry("e")]) })),
        ("set", json!({ "annotation": dialect.annotation("b", session, &[entry("e")]) })),
        ("entrySet", json!({ "annotationId": "a", "entry": entry("f") })),
        ("updated", json!({ "annotationId": "a", "resolved": true })),
        ("entryRemoved", json!({ "annotationId": "a", "entryId": "e" })),
        ("removed", json!({ "annotationId": "b" })),
    ];
    for (name, members) in said {
        client.dispatch(&channel, &dialect.act_of("annotations", name, members)).await?;
    }
    let only_a = |view: &Value| {
        let all = view["annotations"].as_array();
        all.is_some_and(|all| all.len() == 1 && all[0]["entries"] == json!([entry("f")]))
    };
    let view = followed.until(only_a).await?;
    ensure!(view["annotations"][0]["resolved"] == true, "it is {view}");
    let origin = if dialect >= V0_9_0 { json!({ "session": session }) } else { Value::Null };
    ensure!(view["annotations"][0].get("origin").unwrap_or(&Value::Null) == &origin, "it is {view}");
    let fresh = Followed::new(official, client, &channel).await?;
    ensure!(fresh.held.view()? == view, "the host shows {:?}", fresh.held);
    let listed =
        client.request("listSessions", dialect.params("listSessions", dialect.root(), json!({}))).await?;
    let counted = json!({ "resource": channel, "annotationCount": 1, "entryCount": 1 });
    ensure!(listed["items"][0]["annotations"] == counted, "listed are {listed}");
    Ok(())
}
