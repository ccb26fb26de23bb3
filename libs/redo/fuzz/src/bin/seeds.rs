//! Writes seeds from recorded WAL: `seeds OUT DIR...`, each DIR made by `benches/redo/record_wal.py`. Some of every
//! record type, block reference and version, with the page before, to `OUT/<target>`; whole records to `OUT/record`;
//! the first pages of some segments to `OUT/stream`.

#[path = "../../../../../benches/redo/recorded.rs"]
mod recorded;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use postgres_formats::rmgr::RmgrId;
use postgres_formats::version::PgVersion;
use recorded::Recorded;
use redo_fuzz::Case;

/// Seeds of each kind; enough that shapes differ, few enough that a fuzzer is soon through.
const OF_EACH: u32 = 6;
/// Large records teach a fuzzer little.
const MAX_RECORD: usize = 4096;
const SEGMENTS: usize = 4;
/// Bytes of a segment in a seed of the stream target.
const STREAM: usize = 2 * 8192;

fn main() {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let out = args.next().expect("usage: seeds OUT DIR...");
    let mut written = HashMap::new();
    for dir in args {
        let recorded = Recorded::open(&dir);
        let wal = recorded.read_wal();
        let records = recorded.decode_wal(&wal);
        write_records(&out, &recorded, &records, &mut written);
        let (changed, errors) = write_cases(&out, &recorded, &records, &mut written);
        for (number, segment) in wal.iter().take(SEGMENTS).enumerate() {
            let version = recorded.ctx.version;
            let seed = [&[1, 200, index(version)], &segment[..STREAM]].concat();
            write(&out, "stream", &format!("{version:?}-{number}"), &seed);
        }
        println!("{}: {} records, {changed} blocks changed, {} errors", dir.display(), records.len(), errors.len());
        errors.iter().take(5).for_each(|error| println!("  {error}"));
    }
    println!("{} kinds of records and blocks", written.len());
}

type Written = HashMap<(PgVersion, &'static str, Option<u8>), u32>;

/// Counts one more of a kind; false if there are enough.
fn is_wanted(written: &mut Written, kind: (PgVersion, &'static str, Option<u8>)) -> Option<u32> {
    let count = written.entry(kind).or_insert(0);
    *count += 1;
    Some(*count).filter(|count| *count <= OF_EACH)
}

fn write_cases(
    out: &Path,
    recorded: &Recorded,
    records: &[wal_decoder::stream::WalRecord],
    written: &mut Written,
) -> (u64, Vec<redo::RedoError>) {
    recorded.replay(records, |record, block, page, _| {
        let (version, rmgr) = (recorded.ctx.version, record.header.rmgr());
        let Some(target) = target_of(rmgr) else { return };
        let name = record.header.name(version);
        if let Some(number) = is_wanted(written, (version, name, Some(block.id))) {
            let file = format!("{}-{}-{version:?}-{number}", name.replace('/', "-"), block.id);
            write(out, target, &file, &Case::write(&recorded.ctx, record, block, page));
        }
    })
}

fn write_records(out: &Path, recorded: &Recorded, records: &[wal_decoder::stream::WalRecord], written: &mut Written) {
    let version = recorded.ctx.version;
    for record in records.iter().filter(|record| record.bytes.len() <= MAX_RECORD) {
        let Ok(decoded) = postgres_formats::record::decode(version, &record.bytes) else { continue };
        let name = decoded.header.name(version);
        if let Some(number) = is_wanted(written, (version, name, None)) {
            let seed = [&[index(version)], &record.bytes[..]].concat();
            write(out, "record", &format!("{}-{version:?}-{number}", name.replace('/', "-")), &seed);
        }
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

fn write(out: &Path, target: &str, name: &str, bytes: &[u8]) {
    let dir = out.join(target);
    fs::create_dir_all(&dir).expect("the directory of seeds can be made");
    fs::write(dir.join(name), bytes).expect("a seed can be written");
}
