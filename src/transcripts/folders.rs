//! Folders of a transcript that is played.
//!
//! Owns: their creation and removal, the repository in one, and its configuration file.
//! Never: knows what a transcript says.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{ensure, Context};
use uuid::Uuid;

use crate::os::{paths, private};

/// Folders of a transcript that is played. Removed on drop.
#[derive(Debug)]
pub(super) struct PlayFolders {
    /// Folder that has all of them.
    pub(super) path: PathBuf,
}

impl PlayFolders {
    /// Creates the folder of all of them.
    pub(super) fn create() -> anyhow::Result<Self> {
        let temporary =
            paths::canonical(&std::env::temp_dir()).context("there is no folder for temporary files")?;
        let path = temporary.join(format!("ahp-sidecar-{}", Uuid::new_v4().simple()));
        private::create_folder(&path).with_context(|| format!("`{}` cannot be created", path.display()))?;
        Ok(Self { path })
    }

    /// Returns environment variables with which git ignores the user's configuration.
    pub(super) fn git_environment(&self) -> impl Iterator<Item = (&'static str, PathBuf)> {
        let home = self.path.join("home");
        let path = std::env::var_os("PATH").map(|path| ("PATH", path.into()));
        let variables: [(&str, PathBuf); 4] = [
            ("GIT_CONFIG_GLOBAL", home.join("gitconfig")),
            ("GIT_CONFIG_NOSYSTEM", "1".into()),
            ("XDG_CONFIG_HOME", home.clone()),
            ("HOME", home),
        ];
        variables.into_iter().chain(path)
    }

    /// Makes the folder of the transcript a repository in which a file is committed.
    pub(super) fn create_repository(&self) -> anyhow::Result<()> {
        let folder = self.path.join("folder");
        fs::write(folder.join("a"), "one\n")?;
        let commit = ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "x"];
        for arguments in [&["init", "-q", "-b", "main"][..], &["add", "a"], &commit] {
            self.run_git(&folder, arguments)?;
        }
        Ok(())
    }

    /// Returns the path of the configuration file.
    pub(super) fn configuration(&self) -> PathBuf {
        self.path.join("folder/config.toml")
    }

    /// Writes the configuration file.
    pub(super) fn configure(&self, text: &[u8]) -> anyhow::Result<()> {
        fs::write(self.configuration(), text).context("the configuration file cannot be written")
    }

    fn run_git(&self, folder: &Path, arguments: &[&str]) -> anyhow::Result<()> {
        let mut git = Command::new("git");
        git.args(arguments).current_dir(folder).envs(self.git_environment());
        for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
            git.env_remove(variable);
        }
        let output = git.output().context("`git` cannot be run")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "`git {}` has failed: {}", arguments.join(" "), said.trim_end());
        Ok(())
    }
}

impl Drop for PlayFolders {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(%error, "`{}` cannot be removed", self.path.display());
        }
    }
}
