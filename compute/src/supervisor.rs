//! The process that owns the mount.
//!
//! It holds the connection to the kernel open and lends it to a daemon that serves it. A daemon that dies is
//! replaced: the kernel keeps the pending requests, and Postgres waits for some milliseconds. If the connection
//! itself is lost, everything that Postgres wrote and had not synced is lost with the kernel's cache, without
//! Postgres knowing; so it is killed with SIGKILL before the directory is mounted again, and recovers from its WAL
//! ([`recovery`]).
//!
//! * [`mount`]: mounting, with and without privileges. [`daemon`]: the process that serves.
//! * [`postgres`]: finding and killing the server's processes. [`process`]: identifying our processes.
//! * [`launch`]: starting and stopping all this from another process. [`lock`]: who works on a compute.
//! * [`health`]: whether the file system answers.

mod daemon;
pub mod health;
pub mod launch;
mod lock;
mod mount;
mod postgres;
pub(crate) mod process;
pub(crate) mod program;
mod recovery;

use std::io::{self, Write};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::layout::Layout;
pub use daemon::CANNOT_RESUME;
use health::Watch;
use launch::READY;
use lock::Lock;
pub use lock::lock_daemon;
use recovery::{Running, clear, recover};

/// Polling interval for the connection.
const LOOK: Duration = Duration::from_millis(200);

/// Mounts the compute at `layout` and keeps it served by `compute-fs serve <daemon_args>` processes until SIGTERM.
pub async fn run(layout: &Layout, daemon_args: &[String]) -> io::Result<()> {
    let lock = Lock::take(layout)?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    clear(layout)?;
    let mut running = Running::start(layout.clone(), daemon_args.to_vec())?;
    running.until_ready().await?;
    println!("{READY}");
    io::stdout().flush()?;
    let mut watch = Watch::new(layout.data());
    loop {
        tokio::select! {
            ended = running.daemon_ended() => running.replace_daemon(ended?).await?,
            () = env::clock::sleep(LOOK) => {}
            () = either(&mut terminate, &mut interrupt) => break,
        }
        if running.is_lost() {
            running = after_loss(running).await?;
        }
        if let Some(note) = watch.look() {
            // A full disk may have no space for it.
            let _ = lock.note(&note);
        }
    }
    let stopped = running.stop().await;
    drop(lock);
    stopped
}

async fn after_loss(running: Running) -> io::Result<Running> {
    tracing::error!("the connection to the kernel is lost: what Postgres wrote and had not synced is gone with it");
    let mut running = env::spawn::blocking(move || {
        let mut running = running;
        recover(&mut running).map(|()| running)
    })
    .await
    .map_err(io::Error::other)??;
    running.until_ready().await?;
    tracing::info!("mounted again; Postgres may be started, and will recover");
    Ok(running)
}

async fn either(one: &mut Signal, other: &mut Signal) {
    tokio::select! {
        _ = one.recv() => {}
        _ = other.recv() => {}
    }
}
