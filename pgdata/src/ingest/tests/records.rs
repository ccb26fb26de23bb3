//! Records as written by a server of version 15.

use postgres_formats::BLCKSZ;
use postgres_formats::record::{RecordHeader, RelFile, record_crc};
use postgres_formats::rmgr::RmgrId;

/// Builds a record from these parts, with its header and CRC.
fn record(rmgr: RmgrId, info: u8, xid: u32, block: &[u8], payload: &[u8], main: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 24];
    out.extend_from_slice(block);
    if !main.is_empty() {
        out.push(254);
        out.extend_from_slice(&(main.len() as u32).to_le_bytes());
    }
    out.extend_from_slice(payload);
    out.extend_from_slice(main);
    let mut header = RecordHeader { total_len: out.len() as u32, xid, prev: 8, info, rmid: rmgr.0, crc: 0 };
    out[..24].copy_from_slice(&header.encode());
    header.crc = record_crc(&out).unwrap();
    out[..24].copy_from_slice(&header.encode());
    out
}

/// The record as written by a session that replicates from `origin`.
pub(super) fn from_origin(origin: u16, record: &[u8]) -> Vec<u8> {
    let [low, high] = origin.to_le_bytes();
    let mut out = [&record[..24], &[253, low, high], &record[24..]].concat();
    let len = out.len() as u32;
    out[..4].copy_from_slice(&len.to_le_bytes());
    let crc = record_crc(&out).unwrap();
    out[20..24].copy_from_slice(&crc.to_le_bytes());
    out
}

/// The end of a transaction whose end at its origin is at `lsn`.
pub(super) fn replicated(info: u8, xid: u32, origin: u16, lsn: u64) -> Vec<u8> {
    let main = [&[0; 8][..], &words(&[0x20]), &lsn.to_le_bytes(), &[0; 8]].concat();
    from_origin(origin, &record(RmgrId::XACT, info | 0x80, xid, &[], &[], &main))
}

pub(super) fn set_origin(origin: u16, lsn: u64, force: bool) -> Vec<u8> {
    let main = [&lsn.to_le_bytes()[..], &origin.to_le_bytes(), &[force.into(), 0, 0, 0, 0, 0]].concat();
    main_record(RmgrId::REPLORIGIN, 0x00, &main)
}

pub(super) fn drop_origin(origin: u16) -> Vec<u8> {
    main_record(RmgrId::REPLORIGIN, 0x10, &origin.to_le_bytes())
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn block_header(rel: RelFile, fork: u8, blkno: u32, init: bool, image: bool) -> Vec<u8> {
    let mut out = vec![0, fork | if init { 0x40 } else { 0 } | if image { 0x10 } else { 0 }, 0, 0];
    if image {
        out.extend_from_slice(&(BLCKSZ as u16).to_le_bytes());
        out.extend_from_slice(&[0, 0, 0x02]);
    }
    out.extend_from_slice(&words(&[rel.spc, rel.db, rel.rel, blkno]));
    out
}

pub(super) fn block_record(rmgr: RmgrId, rel: RelFile, fork: u8, blkno: u32, init: bool, mark: u8) -> Vec<u8> {
    block_record_with(rmgr, 0, rel, fork, blkno, init, &[0, 0, 0, mark])
}

pub(super) fn block_record_with(
    rmgr: RmgrId,
    info: u8,
    rel: RelFile,
    fork: u8,
    blkno: u32,
    init: bool,
    main: &[u8],
) -> Vec<u8> {
    record(rmgr, info, 700, &block_header(rel, fork, blkno, init, false), &[], main)
}

pub(super) fn main_record(rmgr: RmgrId, info: u8, main: &[u8]) -> Vec<u8> {
    record(rmgr, info, 700, &[], &[], main)
}

pub(super) fn image_record(rel: RelFile, fork: u8, blkno: u32, page: &[u8; BLCKSZ]) -> Vec<u8> {
    record(RmgrId::XLOG, 0xB0, 0, &block_header(rel, fork, blkno, false, true), page, &[])
}

pub(super) fn delete_clearing_visibility(rel: RelFile, blkno: u32) -> Vec<u8> {
    block_record_with(RmgrId::HEAP, 0x10, rel, 0, blkno, false, &[0, 0, 0, 0, 1, 0, 0, 1])
}

pub(super) fn create(rel: RelFile, fork: u8) -> Vec<u8> {
    record(RmgrId::SMGR, 0x11, 0, &[], &[], &words(&[rel.spc, rel.db, rel.rel, fork.into()]))
}

pub(super) fn truncate(rel: RelFile, blocks: u32, flags: u32) -> Vec<u8> {
    record(RmgrId::SMGR, 0x21, 0, &[], &[], &words(&[blocks, rel.spc, rel.db, rel.rel, flags]))
}

fn end(info: u8, xid: u32, subxacts: &[u32], rels: &[RelFile], prepared: Option<u32>) -> Vec<u8> {
    let mut main = 77i64.to_le_bytes().to_vec();
    let xinfo = 2 | if rels.is_empty() { 0 } else { 4 } | if prepared.is_some() { 0x10 } else { 0 };
    main.extend_from_slice(&words(&[xinfo, subxacts.len() as u32]));
    main.extend_from_slice(&words(subxacts));
    if !rels.is_empty() {
        main.extend_from_slice(&words(&[rels.len() as u32]));
        rels.iter().for_each(|rel| main.extend_from_slice(&words(&[rel.spc, rel.db, rel.rel])));
    }
    main.extend(prepared.into_iter().flat_map(u32::to_le_bytes));
    record(RmgrId::XACT, info | 0x80, xid, &[], &[], &main)
}

pub(super) fn commit(xid: u32, subxacts: &[u32], rels: &[RelFile], prepared: Option<u32>) -> Vec<u8> {
    end(if prepared.is_some() { 0x30 } else { 0x00 }, xid, subxacts, rels, prepared)
}

pub(super) fn abort(xid: u32, subxacts: &[u32]) -> Vec<u8> {
    end(0x20, xid, subxacts, &[], None)
}

pub(super) fn prepare(xid: u32, origin_lsn: u64) -> Vec<u8> {
    let mut state = vec![0; 72];
    state[..4].copy_from_slice(&0x57F9_4534u32.to_le_bytes());
    state[8..12].copy_from_slice(&xid.to_le_bytes());
    state[54..56].copy_from_slice(&4u16.to_le_bytes());
    state[56..64].copy_from_slice(&origin_lsn.to_le_bytes());
    state.extend_from_slice(b"gid\0\0\0\0\0");
    let len = state.len() as u32 + 4;
    state[4..8].copy_from_slice(&len.to_le_bytes());
    record(RmgrId::XACT, 0x10, xid, &[], &[], &state)
}

pub(super) fn zero_page(rmgr: RmgrId, page: u32) -> Vec<u8> {
    zero_page_with(rmgr, 0x00, page)
}

pub(super) fn zero_page_with(rmgr: RmgrId, info: u8, page: u32) -> Vec<u8> {
    record(rmgr, info, 0, &[], &[], &words(&[page]))
}

pub(super) fn multixact(id: u32, offset: u32, members: &[(u32, u32)]) -> Vec<u8> {
    let mut main = words(&[id, offset, members.len() as u32]);
    members.iter().for_each(|(xid, status)| main.extend_from_slice(&words(&[*xid, *status])));
    record(RmgrId::MULTIXACT, 0x20, 800, &[], &[], &main)
}

pub(super) fn truncate_multixacts(id: u32, member: u32) -> Vec<u8> {
    record(RmgrId::MULTIXACT, 0x30, 0, &[], &[], &words(&[5, 1, id, 0, member]))
}

pub(super) fn copy_database(to: (u32, u32), from: (u32, u32)) -> Vec<u8> {
    record(RmgrId::DBASE, 0x01, 0, &[], &[], &words(&[to.0, to.1, from.0, from.1]))
}

pub(super) fn drop_database(db: u32, tablespaces: &[u32]) -> Vec<u8> {
    let mut main = words(&[db, tablespaces.len() as u32]);
    main.extend_from_slice(&words(tablespaces));
    record(RmgrId::DBASE, 0x21, 0, &[], &[], &main)
}

pub(super) fn create_tablespace(oid: u32, path: &str) -> Vec<u8> {
    let main = [&words(&[oid])[..], path.as_bytes(), &[0]].concat();
    record(RmgrId::TBLSPC, 0x00, 0, &[], &[], &main)
}
