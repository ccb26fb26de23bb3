//! The Postgres server process.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pq_proto::client::{Client, ClientError, Config};
use rustix::process::{Pid, Signal};
use tokio::runtime::Runtime;
use utils::lsn::Lsn;

use super::config::ComputeConfig;
use super::owner::command;
use super::{LifecycleError, Result, io_error, mounted};
use crate::layout::Layout;
use crate::private::{self, Trust};
use crate::supervisor::process::{Process, number, works_in};

/// Polling interval while a server starts or stops.
const LOOK: Duration = Duration::from_millis(10);
/// Longest path of a socket directory: with the socket's name it must stay below 108 bytes.
const SOCKETS_MAX: usize = 85;
/// Number of last log lines shown when a server does not start, besides those that give the reason.
const LAST_LINES: usize = 5;
/// Number of log lines searched for the reason.
const REASON_LINES: usize = 100;
/// Log line that separates one start from the next.
const BEGIN: &str = "==== start of this compute";

/// State of a compute's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It runs, as this process.
    Running(u32),
    /// It was shut down cleanly, or never started.
    Stopped,
    /// It is gone without a clean shutdown: its next start recovers.
    Crashed,
}

impl State {
    /// The state of a compute's server.
    pub fn of(compute: &ComputeConfig, layout: &Layout) -> Self {
        let Ok(text) = std::fs::read_to_string(layout.upper().join("postmaster.pid")) else { return Self::Stopped };
        match number(&text).and_then(|pid| find(compute, layout, pid)) {
            Some(process) => Self::Running(process.pid().as_raw_nonzero().get().cast_unsigned()),
            None => Self::Crashed,
        }
    }
}

/// The process `pid`, if it is the compute's server.
fn find(compute: &ComputeConfig, layout: &Layout, pid: Pid) -> Option<Process> {
    let trust = Trust::of(layout.root()).ok()?;
    Process::find_server(pid, &compute.data_dir(layout), trust).ok().flatten()
}

/// The directory of the server's socket.
pub(super) fn sockets(compute: &ComputeConfig, layout: &Layout) -> PathBuf {
    let root = layout.root();
    if root.as_os_str().len() <= SOCKETS_MAX {
        return root.to_owned();
    }
    std::env::temp_dir().join(format!("compute-{}", compute.id.get(..12).unwrap_or(&compute.id)))
}

/// Connection string for this machine.
pub fn connstr(compute: &ComputeConfig, layout: &Layout) -> String {
    let sockets = sockets(compute, layout).display().to_string().replace('\\', "\\\\").replace('\'', "\\'");
    format!("host='{sockets}' port={} user={}", compute.port, compute.superuser)
}

/// The server's socket.
pub fn socket(compute: &ComputeConfig, layout: &Layout) -> PathBuf {
    sockets(compute, layout).join(format!(".s.PGSQL.{}", compute.port))
}

/// The file that the server writes its log to.
pub(super) fn log_path(layout: &Layout) -> PathBuf {
    layout.root().join("postgres.log")
}

/// The content of the server's log.
pub fn log(layout: &Layout) -> Result<String> {
    let path = log_path(layout);
    let read = Trust::of(layout.root()).and_then(|trust| trust.read(&path));
    Ok(String::from_utf8_lossy(&read.map_err(io_error(&path))?).into_owned())
}

/// A runtime for one operation.
pub(super) fn runtime() -> Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|source| LifecycleError::Io { path: "runtime".to_owned(), source })
}

/// Starts the process. It outlives the caller.
pub(super) fn launch(compute: &ComputeConfig, layout: &Layout, settings: &[String]) -> Result<Child> {
    let sockets = sockets(compute, layout);
    make_sockets(compute, layout, &sockets).map_err(io_error(&sockets))?;
    let mut command = postgres(compute, layout, settings, None)?;
    command.stdin(Stdio::null()).spawn().map_err(io_error(&compute.bin_dir.join("postgres")))
}

/// Postgres on the data directory, in the given mode if any; its output goes to the log.
pub(super) fn postgres(
    compute: &ComputeConfig,
    layout: &Layout,
    settings: &[String],
    mode: Option<&str>,
) -> Result<Command> {
    let log = log_path(layout);
    let out = Trust::of(layout.root()).and_then(|trust| trust.append(&log)).map_err(io_error(&log))?;
    let err = out.try_clone().map_err(io_error(&log))?;
    writeln!(&out, "{BEGIN}").map_err(io_error(&log))?;
    let mut command = command(compute.owner.as_ref(), &compute.bin_dir.join("postgres"));
    command.args(mode).arg("-D").arg(compute.data_dir(layout)).current_dir("/").process_group(0);
    for setting in settings {
        command.arg("-c").arg(setting);
    }
    command.stdout(out).stderr(err);
    Ok(command)
}

/// Creates the socket directory if it is not the compute's own. It is in a place where anybody may have created one.
fn make_sockets(compute: &ComputeConfig, layout: &Layout, dir: &Path) -> std::io::Result<()> {
    if dir == layout.root() {
        return Ok(());
    }
    match private::make_dir(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
        made => {
            if let (Ok(()), Some(owner)) = (made, &compute.owner) {
                owner.give(dir)?;
            }
        }
    }
    let trust = Trust::of(layout.root())?;
    trust.check_owner(dir, &std::fs::symlink_metadata(dir)?)?;
    private::close(dir, trust, !compute.options.listen_users.is_empty())
}

/// After a crash: waits until the last of the server's processes is gone, and removes its locks. Postgres would do
/// this itself, but takes a zombie that nobody reaps for alive, as happens in containers.
pub(super) fn forget_crashed(compute: &ComputeConfig, layout: &Layout, limit: Duration) -> Result<()> {
    if State::of(compute, layout) != State::Crashed {
        return Ok(());
    }
    let (data, started) = (compute.data_dir(layout), env::clock::now());
    while let Some(pid) = processes().into_iter().find(|pid| works_in(*pid, &data) == Some(true)) {
        if passed(started) >= limit {
            let (name, pid) = (&compute.name, pid.as_raw_nonzero());
            return Err(LifecycleError::Server(format!("process {pid} of {name}, which has crashed, does not end")));
        }
        env::clock::pause(LOOK);
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

fn processes() -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)).collect()
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
        let Ok(connected) = env::clock::timeout(left, Client::connect(&config, &[])).await else {
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
            let (passed, trouble, hint) = (passed(started), mounted::trouble(layout), hint(compute, &error));
            return Err(failed(layout, &format!("Postgres is not ready after {passed:?}: {error}{trouble}{hint}")));
        }
        env::clock::sleep(LOOK).await;
    }
}

/// The WAL that a server has on disk.
pub(super) struct Wal {
    /// Where it ends.
    pub(super) flushed: Lsn,
    /// Whether the pageserver is following right now.
    pub(super) is_followed: bool,
}

/// The state of the server's WAL, or an error; the server may fail to answer within `limit`.
pub(super) fn wal(compute: &ComputeConfig, layout: &Layout, limit: Duration) -> std::result::Result<Wal, String> {
    let asked = async {
        let mut client = connect(compute, layout).await?;
        let wal = wal_of(compute, &mut client).await;
        client.close().await;
        wal
    };
    let runtime = runtime().map_err(|error| error.to_string())?;
    let late = || Err(format!("Postgres does not answer within {limit:?}"));
    runtime.block_on(async { env::clock::timeout(limit, asked).await.unwrap_or_else(|_| late()) })
}

/// Connects; the error says why that failed.
pub(super) async fn connect(compute: &ComputeConfig, layout: &Layout) -> std::result::Result<Client, String> {
    let config = config_of(compute, layout).map_err(|error| error.to_string())?;
    Client::connect(&config, &[]).await.map_err(|error| error.to_string())
}

/// As [`wal`], on an existing connection.
pub(super) async fn wal_of(compute: &ComputeConfig, client: &mut Client) -> std::result::Result<Wal, String> {
    let sql = format!(
        "SELECT pg_current_wal_flush_lsn(), EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = '{}' AND \
         active)",
        compute.slot()
    );
    let sets = client.simple_query(&sql).await.map_err(|error| error.to_string())?;
    let row = sets.first().and_then(|set| set.rows.first());
    let Some([Some(flushed), Some(followed)]) = row.map(|row| &row[..]) else {
        return Err("Postgres does not tell where its WAL ends".to_owned());
    };
    let flushed = std::str::from_utf8(flushed).ok().and_then(|text| text.parse().ok());
    let flushed = flushed.ok_or_else(|| "the end of WAL is no LSN".to_owned())?;
    Ok(Wal { flushed, is_followed: followed.as_ref() == b"t" })
}

pub(super) fn config_of(compute: &ComputeConfig, layout: &Layout) -> Result<Config> {
    let text = format!("{} dbname=template1 connect_timeout=5", connstr(compute, layout));
    text.parse().map_err(|error| LifecycleError::Refused(format!("superuser {:?}: {error}", compute.superuser)))
}

/// Whether the server is up and refused, so that retrying is useless.
fn is_final(error: &ClientError) -> bool {
    use pq_proto::sqlstate::SqlState;
    match error {
        ClientError::Server(error) => error.code != SqlState::CANNOT_CONNECT_NOW,
        ClientError::Authentication(_) | ClientError::Config(_) => true,
        _ => false,
    }
}

/// How to fix an error, if known.
fn hint(compute: &ComputeConfig, error: &ClientError) -> String {
    use pq_proto::sqlstate::SqlState;
    if error.sqlstate() != Some(SqlState::INVALID_AUTHORIZATION) {
        return String::new();
    }
    format!(
        ". By the name of {:?} it is asked whether it is ready, and WAL is fetched: say with --superuser whose name to \
         use, which needs REPLICATION",
        compute.superuser
    )
}

fn passed(since: Instant) -> Duration {
    env::clock::now().saturating_duration_since(since)
}

/// An error message that includes the end of the server's log.
pub(super) fn failed(layout: &Layout, what: &str) -> LifecycleError {
    let (path, text) = (log_path(layout), log(layout).unwrap_or_default());
    let told = telling(&text).join("\n  ");
    LifecycleError::Server(format!("{what}. The end of {}:\n  {told}", path.display()))
}

/// The last lines of a log, preceded by those that say why the server ended: more may follow them at shutdown.
fn telling(log: &str) -> Vec<&str> {
    let this_start = log.rsplit_once(BEGIN).map_or(log, |(_, rest)| rest);
    let lines: Vec<&str> = this_start.lines().filter(|line| !line.is_empty()).collect();
    let lines = lines.get(lines.len().saturating_sub(REASON_LINES)..).unwrap_or_default();
    let (before, last) = lines.split_at(lines.len().saturating_sub(LAST_LINES));
    let is_reason = |line: &&&str| ["FATAL:", "PANIC:", "ERROR:", "HINT:"].iter().any(|word| line.contains(word));
    before.iter().filter(is_reason).chain(last).copied().collect()
}

/// Sends a signal to the server and waits until it is gone.
pub(super) fn end(compute: &ComputeConfig, layout: &Layout, signal: Signal, limit: Duration) -> Result<()> {
    let started = env::clock::now();
    let State::Running(pid) = State::of(compute, layout) else { return Ok(()) };
    let target = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let Some(process) = target.and_then(|target| find(compute, layout, target)) else { return Ok(()) };
    process.signal(signal).map_err(|error| LifecycleError::Server(format!("Postgres: {error}")))?;
    while State::of(compute, layout) == State::Running(pid) {
        if passed(started) >= limit {
            let trouble = mounted::trouble(layout);
            let text = format!("Postgres (process {pid}) has not stopped within {limit:?}{trouble}");
            return Err(LifecycleError::Server(text));
        }
        env::clock::pause(LOOK);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_told_wherever_it_stands() {
        let old = "LOG:  starting\nFATAL:  of another day\n";
        let new =
            "LOG:  starting\nFATAL:  could not open\nHINT:  do this\nLOG:  1\nLOG:  2\nLOG:  3\nLOG:  4\nLOG:  5\n";
        let told = telling(&format!("{old}{BEGIN}\n{new}")).join("\n");
        assert_eq!(told, "FATAL:  could not open\nHINT:  do this\nLOG:  1\nLOG:  2\nLOG:  3\nLOG:  4\nLOG:  5");
        assert_eq!(telling("FATAL:  of one that logs little\n"), ["FATAL:  of one that logs little"]);
        assert!(telling("").is_empty());
    }
}
