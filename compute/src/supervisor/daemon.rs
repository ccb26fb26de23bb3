//! The process that serves a mount.

use std::fmt;
use std::io;
use std::os::unix::fs::{MetadataExt, fchown};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use tokio::task::JoinHandle;

use super::mount::Mount;
use super::program::command;
use crate::layout::Layout;
use crate::private::Trust;

/// Exit status of a daemon that cannot take over a connection.
pub const CANNOT_RESUME: i32 = 4;

pub(crate) struct Daemon {
    pid: Option<Pid>,
    since: Instant,
    exit: JoinHandle<io::Result<ExitStatus>>,
}

/// How a daemon ended.
pub(crate) struct Ended(ExitStatus);

impl Daemon {
    /// Starts a daemon on the connection of `mount`, which becomes its standard input. It runs as the owner of the
    /// files.
    pub(crate) fn start(layout: &Layout, mount: &Mount, args: &[String], resume: bool) -> io::Result<Self> {
        let trust = Trust::of(layout.root())?;
        let log = trust.append(&layout.log())?;
        let mut command = command(&std::env::current_exe()?, rustix::process::geteuid().is_root());
        command.arg("serve").arg("--dir").arg(layout.root()).args(args);
        if resume {
            command.arg("--resume");
        }
        if rustix::process::geteuid().is_root() {
            let owner = std::fs::symlink_metadata(layout.upper())?;
            trust.check_owner(&layout.upper(), &owner)?;
            fchown(&log, Some(owner.uid()), Some(owner.gid()))?;
            command.uid(owner.uid()).gid(owner.gid());
        }
        command.stdin(Stdio::from(mount.connection()?)).stdout(log.try_clone()?).stderr(log);
        // A signal to the supervisor's process group, as from a terminal, must reach only the supervisor.
        let mut child = command.process_group(0).spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let exit = env::spawn::blocking(move || child.wait());
        Ok(Self { pid, since: env::clock::now(), exit })
    }

    pub(crate) async fn ended(&mut self) -> io::Result<Ended> {
        (&mut self.exit).await.map_err(io::Error::other)?.map(Ended)
    }

    pub(crate) fn age(&self) -> Duration {
        env::clock::now() - self.since
    }

    /// Kills it unless it has already ended.
    pub(crate) fn kill(self) {
        if let Some(pid) = self.pid.filter(|_| !self.exit.is_finished()) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}

impl Ended {
    pub(crate) fn code(&self) -> Option<i32> {
        self.0.code()
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.code(), self.0.signal()) {
            (Some(code), _) => write!(f, "exit status {code}"),
            (None, Some(signal)) => write!(f, "killed by signal {signal}"),
            (None, None) => write!(f, "{}", self.0),
        }
    }
}
