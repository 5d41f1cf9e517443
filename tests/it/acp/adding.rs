//! `agents add`, `agents update` and `agents remove`, with a package manager of the tests.

use std::os::unix::fs::PermissionsExt;
use std::process::Output;

use super::*;

/// A folder with a configuration file, and programs on the search path: a package manager that
/// notes its arguments and installs the agent of the tests under the name `opencode`.
struct Adding(tempfile::TempDir);

impl Adding {
    fn new(config: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let it = Self(folder);
        fs::create_dir(it.path("bin")).unwrap();
        let agent = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/acp/agent.py");
        let program =
            format!("#!/bin/sh\necho \"$@\" >> {0}/ran\nexec python3 {1}\n", it.path(""), agent.display());
        it.write_program("agent", &program);
        let install =
            format!("echo \"$@\" >> {0}/installed\ncp {0}/bin/agent {0}/bin/opencode\n", it.path(""));
        it.write_program("npm", &format!("#!/bin/sh\n{install}"));
        if let Some(config) = config {
            fs::write(it.path("config.toml"), config).unwrap();
        }
        it
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn write_program(&self, name: &str, text: &str) {
        let path = self.path(&format!("bin/{name}"));
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Runs `agents` with these arguments; its status, and all that it printed.
    fn run(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let mut command = program();
        command.arg("agents").args(arguments).stdin(Stdio::null());
        if arguments.len() > 1 {
            command.args(["--config", &self.path("config.toml")]);
        }
        command.env("PATH", format!("{}:{}", self.path("bin"), std::env::var("PATH").unwrap()));
        let Output { status, stdout, stderr } = command.output().unwrap();
        let said = [stdout, stderr].map(|text| String::from_utf8(text).unwrap()).concat();
        (status.code(), said)
    }
}

const MINE: &str = "# mine\n[agents.a]\ncommand = \"a\" # kept\n";

#[test]
fn agents_of_the_list_are_printed_without_a_name() {
    let (status, said) = Adding::new(None).run(&["add"]);
    assert_eq!(status, Some(0), "{said}");
    for name in ["claude", "opencode", "@agentclientprotocol/codex-acp", "pi-acp"] {
        assert!(said.contains(name), "{said}");
    }
}

#[test]
fn added_agent_is_installed_configured_and_checked() {
    let adding = Adding::new(Some(MINE));
    let (status, said) = adding.run(&["add", "opencode", "--yes"]);
    assert_eq!(status, Some(0), "{said}");
    let plan = ["npm install --global opencode-ai@latest", "[agents.opencode]", "args = [\"acp\"]"];
    let places: Vec<usize> = plan.iter().map(|words| said.find(words).expect(words)).collect();
    assert!(places.is_sorted() && said.contains("login     not needed"), "{said}");
    assert_eq!(adding.read("installed"), "install --global opencode-ai@latest\n");
    let expected = format!("{MINE}\n[agents.opencode]\ncommand = \"opencode\"\nargs = [\"acp\"]\n");
    assert_eq!((adding.read("config.toml"), adding.read("ran").as_str()), (expected.clone(), "acp\n"));
    // Now the program is there.
    let (status, said) = adding.run(&["add", "opencode", "--as", "other", "--yes"]);
    assert_eq!((status, adding.read("installed").lines().count()), (Some(0), 1), "{said}");
    let (status, said) = adding.run(&["add", "opencode", "--yes"]);
    assert!(status == Some(2) && said.contains("choose another name with --as"), "{said}");
    let (status, said) = adding.run(&["update", "other", "--yes"]);
    assert_eq!((status, adding.read("installed").lines().count()), (Some(0), 2), "{said}");
    for name in ["other", "opencode"] {
        let (status, said) = adding.run(&["remove", name, "--yes"]);
        assert!(status == Some(0) && said.contains("npm uninstall --global opencode-ai"), "{said}");
    }
    assert_eq!(adding.read("config.toml").trim_end(), MINE.trim_end());
    let (status, said) = adding.run(&["remove", "opencode", "--yes"]);
    assert!(status == Some(2) && said.contains("no agent `opencode`"), "{said}");
}

#[test]
fn nothing_is_done_unless_somebody_agrees() {
    let adding = Adding::new(None);
    for arguments in [&["add", "opencode"][..], &["add", "opencode", "--no-install"]] {
        let (status, said) = adding.run(arguments);
        assert!(status == Some(2) && said.contains("nothing was done"), "{said}");
        assert!(said.contains("[agents.opencode]"), "the plan is printed: {said}");
    }
    assert_eq!((adding.read("installed"), adding.read("config.toml")), (String::new(), String::new()));
    let (status, said) = adding.run(&["add", "nothing"]);
    assert!(status == Some(2) && said.contains("there are: claude, opencode"), "{said}");
}

#[test]
fn failed_installation_changes_no_configuration() {
    let adding = Adding::new(Some(MINE));
    adding.write_program("npm", "#!/bin/sh\nexit 7\n");
    let (status, said) = adding.run(&["add", "opencode", "--yes"]);
    assert!(status == Some(2) && said.contains("the configuration was not changed"), "{said}");
    assert_eq!(adding.read("config.toml"), MINE);
}
