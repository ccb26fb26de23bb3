//! The results of the verification, for humans and programs.

use postgres_formats::version::PgVersion;
use serde_json::{Map, Value, json};
use utils::lsn::Lsn;

use super::counts::{Counts, CountsByRecord};
use super::final_counts::FinalCounts;
use super::replay::Replay;

/// The results of the final comparisons.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) relations: FinalCounts,
    pub(super) slru: FinalCounts,
}

/// The result of a run.
#[derive(Debug)]
pub struct Report {
    version: PgVersion,
    end: Lsn,
    counts: CountsByRecord,
    total: Counts,
    map_clears: u64,
    problems: Vec<String>,
    files: Option<Files>,
}

impl Report {
    pub(super) fn new(version: PgVersion, end: Lsn, replay: Replay, files: Option<Files>) -> Self {
        let Replay { counts, map_clears, mut problems, .. } = replay;
        if let Some(Files { relations, slru }) = &files {
            problems.extend(relations.problems.iter().chain(&slru.problems).cloned());
        }
        Self { version, end, total: counts.total(), counts, map_clears, problems, files }
    }

    fn final_pages(&self, count: impl Fn(&FinalCounts) -> u64) -> u64 {
        self.files.as_ref().map_or(0, |files| count(&files.relations) + count(&files.slru))
    }

    fn differences(&self) -> u64 {
        self.total.different + self.final_pages(|counts| counts.different)
    }

    /// The server's version.
    pub fn version(&self) -> PgVersion {
        self.version
    }

    /// Whether anything differs, failed, or was skipped.
    pub fn failed(&self) -> bool {
        self.differences() + self.total.errors + self.total.skipped > 0
    }

    /// A table of the record types that occurred, and all differences.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        lines.push(format!(
            "{:26} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
            "record", "records", "blocks", "compared", "changed", "different", "errors", "images", "skipped"
        ));
        let met = self.counts.iter().filter(|(_, counts)| counts.records > 0);
        for (name, counts) in met.chain([("all", &self.total)]) {
            let Counts { records, blocks, compared, changed, different, errors, images, skipped } = counts;
            lines.push(format!(
                "{name:26} {records:>9} {blocks:>9} {compared:>9} {changed:>9} {different:>9} {errors:>9} {images:>9} \
                 {skipped:>9}"
            ));
        }
        if let Some(Files { relations, slru }) = &self.files {
            lines.push(format!("pages of files, equal by kind: {:?}, {:?}", relations.equal, slru.equal));
        }
        lines.extend(self.problems.iter().cloned());
        let left_out = (self.differences() + self.total.errors).saturating_sub(self.problems.len() as u64);
        if left_out > 0 {
            lines.push(format!("and {left_out} more differences and errors"));
        }
        lines
    }

    /// The whole report as JSON.
    pub fn to_json(&self) -> Value {
        let by_record: Map<_, _> = self.counts.iter().map(|(name, c)| (name.to_owned(), c.to_json())).collect();
        let files = self.files.as_ref();
        json!({
            "version": self.version.major(), "end_lsn": self.end.to_string(), "total": self.total.to_json(),
            "by_record": by_record, "map_clears": self.map_clears,
            "relations": files.map(|files| files.relations.to_json()), "slru": files.map(|files| files.slru.to_json()),
            "problems": self.problems,
        })
    }

    /// The counts in one sentence.
    pub fn summary(&self) -> String {
        let Counts { records, compared, errors, skipped, images, .. } = self.total;
        format!(
            "Postgres {}: {records} records to LSN {}, {compared} blocks compared, {images} images applied, {} pages \
             of files compared, {} different, {errors} errors, {skipped} skipped",
            self.version.major(),
            self.end,
            self.final_pages(FinalCounts::compared),
            self.differences()
        )
    }
}
