//! Man pages and shell completions, made from the definition of the command line.
//!
//! Owns: their file names. Never: is part of the program that ships.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

use ahp_sidecar::cli::Cli;
use clap::{Command, CommandFactory, ValueEnum};
use clap_complete::Shell;
use clap_mangen::Man;

fn main() -> io::Result<()> {
    let folder = PathBuf::from(env::args_os().nth(1).ok_or_else(|| io::Error::other("usage: pages FOLDER"))?);
    let (man, completions) = (folder.join("man/man1"), folder.join("completions"));
    fs::create_dir_all(&man)?;
    fs::create_dir_all(&completions)?;
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let source = format!("ahp-sidecar {}", command.get_version().unwrap_or_default());
    write_pages(command, &source, &man)?;
    for shell in Shell::value_variants() {
        let file = clap_complete::generate_to(*shell, &mut Cli::command(), "ahp-sidecar", &completions)?;
        if *shell == Shell::Bash {
            // clap_complete spells a hyphen of the program's name in two ways, so that nothing would follow a command.
            let script = fs::read_to_string(&file)?.replace("ahp__subcmd__sidecar", "ahp__sidecar");
            fs::write(file, script)?;
        }
    }
    Ok(())
}

/// Writes the man pages of a command and of those below it. Only the first one has a version to show.
fn write_pages(command: Command, source: &str, folder: &Path) -> io::Result<()> {
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        write_pages(inner.clone(), source, folder)?;
    }
    Man::new(command).source(source).generate_to(folder)?;
    Ok(())
}
