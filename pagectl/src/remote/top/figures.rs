//! Two looks at a server's metrics, and what happened between them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use env::clock;
use indicatif::{BinaryBytes, HumanDuration};
use serde_json::{Value, json};
use utils::lsn::Lsn;

use crate::table::text;

/// One look at a server.
pub(super) struct Sample {
    at: Instant,
    /// Seconds since 1970.
    wall: f64,
    /// Metrics without the prefix that all have, each the sum over its labels.
    totals: BTreeMap<String, f64>,
    /// Of requests for pages alone: how many were answered, and how long they took together in seconds.
    pages: (f64, f64),
    pub(super) status: Value,
    pub(super) timelines: Vec<Value>,
}

/// What happened between two looks, each in a second.
pub(super) struct Rates {
    seconds: f64,
    grown: BTreeMap<String, f64>,
    pages: (f64, f64),
    /// Bytes of WAL by tenant and timeline, in all.
    wal: BTreeMap<(String, String), u64>,
}

impl Sample {
    /// `metrics` is the text of `/metrics`.
    pub(super) fn new(metrics: &str, status: Value, timelines: Vec<Value>) -> Self {
        let (mut totals, mut pages) = (BTreeMap::<String, f64>::new(), (0.0, 0.0));
        for line in metrics.lines().filter(|line| !line.starts_with('#')) {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let Ok(value) = value.parse::<f64>() else { continue };
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let Some(name) = name.strip_prefix("pageserver_") else { continue };
            if labels.contains("get_page_at_lsn") {
                match name {
                    "smgr_query_seconds_count" => pages.0 += value,
                    "smgr_query_seconds_sum" => pages.1 += value,
                    _ => {}
                }
            }
            *totals.entry(name.to_owned()).or_default() += value;
        }
        let wall = clock::system_now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        Self { at: clock::now(), wall, totals, pages, status, timelines }
    }

    /// What happened since `before`. A counter that is less than it was belongs to a server that was started again.
    pub(super) fn since(&self, before: &Self) -> Rates {
        let grown = |name: &String, value: &f64| value - before.totals.get(name).copied().unwrap_or_default();
        let ends = |sample: &Self| -> BTreeMap<_, u64> {
            let end = |timeline: &Value| text(timeline, "last_record_lsn").parse::<Lsn>().map_or(0, |lsn| lsn.0);
            sample.timelines.iter().map(|timeline| (key(timeline), end(timeline))).collect()
        };
        let began = ends(before);
        let wal = ends(self).into_iter().map(|(key, end)| {
            let more = began.get(&key).map_or(0, |began| end.saturating_sub(*began));
            (key, more)
        });
        Rates {
            seconds: self.at.saturating_duration_since(before.at).as_secs_f64().max(1e-3),
            grown: self.totals.iter().map(|(name, value)| (name.clone(), grown(name, value).max(0.0))).collect(),
            pages: ((self.pages.0 - before.pages.0).max(0.0), (self.pages.1 - before.pages.1).max(0.0)),
            wal: wal.collect(),
        }
    }

    fn total(&self, name: &str) -> f64 {
        self.totals.get(name).copied().unwrap_or_default()
    }
}

fn key(timeline: &Value) -> (String, String) {
    (text(timeline, "tenant_id"), text(timeline, "timeline_id"))
}

impl Rates {
    fn grown(&self, name: &str) -> f64 {
        self.grown.get(name).copied().unwrap_or_default()
    }

    fn rate(&self, name: &str) -> f64 {
        self.grown(name) / self.seconds
    }

    /// How much of `what` there was for each of `of`; 0 if there was none.
    fn each(&self, what: &str, of: &str) -> f64 {
        let of = self.grown(of);
        if of > 0.0 { self.grown(what) / of } else { 0.0 }
    }

    fn page_ms(&self) -> f64 {
        if self.pages.0 > 0.0 { self.pages.1 / self.pages.0 * 1e3 } else { 0.0 }
    }

    /// Bytes of WAL that a timeline grows by in a second.
    pub(super) fn wal_of(&self, timeline: &Value) -> u64 {
        (self.wal.get(&key(timeline)).copied().unwrap_or_default() as f64 / self.seconds) as u64
    }

    pub(super) fn to_json(&self) -> Value {
        let hundredths = |value: f64| (value * 100.0).round() / 100.0;
        json!({
            "seconds": hundredths(self.seconds),
            "wal_bytes_per_s": self.rate("wal_ingest_bytes_received_total").round(),
            "records_per_s": self.rate("wal_ingest_records_received_total").round(),
            "slowed": hundredths(self.rate("intake_slowed_seconds_total")),
            "journal_syncs_per_s": hundredths(self.rate("journal_syncs_total")),
            "pages_per_s": hundredths(self.pages.0 / self.seconds),
            "page_ms": hundredths(self.page_ms()),
            "bucket_requests_per_s": hundredths(self.rate("remote_storage_requests_total")),
            "bucket_failures_per_s": hundredths(self.rate("remote_storage_failures_total")),
            "compaction_written_bytes_per_s": self.rate("compaction_written_bytes_total").round(),
        })
    }

    /// Three lines about the whole server.
    pub(super) fn summary(&self, now: &Sample) -> String {
        let rate = |name: &str| size(self.rate(name) as u64);
        let up = Duration::from_secs((now.wall - now.total("process_start_time_seconds")).max(0.0) as u64);
        let slowed = self.rate("intake_slowed_seconds_total") + self.rate("compaction_slowed_seconds_total");
        [
            format!(
                "pageserver {}  up {}  memory {}  connections {}  local disk {}",
                text(&now.status, "version"),
                HumanDuration(up),
                size(now.total("process_resident_memory_bytes") as u64),
                now.total("live_connections_started_total") - now.total("live_connections_finished_total"),
                size(now.total("resident_bytes") as u64),
            ),
            format!(
                "WAL {}/s  records {:.0}/s  syncs {:.0}/s  slowed {:.0} %  compaction {}/s  due {}",
                rate("wal_ingest_bytes_received_total"),
                self.rate("wal_ingest_records_received_total"),
                self.rate("journal_syncs_total"),
                (slowed * 100.0).min(100.0),
                rate("compaction_written_bytes_total"),
                size(now.total("compaction_debt_bytes") as u64),
            ),
            format!(
                "pages {:.0}/s  {:.2} ms each, {:.1} layers, {:.1} records  bucket {:.1} requests/s, {} in, {} out, \
                 {:.1} failures/s",
                self.pages.0 / self.seconds,
                self.page_ms(),
                self.each("layers_per_read_global_sum", "layers_per_read_global_count"),
                self.each("deltas_per_read_global_sum", "deltas_per_read_global_count"),
                self.rate("remote_storage_requests_total"),
                rate("remote_storage_bytes_in_total"),
                rate("remote_storage_bytes_out_total"),
                self.rate("remote_storage_failures_total"),
            ),
        ]
        .join("\n")
    }
}

/// A number of bytes as people read it.
pub(super) fn size(bytes: u64) -> String {
    if bytes == 0 { "0".to_owned() } else { BinaryBytes(bytes).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(received: u64, pages: u64, last: &str) -> Sample {
        let metrics = format!(
            "# HELP pageserver_x text 5\npageserver_wal_ingest_bytes_received_total {received}\n\
             pageserver_smgr_query_seconds_count{{smgr_query_type=\"get_page_at_lsn\"}} {pages}\n\
             pageserver_smgr_query_seconds_sum{{smgr_query_type=\"get_page_at_lsn\"}} {}\n\
             pageserver_smgr_query_seconds_count{{smgr_query_type=\"get_rel_size\"}} 70\n\
             pageserver_remote_storage_requests_total{{class=\"a\"}} 5\n\
             pageserver_remote_storage_requests_total{{class=\"b\"}} {}\nother 7\npageserver_bad x\n",
            pages as f64 * 0.002,
            pages * 3
        );
        let timeline = json!({ "tenant_id": "t", "timeline_id": "l", "last_record_lsn": last });
        Sample::new(&metrics, json!({ "version": "1.2" }), vec![timeline])
    }

    fn rates(before: &Sample, mut now: Sample) -> (Sample, Rates) {
        now.at = before.at + Duration::from_secs(2);
        let rates = now.since(before);
        (now, rates)
    }

    #[test]
    fn what_has_grown_is_told_for_each_second() {
        let (now, rates) = rates(&sample(1000, 10, "0/100"), sample(5096, 30, "0/500"));
        let told = rates.to_json();
        let found = ["wal_bytes_per_s", "pages_per_s", "page_ms", "bucket_requests_per_s"].map(|name| &told[name]);
        assert_eq!(found.map(Value::as_f64), [Some(2048.0), Some(10.0), Some(2.0), Some(30.0)]);
        assert_eq!(rates.wal_of(&now.timelines[0]), 512);
        assert_eq!(rates.wal_of(&json!({ "tenant_id": "t", "timeline_id": "unknown" })), 0);
        let summary = rates.summary(&now);
        assert!(summary.contains("WAL 2.00 KiB/s") && summary.contains("pages 10/s  2.00 ms each"), "{summary}");
    }

    #[test]
    fn a_server_that_was_started_again_has_no_negative_rates() {
        let (now, rates) = rates(&sample(1000, 10, "0/500"), sample(10, 0, "0/400"));
        let told = rates.to_json();
        assert_eq!((&told["wal_bytes_per_s"], &told["page_ms"]), (&json!(0.0), &json!(0.0)));
        assert_eq!(rates.wal_of(&now.timelines[0]), 0);
    }
}
