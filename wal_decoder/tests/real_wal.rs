//! The WAL of a real server: every record must match `pg_waldump`, in all compressions, and the decoded data must
//! agree with the server's files.

use std::{
    collections::{BTreeMap, HashMap},
    io::{Seek, SeekFrom, Write},
};

use bytes::Bytes;
use camino::Utf8Path;
use postgres_formats::{
    BLCKSZ,
    control_file::{ClusterState, ControlFile},
    image::restore_image,
    page::{PageRef, data_checksum},
    record::{DecodedRecord, RelFile, check_crc, decode, reduce_to_block},
    relmap,
    rmgr::RmgrId,
    smgr, standby, tblspc, twophase,
    version::PgVersion,
    wal_file::{WalPosition, parse_segment_file_name},
    xact::{XactOp, parse_abort, parse_assignment, parse_commit},
    xlog,
};
use test_needs::need;
use test_postgres::{Postgres, Server};
use utils::lsn::Lsn;
use wal_decoder::stream::{EndReason, WalError, WalRecord, WalStart, WalStreamConfig, WalStreamDecoder};

const SETTINGS: &str = "
wal_level = logical
fsync = off
shared_buffers = 16MB
max_wal_size = 4GB
wal_keep_size = 4GB
max_prepared_transactions = 5
track_commit_timestamp = on
autovacuum = off
checkpoint_timeout = 1h
";

/// All WAL that a cluster has written, as consecutive segments.
struct Wal {
    start: Lsn,
    bytes: Bytes,
}

fn read_wal(data: &Utf8Path, segment_size: u32) -> Wal {
    let mut segments = BTreeMap::new();
    for entry in std::fs::read_dir(data.join("pg_wal")).unwrap() {
        let entry = entry.unwrap();
        if let Some((_, number)) = parse_segment_file_name(entry.file_name().to_str().unwrap(), segment_size) {
            segments.insert(number, std::fs::read(entry.path()).unwrap());
        }
    }
    let first = *segments.keys().next().unwrap();
    assert!(segments.keys().copied().eq(first..first + segments.len() as u64), "segments without gaps");
    let start = Lsn(first * u64::from(segment_size));
    Wal { start, bytes: segments.into_values().flatten().collect::<Vec<_>>().into() }
}

fn decode_stream(wal: &Wal, control: &ControlFile, piece: usize) -> Vec<WalRecord> {
    let config = WalStreamConfig {
        version: control.version,
        segment_size: control.fields.wal_segment_size,
        system_identifier: Some(control.fields.system_identifier),
        feed_from: wal.start,
        start: WalStart::FirstFrom(wal.start),
    };
    let mut decoder = WalStreamDecoder::new(&config).unwrap();
    let (mut records, mut at) = (vec![], 0);
    while at < wal.bytes.len() {
        let end = (at + piece).min(wal.bytes.len());
        decoder.feed_at(Lsn(wal.start.0 + at as u64), wal.bytes.slice(at..end)).unwrap();
        at = end;
        loop {
            match decoder.next() {
                Ok(Some(record)) => records.push(record),
                Ok(None) => break,
                Err(WalError::EndOfWal { lsn, reason, .. }) => {
                    assert!(matches!(reason, EndReason::ZeroLength | EndReason::ZeroPage), "{reason}");
                    assert_eq!(lsn, records.last().unwrap().end);
                    assert!(piece < BLCKSZ || at > wal.bytes.len() / 2, "most of the WAL was read");
                    return records;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    panic!("WAL has no end");
}

/// Simulates a crash during the write of the last long record: zeroes WAL from a page inside that record on. Returns
/// the record's start.
fn cut_last_long_record(server: &Server) -> Lsn {
    const LONG: usize = 100_000;
    let control = read_control(server);
    let segment_size = u64::from(control.fields.wal_segment_size);
    let wal = read_wal(server.data(), control.fields.wal_segment_size);
    let records = decode_stream(&wal, &control, 1 << 24);
    let start = records.iter().rev().find(|record| record.bytes.len() > LONG).unwrap().start;
    assert!(start > control.fields.checkpoint);
    let cut = Lsn(start.page_start().0 + 5 * BLCKSZ as u64);
    let mut lsn = cut;
    while lsn.0 < wal.start.0 + wal.bytes.len() as u64 {
        let next = Lsn(lsn.segment_start(segment_size).0 + segment_size);
        let at = WalPosition { timeline: 1, lsn, segment_size: control.fields.wal_segment_size };
        let path = server.data().join("pg_wal").join(at.file_name());
        let mut file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        file.seek(SeekFrom::Start(at.offset().into())).unwrap();
        file.write_all(&vec![0; (next.0 - lsn.0) as usize]).unwrap();
        lsn = next;
    }
    start
}

fn read_control(server: &Server) -> ControlFile {
    ControlFile::decode(&std::fs::read(server.data().join("global/pg_control")).unwrap()).unwrap()
}

/// A record in one line, in the terms of `pg_waldump`.
fn describe(record: &WalRecord, decoded: &DecodedRecord<'_>) -> String {
    let header = &decoded.header;
    let name = header.name(decoded.version);
    let mut line =
        format!("{name} len {} tx {} lsn {} prev {}", header.total_len, header.xid, record.start, Lsn(header.prev));
    for block in &decoded.blocks {
        let RelFile { spc, db, rel } = block.rel;
        let fork = ["", " fork fsm", " fork vm", " fork init"][usize::from(block.fork)];
        line += &format!(" #{}: rel {spc}/{db}/{rel}{fork} blk {}", block.id, block.blkno);
        line += if block.image.is_some() { " FPW" } else { "" };
    }
    line
}

/// The same, from a line of `pg_waldump`.
fn described(line: &str) -> String {
    let field = |from: &str, to: char| {
        let rest = line.split_once(from).unwrap_or_else(|| panic!("{from} in {line}")).1;
        rest.split_once(to).map_or(rest, |(field, _)| field).trim().to_owned()
    };
    let rmgr = field("rmgr: ", ' ');
    let operation = field("desc: ", ' ');
    let hex = |text: String| text.parse::<Lsn>().unwrap();
    let total = field("len (rec/tot):", ',').split_once('/').unwrap().1.trim().to_owned();
    let (lsn, prev) = (hex(field("lsn: ", ',')), hex(field("prev ", ',')));
    let mut text = format!("{rmgr}/{operation} len {total} tx {} lsn {lsn} prev {prev}", field("tx: ", ','));
    for block in line.split("blkref #").skip(1) {
        let block = block.trim().trim_end_matches([';', ',']);
        let known = block.split_once(" FPW").map_or(block.to_owned(), |(known, _)| format!("{known} FPW"));
        text += &format!(" #{known}");
    }
    text
}

fn compare_with_waldump(server: &Server, wal: &Wal, records: &[WalRecord]) {
    let postgres = server.place().postgres();
    let path = server.data().join("pg_wal");
    let end = records.last().unwrap().end.to_string();
    let start = wal.start.to_string();
    let dump = postgres.run("pg_waldump", &["-p", path.as_str(), "-s", &start, "-e", &end]);
    let mut lines = dump.lines().filter(|line| line.starts_with("rmgr:"));
    for record in records {
        let decoded = decode(postgres.version(), &record.bytes).unwrap();
        let line = lines.next().unwrap_or_else(|| panic!("pg_waldump has no record at {}", record.start));
        assert_eq!(describe(record, &decoded), described(line), "{line}");
    }
    assert_eq!(lines.next(), None);
}

/// Images by compression, and the pages restored from them.
#[derive(Default)]
struct Images {
    count: HashMap<String, usize>,
    newest: HashMap<(RelFile, u8, u32), Restored>,
}

/// A page restored from an image.
struct Restored {
    end: Lsn,
    method: String,
    page: Box<[u8; BLCKSZ]>,
}

fn restore_images(version: PgVersion, records: &[WalRecord]) -> Images {
    let mut images = Images::default();
    for record in records {
        let decoded = decode(version, &record.bytes).unwrap();
        for block in &decoded.blocks {
            let Some(image) = block.image else { continue };
            let mut page = Box::new([0xEE; BLCKSZ]);
            restore_image(&image, &mut page).unwrap();
            let method = image.compression.map_or("none".into(), |method| format!("{method:?}"));
            *images.count.entry(method.clone()).or_default() += 1;
            let known = PageRef::new(&page);
            assert!(known.is_new() || known.size_version() == 0x2004, "{block:?}");
            if decoded.header.rmgr() == RmgrId::XLOG {
                let restored = Restored { end: record.end, method, page };
                images.newest.insert((block.rel, block.fork, block.blkno), restored);
            }
        }
    }
    images
}

/// Compares pages of user indexes that nothing changed after their image: the server's file must match the image
/// except for LSN, checksum, and hole. (Heap pages and catalog indexes may have got hint bits.)
fn compare_with_files(data: &Utf8Path, images: &Images) -> HashMap<String, usize> {
    const FIRST_USER_OID: u32 = 16384;
    let mut compared = HashMap::new();
    for ((rel, fork, blkno), Restored { end, method, page: image }) in &images.newest {
        let layout = PageRef::new(&**image).layout();
        let Some(layout) = layout.ok().filter(|layout| layout.special < BLCKSZ) else { continue };
        if rel.spc != 1663 || *fork != 0 || rel.rel < FIRST_USER_OID {
            continue;
        }
        let Ok(file) = std::fs::read(data.join(format!("base/{}/{}", rel.db, rel.rel))) else { continue };
        let at = *blkno as usize * BLCKSZ;
        let Some(page) = file.get(at..at + BLCKSZ) else { continue };
        let page: &[u8; BLCKSZ] = page.try_into().unwrap();
        if PageRef::new(page).lsn() == end.0 {
            let same = |range: std::ops::Range<usize>| page[range.clone()] == image[range];
            assert!(same(10..layout.lower) && same(layout.upper..BLCKSZ), "{rel:?} block {blkno}");
            *compared.entry(method.clone()).or_default() += 1;
        }
    }
    compared
}

type PreparedByXid = HashMap<u32, Vec<u8>>;

/// Parses the main data of all record types that have a parser. Returns the main data of prepared transactions by
/// xid.
fn parse_metadata(version: PgVersion, records: &[WalRecord]) -> (PreparedByXid, HashMap<String, usize>) {
    let (mut prepared, mut parsed) = (HashMap::new(), HashMap::new());
    for record in records {
        let decoded = decode(version, &record.bytes).unwrap();
        let (info, main) = (decoded.header.info, decoded.main_data);
        let name = decoded.header.name(version);
        let debug = match decoded.header.rmgr() {
            RmgrId::XLOG => format!("{:?}", xlog::parse(version, info, main).unwrap()),
            RmgrId::SMGR => format!("{:?}", smgr::parse(info, main).unwrap()),
            RmgrId::STANDBY => format!("{:?}", standby::parse(info, main).unwrap()),
            RmgrId::TBLSPC => format!("{:?}", tblspc::parse(info, main).unwrap()),
            RmgrId::DBASE => format!("{:?}", postgres_formats::dbase::parse(version, info, main).unwrap()),
            RmgrId::CLOG => format!("{:?}", postgres_formats::clog::parse(version, info, main).unwrap()),
            RmgrId::COMMIT_TS => format!("{:?}", postgres_formats::commit_ts::parse(version, info, main).unwrap()),
            RmgrId::MULTIXACT => format!("{:?}", postgres_formats::multixact::parse(version, info, main).unwrap()),
            RmgrId::RELMAP => {
                let update = relmap::parse(info, main).unwrap();
                let entries = relmap::decode(version, update.file).unwrap();
                assert_eq!(relmap::encode(version, &entries).unwrap(), update.file);
                String::new()
            }
            RmgrId::XACT => match XactOp::from_info(info).unwrap() {
                XactOp::Commit | XactOp::CommitPrepared => {
                    format!("{:?}", parse_commit(version, info, main).unwrap())
                }
                XactOp::Abort | XactOp::AbortPrepared => format!("{:?}", parse_abort(version, info, main).unwrap()),
                XactOp::Assignment => format!("{:?}", parse_assignment(main).unwrap()),
                XactOp::Prepare => {
                    let state = twophase::parse_prepare(version, main).unwrap();
                    prepared.insert(state.xid, main.to_vec());
                    assert_eq!((state.gid, state.subxacts.len(), state.abort_rels.len()), (&b"first name"[..], 1, 1));
                    String::new()
                }
                XactOp::Invalidations => String::new(),
            },
            RmgrId::HEAP | RmgrId::HEAP2 => {
                format!("{:?}", postgres_formats::heap::implicit_vm_clears(&decoded).unwrap())
            }
            _ => continue,
        };
        assert!(debug.len() < 1 << 20);
        *parsed.entry(name.to_owned()).or_default() += 1;
    }
    (prepared, parsed)
}

fn check_reduction(version: PgVersion, records: &[WalRecord]) -> (usize, usize) {
    let (mut before, mut after) = (0, 0);
    for record in records {
        let decoded = decode(version, &record.bytes).unwrap();
        for block in &decoded.blocks {
            let mut reduced = vec![];
            reduce_to_block(&decoded, block.id, &mut reduced);
            assert!(check_crc(&reduced) && reduced.len() <= record.bytes.len());
            let again = decode(version, &reduced).unwrap();
            assert_eq!((again.block(block.id), again.main_data), (Some(block), decoded.main_data));
            assert_eq!(again.blocks.len(), decoded.blocks.len());
            before += record.bytes.len();
            after += reduced.len();
        }
    }
    (before, after)
}

/// Verifies that every page of every relation file has the checksum that we compute.
fn verify_checksums(data: &Utf8Path) -> usize {
    let mut pages = 0;
    let relation = |name: &str| name.starts_with(|c: char| c.is_ascii_digit()) && !name.contains('.');
    let databases = std::fs::read_dir(data.join("base")).unwrap().map(|entry| entry.unwrap().path());
    for dir in databases.chain([data.join("global").into()]) {
        for entry in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            if !relation(entry.file_name().unwrap().to_str().unwrap()) {
                continue;
            }
            let file = std::fs::read(&entry).unwrap();
            for (page, blkno) in file.as_chunks::<BLCKSZ>().0.iter().zip(0..) {
                let known = PageRef::new(page);
                assert!(known.is_new() || known.checksum() == data_checksum(page, blkno), "{entry:?} {blkno}");
                pages += usize::from(!known.is_new());
            }
        }
    }
    pages
}

fn check_files(server: &Server, control: &ControlFile) {
    let data = server.data();
    let stored = std::fs::read(data.join("global/pg_control")).unwrap();
    assert_eq!(control.encode()[..], stored[..], "the control file survives a round trip");
    assert_eq!(control.state(), ClusterState::Shutdowned);
    let told = server.offline("pg_controldata", &[]);
    let identifier = format!("{:>14}{}", "", control.fields.system_identifier);
    assert!(told.contains(identifier.trim_start()), "{told}");
    assert!(told.contains(&format!("{}", control.fields.checkpoint_copy.redo)), "{told}");
    let map = std::fs::read(data.join("global").join(relmap::FILE_NAME)).unwrap();
    let version = server.place().postgres().version();
    let entries = relmap::decode(version, &map).unwrap();
    assert_eq!(relmap::encode(version, &entries).unwrap(), map);
}

#[test]
fn every_record_is_what_the_server_says() {
    let postgres = need!(Postgres::find());
    let version = postgres.version();
    let server = postgres.place().start("data", SETTINGS);
    let methods: &[&str] = if version == PgVersion::V14 { &["on"] } else { &["pglz", "lz4", "zstd"] };
    for method in methods.iter().chain(&["off"]) {
        server.sql(&format!("ALTER SYSTEM SET wal_compression = {method}; SELECT pg_reload_conf(); CHECKPOINT;"));
        server.bench_init(1);
        server.sql("CHECKPOINT; UPDATE pgbench_accounts SET abalance = aid WHERE aid % 40 = 0;");
        server.sql(&format!(
            "CREATE TABLE kept_{method} AS SELECT i, md5(i::text) s FROM generate_series(1, 20000) i;
             CREATE INDEX ON kept_{method} (i); CREATE INDEX ON kept_{method} (s);"
        ));
    }
    let script = include_str!("real_wal/workload.sql");
    let strategy = version != PgVersion::V14;
    let script = if strategy {
        script.to_owned()
    } else {
        script.replace(" STRATEGY file_copy", "").replace(" STRATEGY wal_log", "")
    };
    server.sql(&script);
    server.sql(
        "CHECKPOINT; SELECT pg_logical_emit_message(false, 'lost', repeat('y', 200000)) IS NULL; \
         CREATE TABLE flushed ();",
    );
    server.stop_immediately();
    let lost = cut_last_long_record(&server);
    server.start();
    server.sql("CHECKPOINT;");
    server.stop();

    let data = server.data();
    let control = read_control(&server);
    check_files(&server, &control);
    let wal = read_wal(data, control.fields.wal_segment_size);
    let records = decode_stream(&wal, &control, 100_003);
    assert!(records == decode_stream(&wal, &control, 1 << 24), "pieces do not matter");
    assert!(records == decode_stream(&wal, &control, 777), "pieces do not matter");
    compare_with_waldump(&server, &wal, &records);
    assert_eq!(records.last().unwrap().start, control.fields.checkpoint);

    assert!(records.iter().all(|record| record.start != lost), "the record cut short is not given");
    let images = restore_images(version, &records);
    let compared = compare_with_files(data, &images);
    let (prepared, parsed) = parse_metadata(version, &records);
    let (before, after) = check_reduction(version, &records);
    for (xid, main) in &prepared {
        let name = twophase::file_name(version, u64::from(*xid));
        let file = std::fs::read(data.join(twophase::DIRECTORY).join(name)).unwrap();
        assert_eq!(file, twophase::state_file(main));
        assert_eq!(twophase::main_data_of_file(&file).unwrap(), main);
    }
    let pages = verify_checksums(data);
    eprintln!(
        "{} records, images {:?}, {compared:?} equal to files, {} kinds of metadata, \
         reduced {before} to {after} bytes, {pages} checksums",
        records.len(),
        images.count,
        parsed.len(),
    );
    assert_eq!(parsed.get("XLOG/OVERWRITE_CONTRECORD"), Some(&1), "{parsed:?}");
    assert_eq!(prepared.len(), 1);
    assert_eq!(images.count.len(), methods.len() + 1, "{:?}", images.count);
    assert!(images.count.keys().all(|method| compared.get(method).is_some_and(|pages| *pages >= 50)), "{compared:?}");
    assert!(pages > 1000, "{pages}");
    assert!(parsed.len() > 30, "{parsed:?}");
}
