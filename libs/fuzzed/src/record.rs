//! Any bytes as a record: decoding is total, reduction keeps what it must, parsers of main data are total.

use postgres_formats::{
    clog, commit_ts,
    control_file::ControlFile,
    dbase, heap, multixact,
    record::{DecodedRecord, check_crc, decode, reduce_to_block},
    relmap, replorigin, smgr, standby, tblspc, twophase,
    version::PgVersion,
    xact, xlog,
};

pub(crate) fn run(input: &[u8]) {
    let Some((first, rest)) = input.split_first() else { return };
    let version = PgVersion::ALL[usize::from(*first) % 5];
    let mut bytes = rest.to_vec();
    if let (len, Some(head)) = (rest.len() as u32, bytes.first_chunk_mut::<4>()) {
        *head = len.to_le_bytes();
    }
    let _ = ControlFile::decode(rest);
    parse_main(version, *first, rest);
    let Ok(record) = decode(version, &bytes) else { return };
    let _ = (record.header.name(version), heap::implicit_vm_clears(&record));
    parse_main(version, record.header.info, record.main_data);
    for id in 0..33 {
        check_reduction(&record, id);
    }
}

fn check_reduction(record: &DecodedRecord<'_>, id: u8) {
    let mut reduced = vec![];
    reduce_to_block(record, id, &mut reduced);
    assert!(check_crc(&reduced));
    let Ok(again) = decode(record.version, &reduced) else { panic!("a reduced record is none") };
    assert_eq!(again.block(id), record.block(id));
    assert_eq!(again.main_data, record.main_data);
    assert_eq!((again.origin, again.top_xid), (record.origin, record.top_xid));
    for (left, whole) in again.blocks.iter().zip(&record.blocks) {
        assert_eq!((left.id, left.rel, left.fork, left.blkno), (whole.id, whole.rel, whole.fork, whole.blkno));
        assert_eq!(left.will_init, whole.will_init);
        assert!(left.id == id || (left.image.is_none() && left.data.is_empty()));
    }
}

fn parse_main(version: PgVersion, info: u8, main: &[u8]) {
    let _ = xact::parse_commit(version, info, main);
    let _ = xact::parse_abort(version, info, main);
    let _ = xact::parse_assignment(main);
    let _ = xlog::parse(version, info, main).is_ok();
    let _ = smgr::parse(info, main);
    let _ = standby::parse(info, main);
    let _ = tblspc::parse(info, main).is_ok();
    let _ = dbase::parse(version, info, main);
    let _ = clog::parse(version, info, main);
    let _ = commit_ts::parse(version, info, main);
    let _ = multixact::parse(version, info, main);
    let _ = replorigin::parse(info, main);
    let _ = relmap::parse(info, main).is_ok();
    let _ = relmap::decode(version, main);
    let _ = twophase::parse_prepare(version, main).is_ok();
    let _ = twophase::main_data_of_file(main).is_ok();
}
