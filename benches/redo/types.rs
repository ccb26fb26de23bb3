//! The cost of one record of each type.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use postgres_formats::record::{BlockRef, DecodedRecord, decode, reduce_to_block};
use postgres_formats::rmgr::RmgrId;
use redo::{Applied, Chain, RedoContext};
use serde_json::{Value, json};

use crate::recorded::{Page, Recorded};

/// Samples of each type; they are measured in turn.
const SAMPLES: usize = 256;
/// Records with more blocks have lists of pages that are all treated alike.
const MOST_PARTS: u8 = 6;
/// How often all samples are measured in one go.
const ROUNDS: usize = 4;

struct Sample {
    record: Vec<u8>,
    block: u8,
    end: u64,
    page: Box<Page>,
}

/// One object per record type and block reference: nanoseconds per record, records per second.
pub fn measure(recorded: &Recorded, measured: Duration) -> Vec<Value> {
    let records = recorded.decode_wal(&recorded.read_wal());
    let mut samples: BTreeMap<(&str, u8), Vec<Sample>> = BTreeMap::new();
    recorded.replay(&records, |record, block, page, end| {
        let name = record.header.name(recorded.ctx.version);
        let of_type = samples.entry((name, part_of(record, block))).or_default();
        if of_type.len() < SAMPLES {
            let mut reduced = Vec::new();
            reduce_to_block(record, block.id, &mut reduced);
            of_type.push(Sample { record: reduced, block: block.id, end, page: Box::new(*page) });
        }
    });
    let one = |((name, block), samples): (&(&str, u8), &Vec<Sample>)| {
        let (ns, applied) = measure_one(&recorded.ctx, samples, measured / 20)?;
        println!("{name:28} block {block}: {ns:8.0} ns");
        Some(json!({ "record": name, "block": block, "samples": samples.len(), "changed": applied, "ns": ns,
            "records_per_s": 1e9 / ns }))
    };
    samples.iter().filter_map(one).collect()
}

/// Blocks of a record that are treated alike count as one.
fn part_of(record: &DecodedRecord<'_>, block: &BlockRef<'_>) -> u8 {
    if record.header.rmgr() == RmgrId::XLOG { 0 } else { block.id.min(MOST_PARTS) }
}

/// Nanoseconds per record, and how many of the samples changed their page; `None` if none did.
fn measure_one(ctx: &RedoContext, samples: &[Sample], measured: Duration) -> Option<(f64, usize)> {
    let changes = |sample: &&Sample| apply(ctx, sample, sample.page.clone()).1 == Applied::Changed;
    let samples: Vec<_> = samples.iter().filter(changes).collect();
    let (mut spent, mut count) = (Duration::ZERO, 0);
    while spent < measured && !samples.is_empty() {
        let pages: Vec<_> = (0..ROUNDS).flat_map(|_| &samples).map(|sample| (sample, sample.page.clone())).collect();
        count += pages.len();
        // Pages are neither allocated nor dropped while the clock runs.
        let mut after = Vec::with_capacity(pages.len());
        let start = Instant::now();
        for (sample, page) in pages {
            after.push(apply(ctx, sample, page).0);
        }
        spent += start.elapsed();
        black_box(after);
    }
    (count > 0).then(|| (spent.as_nanos() as f64 / count as f64, samples.len()))
}

fn apply(ctx: &RedoContext, sample: &Sample, page: Box<Page>) -> (Chain, Applied) {
    let record = decode(ctx.version, &sample.record).expect("a reduced record is a record");
    Chain::new(page).apply(ctx, &record, sample.block, sample.end).expect("it was applied before")
}
