//! How programs find a host that listens, and join it: `status`, `connect`, sockets in the file
//! system.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;

use serde_json::{json, Value};

use super::Host;
use crate::support::{program, sidecar_on, Process, HUNG};

fn status(folder: &Path) -> Value {
    let output = program().args(["status", "--json", "--state-dir"]).arg(folder).output().unwrap();
    assert!(output.status.success());
    let mut status: Value = serde_json::from_slice(&output.stdout).unwrap();
    // Which git there is, is no matter of the folder.
    assert!(status.as_object_mut().unwrap().remove("git").is_some());
    status
}

fn hello(name: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params":
        { "channel": "ahp-root://", "clientId": name, "protocolVersions": ["1.0.0"] } })
}

#[test]
fn status_command_shows_where_the_host_listens() {
    let folder = tempfile::tempdir().unwrap();
    let (state, socket) = (folder.path().join("state"), folder.path().join("socket"));
    assert_eq!(status(&state), json!({ "running": false, "process": null, "listening": [] }));
    let address = format!("unix:{}", socket.display());
    let host = Host::on(&state, &["ws://127.0.0.1:0", &address]);
    let told = json!({ "running": true, "process": host.child.id(), "listening": host.urls });
    assert_eq!(status(&state), told);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&state.join("listening.json")), mode(&socket)), (0o600, 0o600));
    host.leave();
    assert_eq!(status(&state)["listening"], json!([]));
    assert!(!socket.exists() && !state.join("listening.json").exists(), "nothing is left behind");
    // One that is killed leaves them, and nobody is misled or kept from listening.
    drop(Host::on(&state, &[&address]));
    assert!(socket.exists());
    assert_eq!(status(&state)["running"], false);
    // One that does not listen is told of, too.
    let mut process = Process::spawn(sidecar_on(&state));
    process.say(r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{}}"#);
    process.next();
    assert_eq!(status(&state), json!({ "running": true, "process": process.child.id(), "listening": [] }));
    process.end();
    process.rest();
    process.wait();
    let host = Host::on(&state, &[&address]);
    assert_eq!(status(&state)["process"], host.child.id());
    // While one listens, another one cannot.
    let arguments = ["serve", "--ephemeral", "--listen", &address];
    assert_eq!(program().args(arguments).output().unwrap().status.code(), Some(1));
    assert!(UnixStream::connect(&socket).is_ok());
}

#[test]
fn unix_socket_carries_newline_delimited_messages() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let host = Host::listen(&[&format!("unix:{}", socket.display())], &[]);
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.set_read_timeout(Some(HUNG)).unwrap();
    writeln!(stream, "{}", hello("one")).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let answers: Vec<String> = BufReader::new(&stream).lines().map(Result::unwrap).collect();
    assert!(answers[0].contains(r#""id":1"#) && answers.len() == 1, "{answers:?}");
    drop(host);
}

#[test]
fn connect_command_joins_both_kinds_of_listener() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", folder.path().join("socket").display());
    let mut host = Host::listen(&["ws://127.0.0.1:0", &address], &[]);
    for url in host.urls.clone() {
        let mut command = program();
        let mut child =
            command.args(["connect", &url]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        writeln!(child.stdin.take().unwrap(), "{}", hello("pipe")).unwrap();
        let mut answer = String::new();
        child.stdout.take().unwrap().read_to_string(&mut answer).unwrap();
        assert!(answer.contains(r#""serverSeq""#) && answer.ends_with("}\n"), "{url}: {answer}");
        assert_eq!(child.wait().unwrap().code(), Some(0), "{url}");
    }
    let wrong = host.url().split('?').next().unwrap().to_owned();
    let output = program().args(["connect", &wrong]).stdin(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("token"));

    let mut joined: Vec<Process> = Vec::new();
    for url in &host.urls {
        let mut command = program();
        command.args(["connect", url]);
        let mut process = Process::spawn(command);
        process.say(&hello("pipe").to_string());
        assert!(process.next()["result"].is_object());
        joined.push(process);
    }
    host.child.kill().unwrap();
    for process in &mut joined {
        assert_eq!(process.wait().code(), Some(5), "the host is gone");
    }
}

#[test]
fn connect_command_reports_an_input_that_cannot_be_sent_after_the_answers() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", folder.path().join("socket").display());
    let host = Host::listen(&["ws://127.0.0.1:0", &address], &[]);
    for url in &host.urls {
        let mut command = program();
        // A folder can be opened and not read.
        let output = command.args(["connect", url]).stdin(fs::File::open("/").unwrap()).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && stderr.contains("Is a directory"), "{url}: {stderr}");
    }
    let input = folder.path().join("input");
    fs::write(&input, [hello("me").to_string().as_bytes(), b"\n\"\xff\"\n"].concat()).unwrap();
    let mut command = program();
    command.args(["connect", host.url()]).stdin(fs::File::open(&input).unwrap());
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && stderr.contains("UTF-8"), "{stderr}");
    assert!(String::from_utf8(output.stdout).unwrap().contains("serverSeq"), "its request is answered");
}

#[test]
fn listener_beside_pipes_serves_others_until_the_pipe_client_leaves() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let address = format!("unix:{}", socket.display());
    let mut process = Process::start(&["--listen", &address]);
    process.say(&hello("pipe").to_string());
    assert!(process.next()["result"].is_object());
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.set_read_timeout(Some(HUNG)).unwrap();
    writeln!(stream, "{}", hello("socket")).unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("serverSeq"));
    process.end();
    assert_eq!(process.wait().code(), Some(0));
    assert!(lines.next().is_none(), "the process was there for the pipes");
}
