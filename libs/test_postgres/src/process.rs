//! Server processes, identified by their process ids.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const LIMIT: Duration = Duration::from_secs(60);

/// Processes of the server on this data directory, which is their working directory.
pub fn of_server(data: &Path) -> Vec<i32> {
    let pids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid| is_of_server(*pid, data)).collect()
}

/// Whether this is a process of the server on this data directory, and not another one with a reused id.
pub(crate) fn is_of_server(pid: i32, data: &Path) -> bool {
    let link = |name| std::fs::read_link(format!("/proc/{pid}/{name}"));
    link("cwd").is_ok_and(|cwd| cwd == data) && link("exe").is_ok_and(|exe| exe.ends_with("postgres"))
}

/// Sends SIGKILL to a process that may be gone.
pub fn kill(pid: i32) {
    send(pid, Signal::KILL);
}

pub(crate) fn send(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}

/// Returns when none of these processes exists: to Postgres, one that its parent has not reaped still looks alive.
///
/// # Panics
///
/// If one still exists after a minute.
pub fn await_end(pids: &[i32]) {
    wait_until("end of Postgres", || pids.iter().all(|pid| has_ended(*pid)));
}

/// The same with a time limit and without panicking; returns whether they have ended.
pub(crate) fn end_within(pids: &[i32], limit: Duration) -> bool {
    becomes_true(limit, || pids.iter().all(|pid| has_ended(*pid)))
}

fn has_ended(pid: i32) -> bool {
    !Path::new(&format!("/proc/{pid}")).exists()
}

/// Returns when `holds` does.
///
/// # Panics
///
/// If it does not within a minute.
pub fn wait_until(what: &str, holds: impl FnMut() -> bool) {
    assert!(becomes_true(LIMIT, holds), "no {what} within a minute");
}

fn becomes_true(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let since = Instant::now();
    loop {
        if holds() {
            return true;
        }
        if since.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
