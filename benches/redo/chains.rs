//! The cost of a page with many records to apply, as a reader requests it.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::hint::black_box;
use std::time::{Duration, Instant};

use bytes::Bytes;
use postgres_formats::record::{BlockRef, DecodedRecord, decode, reduce_to_block};
use postgres_formats::rmgr::RmgrId;
use redo::{Chain, RedoContext};
use serde_json::{Value, json};

use crate::artifact::Validity;
use crate::recorded::{Page, PageName, Recorded};

const LENGTHS: [usize; 3] = [1, 10, 100];
const LONGEST: usize = 100;
/// Chains of each kind and length; together their pages are larger than the caches of one core.
const CHAINS: usize = 1000;
/// Pages whose records are kept.
const PAGES: usize = 20_000;

struct PageChain {
    image: Bytes,
    /// Hashes of the page after each of the records.
    after: Vec<u64>,
    ended: bool,
    records: Vec<Record>,
}

/// Block reference, end, and the record reduced to that block.
type Record = (u8, u64, Bytes);

/// One object per kind of page and length of chain. Each page that a chain produces is compared once with the page
/// that the replay of all WAL had at that point.
pub fn measure(recorded: &Recorded, measured: Duration, cores: usize, validity: &mut Validity) -> Vec<Value> {
    let mut results = Vec::new();
    for (kind, rmgrs) in [("heap", &[RmgrId::HEAP, RmgrId::HEAP2][..]), ("btree", &[RmgrId::BTREE][..])] {
        let all = collect(recorded, rmgrs);
        for length in LENGTHS {
            let long_enough = all.iter().filter(|chain| chain.records.len() >= length);
            let chosen: Vec<_> =
                long_enough.take(CHAINS).map(|chain| (chain, together(&chain.records[..length]))).collect();
            if chosen.is_empty() {
                println!("{kind}: no chain of {length} records");
                continue;
            }
            let chains: Vec<Part<'_>> = chosen.iter().map(|(chain, records)| (*chain, &records[..])).collect();
            for (chain, records) in &chains {
                let page = rebuild(&recorded.ctx, chain, records);
                validity.compare(chain.after.get(length - 1).is_some_and(|after| *after == hash(&page)));
            }
            let (one, best) = pages_per_second(&recorded.ctx, &chains, measured, 1);
            let (many, _) = pages_per_second(&recorded.ctx, &chains, measured, cores);
            let us = 1e6 / one;
            println!(
                "{kind:5} {length:3} records: {us:7.2} us/page, best {best:7.2}; {cores} cores {many:9.0} pages/s"
            );
            results.push(json!({ "kind": kind, "records": length, "chains": chains.len(), "us_per_page": us,
                "best_us_per_page": best, "pages_per_s": one, "records_per_s": one * length as f64,
                "pages_per_s_all_cores": many,
                "scaling": many / one }));
        }
    }
    results
}

/// The records of each page, starting where nothing before them matters or where the recording begins.
fn collect(recorded: &Recorded, rmgrs: &[RmgrId]) -> Vec<PageChain> {
    let records = recorded.decode_wal(&recorded.read_wal());
    let mut chains: HashMap<PageName, PageChain> = HashMap::new();
    recorded.replay(&records, |record, block, page, end| {
        let name = (block.rel, block.fork, block.blkno);
        if let Some(chain) = chains.get_mut(&name)
            && chain.after.len() < chain.records.len()
        {
            chain.after.push(hash(page));
        }
        let starts_anew = block.will_init || block.image.is_some_and(|image| image.apply);
        if block.fork != 0 {
            return;
        }
        if starts_anew || !rmgrs.contains(&record.header.rmgr()) {
            // Later records do not continue the earlier ones.
            if let Some(chain) = chains.get_mut(&name) {
                chain.ended = true;
            }
            return;
        }
        add(&mut chains, record, block, page, end);
    });
    // The page after the last record has not been seen.
    let mut chains: Vec<_> = chains.into_iter().map(|(name, chain)| (name, chain.seen_to_its_end())).collect();
    // Long ones last, so that short chains come from all pages, not only from the busy ones. Among those of one length
    // the order is the same each time, as what they cost differs by times, and that of no place in a relation.
    chains.sort_by_cached_key(|(name, chain)| {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        (chain.records.len(), hasher.finish())
    });
    chains.into_iter().map(|(_, chain)| chain).collect()
}

fn add(
    chains: &mut HashMap<PageName, PageChain>,
    record: &DecodedRecord<'_>,
    block: &BlockRef<'_>,
    page: &Page,
    end: u64,
) {
    let name = (block.rel, block.fork, block.blkno);
    if chains.len() >= PAGES && !chains.contains_key(&name) {
        return;
    }
    let new =
        || PageChain { image: Bytes::copy_from_slice(page), after: Vec::new(), ended: false, records: Vec::new() };
    let chain = chains.entry(name).or_insert_with(new);
    if chain.records.len() < LONGEST && !chain.ended {
        let mut reduced = Vec::new();
        reduce_to_block(record, block.id, &mut reduced);
        chain.records.push((block.id, end, Bytes::from(reduced)));
    }
}

/// The records in one piece of memory, as a read of a layer has them. Where each is what the recording left of it, how
/// long it takes to reach them decides: then the same program took 3.9 to 6.2 us for the same ten records.
fn together(records: &[Record]) -> Vec<Record> {
    let all: Bytes = records.iter().flat_map(|(_, _, bytes)| bytes.iter().copied()).collect::<Vec<u8>>().into();
    let mut start = 0;
    let place = |(block, end, bytes): &Record| {
        let own = all.slice(start..start + bytes.len());
        start += bytes.len();
        (*block, *end, own)
    };
    records.iter().map(place).collect()
}

impl PageChain {
    fn seen_to_its_end(mut self) -> Self {
        self.records.truncate(self.after.len());
        self
    }
}

fn hash(page: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(page);
    hasher.finish()
}

type Part<'a> = (&'a PageChain, &'a [Record]);

/// Pages per second, and microseconds per page if every chain took the time of its fastest pass: disturbances on a
/// machine that others also use are not redo.
fn pages_per_second(ctx: &RedoContext, chains: &[Part<'_>], measured: Duration, threads: usize) -> (f64, f64) {
    let work = |from: usize| {
        let (mut passes, mut best, start) = (0, vec![f64::INFINITY; chains.len()], Instant::now());
        while start.elapsed() < measured {
            for number in (from..from + chains.len()).map(|number| number % chains.len()) {
                let (chain, records) = &chains[number];
                let begun = Instant::now();
                black_box(rebuild(ctx, chain, records));
                best[number] = best[number].min(begun.elapsed().as_secs_f64());
            }
            passes += 1;
        }
        let pages = (passes * chains.len()) as f64;
        (pages / start.elapsed().as_secs_f64(), best.iter().sum::<f64>() * 1e6 / chains.len() as f64)
    };
    // Every thread begins at a different chain.
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|n| scope.spawn(move || work(n * 37))).collect();
        let done = threads.into_iter().map(|thread| thread.join().expect("no panic"));
        done.fold((0.0, f64::INFINITY), |all, one| (all.0 + one.0, all.1.min(one.1)))
    })
}

fn rebuild(ctx: &RedoContext, chain: &PageChain, records: &[Record]) -> Bytes {
    let image: Box<[u8]> = chain.image.to_vec().into();
    let mut chain = Chain::new(image.try_into().expect("an image is a page"));
    for (block, end, record) in records {
        let record = decode(ctx.version, record).expect("a reduced record is a record");
        (chain, _) = chain.apply(ctx, &record, *block, *end).expect("it was applied before");
    }
    let page: Box<[u8]> = chain.into_page();
    Bytes::from(page)
}
