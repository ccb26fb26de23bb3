//! Writes seeds: `seeds [--few] OUT DIR...`, each DIR made by `benches/redo/record_wal.py`. Some of every record
//! type, block reference and version, with the preceding page, to `OUT/<target>`; whole records to `OUT/record`; the
//! first pages of some segments to `OUT/stream`; output of the formats' own encoders to the other targets.
//!
//! With `--few` only the smallest of each kind, up to a limit for each target: this is the content of `tests/seeds`.

mod by_hand;
mod kept;
#[path = "../../../../benches/redo/recorded.rs"]
mod recorded;

use std::path::PathBuf;

use fuzzed::Case;
use kept::Kept;
use postgres_formats::rmgr::RmgrId;
use postgres_formats::version::PgVersion;
use recorded::Recorded;
use wal_decoder::stream::WalRecord;

/// Large records teach a fuzzer little.
const MAX_RECORD: usize = 4096;
const SEGMENTS: usize = 4;
const PAGE: usize = 8192;

fn main() {
    let mut args: Vec<_> = std::env::args_os().skip(1).collect();
    let few = args.first().is_some_and(|first| first == "--few");
    args.drain(..usize::from(few));
    let mut args = args.into_iter().map(PathBuf::from);
    let mut kept = Kept::new(args.next().expect("usage: seeds [--few] OUT DIR..."), few);
    by_hand::add_all(&mut kept);
    for dir in args {
        let recorded = Recorded::open(&dir);
        let wal = recorded.read_wal();
        let records = recorded.decode_wal(&wal);
        add_records(&mut kept, &recorded, &records);
        let (changed, errors) = add_cases(&mut kept, &recorded, &records);
        let version = recorded.ctx.version;
        let pages = if few { 1 } else { 2 };
        for (number, segment) in wal.iter().take(SEGMENTS).enumerate() {
            let seed = [&[1, 200, index(version)], &segment[..pages * PAGE]].concat();
            kept.add("stream", &format!("segment-{number}"), Some(version), seed);
        }
        println!("{}: {} records, {changed} blocks changed, {} errors", dir.display(), records.len(), errors.len());
        errors.iter().take(5).for_each(|error| println!("  {error}"));
    }
    println!("{}", kept.finish());
}

fn add_cases(kept: &mut Kept, recorded: &Recorded, records: &[WalRecord]) -> (u64, Vec<redo::RedoError>) {
    recorded.replay(records, |record, block, page, _| {
        let Some(target) = target_of(record.header.rmgr()) else { return };
        let version = recorded.ctx.version;
        let kind = format!("{}-{}", record.header.name(version), block.id);
        kept.add(target, &kind, Some(version), Case::write(&recorded.ctx, record, block, page));
    })
}

fn add_records(kept: &mut Kept, recorded: &Recorded, records: &[WalRecord]) {
    let version = recorded.ctx.version;
    for record in records.iter().filter(|record| record.bytes.len() <= MAX_RECORD) {
        let Ok(decoded) = postgres_formats::record::decode(version, &record.bytes) else { continue };
        let seed = [&[index(version)], &record.bytes[..]].concat();
        kept.add("record", decoded.header.name(version), Some(version), seed);
    }
}

fn index(version: PgVersion) -> u8 {
    PgVersion::ALL.iter().position(|known| *known == version).unwrap_or(0) as u8
}

fn target_of(rmgr: RmgrId) -> Option<&'static str> {
    Some(match rmgr {
        RmgrId::XLOG => "xlog",
        RmgrId::HEAP => "heap",
        RmgrId::HEAP2 => "heap2",
        RmgrId::BTREE => "btree",
        RmgrId::HASH => "hash",
        RmgrId::GIN => "gin",
        RmgrId::GIST => "gist",
        RmgrId::SPGIST => "spgist",
        RmgrId::BRIN => "brin",
        RmgrId::SEQ => "seq",
        RmgrId::GENERIC => "generic",
        _ => return None,
    })
}
