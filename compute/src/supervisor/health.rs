//! Whether a file system answers. Its supervisor probes it and publishes the result for listings, which never probe
//! the file system themselves, because a request to a hung one may block forever.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use tokio::task::JoinHandle;

use super::lock::holder;
use super::process::Role;
use crate::layout::Layout;

/// Interval between an answer and the next probe.
const PERIOD: Duration = Duration::from_secs(2);

/// A probe that is unanswered for this long is reported.
const SILENCE: Duration = Duration::from_secs(5);

/// With fewer free bytes than this a disk counts as full.
const FULL: u64 = 1 << 20;

/// State of a compute's file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It is not mounted.
    Down,
    /// It works.
    Well,
    /// What is wrong, and what to do about it.
    Trouble(String),
}

impl Health {
    /// The state of a compute's file system.
    pub fn of(layout: &Layout) -> Self {
        let (supervisor, daemon) = match (holder(layout, Role::Supervisor), holder(layout, Role::Daemon)) {
            (Ok(supervisor), Ok(daemon)) => (supervisor, daemon),
            (Err(error), _) | (_, Err(error)) => return Self::Trouble(error.to_string()),
        };
        let both = [("supervisor", &supervisor), ("daemon", &daemon)];
        for (who, held) in both.into_iter().filter_map(|(who, held)| Some((who, held.as_ref()?))) {
            let pid = held.pid;
            if held.process.is_some() && is_suspended(pid) {
                let pid = pid.as_raw_nonzero();
                return Self::Trouble(format!("its {who}, process {pid}, is suspended: kill -CONT {pid}"));
            }
        }
        match (supervisor, daemon) {
            (None, None) => Self::Down,
            (None, Some(daemon)) => Self::Trouble(format!(
                "its supervisor is gone; if the daemon, process {}, ends, too, Postgres loses its files: stop it and \
                 start it again",
                daemon.pid.as_raw_nonzero()
            )),
            (Some(held), _) if !held.note.is_empty() => Self::Trouble(held.note),
            (Some(_), _) if is_full(layout) => {
                Self::Trouble(format!("the disk of {} is full, and writes wait for room", layout.root().display()))
            }
            (Some(_), _) => Self::Well,
        }
    }
}

/// Whether the process is stopped by SIGSTOP or a debugger.
fn is_suspended(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    // The state follows the name, which may contain any characters.
    stat.rsplit_once(')').is_some_and(|(_, rest)| matches!(rest.trim_start().chars().next(), Some('T' | 't')))
}

fn is_full(layout: &Layout) -> bool {
    rustix::fs::statvfs(layout.root()).is_ok_and(|disk| disk.f_bavail * disk.f_frsize < FULL)
}

/// Probes the file system with `statvfs`, which the kernel cannot answer by itself, one probe at a time.
pub(crate) struct Watch {
    data: PathBuf,
    asked: Option<JoinHandle<()>>,
    since: Instant,
    is_silent: bool,
}

impl Watch {
    pub(crate) fn new(data: PathBuf) -> Self {
        Self { data, asked: None, since: env::clock::now(), is_silent: false }
    }

    /// Collects the answer or sends the next probe. Returns a new note for the lock file if the state changed.
    pub(crate) fn look(&mut self) -> Option<String> {
        let now = env::clock::now();
        let passed = now - self.since;
        let Some(asked) = &self.asked else {
            if passed >= PERIOD {
                let data = self.data.clone();
                self.asked = Some(env::spawn::blocking(move || drop(rustix::fs::statvfs(data))));
                self.since = now;
            }
            return None;
        };
        if asked.is_finished() {
            self.asked = None;
            self.since = now;
            if std::mem::take(&mut self.is_silent) {
                tracing::info!("the file system answers again, after {passed:?}");
                return Some(String::new());
            }
        } else if passed >= SILENCE && !self.is_silent {
            self.is_silent = true;
            tracing::warn!("the file system has not answered for {passed:?}");
            return Some("its file system does not answer".to_owned());
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compute_without_anybody_is_down() {
        let dir = camino_tempfile::tempdir().unwrap();
        assert_eq!(Health::of(&Layout::new(dir.path())), Health::Down);
    }

    #[test]
    fn what_runs_is_not_suspended() {
        assert!(!is_suspended(rustix::process::getpid()));
    }
}
