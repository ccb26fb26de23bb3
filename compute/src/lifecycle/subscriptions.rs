//! Logical replication subscriptions that a branch inherits from its ancestor.
//!
//! They would resume where the ancestor's server is: consume its rows from the same slot at the publisher. So before
//! a branch is written for the first time they are disabled and their slot names are removed: enabling or dropping
//! one here must not touch that slot either. A single-user server does this, since it runs no background processes,
//! in one transaction for all databases. The same transaction leaves a mark, so that any later writer, which begins
//! where the branch ends, sees both the mark and the change: what a user has enabled on the branch stays as it is.
//!
//! The mark is a replication origin named after the timeline: a row that WAL brings to the branch, that dumps do not
//! contain, and that nothing else looks at.

use std::io::{Read, Write};
use std::process::{Child, Stdio};
use std::time::Duration;

use pageserver_api::boot_image::Manifest;
use pageserver_api::pagestream::{Answer, ProtocolVersion, Query, Request, RequestHeader};
use pageserver_api::reltag::{GLOBAL_TABLESPACE, RelTag};
use utils::lsn::Lsn;

use super::config::{ComputeConfig, Subscriptions};
use super::{LifecycleError, Result, io_error, mounted, server};
use crate::layout::Layout;
use crate::supervisor::launch;

/// `pg_subscription`, unless it was rewritten since `initdb`.
const CATALOG: RelTag = RelTag { spcnode: GLOBAL_TABLESPACE, dbnode: 0, relnode: 6100, forknum: 0 };

/// Polling interval for a single-user server.
const LOOK: Duration = Duration::from_millis(5);

/// What a new compute that writes must do. `point` is where the branch begins; a timeline that is not a branch always
/// had another owner before.
pub(super) async fn of_new(
    compute: &ComputeConfig,
    manifest: &Manifest,
    point: Option<Lsn>,
    keep: bool,
) -> Subscriptions {
    let is_empty = manifest.relations.iter().any(|entry| entry.rel == CATALOG && entry.blocks == 0);
    let has_none = match point {
        // If the branch had none at its beginning, those that it has now are its own.
        Some(point) => is_empty || blocks_at(compute, point).await == Some(0),
        None => false,
    };
    match (has_none, keep) {
        (true, _) => Subscriptions::Settled,
        (false, true) => Subscriptions::Keep,
        (false, false) => Subscriptions::Disable,
    }
}

/// Number of blocks of the catalog at an LSN; `None` if unknown.
async fn blocks_at(compute: &ComputeConfig, lsn: Lsn) -> Option<u32> {
    let servers = compute.page_servers().ok()?;
    let mut stream = None;
    for (_, server) in servers.in_turn() {
        let opened = server.pagestream(ProtocolVersion::V3, compute.tenant, compute.timeline).await;
        stream = stream.or(opened.ok());
    }
    let mut stream = stream?;
    let header = RequestHeader { reqid: 1, request_lsn: lsn, not_modified_since: lsn };
    let answer = stream.request(&Request { header, query: Query::Nblocks(CATALOG) }).await;
    match answer.ok()? {
        Answer::Nblocks(blocks) => Some(blocks),
        _ => None,
    }
}

/// Does what is pending before the server starts. Returns the subscriptions that it disabled, as
/// `database.subscription`.
pub(super) fn settle(
    compute: &ComputeConfig,
    layout: &Layout,
    settings: &[String],
    limit: Duration,
) -> Result<Vec<String>> {
    let disable = match compute.subscriptions {
        Subscriptions::Settled => return Ok(Vec::new()),
        Subscriptions::Disable => true,
        Subscriptions::Keep => false,
    };
    let mut settings = settings.to_vec();
    settings.extend([
        // The pageserver has not received any of this WAL, and there is no slot yet.
        "wal_keep_size=1GB".to_owned(),
        "synchronous_standby_names=".to_owned(),
        "exit_on_error=on".to_owned(),
        "default_transaction_read_only=off".to_owned(),
    ]);
    let said = run(compute, layout, &settings, &script(compute, disable), limit)?;
    disabled(&said).ok_or_else(|| {
        LifecycleError::Server(format!("{}: what became of its subscriptions is not known: {said:?}", compute.name))
    })
}

/// One statement per line.
fn script(compute: &ComputeConfig, disable: bool) -> String {
    let mark = format!("'pageserver_{}'", compute.timeline);
    let unmarked = format!("NOT EXISTS (SELECT FROM pg_replication_origin WHERE roname = {mark})");
    let mut lines = vec!["BEGIN".to_owned()];
    if disable {
        lines.push(format!(
            "SELECT encode(textsend(coalesce(json_agg(datname || '.' || subname ORDER BY datname, subname), '[]') \
             ::text), \
             'hex') AS disabled FROM pg_subscription JOIN pg_database d ON d.oid = subdbid \
             WHERE subenabled AND {unmarked}"
        ));
        lines.push(format!(
            "UPDATE pg_subscription SET subenabled = false, subslotname = NULL WHERE (subenabled OR subslotname IS NOT \
             NULL) AND {unmarked}"
        ));
    } else {
        lines.push("SELECT encode('[]', 'hex') AS disabled".to_owned());
    }
    lines.push(format!("SELECT pg_replication_origin_create({mark}) WHERE {unmarked}"));
    lines.push("COMMIT".to_owned());
    lines.iter().map(|line| format!("{line};\n")).collect()
}

/// Runs a single-user server; returns its output.
fn run(compute: &ComputeConfig, layout: &Layout, settings: &[String], script: &str, limit: Duration) -> Result<String> {
    let program = compute.bin_dir.join("postgres");
    let failed = |what: String| server::failed(layout, &format!("{}: its subscriptions: {what}", compute.name));
    let mut command = server::postgres(compute, layout, settings, Some("--single"))?;
    let mut process =
        command.arg("template1").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(io_error(&program))?;
    let written = process.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(script.as_bytes()));
    let said = process.stdout.take().map(|mut stdout| {
        env::spawn::thread("read", move || {
            let mut said = Vec::new();
            let _ = stdout.read_to_end(&mut said);
            said
        })
    });
    let said = said.transpose().map_err(io_error(&program))?;
    let Some(status) = wait(&mut process, limit) else {
        // A server that waits for its files ends when they do.
        let _ = process.kill();
        launch::reap(process);
        return Err(failed(format!("not done within {limit:?}{}", mounted::trouble(layout))));
    };
    let said = said.and_then(|said| said.join().ok()).unwrap_or_default();
    if !status.success() || written.is_err() {
        return Err(failed(format!("they could not be disabled ({status})")));
    }
    Ok(String::from_utf8_lossy(&said).into_owned())
}

/// Waits until it exits.
fn wait(process: &mut Child, limit: Duration) -> Option<std::process::ExitStatus> {
    let since = env::clock::now();
    loop {
        if let Ok(Some(status)) = process.try_wait() {
            return Some(status);
        }
        if env::clock::now().saturating_duration_since(since) >= limit {
            return None;
        }
        env::clock::pause(LOOK);
    }
}

/// Parses the output for a row: one line per column, such as ` 1: disabled = "5b5d"  (typeid = 25, ...)`.
fn disabled(said: &str) -> Option<Vec<String>> {
    let (_, row) = said.split_once("disabled = \"")?;
    let (digits, _) = row.split_once('"')?;
    let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(byte).collect();
    serde_json::from_str(&String::from_utf8_lossy(&bytes?)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_whatever_they_hold() {
        let said = |hex: &str| {
            format!(
                "backend> \t 1: disabled\t(typeid = 25, len = -1)\n\t----\n\t 1: disabled = \"{hex}\"\t(typeid = 25)\n"
            )
        };
        let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(disabled(&said("5b5d")), Some(Vec::new()));
        assert_eq!(disabled(&said(&hex(r#"["a.b\" c", "d.e"]"#))), Some(vec!["a.b\" c".to_owned(), "d.e".to_owned()]));
        for bad in ["", "5b5", "zz", "5b"] {
            assert_eq!(disabled(&said(bad)), None, "{bad}");
        }
        assert_eq!(disabled("backend> "), None);
    }
}
