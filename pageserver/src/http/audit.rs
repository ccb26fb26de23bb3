//! The audit log: who changed what, when, and how that ended, as one line of JSON for each call that may change
//! something. Requests never wait for it: lines go through a queue to a task that writes them, and where the queue is
//! full they are counted, and the log says how many are missing.
//!
//! The file is replaced when it becomes too large, and the one before is kept under another name.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::{Mode, OFlags};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use utils::id::TimelineId;

use super::moment;
use crate::auth::Grant;
use crate::walreceiver::init_sql::Script;
use metrics::METRICS;

/// Lines that may wait to be written.
const QUEUE: usize = 4096;
/// Lines that are written at once.
const BATCH: usize = 256;

/// Where the log is, and how large it may become.
#[derive(Clone, Debug)]
pub struct AuditOptions {
    /// The file. What it had before goes to the same name with `.1` at its end.
    pub path: Utf8PathBuf,
    /// It is replaced before it becomes larger than this.
    pub max_bytes: u64,
}

/// The queue of lines. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Audit(Option<Arc<Queue>>);

struct Queue {
    lines: mpsc::Sender<String>,
    /// Lines that found no room since the last one that did.
    missing: AtomicU64,
}

/// The peer of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) SocketAddr);

/// What is known of a request only once it is looked at.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    pub(super) subject: Arc<OnceLock<Option<String>>>,
    pub(super) timeline: Arc<OnceLock<TimelineId>>,
    pub(super) sql: Arc<OnceLock<String>>,
}

// Each is set once for a request.
impl Known {
    /// The caller holds this grant.
    pub(super) fn caller(&self, grant: &Grant) {
        let _ = self.subject.set(grant.subject().map(str::to_owned));
    }

    /// The timeline that is made, which is not in the path.
    pub(super) fn makes(&self, timeline: TimelineId) {
        let _ = self.timeline.set(timeline);
    }

    /// SQL that comes with it, of which the log has the hash.
    pub(super) fn sql(&self, script: Script) -> Script {
        let _ = self.sql.set(script.sha256.clone());
        script
    }
}

/// One call, or one thing that the server has done by itself.
#[derive(Debug, Default, Serialize)]
pub(super) struct Entry {
    pub(super) time: String,
    /// Null for what the server does by itself.
    pub(super) request_id: Option<String>,
    pub(super) peer: Option<SocketAddr>,
    /// The claim `sub` of the caller's token.
    pub(super) subject: Option<String>,
    /// Whether the caller was let in.
    pub(super) authorized: bool,
    pub(super) method: &'static str,
    /// The path, with the names of its parameters.
    pub(super) operation: String,
    pub(super) tenant: Option<String>,
    pub(super) timeline: Option<String>,
    /// What else the path names: a hold, or what is passed on to computes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    /// The hash of SQL that came with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) init_sql_sha256: Option<String>,
    /// Null if the caller left before the answer; what was begun goes on then.
    pub(super) status: Option<u16>,
    pub(super) milliseconds: u64,
    /// Lines before this one that are missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) missing: Option<u64>,
}

impl Entry {
    /// Something that the server has done by itself.
    pub(super) fn of_server(operation: &str, tenant: String, timeline: String) -> Self {
        Self {
            time: moment::print(env::clock::system_now()),
            authorized: true,
            method: "server",
            operation: operation.to_owned(),
            tenant: Some(tenant),
            timeline: Some(timeline),
            status: Some(200),
            ..Self::default()
        }
    }
}

impl Audit {
    /// Starts to write to the file of `options`, if there are any. The task ends when nobody has the queue any more.
    pub(super) fn start(options: Option<AuditOptions>) -> (Self, Option<JoinHandle<()>>) {
        let Some(options) = options else { return (Self(None), None) };
        let (lines, queued) = mpsc::channel(QUEUE);
        let task = env::spawn::task("audit log", write_all(Log::new(options), queued));
        (Self(Some(Arc::new(Queue { lines, missing: AtomicU64::new(0) }))), Some(task))
    }

    /// Has an entry written, if there is room for it.
    pub(super) fn note(&self, mut entry: Entry) {
        let Some(queue) = &self.0 else { return };
        let Ok(place) = queue.lines.try_reserve() else {
            queue.missing.fetch_add(1, Ordering::Relaxed);
            METRICS.audit_lines_missing.inc();
            return;
        };
        entry.missing = Some(queue.missing.swap(0, Ordering::Relaxed)).filter(|missing| *missing > 0);
        match serde_json::to_string(&entry) {
            Ok(line) => place.send(line + "\n"),
            Err(error) => tracing::error!("a line of the audit log cannot be made: {error}"),
        }
    }
}

/// Writes what is queued, in batches, until nobody can queue anything.
async fn write_all(mut log: Log, mut queued: mpsc::Receiver<String>) {
    let mut batch = Vec::with_capacity(BATCH);
    let mut failed = String::new();
    while queued.recv_many(&mut batch, BATCH).await > 0 {
        let (lines, count) = (batch.concat(), batch.len() as u64);
        batch.clear();
        let written = env::spawn::blocking(move || {
            let result = log.append(lines.as_bytes());
            (log, result)
        });
        let Ok((again, result)) = written.await else { return };
        log = again;
        let reason = result.err().map(|error| error.to_string()).unwrap_or_default();
        if !reason.is_empty() {
            METRICS.audit_lines_missing.inc_by(count);
        }
        // One line in the server's own log for each new reason.
        if !reason.is_empty() && reason != failed {
            tracing::error!("the audit log {} is not written: {reason}", log.options.path);
        }
        failed = reason;
    }
}

/// The file.
struct Log {
    options: AuditOptions,
    /// It, and its size.
    open: Option<(OwnedFd, u64)>,
}

impl Log {
    fn new(options: AuditOptions) -> Self {
        Self { options, open: None }
    }

    /// Appends whole lines durably; a larger file makes room for a new one first.
    fn append(&mut self, lines: &[u8]) -> std::io::Result<()> {
        let (file, mut size) = match self.open.take() {
            Some(open) => open,
            None => open(&self.options.path)?,
        };
        let adding = lines.len() as u64;
        let mut file = file;
        if size > 0 && size.saturating_add(adding) > self.options.max_bytes {
            rustix::fs::rename(self.options.path.as_std_path(), former(&self.options.path).as_std_path())?;
            (file, size) = open(&self.options.path)?;
        }
        let mut left = lines;
        while !left.is_empty() {
            let written = rustix::io::retry_on_intr(|| rustix::io::write(&file, left))?;
            left = left.get(written..).unwrap_or_default();
            size += written as u64;
        }
        rustix::fs::fdatasync(&file)?;
        // After an error it is opened again.
        self.open = Some((file, size));
        Ok(())
    }
}

fn former(path: &Utf8Path) -> Utf8PathBuf {
    Utf8PathBuf::from(format!("{path}.1"))
}

/// Opens the file, whose last line is whole from then on: a server may have ended in the middle of one.
fn open(path: &Utf8Path) -> std::io::Result<(OwnedFd, u64)> {
    let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
    let file = rustix::fs::open(path.as_std_path(), flags, Mode::from_raw_mode(0o600))?;
    let size = u64::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or_default();
    let mut last = [b'\n'];
    if size > 0 {
        rustix::io::pread(&file, &mut last, size - 1)?;
    }
    let missing: &[u8] = if last == [b'\n'] { b"" } else { b"\n" };
    rustix::io::write(&file, missing)?;
    Ok((file, size + missing.len() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(dir: &Utf8Path, max_bytes: u64) -> Log {
        Log::new(AuditOptions { path: dir.join("audit.jsonl"), max_bytes })
    }

    #[test]
    fn two_files_are_kept_and_lines_stay_whole() {
        let dir = camino_tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let mut first = log(dir.path(), 20);
        first.append(b"one\n").unwrap();
        first.append(b"two\nthree\n").unwrap();
        // Another process, whose predecessor was killed while it wrote.
        std::fs::write(&path, "one\ntwo\nthr").unwrap();
        let mut second = log(dir.path(), 20);
        second.append(b"four\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\nthr\nfour\n");
        second.append(b"five six\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "five six\n");
        assert_eq!(std::fs::read_to_string(former(&path)).unwrap(), "one\ntwo\nthr\nfour\n");
        second.append(&[b'x'; 100]).unwrap();
        assert_eq!(std::fs::read_to_string(former(&path)).unwrap(), "five six\n", "one before, no more");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[tokio::test]
    async fn a_full_queue_makes_nobody_wait_and_is_told() {
        let (lines, mut queued) = mpsc::channel(1);
        let audit = Audit(Some(Arc::new(Queue { lines, missing: AtomicU64::new(0) })));
        let entry = || Entry::of_server("expire", "t".to_owned(), "l".to_owned());
        (0..4).for_each(|_| audit.note(entry()));
        assert!(!queued.recv().await.unwrap().contains("missing"));
        audit.note(entry());
        let line: serde_json::Value = serde_json::from_str(&queued.recv().await.unwrap()).unwrap();
        assert_eq!((&line["missing"], &line["operation"]), (&3.into(), &"expire".into()));
    }
}
