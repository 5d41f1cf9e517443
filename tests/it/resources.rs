//! `resourceRead` and `resourceList`: what clients see of this machine's files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::{json, Value};

use crate::support::{shell, sidecar, Process};

/// Opens a connection.
fn opened() -> Process {
    let mut process = Process::start(&[]);
    process.say(
        r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"clientId":"me","protocolVersions":["1.0.0"]}}"#,
    );
    process.next();
    process
}

fn ask(process: &mut Process, method: &str, params: &Value) -> Value {
    process.say(&json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string());
    process.next()
}

fn on(path: &Path) -> Value {
    json!({ "channel": "ahp-root://", "uri": format!("file://{}", path.display()) })
}

#[test]
fn file_is_returned_as_text_if_it_is_utf_8() {
    let folder = tempfile::tempdir().unwrap();
    let (text, bytes) = (folder.path().join("text"), folder.path().join("bytes"));
    fs::write(&text, "grüezi\n").unwrap();
    fs::write(&bytes, [0xff, 0x00]).unwrap();
    let mut process = opened();
    let answer = ask(&mut process, "resourceRead", &on(&text));
    assert_eq!(answer["result"], json!({ "data": "grüezi\n", "encoding": "utf-8" }));
    let answer = ask(&mut process, "resourceRead", &on(&bytes));
    assert_eq!(answer["result"], json!({ "data": "/wA=", "encoding": "base64" }));
    let mut as_base64 = on(&text);
    as_base64["encoding"] = json!("base64");
    let answer = ask(&mut process, "resourceRead", &as_base64);
    assert_eq!(answer["result"], json!({ "data": "Z3LDvGV6aQo=", "encoding": "base64" }));
}

#[test]
fn folder_entries_are_sorted_by_name() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("b"), "").unwrap();
    fs::create_dir(folder.path().join("a")).unwrap();
    std::os::unix::fs::symlink(folder.path().join("a"), folder.path().join("c")).unwrap();
    let answer = ask(&mut opened(), "resourceList", &on(folder.path()));
    let entries = json!([
        { "name": "a", "type": "directory" },
        { "name": "b", "type": "file" },
        { "name": "c", "type": "directory" },
    ]);
    assert_eq!(answer["result"], json!({ "entries": entries }));
}

#[test]
fn unreadable_resource_is_an_error_and_the_next_request_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let (file, pipe) = (folder.path().join("file"), folder.path().join("pipe"));
    fs::write(&file, "").unwrap();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let large = folder.path().join("large");
    fs::File::create(&large).unwrap().set_len((16 << 20) + 1).unwrap();
    let mut process = opened();
    let missing = folder.path().join("missing");
    for (method, path, code) in [
        ("resourceRead", &missing, -32008),
        ("resourceList", &missing, -32008),
        ("resourceRead", &folder.path().to_owned(), -32602),
        ("resourceRead", &pipe, -32602),
        ("resourceRead", &large, -32602),
        ("resourceList", &file, -32602),
    ] {
        let answer = ask(&mut process, method, &on(path));
        assert_eq!(answer["error"]["code"], code, "{method} {path:?}: {answer}");
    }
    let answer = ask(&mut process, "resourceRead", &json!({ "channel": "ahp-root://", "uri": "other:x" }));
    assert_eq!(answer["error"]["code"], -32602, "a scheme that nobody serves");
    let below_a_file = file.join("x");
    for method in ["resourceRead", "resourceList", "resourceResolve"] {
        assert_eq!(ask(&mut process, method, &on(&below_a_file))["error"]["code"], -32008, "{method}");
    }
    assert_eq!(ask(&mut process, "resourceRead", &on(&file))["result"]["data"], "");
}

#[test]
fn file_request_is_answered_after_the_end_of_input() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "x".repeat(16 << 20)).unwrap();
    let mut process = opened();
    for id in 0..8 {
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": "resourceRead", "params": on(&file) });
        process.say(&request.to_string());
    }
    process.end();
    let mut answered: Vec<Value> = process.rest().iter().map(|answer| answer["id"].clone()).collect();
    answered.sort_by_key(Value::as_u64);
    assert_eq!(answered, (0..8).map(Value::from).collect::<Vec<_>>());
    assert_eq!(process.wait().code(), Some(0));
}

#[test]
fn file_completion_searches_the_working_directory_of_the_session() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["src/main.rs", "domain.txt", "made.o"] {
        let path = folder.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    fs::write(folder.path().join(".gitignore"), "*.o\n").unwrap();
    let directory = format!("file://{}", folder.path().display());
    let mut process = opened();
    let session = json!({ "channel": "ahp-session:/s", "workingDirectories": [directory] });
    assert_eq!(ask(&mut process, "createSession", &session)["result"], Value::Null);
    let mut typed = |text: &str, offset: usize| {
        let params =
            json!({ "channel": "ahp-session:/s", "kind": "userMessage", "text": text, "offset": offset });
        ask(&mut process, "completions", &params)["result"]["items"].take()
    };
    let offered = |insert: &str, file: &str, range: [usize; 2]| {
        json!({ "insertText": insert, "rangeStart": range[0], "rangeEnd": range[1], "attachment": {
            "type": "resource", "label": file.rsplit('/').next(), "displayKind": "document",
            "uri": format!("{directory}/{file}") } })
    };
    let both =
        json!([offered("#main.rs", "src/main.rs", [4, 9]), offered("#domain.txt", "domain.txt", [4, 9])]);
    assert_eq!(typed("Ä 𝄞#main", 9)[0], Value::Null, "it begins no word");
    assert_eq!(typed("see #main, please", 10), json!([]), "what is typed has no comma");
    assert_eq!(typed("see #main please", 9), both);
    assert_eq!(typed("@made", 5), json!([]));
    assert_eq!(typed("𝄞 @dom.txt", 7)[0], offered("@domain.txt", "domain.txt", [3, 11]));
    assert_eq!(typed("# a heading", 2), json!([]));
}

/// Names that lead in a circle or are too long, and files that are closed to whoever runs the host.
#[test]
fn system_errors_are_mapped_to_error_codes() {
    let folder = tempfile::tempdir().unwrap();
    let top = folder.path().canonicalize().unwrap();
    let (circle, long) = (top.join("circle"), top.join("x".repeat(300)));
    std::os::unix::fs::symlink(&circle, &circle).unwrap();
    let (file, full, closed) = (top.join("file"), top.join("full"), top.join("closed"));
    fs::write(&file, "a").unwrap();
    fs::create_dir_all(full.join("x")).unwrap();
    fs::create_dir(&closed).unwrap();
    fs::write(closed.join("file"), "a").unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
    let is_root = fs::read_dir(&closed).is_ok();
    let mut process = opened();
    let session = json!({ "channel": "ahp-session:/s", "workingDirectories": [on(&top)["uri"]] });
    ask(&mut process, "createSession", &session);
    let mut code = |method: &str, path: &Path, more: Value| {
        let mut params = on(path);
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ask(&mut process, method, &params)["error"]["code"].as_i64()
    };
    let written = || json!({ "data": "b", "encoding": "utf-8" });
    let moved = |to: &Path| json!({ "source": on(&file)["uri"], "destination": on(to)["uri"] });
    for path in [circle.join("x"), long.clone(), long.join("x")] {
        for (method, more) in [
            ("resourceRead", json!({})),
            ("resourceList", json!({})),
            ("resourceResolve", json!({})),
            ("resourceWrite", written()),
            ("resourceMkdir", json!({})),
            ("resourceDelete", json!({ "recursive": true })),
            ("resourceMove", moved(&path)),
            ("resourceCopy", moved(&path)),
        ] {
            assert_eq!(code(method, &path, more), Some(-32602), "{method} {path:?}");
        }
    }
    assert_eq!(code("resourceDelete", &full, json!({})), Some(-32602), "a folder that is not empty");
    assert_eq!(code("resourceMkdir", &file, json!({})), Some(-32010), "a file");
    if is_root {
        return;
    }
    let inside = closed.join("file");
    for (method, more) in [
        ("resourceRead", json!({})),
        ("resourceResolve", json!({})),
        ("resourceWrite", written()),
        ("resourceDelete", json!({})),
        ("resourceCopy", moved(&inside)),
    ] {
        assert_eq!(code(method, &inside, more), Some(-32009), "{method}");
    }
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn hostile_ignore_file_neither_blocks_nor_ends_the_host() {
    let endless: fn(&Path) = |path| std::os::unix::fs::symlink("/dev/zero", path).unwrap();
    let silent: fn(&Path) = |path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    let giant: fn(&Path) = |path| fs::write(path, "*.txt\n".repeat(1 << 20)).unwrap();
    let hostile = [("endless", endless), ("silent", silent), ("giant", giant)];
    for name in [".gitignore", ".ignore", ".git/info/exclude", "../.gitignore"] {
        for (kind, make) in hostile {
            let outer = tempfile::tempdir().unwrap();
            let folder = outer.path().join("folder");
            fs::create_dir_all(folder.join(".git/info")).unwrap();
            let file = folder.join("kept.txt");
            fs::write(&file, "text").unwrap();
            make(&folder.join(name));
            // A host that reads without an end must not take all memory of this machine.
            let mut process = Process::spawn(shell("ulimit -v 4000000; exec \"$@\"", &sidecar()));
            process.say(
                r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"clientId":"me","protocolVersions":["1.0.0"]}}"#,
            );
            process.next();
            let session = json!({ "channel": "ahp-session:/s", "workingDirectories": [on(&folder)["uri"]] });
            assert_eq!(ask(&mut process, "createSession", &session)["result"], Value::Null);
            // More of them than threads that read.
            for id in 100..108 {
                let typed = json!({ "channel": "ahp-session:/s", "kind": "userMessage", "text": "#kept",
                    "offset": 5 });
                let request = json!({ "jsonrpc": "2.0", "id": id, "method": "completions", "params": typed });
                process.say(&request.to_string());
            }
            for _ in 100..108 {
                let offered = process.next();
                assert_eq!(offered["result"]["items"][0]["insertText"], "#kept.txt", "{name} is {kind}");
            }
            assert_eq!(ask(&mut process, "resourceRead", &on(&file))["result"]["data"], "text");
        }
    }
}
