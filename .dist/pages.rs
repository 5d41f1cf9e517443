//! Man pages and shell completions, made from the definition of the command line.
//!
//! Owns: their file names. Never: is part of the program that ships.

use std::path::PathBuf;
use std::{env, fs, io};

use ahp_sidecar::cli::Cli;
use clap::{CommandFactory, ValueEnum};
use clap_complete::Shell;

fn main() -> io::Result<()> {
    let folder = PathBuf::from(env::args_os().nth(1).ok_or_else(|| io::Error::other("usage: pages FOLDER"))?);
    let (man, completions) = (folder.join("man/man1"), folder.join("completions"));
    fs::create_dir_all(&man)?;
    fs::create_dir_all(&completions)?;
    clap_mangen::generate_to(Cli::command(), man)?;
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
