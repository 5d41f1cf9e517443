//! Shells that tell their commands beside the same shells that do not: nobody in them sees a
//! difference.
//!
//! Owns: a table of what users have in their files and type, played in a terminal of a host whose
//! shells are told nothing, and in one whose shells read the scripts of ours: all that is shown,
//! and the file `side` in which hooks and traps write, are equal.
//! Never: says what a shell does by itself.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::json;

use super::terminal::{installed, Shell, PROMPT};
use crate::support::{sidecar, sidecar_on, skipped};

/// A user's file, and lines that are typed one after the other.
type SetUp<'a> = (&'a str, &'a [&'a str]);

/// The word that stands for the line in a list of what is told, where the line itself is not.
const UNTOLD: &str = "";

const BASH: &[SetUp<'_>] = &[
    // Traps and traces, set by the user's file and at the prompt.
    ("", &["trap 'echo dbg:$BASH_COMMAND' DEBUG", "echo a; false", "(exit 3)", "trap - DEBUG"]),
    ("trap 'echo dbg:$BASH_COMMAND >> ~/side' DEBUG", &["echo a; false", "(exit 3)"]),
    ("", &["set -T; trap 'echo dbg:$BASH_COMMAND' DEBUG", "echo a", "(echo b)", "set +T", "echo c"]),
    ("", &["trap 'echo returned' RETURN; f() { echo f; }", "f", "set -T; f", "echo a"]),
    ("", &["trap 'echo failed:$BASH_COMMAND' ERR", "false", "true", "(exit 3)", "set -E; false"]),
    ("trap 'echo failed:$BASH_COMMAND >> ~/side' ERR", &["false", "(exit 3)"]),
    ("trap 'echo exits >> ~/side' EXIT", &["echo a", "(echo b)"]),
    ("", &["set -x", "echo a >/dev/null", "f() { echo f; }; f", "set +x"]),
    ("set -x", &["echo a", "set +x"]),
    ("", &["exec 19> ~/side; BASH_XTRACEFD=19; set -x", "echo a", "set +x"]),
    ("exec 19> ~/side; BASH_XTRACEFD=19; set -x", &["echo a", "set +x"]),
    ("", &["set -v", "echo a", "for i in 1 2; do echo $i; done", "set +v"]),
    ("set -v", &["echo a", "set +v"]),
    // Programs that have themselves called before each line and behind it.
    ("armed=; before() { [[ $armed ]] && echo \"before $BASH_COMMAND\" >> ~/side; armed=; }\n\
      trap before DEBUG; PROMPT_COMMAND='armed=; echo after $? >> ~/side; armed=1'", &["echo a", "false", "echo b; echo c"]),
    ("before() { [[ $armed ]] && echo \"before $BASH_COMMAND\" >> ~/side; armed=; }\n\
      install() { trap before DEBUG; PROMPT_COMMAND=('armed=; echo after $? >> ~/side' 'armed=1'); armed=1; }\n\
      PROMPT_COMMAND=install", &["echo a", "false", "echo b | cat"]),
    ("PROMPT_COMMAND='PS1=\"$? <mi\"\"ne> \"'", &["false", "echo a", "(exit 3)", "echo b"]),
    ("PROMPT_COMMAND='PS1=\"$? <mi\"\"ne> \"'; trap 'echo dbg:$BASH_COMMAND >> ~/side' DEBUG", &["false", "echo a", "echo b"]),
    ("PROMPT_COMMAND='PS1=\"$? <mi\"\"ne> \"'", &["trap 'echo dbg:$BASH_COMMAND >> ~/side' DEBUG", "false", "set -T", "echo b"]),
    ("PROMPT_COMMAND=('echo one $?' 'echo two $? $_')", &["false", "PROMPT_COMMAND=()", "false", "unset PROMPT_COMMAND", "echo a"]),
    ("PROMPT_COMMAND='history -a; echo ${PIPESTATUS[@]}'", &["false | true", "true | false | true"]),
    ("PROMPT_COMMAND='echo asked'; PS0='begins '", &["echo a", "PS0=", "echo b", "unset PS0", "echo c"]),
    // What may not be assigned.
    ("readonly PROMPT_COMMAND", &["echo a", "PS1='<mi''ne> '", "echo b", "false"]),
    ("readonly PS0", &["echo a", "echo b"]),
    ("readonly PS1", &["echo a", "false"]),
    ("readonly PS0='begins ' PS1 PROMPT_COMMAND='echo asked'", &["echo a", "false"]),
    ("", &["readonly PS0 PS1 PROMPT_COMMAND HISTTIMEFORMAT", "echo a", "false"]),
    ("readonly HISTTIMEFORMAT='%s '", &["echo a", "false"]),
    ("shopt -u promptvars", &["echo a", "shopt -s promptvars", "echo b"]),
    ("", &["shopt -u promptvars", "echo a", "shopt -s promptvars", "echo b"]),
    // Functions and aliases of any name.
    ("", &["for f in builtin printf history unset readonly set shopt exit trap local; do eval \"function $f { echo ours; }\"; done",
        "echo a", "PS1='<mi''ne> '", "echo b"]),
    ("for f in builtin printf history unset readonly set shopt trap local echo; do eval \"function $f { command echo ours; }\"; done",
        &["command echo a", "false"]),
    ("alias builtin='echo ours' printf='echo ours' unset='echo ours' history='echo ours' exit='echo ours'",
        &["command echo a", "false", "PS1='<mi''ne> '", "command echo b"]),
    // What a line leaves to the next.
    ("", &["false", "echo $? \"$_\"", "echo a b c", "echo \"$_\"", "false | true | (exit 3)", "echo ${PIPESTATUS[@]}", "echo \"$BASH_COMMAND\""]),
    ("false", &["echo $?"]),
    ("", &["sleep 1000 &", "jobs | sed 's/[0-9][0-9]*//g'", "kill %1; wait 2> /dev/null", "jobs"]),
    ("", &["echo $-; shopt -p; shopt -po", "echo ${!BASH*} ${!PROMPT*}", "trap -p; alias; complete -p | wc -l"]),
    ("", &["env | sort | grep -v -e ^AHP -e ^SHLVL -e ^PS1", "echo $SHLVL", "set -a; env | grep -c ahp"]),
    ("set -a", &["env | grep -c -e PS0 -e ahp", "echo a"]),
    ("exec 7< /dev/null", &["ls /proc/$$/fd", "ls /proc/$$/fd"]),
    ("", &["exec 3>&1 > ~/side", "echo a", "exec >&3 3>&-", "echo b"]),
    // What is shown where descriptor 2 goes, which may be a file.
    ("", &["exec 2> ~/err; echo a; exec 2> /dev/tty", "false"]),
    // A prompt that is exported later, and shells that inherit it.
    ("", &["export PS1", "sh", "false", "exit", "echo st=$?"]),
    ("", &["PS1=\"(venv) $PS1\"; export PS1", "bash --norc", "false", "exit 3", "false"]),
    ("set -T; trap 'echo dbg' DEBUG", &["echo a", "(echo b)"]),
    ("alias {='echo ours'", &["echo a", "false"]),
    ("declare -u PS1", &["echo a"]),
    ("declare -i PS0", &["echo a"]),
    ("", &["trap 'echo ended' CHLD", "echo a", "echo b"]),
    // Such a trap sees processes of the start, and nothing from then on.
    ("ended() { echo ended >> ~/side; }; trap ended CHLD", &["echo > ~/side; echo a", "/bin/true", "echo b"]),
    ("", &["true | (exit 3)", "echo $? ${PIPESTATUS[@]}", "PS1='$? <mi''ne> '", "false"]),
    // Programs of others, where they are installed.
    ("command -v direnv > /dev/null && { mkdir ~/p; echo 'export INNER=5' > ~/p/.envrc; direnv allow ~/p; eval \"$(direnv hook bash)\"; }",
        &["cd ~/p 2> /dev/null", "echo $INNER", "cd ~", "echo [$INNER]"]),
    // Options.
    ("set -u", &["echo a", "false", "unset PS0; echo b"]),
    ("set -o posix", &["echo a", "false", "set +o posix", "echo b"]),
    ("set -o vi", &["echo a", "false"]),
    ("set -C; IFS=0123456789; shopt -s nullglob failglob extglob", &["echo a", "false", "echo $?"]),
    ("shopt -s extdebug", &["echo a", "f() { echo f; }; f"]),
    ("set +o histexpand; set -f", &["echo a!", "echo *"]),
    ("shopt -s expand_aliases autocd; alias a='echo aliased'", &["a", "/tmp", "cd -"]),
    // The history.
    ("", &["echo a", "echo a", " echo b", "history", "history | wc -l", "fc -l -2", "echo !!"]),
    ("HISTCONTROL=ignoreboth; HISTIGNORE='ls*'", &["echo a", "echo a", " echo b", "ls -d /", "history"]),
    ("HISTTIMEFORMAT='%Y '", &["echo a", "history | wc -l", "history -c", "echo b", "history | wc -l"]),
    ("HISTSIZE=3", &["echo a", "echo b", "echo c", "history"]),
    ("shopt -u cmdhist", &["for i in 1 2; do\recho $i\rdone", "cat <<E\rtext\rE", "history"]),
    ("set +o history", &["echo a", "set -o history", "echo b", "history"]),
    ("[ -n \"$DIRENV\" ] && return; DIRENV=1", &["echo $DIRENV", "echo ${BASH_SOURCE[@]}"]),
];

const ZSH: &[SetUp<'_>] = &[
    ("", &["trap 'echo dbg' DEBUG", "echo a; false", "echo b"]),
    ("trap 'echo dbg >> ~/side' DEBUG", &["echo a; false", "echo b"]),
    ("TRAPDEBUG() { echo dbg >> ~/side }", &["echo a; false", "echo b"]),
    ("TRAPZERR() { echo failed }", &["true", "false", "(exit 3)"]),
    ("trap 'echo failed' ZERR", &["true", "false", "(exit 3)"]),
    ("trap 'echo exits >> ~/side' EXIT", &["echo a"]),
    ("", &["set -x", "echo a >/dev/null", "f() { echo f }; f", "set +x"]),
    ("set -x", &["echo a", "set +x"]),
    ("", &["set -v", "echo a", "set +v"]),
    ("", &["for f in print emulate printf typeset local; do functions[$f]='echo ours'; done", "echo a", "functions[builtin]='echo ours'", "echo b"]),
    ("precmd() { echo after $? >> ~/side }; preexec() { echo before $1 >> ~/side }", &["false", "echo a", "(exit 3)"]),
    ("autoload -Uz add-zsh-hook; a() { echo after $? >> ~/side }; b() { echo before $1 >> ~/side }\n\
      add-zsh-hook precmd a; add-zsh-hook preexec b", &["false", "echo a", "precmd_functions=()", "echo b"]),
    ("precmd() { PS1=\"$? <mi\"\"ne> \" }", &["false", "echo a", "(exit 3)"]),
    ("typeset -ra precmd_functions=() preexec_functions=()", &["echo a", "false"]),
    ("setopt prompt_subst; PS1='$(echo $?)<mi''ne> '", &["false", "echo a"]),
    ("setopt hist_ignore_space", &["echo a", " echo b", "echo c", "fc -l | wc -l"]),
    ("", &["false", "echo $? $_", "echo a b c", "echo $_", "false | true", "echo $pipestatus"]),
    ("", &["setopt", "env | sort | grep -v -e ^AHP -e ^SHLVL -e ^_= -e ^PS1", "echo ${ZDOTDIR-none}"]),
    ("setopt err_return no_unset ksh_arrays sh_word_split glob_subst", &["echo a", "false", "echo b"]),
    ("for f in /usr/share/zsh-autosuggestions/*.zsh /usr/share/zsh-syntax-highlighting/*.zsh; do [[ -r $f ]] && source $f; done",
        &["echo a", "false", "echo $?"]),
    ("", &["unalias -m '*'; alias print='echo ours' builtin='echo ours'", "echo a"]),
];

const FISH: &[SetUp<'_>] = &[
    ("", &["false", "echo $status", "false | true", "echo $pipestatus"]),
    ("", &["set -g fish_trace 1", "echo a", "set -e fish_trace", "echo b"]),
    ("function printf; echo ours; end; function math; echo ours; end", &["echo a", "false"]),
    (
        "function b --on-event fish_preexec; echo before $argv >> ~/side; end\n\
      function a --on-event fish_postexec; echo after $status >> ~/side; end\n\
      function p --on-event fish_prompt; echo prompts $status >> ~/side; end",
        &["false", "echo a", " echo b"],
    ),
    ("", &["echo a", " echo b", "history | cat"]),
    ("", &["env | sort | grep -v -e ^AHP -e ^SHLVL -e ^PS1", "set -gx X 1; echo $X"]),
    ("function fish_prompt; echo -n \"$status <mi\"\"ne> \"; end", &["false", "echo a"]),
];

/// Programs of others that hook into a shell, in a folder that `TEST_SHELL_PROGRAMS` names, as
/// `DIR`: the shell, a file of the folder without which the row is left out, and the set-up.
const OF_OTHERS: &[(&str, &str, SetUp<'_>)] = &[
    ("bash", "bash-preexec/bash-preexec.sh", ("source DIR/bash-preexec/bash-preexec.sh\n\
        preexec() { echo \"before $1\" >> ~/side; }; precmd() { echo \"after $?\" >> ~/side; }",
        &["echo a", "false", "echo b | cat", "(exit 3)", " echo c", "trap 'echo dbg >> ~/side' DEBUG", "echo d"])),
    ("bash", "bash-preexec/bash-preexec.sh", ("PROMPT_COMMAND='echo asked >> ~/side'; trap 'echo dbg >> ~/side' DEBUG\n\
        source DIR/bash-preexec/bash-preexec.sh\n\
        preexec_functions+=(one); one() { echo \"one $1\" >> ~/side; }; precmd_functions+=(two); two() { echo \"two $? $_\" >> ~/side; }",
        &["echo a", "false", "for i in 1 2; do echo $i; done"])),
    ("bash", "bin/starship", ("export STARSHIP_CONFIG=~/s.toml; printf 'add_newline = false\\nformat = \"$status<mi%s> \"\\n[status]\\ndisabled = false\\n' ne > ~/s.toml\n\
        eval \"$(DIR/bin/starship init bash)\"", &["echo a", "false", "(exit 3)", "echo b | cat"])),
    ("zsh", "bin/starship", ("export STARSHIP_CONFIG=~/s.toml; printf 'add_newline = false\\nformat = \"$status<mi%s> \"\\n[status]\\ndisabled = false\\n' ne > ~/s.toml\n\
        eval \"$(DIR/bin/starship init zsh)\"", &["echo a", "false", "(exit 3)", "echo b | cat"])),
    ("fish", "bin/starship", ("set -gx STARSHIP_CONFIG ~/s.toml; printf 'add_newline = false\\nformat = \"$status<mi%s> \"\\n[status]\\ndisabled = false\\n' ne > ~/s.toml\n\
        DIR/bin/starship init fish | source", &["echo a", "false"])),
    ("bash", "bin/atuin", ("source DIR/bash-preexec/bash-preexec.sh; export PATH=DIR/bin:$PATH; eval \"$(atuin init bash --disable-up-arrow --disable-ctrl-r)\"",
        &["echo a", "false", "echo b", "atuin history list --format '{exit} {command}'"])),
    ("zsh", "bin/atuin", ("export PATH=DIR/bin:$PATH; eval \"$(atuin init zsh --disable-up-arrow --disable-ctrl-r)\"",
        &["echo a", "false", "echo b", "atuin history list --format '{exit} {command}'"])),
    ("zsh", "ohmyzsh/oh-my-zsh.sh", ("ZSH=DIR/ohmyzsh ZSH_THEME= DISABLE_AUTO_UPDATE=true plugins=(git command-not-found sudo)\n\
        source $ZSH/oh-my-zsh.sh; unsetopt zle prompt_sp; PS1='<mi''ne> '", &["echo a", "false", "gst", "take ~/d", "(exit 3)"])),
    ("zsh", "ohmyzsh/oh-my-zsh.sh", ("ZSH=DIR/ohmyzsh ZSH_THEME=robbyrussell DISABLE_AUTO_UPDATE=true plugins=(git)\n\
        source $ZSH/oh-my-zsh.sh; unsetopt zle prompt_sp; PS1=\"$PS1%{%}<mi\"\"ne> \"", &["echo a", "false", "(exit 3)"])),
    ("fish", "oh-my-fish/init.fish", ("set -gx OMF_PATH DIR/oh-my-fish; source $OMF_PATH/init.fish\n\
        function fish_prompt; echo -n \"$status <mi\"\"ne> \"; end", &["echo a", "false"])),
    ("fish", "tide/conf.d/_tide_init.fish", ("set -p fish_function_path DIR/tide/functions DIR/tide/functions/tide; source DIR/tide/conf.d/_tide_init.fish 2> /dev/null\n\
        function fish_prompt; echo -n \"$status <mi\"\"ne> \"; end", &["echo a", "false"])),
    ("fish", "fisher/functions/fisher.fish", ("source DIR/fisher/functions/fisher.fish", &["fisher --version", "echo a", "false"])),
];

/// The lines that a user types, told or not, with what they leave behind.
#[derive(Debug, PartialEq, Eq)]
struct Played {
    shown: String,
    side: String,
    told: usize,
}

/// Two hosts with one home: one whose shells are told nothing, one whose shells read the scripts.
struct Pair {
    home: tempfile::TempDir,
    _folder: tempfile::TempDir,
    hosts: [Shell; 2],
}

impl Pair {
    fn start(path: &Path) -> Self {
        let (home, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let cookie = || uuid::Uuid::new_v4().to_string();
        let hosts = [sidecar(), sidecar_on(folder.path())];
        let hosts = hosts.map(|host| {
            let mut shell = Shell::start_by(host, &cookie(), path, home.path());
            shell.meet();
            shell
        });
        Self { home, _folder: folder, hosts }
    }

    /// Plays a set-up with one of the hosts, in a home that is as before.
    fn play(&mut self, host: usize, name: &str, (rc, lines): SetUp<'_>) -> Played {
        let home = self.home.path();
        fs::remove_dir_all(home).unwrap();
        fs::create_dir_all(home.join(".config/fish")).unwrap();
        let first = match name {
            "bash" => format!("declare +x PS1; PS1='{PROMPT}'\n{rc}\n"),
            "zsh" => format!("PS1='{PROMPT}'; unsetopt zle prompt_sp\n{rc}\n"),
            _ => format!(
                "function fish_prompt; echo -n '{PROMPT}'; end\nfunction fish_greeting; end\nfunction fish_title; end\nset -g fish_autosuggestion_enabled 0\n{rc}\n"
            ),
        };
        for file in [".bashrc", ".zshrc", ".config/fish/config.fish"] {
            fs::write(home.join(file), &first).unwrap();
        }
        let shell = &mut self.hosts[host];
        let cwd = format!("file://{}", home.display());
        shell.follow_new("agenthost-terminal:///pair", json!({ "cwd": cwd, "cols": 200, "rows": 50 }));
        shell.until_prompted();
        for line in lines {
            shell.enter(line);
            shell.until_prompted();
        }
        // Whatever functions there are.
        shell.input("\x04");
        shell.until_exited();
        shell.dispose();
        let told = shell.told.iter().filter(|told| told["type"] == "terminal/commandExecuted");
        let told = told.filter(|told| told["commandLine"] != UNTOLD).count();
        let side = fs::read_to_string(home.join("side")).unwrap_or_default();
        let shown = if name == "fish" { plain(&shell.shown) } else { shell.shown.clone() };
        // No terminal shows these two, which bash takes for `\[` and `\]` and another shell prints.
        let shown = shown.replace(['\u{1}', '\u{2}'], "");
        // Numbers of processes are never the same.
        let digits = shown.split(|char: char| char.is_ascii_digit()).filter(|piece| !piece.is_empty());
        Played { shown: digits.collect::<Vec<_>>().join("#"), side, told }
    }

    /// Plays all of them with both; says which of them differ.
    fn compare(&mut self, name: &str, table: &[SetUp<'_>]) {
        let (mut differ, mut tell) = (String::new(), 0);
        for set_up in table {
            let plain = self.play(0, name, *set_up);
            let ours = self.play(1, name, *set_up);
            assert_eq!(plain.told, 0, "a plain shell tells nothing");
            if (&plain.shown, &plain.side) != (&ours.shown, &ours.side) {
                writeln!(differ, "{set_up:?}\n  plain: {plain:?}\n  ours:  {ours:?}").unwrap();
            }
            tell += usize::from(ours.told > 0);
        }
        assert!(differ.is_empty(), "{differ}");
        assert!(tell * 4 >= table.len() * 3, "{tell} of {} tell a line", table.len());
    }
}

/// Text without the sequences that draw it, which fish cuts otherwise each time, and without
/// blanks.
fn plain(shown: &str) -> String {
    let mut chars = shown.chars();
    let mut plain = String::new();
    while let Some(char) = chars.next() {
        if char != '\x1b' {
            plain.extend(Some(char).filter(|char| !char.is_whitespace()));
            continue;
        }
        match chars.next() {
            Some('[') => while chars.next().is_some_and(|char| !('@'..='~').contains(&char)) {},
            Some('(') => drop(chars.next()),
            _ => {}
        }
    }
    plain
}

#[test]
fn bash_with_integration_behaves_as_without() {
    let Some(bash) = installed("bash") else { return };
    Pair::start(bash).compare("bash", BASH);
}

#[test]
fn zsh_with_integration_behaves_as_without() {
    let Some(zsh) = installed("zsh") else { return };
    Pair::start(zsh).compare("zsh", ZSH);
}

#[test]
fn fish_with_integration_behaves_as_without() {
    let Some(fish) = installed("fish") else { return };
    Pair::start(fish).compare("fish", FISH);
}

#[test]
fn shell_with_third_party_hooks_behaves_as_without_integration() {
    let Ok(folder) = std::env::var("TEST_SHELL_PROGRAMS") else {
        return skipped("a program that hooks into a shell (`TEST_SHELL_PROGRAMS` names no folder of them)");
    };
    for name in ["bash", "zsh", "fish"] {
        let Some(path) = installed(name) else { continue };
        let rows = OF_OTHERS
            .iter()
            .filter(|(shell, file, _)| *shell == name && Path::new(&folder).join(file).exists());
        let rows: Vec<(String, &[&str])> =
            rows.map(|(_, _, (rc, lines))| (rc.replace("DIR", &folder), *lines)).collect();
        let table: Vec<SetUp<'_>> = rows.iter().map(|(rc, lines)| (&**rc, *lines)).collect();
        Pair::start(path).compare(name, &table);
    }
}
