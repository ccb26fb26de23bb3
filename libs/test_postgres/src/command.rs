//! Commands that must succeed.

use std::io::{Read, Seek};
use std::process::{Command, ExitStatus, Stdio};

/// How many bytes of a failed command's output are shown.
const SHOWN: usize = 8 << 10;

/// Exit status and output of a command.
pub(crate) struct Done {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a command to its end. Its output goes to files: a server started by `pg_ctl` would keep pipes open.
pub(crate) fn output(command: &mut Command) -> Done {
    let [mut out, mut err] = [(); 2].map(|()| camino_tempfile::tempfile().unwrap());
    command.stdout(out.try_clone().unwrap()).stderr(err.try_clone().unwrap());
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let [stdout, stderr] = [&mut out, &mut err].map(|file| {
        let mut bytes = vec![];
        file.rewind().unwrap();
        file.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    });
    Done { status, stdout, stderr }
}

/// Runs a command, which must succeed; returns its output.
///
/// # Panics
///
/// If it fails, with the end of its output.
pub fn run(command: &mut Command) -> String {
    let Done { status, stdout, stderr } = output(command);
    assert!(status.success(), "{command:?}: {status}\n{}\n{}", tail(&stdout), tail(&stderr));
    stdout
}

/// The end of a text.
pub(crate) fn tail(text: &str) -> &str {
    let from = text.len().saturating_sub(SHOWN);
    &text[text.ceil_char_boundary(from)..]
}

/// Runs `tar` on an archive; returns its output.
///
/// # Panics
///
/// If it fails.
pub fn tar(arguments: &[&str], archive: &[u8]) -> String {
    let file = camino_tempfile::NamedUtf8TempFile::new().unwrap();
    std::fs::write(file.path(), archive).unwrap();
    run(Command::new("tar").args(arguments).arg("-f").arg(file.path()).stdin(Stdio::null()))
}
