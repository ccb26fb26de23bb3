//! `pagectl compact`: has a timeline compacted now, and shows how far that is.

use indicatif::HumanBytes;
use serde_json::{Value, json};

use super::client::Refusal;
use super::condition::{self, KINDS};
use super::connection::Remote;
use super::progress::{Progress, meanwhile};
use crate::output;
use crate::table::{bytes, table, text};

/// What is counted of each kind of job.
const COUNTS: [&str; 4] = ["jobs", "bytes_in", "bytes_out", "millis"];
/// The server's answer to a request that took too long: the work goes on.
const TIMEOUT: u16 = 408;

/// Runs the command.
pub(super) fn run(remote: &Remote<'_>) -> anyhow::Result<()> {
    let base = remote.base()?;
    let before = remote.client.get(&base)?;
    let mut progress = Progress::new(remote.common.json, || output::byte_bar(condition::debt(&before)));
    tell(&mut progress, &before, &before);
    let ended = meanwhile(
        || until_done(remote, &base),
        |_| {
            if !progress.is_silent()
                && let Ok(now) = remote.client.get(&base)
            {
                tell(&mut progress, &before, &now);
            }
        },
    );
    progress.end();
    ended?;
    let after = remote.client.get(&base)?;
    let done = difference(&before, &after);
    let rows: Vec<Vec<String>> = KINDS.iter().map(|kind| row(kind, &done[*kind])).collect();
    let did = table(&["JOB", "DONE", "READ", "WRITTEN", "TIME"], &rows);
    output::finish(remote.common.json, &done, format!("{did}\n\n{}", condition::summary(&after)));
    Ok(())
}

/// Asks again if the work takes longer than a request may: who asks again waits for what is under way.
fn until_done(remote: &Remote<'_>, base: &str) -> anyhow::Result<Value> {
    loop {
        let answer = remote.client.call("PUT", &format!("{base}/compact"), None);
        match answer {
            Err(error) if error.downcast_ref::<Refusal>().is_some_and(|refusal| refusal.status == TIMEOUT) => {}
            answer => return answer,
        }
    }
}

/// What was done between two states of a timeline, by kind of job.
fn difference(before: &Value, after: &Value) -> Value {
    let count = |info: &Value, kind: &str, name: &str| info["compaction"][kind][name].as_u64().unwrap_or(0);
    let mut done = json!({});
    for kind in KINDS {
        for name in COUNTS {
            // A server that was started meanwhile counts from zero.
            done[kind][name] = count(after, kind, name).saturating_sub(count(before, kind, name)).into();
        }
    }
    done
}

/// Shows how far it is from the state `before` to the end.
fn tell(progress: &mut Progress, before: &Value, now: &Value) {
    let (done, left) = (difference(before, now), condition::debt(now));
    let read = sum(&done, "bytes_in");
    progress.tell(read, read + left, words(&done, left));
}

/// How far it is, on one line.
fn words(done: &Value, left: u64) -> String {
    let (jobs, written) = (sum(done, "jobs"), HumanBytes(sum(done, "bytes_out")));
    format!("compacting: {jobs} jobs done, {written} written, {} left to rewrite", HumanBytes(left))
}

fn sum(done: &Value, name: &str) -> u64 {
    KINDS.iter().filter_map(|kind| done[*kind][name].as_u64()).sum()
}

fn row(kind: &str, did: &Value) -> Vec<String> {
    let seconds = did["millis"].as_u64().unwrap_or(0) as f64 / 1e3;
    vec![kind.to_owned(), text(did, "jobs"), bytes(did, "bytes_in"), bytes(did, "bytes_out"), format!("{seconds:.1} s")]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(jobs: u64, bytes: u64) -> Value {
        let counts = json!({ "jobs": jobs, "bytes_in": bytes, "bytes_out": bytes, "millis": 10 * jobs });
        json!({ "compaction": { "sort": counts, "merge": counts, "image": counts, "fold": counts } })
    }

    #[test]
    fn what_was_done_is_the_difference() {
        let done = difference(&info(2, 1 << 20), &info(5, 3 << 20));
        assert_eq!(done["merge"], json!({ "jobs": 3, "bytes_in": 2 << 20, "bytes_out": 2 << 20, "millis": 30 }));
        assert_eq!(words(&done, 2048), "compacting: 12 jobs done, 8.00 MiB written, 2.00 KiB left to rewrite");
        assert_eq!(row("merge", &done["merge"]), ["merge", "3", "2.00 MiB", "2.00 MiB", "0.0 s"]);
        assert_eq!(difference(&info(5, 5), &info(1, 1))["sort"]["jobs"], 0, "the server was started again");
    }
}
