//! `pagectl timeline detach`: makes a branch a timeline of its own, and shows how far that is.

use std::thread;
use std::time::Duration;

use anyhow::anyhow;
use indicatif::{HumanBytes, ProgressBar};
use serde_json::Value;

use super::client::Refusal;
use super::connection::Remote;
use crate::output;
use crate::table::text;

/// Interval at which it is noticed that the work has ended,
const PERIOD: Duration = Duration::from_millis(100);
/// and number of intervals after which the server is asked how far it is.
const PERIODS_PER_QUESTION: usize = 5;
/// The server's answer to a request that took too long: the work goes on.
const TIMEOUT: u16 = 408;

/// Runs the command.
pub(super) fn run(remote: &Remote<'_>, wanted: Option<&str>) -> anyhow::Result<()> {
    let branch = remote.branch_or_root(wanted)?;
    let (tenant, id) = (text(&branch, "tenant_id"), text(&branch, "timeline_id"));
    let base = format!("/v1/tenant/{tenant}/timeline/{id}");
    let bar = if remote.common.json { ProgressBar::hidden() } else { output::byte_bar(0) };
    let ended = if bar.is_hidden() {
        until_done(remote, &base)
    } else {
        thread::scope(|scope| {
            let work = scope.spawn(|| until_done(remote, &base));
            for number in 1_usize.. {
                env::clock::pause(PERIOD);
                if work.is_finished() {
                    break;
                }
                if number.is_multiple_of(PERIODS_PER_QUESTION)
                    && let Ok(now) = remote.client.get(&base)
                {
                    show(&bar, &now["detach"]);
                }
            }
            work.join().unwrap_or_else(|_| Err(anyhow!("the request could not be made")))
        })
    };
    bar.finish_and_clear();
    ended?;
    let after = remote.client.get(&base)?;
    output::finish(remote.common.json, &after, summary(&branch, &after));
    Ok(())
}

/// Asks again if the work takes longer than a request may: who asks again waits for what is under way.
fn until_done(remote: &Remote<'_>, base: &str) -> anyhow::Result<Value> {
    loop {
        let answer = remote.client.call("PUT", &format!("{base}/detach_ancestor"), None);
        match answer {
            Err(error) if error.downcast_ref::<Refusal>().is_some_and(|refusal| refusal.status == TIMEOUT) => {}
            answer => return answer,
        }
    }
}

fn show(bar: &ProgressBar, progress: &Value) {
    let count = |name: &str| progress[name].as_u64().unwrap_or(0);
    bar.set_length(count("bytes_total"));
    bar.set_position(count("bytes_done"));
    bar.set_message(match progress.is_object() {
        true => format!("read; {} pages, {} written", count("pages"), HumanBytes(count("bytes_written"))),
        false => "read; waiting for the bucket".to_owned(),
    });
}

fn summary(before: &Value, after: &Value) -> String {
    let (id, lsn) = (text(after, "timeline_id"), text(after, "detached_lsn"));
    let name = before["name"].as_str().unwrap_or(&id);
    match before["ancestor_timeline_id"].as_str() {
        Some(ancestor) => format!("{name} is detached from {ancestor}: its history begins at LSN {lsn}"),
        None => format!("{name} was detached before, at LSN {lsn}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_summary_says_where_history_begins() {
        let after = json!({ "timeline_id": "ab", "name": "dev", "detached_lsn": "0/16B3748" });
        let before = json!({ "timeline_id": "ab", "name": "dev", "ancestor_timeline_id": "cd" });
        assert_eq!(summary(&before, &after), "dev is detached from cd: its history begins at LSN 0/16B3748");
        assert_eq!(summary(&after, &after), "dev was detached before, at LSN 0/16B3748");
        let nameless = json!({ "ancestor_timeline_id": "cd" });
        assert!(summary(&nameless, &after).starts_with("ab is detached"));
    }

    #[test]
    fn the_bar_shows_what_was_read_and_written() {
        let bar = ProgressBar::hidden();
        show(&bar, &json!({ "bytes_total": 100, "bytes_done": 40, "pages": 7, "bytes_written": 2048 }));
        assert_eq!(
            (bar.length(), bar.position(), bar.message()),
            (Some(100), 40, "read; 7 pages, 2.00 KiB written".into())
        );
        show(&bar, &Value::Null);
        assert!(bar.message().contains("waiting"));
    }
}
