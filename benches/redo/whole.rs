//! All records of the WAL, from the bytes of the segments to the last version of every page.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::Instant;

use postgres_formats::heap::implicit_vm_clears;
use postgres_formats::record::decode;
use redo::{Applied, Chain, vm};
use serde_json::{Value, json};
use wal_decoder::stream::WalRecord;

use crate::recorded::{PageName, Recorded};

/// Seconds and rates, the best of `rounds`.
pub fn measure(recorded: &Recorded, rounds: usize, cores: usize) -> Value {
    let wal = recorded.read_wal();
    let mut bytes = 0;
    let mut cases = Vec::new();
    for threads in if cores > 1 { vec![1, cores] } else { vec![1] } {
        let mut best = (f64::INFINITY, 0.0, 0, 0);
        for _ in 0..rounds {
            let start = Instant::now();
            let records = recorded.decode_wal(&wal);
            let decoded = start.elapsed().as_secs_f64();
            let ends = records.first().zip(records.last());
            bytes = ends.map_or(0, |(first, last)| last.end.0 - first.start.0);
            let blocks = replay_all(recorded, &records, threads);
            let all = start.elapsed().as_secs_f64();
            if all < best.0 {
                best = (all, decoded, records.len(), blocks);
            }
        }
        let (seconds, decoding, records, blocks) = best;
        println!(
            "{records} records, {blocks} blocks, {threads} threads: {seconds:.3} s, of it decoding {decoding:.3} s"
        );
        cases.push(json!({ "threads": threads, "seconds": seconds, "decoding_seconds": decoding, "records": records,
            "blocks": blocks, "records_per_s": records as f64 / seconds }));
    }
    json!({ "wal_bytes": bytes, "cases": cases })
}

/// Every thread replays all records on its share of the pages. Returns the number of blocks that changed.
fn replay_all(recorded: &Recorded, records: &[WalRecord], threads: usize) -> u64 {
    let hasher = RandomState::new();
    let owner = |name: PageName| hasher.hash_one(name) % threads as u64;
    std::thread::scope(|scope| {
        let owner = &owner;
        let spawn = |own: u64| scope.spawn(move || replay_share(recorded, records, |name| owner(name) == own));
        let threads: Vec<_> = (0..threads as u64).map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    })
}

fn replay_share(recorded: &Recorded, records: &[WalRecord], is_own: impl Fn(PageName) -> bool) -> u64 {
    let (mut pages, mut changed) = (recorded.pages(), 0);
    for WalRecord { bytes, end, .. } in records {
        let record = decode(recorded.ctx.version, bytes).expect("the stream's records are whole");
        for block in &record.blocks {
            let name = (block.rel, block.fork, block.blkno);
            if !is_own(name) {
                continue;
            }
            let chain = Chain::new(pages.take(name));
            let (chain, applied) = chain.apply(&recorded.ctx, &record, block.id, end.0).expect("redo of recorded WAL");
            changed += u64::from(applied == Applied::Changed);
            pages.put(name, chain.into_page());
        }
        for clear in implicit_vm_clears(&record).into_iter().flatten() {
            let name = (clear.rel, 2, vm::position(clear.heap_blkno).page);
            if is_own(name) {
                let mut page = pages.take(name);
                vm::clear_bits(&mut page, clear.heap_blkno, clear.bits);
                pages.put(name, page);
            }
        }
    }
    changed
}
