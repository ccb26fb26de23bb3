//! What runs, and the order in which it is taken down and brought up again.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::daemon::{CANNOT_RESUME, Daemon, Ended};
use super::mount::{self, Mount};
use super::process::Role;
use super::{lock, postgres};
use crate::layout::Layout;
use crate::private::Trust;

/// The steps of recovering from a lost connection.
pub(crate) trait Steps {
    /// Sends SIGKILL to the server and all its processes.
    fn kill_postgres(&mut self) -> io::Result<()>;
    /// Ends the connection, so that nothing waits for an answer anymore.
    fn disconnect(&mut self);
    /// Returns when no process of the server is left.
    fn await_end_of_postgres(&mut self) -> io::Result<()>;
    fn unmount(&mut self) -> io::Result<()>;
    /// Mounts and serves again.
    fn mount(&mut self) -> io::Result<()>;
}

/// Nothing is mounted while a process of the old server is left: it would continue with pages that the new mount does
/// not have, and its next checkpoint would make the loss permanent.
pub(crate) fn recover(steps: &mut impl Steps) -> io::Result<()> {
    steps.kill_postgres()?;
    steps.disconnect();
    steps.await_end_of_postgres()?;
    steps.unmount()?;
    steps.mount()
}

/// The kernel's read-ahead, where we may set it; the daemon prefetches in any case.
const READ_AHEAD_KIB: &str = "1024";

/// A mount and its daemon.
pub(crate) struct Running {
    layout: Layout,
    daemon_args: Vec<String>,
    mount: Option<Mount>,
    daemon: Option<Daemon>,
    pause: Duration,
    cannot_resume: bool,
}

const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long killed processes may take to end; they do so soon after the connection has.
const END: Duration = Duration::from_secs(30);

/// How long the daemon may take to receive what the kernel has cached, before it is abandoned.
const WRITE_BACK: Duration = Duration::from_secs(20);

/// The same for the daemon of a former supervisor: Postgres has been killed and does not need the data.
const CLEAR: Duration = Duration::from_secs(5);

impl Running {
    pub(crate) fn start(layout: Layout, daemon_args: Vec<String>) -> io::Result<Self> {
        let pause = Duration::ZERO;
        let mut running = Self { layout, daemon_args, mount: None, daemon: None, pause, cannot_resume: false };
        running.mount_and_serve()?;
        Ok(running)
    }

    fn data(&self) -> PathBuf {
        self.layout.data()
    }

    /// Whether the connection is lost, or no daemon can serve it anymore.
    pub(crate) fn is_lost(&self) -> bool {
        self.cannot_resume || !self.mount.as_ref().is_some_and(Mount::is_connected)
    }

    fn mount_and_serve(&mut self) -> io::Result<()> {
        let mount = Mount::new(&self.layout)?;
        self.daemon = Some(Daemon::start(&self.layout, &mount, &self.daemon_args, false)?);
        self.mount = Some(mount);
        self.cannot_resume = false;
        Ok(())
    }

    /// Returns when the file system answers. On failure nothing stays mounted.
    pub(crate) async fn until_ready(&mut self) -> io::Result<()> {
        let data = self.data();
        let answers = env::spawn::blocking(move || std::fs::metadata(data));
        let ended = tokio::select! {
            answer = answers => {
                let metadata = answer.map_err(io::Error::other)??;
                mount::set_read_ahead(&metadata, READ_AHEAD_KIB);
                return Ok(());
            }
            ended = self.daemon_ended() => ended?,
        };
        self.disconnect();
        self.unmount()?;
        let log = Trust::of(self.layout.root()).and_then(|trust| trust.read(&self.layout.log())).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let said = log.lines().next_back().unwrap_or_default();
        let text = format!("the file system did not start ({ended}): {said}; see {}", self.layout.log().display());
        Err(io::Error::other(text))
    }

    pub(crate) async fn daemon_ended(&mut self) -> io::Result<Ended> {
        match self.daemon.as_mut() {
            Some(daemon) => daemon.ended().await,
            None => std::future::pending().await,
        }
    }

    /// Lends the connection to a new daemon.
    pub(crate) async fn replace_daemon(&mut self, ended: Ended) -> io::Result<()> {
        let daemon = self.daemon.take();
        let Some(mount) = &self.mount else { return Ok(()) };
        if !mount.is_connected() {
            return Ok(());
        }
        if ended.code() == Some(CANNOT_RESUME) {
            tracing::error!("the connection cannot be handed over: {ended}");
            self.cannot_resume = true;
            return Ok(());
        }
        if daemon.is_some_and(|daemon| daemon.age() > PAUSE_MAX) {
            self.pause = Duration::ZERO;
        }
        env::clock::sleep(self.pause).await;
        self.pause = (self.pause * 2).clamp(Duration::from_millis(10), PAUSE_MAX);
        self.daemon = Some(Daemon::start(&self.layout, mount, &self.daemon_args, true)?);
        tracing::warn!("the daemon ended ({ended}); another has taken over");
        Ok(())
    }

    /// Takes everything down. A server that still runs is killed, because it would lose its files.
    pub(crate) async fn stop(mut self) -> io::Result<()> {
        self.kill_postgres()?;
        // From now on the connection ends with the daemon.
        self.mount = None;
        let take_down = |data: PathBuf| {
            env::spawn::blocking(move || {
                postgres::await_end(&data, END)?;
                mount::unmount(&data)
            })
        };
        let first = env::clock::timeout(WRITE_BACK, take_down(self.data())).await;
        let reason = match first {
            Ok(done) => match done.map_err(io::Error::other)? {
                Ok(()) => return Ok(()),
                Err(error) => error.to_string(),
            },
            Err(_) => format!("the daemon has not taken what was kept back within {WRITE_BACK:?}"),
        };
        tracing::error!("{reason}: the connection is ended, and what was not synced is gone");
        self.disconnect();
        take_down(self.data()).await.map_err(io::Error::other)?
    }
}

impl Steps for Running {
    fn kill_postgres(&mut self) -> io::Result<()> {
        let killed = postgres::kill(&self.data())?;
        if !killed.is_empty() {
            tracing::warn!(?killed, "killed Postgres");
        }
        Ok(())
    }

    /// The kernel ends a connection whose last holder is gone, so this works for every user.
    fn disconnect(&mut self) {
        mount::abort(&self.data());
        if let Some(daemon) = self.daemon.take() {
            daemon.kill();
        }
        self.mount = None;
    }

    fn await_end_of_postgres(&mut self) -> io::Result<()> {
        postgres::await_end(&self.data(), END)
    }

    fn unmount(&mut self) -> io::Result<()> {
        self.mount = None;
        mount::unmount(&self.data())
    }

    fn mount(&mut self) -> io::Result<()> {
        self.mount_and_serve()
    }
}

/// Cleans up after a former supervisor of the compute at `layout`, after killing the server that works on it.
pub(crate) fn clear(layout: &Layout) -> io::Result<()> {
    let data = layout.data();
    let killed = postgres::kill(&data)?;
    if !killed.is_empty() {
        tracing::warn!(?killed, "killed Postgres, whose file system is to be mounted anew");
    }
    if mount::is_mounted(&data)? {
        tracing::warn!("{} is still mounted", data.display());
        // Its daemon may be alive and write what the kernel has cached.
        let (done, outcome) = std::sync::mpsc::channel();
        let place = data.clone();
        env::spawn::thread("unmount", move || {
            let unmounted = postgres::await_end(&place, END).and_then(|()| mount::unmount(&place));
            let _ = done.send(unmounted);
        })?;
        if let Err(_) | Ok(Err(_)) = outcome.recv_timeout(CLEAR) {
            tracing::warn!("its daemon does not answer");
        }
    }
    force(layout)
}

/// Kills everything that works on the compute at `layout`, except a supervisor, whatever state it is in.
pub(crate) fn force(layout: &Layout) -> io::Result<()> {
    // A compute with copied relations works on the plain files.
    let places = [layout.data(), layout.upper()];
    for place in &places {
        postgres::kill(place)?;
    }
    mount::abort(&layout.data());
    // It may serve a mount that is not visible from here.
    if let Some(daemon) = lock::kill_holder(layout, Role::Daemon, END)? {
        tracing::info!("ended the daemon, process {}", daemon.as_raw_nonzero());
    }
    for place in &places {
        postgres::await_end(place, END)?;
    }
    mount::unmount(&layout.data())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Recorded {
        done: Vec<&'static str>,
        fails: &'static str,
    }

    impl Recorded {
        fn step(&mut self, name: &'static str) -> io::Result<()> {
            self.done.push(name);
            if self.fails == name { Err(io::Error::other(name)) } else { Ok(()) }
        }
    }

    impl Steps for Recorded {
        fn kill_postgres(&mut self) -> io::Result<()> {
            self.step("kill")
        }

        fn disconnect(&mut self) {
            self.done.push("disconnect");
        }

        fn await_end_of_postgres(&mut self) -> io::Result<()> {
            self.step("await")
        }

        fn unmount(&mut self) -> io::Result<()> {
            self.step("unmount")
        }

        fn mount(&mut self) -> io::Result<()> {
            self.step("mount")
        }
    }

    #[test]
    fn postgres_is_gone_before_anything_is_mounted() {
        let mut world = Recorded::default();
        recover(&mut world).unwrap();
        assert_eq!(world.done, ["kill", "disconnect", "await", "unmount", "mount"]);
        for fails in ["kill", "await", "unmount"] {
            let mut world = Recorded { fails, ..Recorded::default() };
            recover(&mut world).unwrap_err();
            assert_eq!(world.done.last(), Some(&fails));
            assert!(!world.done.contains(&"mount"), "mounted although `{fails}` had failed");
        }
    }
}
