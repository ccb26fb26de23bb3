//! The process of Postgres.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use pq_proto::client::{Client, ClientError, Config};
use rustix::process::{Pid, Signal};
use tokio::runtime::Runtime;
use utils::lsn::Lsn;

use super::config::ComputeConfig;
use super::owner::command;
use super::{LifecycleError, Result, io_error, mounted};
use crate::layout::Layout;

/// Between two looks at a server that starts or stops.
const LOOK: Duration = Duration::from_millis(10);
/// Longest path of a directory for sockets: with their names it must stay below 108 bytes.
const SOCKETS_MAX: usize = 85;
/// Lines of the log that are told when a server does not start.
const LAST_LINES: usize = 5;

/// What a compute's server is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It runs, as this process.
    Running(u32),
    /// It was stopped in order, or never started.
    Stopped,
    /// It is gone, and has not said good bye: its next start recovers it.
    Crashed,
}

impl State {
    /// That of a compute.
    pub fn of(compute: &ComputeConfig, layout: &Layout) -> Self {
        let Ok(text) = std::fs::read_to_string(layout.upper().join("postmaster.pid")) else { return Self::Stopped };
        match text.lines().next().and_then(|line| line.trim().parse().ok()) {
            Some(pid) if works_in(pid, &compute.data_dir(layout)) != Some(false) => Self::Running(pid),
            _ => Self::Crashed,
        }
    }
}

/// Whether the process is there, and works in the data directory: numbers are used again. `None` if it is of somebody
/// else, and there.
fn works_in(pid: u32, data: &Path) -> Option<bool> {
    match std::fs::read_link(format!("/proc/{pid}/cwd")) {
        // The directory's own path may lead through links; it may be of a file system that does not answer.
        Ok(cwd) => match (data.parent().map(std::fs::canonicalize), data.file_name()) {
            (Some(Ok(parent)), Some(name)) => Some(parent.join(name) == cwd),
            _ => Some(false),
        },
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => None,
        Err(_) => Some(false),
    }
}

/// Where the server's socket is.
pub(super) fn sockets(compute: &ComputeConfig, layout: &Layout) -> PathBuf {
    let root = layout.root();
    if root.as_os_str().len() <= SOCKETS_MAX {
        return root.to_owned();
    }
    std::env::temp_dir().join(format!("compute-{}", compute.id.get(..12).unwrap_or(&compute.id)))
}

/// How to reach the server on this machine.
pub fn connstr(compute: &ComputeConfig, layout: &Layout) -> String {
    let sockets = sockets(compute, layout).display().to_string().replace('\\', "\\\\").replace('\'', "\\'");
    format!("host='{sockets}' port={} user={}", compute.port, compute.superuser)
}

/// The file that the server writes its log to.
pub fn log_path(layout: &Layout) -> PathBuf {
    layout.root().join("postgres.log")
}

/// A runtime for one operation.
pub(super) fn runtime() -> Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|source| LifecycleError::Io { path: "runtime".to_owned(), source })
}

/// Starts the process. It outlives the caller.
pub(super) fn launch(compute: &ComputeConfig, layout: &Layout, settings: &[String]) -> Result<Child> {
    let log = log_path(layout);
    let out = File::options().create(true).append(true).open(&log).map_err(io_error(&log))?;
    let err = out.try_clone().map_err(io_error(&log))?;
    let sockets = sockets(compute, layout);
    std::fs::create_dir_all(&sockets).map_err(io_error(&sockets))?;
    if let Some(owner) = &compute.owner {
        owner.give(&log).map_err(io_error(&log))?;
        owner.give(&sockets).map_err(io_error(&sockets))?;
    }
    let program = compute.bin_dir.join("postgres");
    let mut command = command(compute.owner.as_ref(), &program);
    command.arg("-D").arg(compute.data_dir(layout)).current_dir("/").process_group(0);
    for setting in settings {
        command.arg("-c").arg(setting);
    }
    command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().map_err(io_error(&program))
}

/// Has somebody wait for the end of a process that outlives us, if we live that long.
pub(super) fn reap(mut process: Child) {
    std::thread::spawn(move || drop(process.wait()));
}

/// After a crash: waits until the last of its processes is gone, and removes its locks. Postgres would do so itself,
/// but takes a process for alive that is dead and that nobody has waited for, as happens in containers.
pub(super) fn forget_crashed(compute: &ComputeConfig, layout: &Layout, limit: Duration) -> Result<()> {
    if State::of(compute, layout) != State::Crashed {
        return Ok(());
    }
    let (data, started) = (compute.data_dir(layout), env::clock::now());
    while let Some(pid) = processes().into_iter().find(|pid| works_in(*pid, &data) == Some(true)) {
        if passed(started) >= limit {
            let name = &compute.name;
            return Err(LifecycleError::Server(format!("process {pid} of {name}, which has crashed, does not end")));
        }
        std::thread::sleep(LOOK);
    }
    let lock = sockets(compute, layout).join(format!(".s.PGSQL.{}.lock", compute.port));
    for path in [lock, data.join("postmaster.pid")] {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io_error(&path)(error)),
            _ => {}
        }
    }
    Ok(())
}

fn processes() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Waits until the server answers, and returns the connection.
pub(super) async fn ready(
    compute: &ComputeConfig,
    layout: &Layout,
    process: &mut Child,
    limit: Duration,
) -> Result<Client> {
    let started = env::clock::now();
    let config = config_of(compute, layout)?;
    loop {
        let left = limit.saturating_sub(passed(started));
        let Ok(connected) = tokio::time::timeout(left, Client::connect(&config, &[])).await else {
            let text = format!("Postgres does not answer within {limit:?}{}", mounted::trouble(layout));
            return Err(failed(layout, &text));
        };
        let error = match connected {
            Ok(client) => return Ok(client),
            Err(error) => error,
        };
        if let Ok(Some(status)) = process.try_wait() {
            return Err(failed(layout, &format!("Postgres does not start ({status})")));
        }
        if is_final(&error) || passed(started) >= limit {
            let (passed, trouble) = (passed(started), mounted::trouble(layout));
            return Err(failed(layout, &format!("Postgres is not ready after {passed:?}: {error}{trouble}")));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// What of its WAL a server has on disk.
pub(super) struct Wal {
    /// Where it ends.
    pub(super) flushed: Lsn,
    /// Whether the page server follows just now.
    pub(super) is_followed: bool,
}

/// The server's WAL; `None` if it does not answer soon.
pub(super) fn wal(compute: &ComputeConfig, layout: &Layout, limit: Duration) -> Option<Wal> {
    let config = config_of(compute, layout).ok()?;
    let asked = async {
        let mut client = Client::connect(&config, &[]).await.ok()?;
        let sql = format!(
            "SELECT pg_current_wal_flush_lsn(), EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = '{}' AND \
             active)",
            compute.slot()
        );
        let sets = client.simple_query(&sql).await;
        client.close().await;
        let sets = sets.ok()?;
        let [Some(flushed), Some(followed)] = &sets.first()?.rows.first()?[..] else { return None };
        let flushed = std::str::from_utf8(flushed).ok()?.parse().ok()?;
        Some(Wal { flushed, is_followed: followed.as_ref() == b"t" })
    };
    runtime().ok()?.block_on(async { tokio::time::timeout(limit, asked).await.ok().flatten() })
}

fn config_of(compute: &ComputeConfig, layout: &Layout) -> Result<Config> {
    let text = format!("{} dbname=template1 connect_timeout=5", connstr(compute, layout));
    text.parse().map_err(|error| LifecycleError::Refused(format!("superuser {:?}: {error}", compute.superuser)))
}

/// The server is up, and says no.
fn is_final(error: &ClientError) -> bool {
    use pq_proto::sqlstate::SqlState;
    match error {
        ClientError::Server(error) => error.code != SqlState::CANNOT_CONNECT_NOW,
        ClientError::Authentication(_) | ClientError::Config(_) => true,
        _ => false,
    }
}

fn passed(since: Instant) -> Duration {
    env::clock::now().saturating_duration_since(since)
}

/// With what the server's log says last.
fn failed(layout: &Layout, what: &str) -> LifecycleError {
    let log = log_path(layout);
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let last = lines.get(lines.len().saturating_sub(LAST_LINES)..).unwrap_or_default().join("\n  ");
    LifecycleError::Server(format!("{what}. The end of {}:\n  {last}", log.display()))
}

/// Ends the server by a signal, and waits until it is gone.
pub(super) fn end(compute: &ComputeConfig, layout: &Layout, signal: Signal, limit: Duration) -> Result<()> {
    let started = env::clock::now();
    let State::Running(pid) = State::of(compute, layout) else { return Ok(()) };
    let target = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let target = target.ok_or_else(|| LifecycleError::Server(format!("{pid} is no process")))?;
    rustix::process::kill_process(target, signal)
        .map_err(|error| LifecycleError::Server(format!("cannot signal Postgres (process {pid}): {error}")))?;
    while State::of(compute, layout) == State::Running(pid) {
        if passed(started) >= limit {
            let trouble = mounted::trouble(layout);
            let text = format!("Postgres (process {pid}) has not stopped within {limit:?}{trouble}");
            return Err(LifecycleError::Server(text));
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}
