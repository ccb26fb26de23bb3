//! The programs of a stock Postgres.

use std::process::{Command, Stdio};

use camino::{Utf8Path, Utf8PathBuf};
use postgres_formats::version::PgVersion;
use test_needs::Missing;

use crate::command::run;

/// The user that runs servers if we are root, because servers refuse to run as root.
pub(crate) const USER: &str = "postgres";

/// The programs of one version.
#[derive(Clone, Debug)]
pub struct Postgres {
    bin: Utf8PathBuf,
    version: PgVersion,
}

impl Postgres {
    /// The programs that tests run: from the directory that `PG_BIN` names, or Debian's of version 15.
    pub fn find() -> Result<Self, Missing> {
        let bin = Utf8PathBuf::try_from(test_needs::postgres()?).unwrap();
        let told = run(Command::new(bin.join("postgres")).arg("--version"));
        let digits = |c: char| !c.is_ascii_digit();
        let major = told.split(digits).find(|word| !word.is_empty()).and_then(|word| word.parse().ok());
        let version = major.and_then(PgVersion::from_major);
        let version = version.ok_or_else(|| Missing::new(format!("a Postgres that is known, not {}", told.trim())))?;
        Ok(Self { bin, version })
    }

    /// Their major version.
    pub fn version(&self) -> PgVersion {
        self.version
    }

    /// A program, run as a user that servers accept, with the C locale.
    pub fn command(&self, program: &str) -> Command {
        let program = self.program(program);
        let mut command = if is_root() {
            let mut command = Command::new("runuser");
            command.args(["-u", USER, "--"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        // A directory that this user may access.
        command.current_dir("/").env("LC_ALL", "C").stdin(Stdio::null());
        command
    }

    /// The packages of some versions have no clients; Debian's work with all servers.
    fn program(&self, name: &str) -> Utf8PathBuf {
        let own = self.bin.join(name);
        if own.exists() { own } else { Utf8Path::new(test_needs::POSTGRES_15).join(name) }
    }

    /// Runs a program, which must succeed; returns its output.
    pub fn run(&self, program: &str, arguments: &[&str]) -> String {
        run(self.command(program).args(arguments))
    }
}

/// Makes the user that runs servers the owner of files.
pub(crate) fn own(path: &Utf8Path) {
    if is_root() {
        run(Command::new("chown").args(["-R", USER]).arg(path));
    }
}

fn is_root() -> bool {
    test_needs::root().is_ok()
}
