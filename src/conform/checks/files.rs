//! Resources: files that clients read, change and watch.
//!
//! Owns: the laws of a file in a session's working directory.
//! Never: touches a file elsewhere.

use ahp_types::errors::ahp_error_codes::{NOT_FOUND, PERMISSION_DENIED};
use serde_json::{json, Value};

use crate::conform::bench::Bench;
use crate::conform::client::{is_action, quoted, JudgeClient, ROOT};
use crate::conform::stop::{broken, must, not_offered, Judged};
use crate::files::uris::uri_of;

/// Sends a request about a file, which must succeed where clients may change files.
fn about_file(client: &mut JudgeClient, method: &str, params: Value) -> Judged<Value> {
    match client.try_ask(method, params)? {
        Ok(result) => Ok(result),
        Err(error) if error.code == i64::from(PERMISSION_DENIED) => {
            not_offered(format!("`{method}` is not allowed"))
        }
        Err(error) => broken(format!("`{method}` is answered with {}", quoted(&error.error))),
    }
}

pub fn files(bench: &mut Bench) -> Judged<()> {
    const TEXT: &str = "one\ntwo \u{e4}\n";
    let mut client = bench.ready(&[])?;
    // Clients may change files below the working directories of sessions.
    bench.session(&mut client)?;
    let (folder, file) = (uri_of(&bench.work()), uri_of(&bench.work().join("file.txt")));
    let written = json!({ "channel": ROOT, "uri": file, "data": TEXT, "encoding": "utf-8" });
    about_file(&mut client, "resourceWrite", written)?;
    let on_disk = std::fs::read_to_string(bench.work().join("file.txt")).unwrap_or_default();
    must!(on_disk == TEXT, "the written file has the content {on_disk:?}");
    let asked = json!({ "channel": ROOT, "uri": file, "encoding": "utf-8" });
    let read = about_file(&mut client, "resourceRead", asked)?;
    must!(read["data"] == TEXT, "the file is read as {}", quoted(&read));
    let listed = about_file(&mut client, "resourceList", json!({ "channel": ROOT, "uri": folder }))?;
    let has_file =
        listed["entries"].as_array().is_some_and(|all| all.iter().any(|it| it["name"] == "file.txt"));
    must!(has_file, "the folder is listed without its file: {}", quoted(&listed));
    about_file(&mut client, "resourceDelete", json!({ "channel": ROOT, "uri": file }))?;
    must!(!bench.work().join("file.txt").exists(), "the file exists after it was deleted");
    Ok(())
}

pub fn missing(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    bench.session(&mut client)?;
    let file = uri_of(&bench.work().join("none.txt"));
    match client.try_ask("resourceRead", json!({ "channel": ROOT, "uri": file }))? {
        Ok(result) => broken(format!("a file that does not exist is read as {}", quoted(&result))),
        Err(error) if error.code == i64::from(NOT_FOUND) => Ok(()),
        Err(error) if error.code == i64::from(PERMISSION_DENIED) => not_offered("reading is not allowed"),
        Err(error) => broken(format!(
            "a file that does not exist is not answered with {NOT_FOUND}: {}",
            quoted(&error.error)
        )),
    }
}

pub fn watch(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    bench.session(&mut client)?;
    use_watch(bench, &mut client)
}

/// Watches the folder in which sessions work, and changes it.
pub fn use_watch(bench: &mut Bench, client: &mut JudgeClient) -> Judged<()> {
    let params = json!({ "channel": ROOT, "uri": uri_of(&bench.work()), "recursive": true });
    let result = about_file(client, "createResourceWatch", params)?;
    let Some(channel) = result["channel"].as_str().map(str::to_owned) else {
        return broken(format!("a watch has no channel: {}", quoted(&result)));
    };
    if let Err(error) = client.subscribe(&channel)? {
        return broken(format!("a watch cannot be subscribed to: {}", quoted(&error.error)));
    }
    bench.write("watched.txt", "changed")?;
    let changed = client.wait_for("the change of the watched folder", |message| {
        is_action(message, &channel, "resourceWatch/changed")
    })?;
    let text = changed.to_string();
    must!(text.contains("watched.txt"), "the watch does not name the file: {}", quoted(&changed));
    Ok(())
}
