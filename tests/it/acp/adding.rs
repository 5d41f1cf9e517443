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
        write_program(Path::new(&self.path(&format!("bin/{name}"))), text);
    }

    /// Installs a package in the way of npm: the program is a link into the folder of the package.
    /// Returns the path of the program itself.
    fn install(&self, folder: &str, package: &str, program: &str) -> String {
        let place = format!("{folder}/node_modules/{package}/bin");
        fs::create_dir_all(self.path(&place)).unwrap();
        let main = format!("{place}/main");
        write_program(Path::new(&self.path(&main)), &self.read("bin/agent"));
        let link = self.path(&format!("bin/{program}"));
        fs::remove_file(&link).unwrap_or_default();
        std::os::unix::fs::symlink(format!("../{main}"), link).unwrap();
        self.path(&main)
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

#[test]
fn edit_during_the_installation_is_kept() {
    let adding = Adding::new(Some(MINE));
    let config = adding.path("config.toml");
    let install = format!(
        "#!/bin/sh\necho '[agents.late]' >> {config}\necho 'command = \"late\"' >> {config}\n\
         cp {0}/bin/agent {0}/bin/opencode\n",
        adding.path("")
    );
    adding.write_program("npm", &install);
    let (status, said) = adding.run(&["add", "opencode", "--yes"]);
    assert_eq!(status, Some(0), "{said}");
    let text = adding.read("config.toml");
    assert!(text.starts_with(MINE) && text.contains("[agents.late]\ncommand = \"late\"\n"), "{text}");
    assert!(text.ends_with("[agents.opencode]\ncommand = \"opencode\"\nargs = [\"acp\"]\n"), "{text}");
}

#[test]
fn link_is_followed_also_where_its_target_does_not_exist_yet() {
    let adding = Adding::new(None);
    fs::create_dir(adding.path("kept")).unwrap();
    std::os::unix::fs::symlink("kept/real.toml", adding.path("config.toml")).unwrap();
    let (status, said) = adding.run(&["add", "opencode", "--no-install", "--yes"]);
    // The program is not there.
    assert_eq!(status, Some(1), "{said}");
    assert!(adding.read("kept/real.toml").contains("[agents.opencode]"), "{said}");
    assert!(Path::new(&adding.path("config.toml")).is_symlink());
    let (status, said) = adding.run(&["remove", "opencode", "--yes"]);
    assert_eq!((status, adding.read("kept/real.toml").trim()), (Some(0), ""), "{said}");
    assert!(Path::new(&adding.path("config.toml")).is_symlink());
}

#[test]
fn read_only_file_is_refused_before_anything_is_installed() {
    let adding = Adding::new(Some(MINE));
    fs::set_permissions(adding.path("config.toml"), fs::Permissions::from_mode(0o444)).unwrap();
    for arguments in [&["add", "opencode", "--yes"][..], &["remove", "a", "--yes"]] {
        let (status, said) = adding.run(arguments);
        assert!(status == Some(2) && said.contains("it is read-only"), "{said}");
    }
    assert_eq!((adding.read("config.toml").as_str(), adding.read("installed").as_str()), (MINE, ""));
}

#[test]
fn changed_file_keeps_its_mode_and_owner() {
    use std::os::unix::fs::MetadataExt;
    let adding = Adding::new(Some(MINE));
    let config = adding.path("config.toml");
    fs::set_permissions(&config, fs::Permissions::from_mode(0o640)).unwrap();
    // Only the superuser can give files away.
    let owner = if std::os::unix::fs::chown(&config, Some(1234), Some(1235)).is_ok() {
        1234
    } else {
        fs::metadata(&config).unwrap().uid()
    };
    adding.run(&["add", "opencode", "--yes"]);
    let known = fs::metadata(&config).unwrap();
    assert!(adding.read("config.toml").contains("[agents.opencode]"));
    assert_eq!((known.uid(), known.mode() & 0o777), (owner, 0o640));
}

#[test]
fn name_that_no_agent_can_have_is_refused_with_the_names_that_are_possible() {
    let adding = Adding::new(None);
    for name in ["no name", "1st", "x]", ""] {
        let (status, said) = adding.run(&["add", "opencode", "--as", name, "--yes"]);
        assert_eq!(status, Some(2), "{said}");
        let why = format!(
            "--as: the name `{name}` must be a letter, followed by letters, digits, `-`, `_` and `.`"
        );
        assert!(said.contains(&why), "{said}");
    }
    let (status, said) = adding.run(&["add", "opencode", "--as", "script", "--yes"]);
    assert!(status == Some(2) && said.contains("--as: the name `script` is reserved"), "{said}");
    assert_eq!((adding.read("installed"), adding.read("config.toml")), (String::new(), String::new()));
}

#[test]
fn package_of_a_shared_command_is_the_one_that_is_installed_or_configured() {
    let adding = Adding::new(Some(
        "[agents.one]\ncommand = 'codex-acp'\nenv = { INITIAL_AGENT_MODE = 'read-only' }\n\
         [agents.two]\ncommand = 'codex-acp'\n",
    ));
    let installed = |name: &str| {
        fs::write(adding.path("installed"), "").unwrap();
        let (status, said) = adding.run(&["update", name, "--yes"]);
        assert_ne!(status, Some(2), "{said}");
        adding.read("installed")
    };
    let (of_zed, other) = (
        "install --global @zed-industries/codex-acp@latest\n",
        "install --global @agentclientprotocol/codex-acp@latest\n",
    );
    assert_eq!((installed("one").as_str(), installed("two").as_str()), (other, of_zed));
    for (package, line) in [("@zed-industries/codex-acp", of_zed), ("@agentclientprotocol/codex-acp", other)]
    {
        adding.install("lib", package, "codex-acp");
        assert_eq!((installed("one").as_str(), installed("two").as_str()), (line, line));
    }
    // The program of the other package does not count as installed.
    let (_, said) = adding.run(&["add", "zed-codex"]);
    assert!(said.contains("npm install --global @zed-industries/codex-acp@latest"), "{said}");
    let (_, said) = adding.run(&["add", "codex"]);
    assert!(said.contains("`codex-acp` is installed"), "{said}");
}

#[test]
fn agent_is_updated_by_the_package_manager_that_has_installed_it() {
    let adding = Adding::new(Some("[agents.opencode]\ncommand = 'opencode'\nargs = ['acp']\n"));
    let update = |manager: &str, folder: &str, installs: &str| {
        let real = adding.install(folder, "opencode-ai", "opencode");
        for other in ["npm", "pnpm", "bun"] {
            adding.write_program(other, "#!/bin/sh\necho wrong >> \"$0\"\n");
        }
        let installs = installs.replace("REAL", &real).replace("AGENT", &adding.path("bin/agent"));
        adding.write_program(
            manager,
            &format!("#!/bin/sh\necho {manager} \"$@\" > {}\n{installs}\n", adding.path("installed")),
        );
        let (status, said) = adding.run(&["update", "opencode", "--yes"]);
        assert_eq!(status, Some(0), "{said}");
        (adding.read("installed"), said)
    };
    let renewed = "rm REAL; cp AGENT REAL.new; mv REAL.new REAL; echo '#' >> REAL";
    for (manager, folder, words) in [
        ("npm", "lib", "npm install --global"),
        ("npm", "pnpm/nodejs/20/lib", "npm install --global"),
        ("bun", ".bun/install/global", "bun add --global"),
        ("pnpm", "pnpm/global/5/.pnpm/opencode-ai@1", "pnpm add --global"),
    ] {
        let (installed, said) = update(manager, folder, renewed);
        assert_eq!(installed, format!("{words} opencode-ai@latest\n"), "{said}");
        assert!(!said.contains("is unchanged"), "{said}");
    }
    let (_, said) = update("bun", ".bun/install/global", "true");
    assert!(said.contains("bin/opencode` is unchanged: it is the newest version, or `bun`"), "{said}");
    fs::remove_file(adding.path("bin/bun")).unwrap();
    let (status, said) = adding.run(&["update", "opencode", "--yes"]);
    assert!(status == Some(2) && said.contains("`bun`, which is not on the search path"), "{said}");
    let (status, said) = adding.run(&["remove", "opencode", "--yes"]);
    assert!(status == Some(0) && said.contains("bun remove --global opencode-ai"), "{said}");
}

#[test]
fn error_in_the_file_has_its_place_and_no_value() {
    let adding = Adding::new(Some("[agents.a]\ncommand = \"a\"\nenv = { KEY = s3cret }\n"));
    for arguments in [&["add", "opencode", "--yes"][..], &["remove", "a", "--yes"], &["update", "a", "--yes"]]
    {
        let (status, said) = adding.run(arguments);
        assert!(
            status == Some(2) && said.contains("line 3, column 15: ") && !said.contains("s3cret"),
            "{said}"
        );
    }
}
