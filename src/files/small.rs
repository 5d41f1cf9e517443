//! Small files that the user names: a configuration, a token.
//!
//! Owns: reading one in bounded time and memory, whatever its type.
//! Never: waits for a writer to open a pipe.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::os::pipes::{is_pipe, wait_readable};
use crate::os::walk;

/// Maximum size of a file, in bytes.
const BYTES_MAX: usize = 1 << 20;

/// Timeout for the end of a pipe.
const WITHIN: Duration = Duration::from_secs(2);

/// Opens a file without blocking.
///
/// # Errors
/// When it cannot be opened.
pub fn open(path: &Path) -> io::Result<File> {
    walk::open_nonblocking(path, true)
}

/// Reads the text of a file that [`open`] has opened, perhaps a pipe of `<(command)`.
///
/// # Errors
/// When it cannot be read, is larger than 1 MiB or not UTF-8, or is a pipe without a writer or
/// without an end within 2 seconds.
pub fn read(mut file: File) -> io::Result<String> {
    let (until, is_pipe) = (Instant::now() + WITHIN, is_pipe(&file)?);
    let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
    loop {
        match file.read(&mut part) {
            Ok(0) if is_pipe && bytes.is_empty() => {
                return Err(io::Error::other("it is a pipe, and nobody has written anything to it"));
            }
            Ok(0) => break,
            Ok(count) => bytes.extend_from_slice(&part[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let left = until.saturating_duration_since(Instant::now());
                let is_late =
                    io::Error::new(ErrorKind::TimedOut, format!("it did not end within {WITHIN:?}"));
                if left.is_zero() {
                    return Err(is_late);
                }
                wait_readable(&file, left)?;
            }
            Err(error) => return Err(error),
        }
        if bytes.len() > BYTES_MAX {
            return Err(io::Error::new(
                ErrorKind::FileTooLarge,
                format!("it is larger than {} KiB", BYTES_MAX >> 10),
            ));
        }
    }
    String::from_utf8(bytes).map_err(|_| io::Error::new(ErrorKind::InvalidData, "it is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::Command;
    use std::thread;

    use super::*;

    fn text_of(path: &Path) -> Result<String, String> {
        open(path).and_then(read).map_err(|error| error.to_string())
    }

    #[test]
    fn pipe_is_read_to_its_end_and_waited_for_no_longer() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(text_of(&pipe).unwrap_err().contains("nobody has written anything"));
        let reading = open(&pipe).unwrap();
        let mut writer = File::options().write(true).open(&pipe).unwrap();
        writer.write_all(b"half").unwrap();
        let reader = thread::spawn(move || read(reading));
        writer.write_all(b" and half").unwrap();
        drop(writer);
        assert_eq!(reader.join().unwrap().unwrap(), "half and half");
        let (reading, _writer) = (open(&pipe).unwrap(), File::options().write(true).open(&pipe).unwrap());
        assert!(read(reading).unwrap_err().to_string().contains("it did not end within"));
    }

    #[test]
    fn file_without_an_end_or_without_text_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(text_of(Path::new("/dev/null")).unwrap(), "");
        assert_eq!(text_of(Path::new("/dev/zero")).unwrap_err(), "it is larger than 1024 KiB");
        assert!(text_of(folder.path()).is_err());
        let file = folder.path().join("file");
        std::fs::write(&file, b"\xff").unwrap();
        assert_eq!(text_of(&file).unwrap_err(), "it is not UTF-8");
    }
}
