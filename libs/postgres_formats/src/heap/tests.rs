//! Which records clear which visibility map bits.

use smallvec::smallvec;

use super::*;
use crate::{
    record::{BlockRef, RecordHeader},
    version::PgVersion,
};

fn block(id: u8, fork: u8, blkno: u32) -> BlockRef<'static> {
    let rel = RelFile { spc: 1663, db: 5, rel: 16384 };
    BlockRef { id, rel, fork, blkno, will_init: false, image: None, data: &[] }
}

fn clears(rmgr: RmgrId, info: u8, main_data: &[u8], blocks: &[BlockRef<'static>]) -> Vec<(u32, u8)> {
    let header = RecordHeader { total_len: 0, xid: 1, prev: 0, info, rmid: rmgr.0, crc: 0 };
    let mut rec =
        DecodedRecord { version: PgVersion::V17, header, blocks: smallvec![], origin: None, top_xid: None, main_data };
    rec.blocks.extend_from_slice(blocks);
    implicit_vm_clears(&rec).unwrap().iter().map(|clear| (clear.heap_blkno, clear.bits)).collect()
}

#[test]
fn flags_name_the_heap_blocks() {
    let one = [block(0, 0, 10)];
    let two = [block(0, 0, 10), block(1, 0, 20)];
    assert_eq!(clears(RmgrId::HEAP, 0x80, &[0, 0, 1], &one), [(10, 3)]);
    assert_eq!(clears(RmgrId::HEAP, 0x00, &[0, 0, 8], &one), []);
    assert_eq!(clears(RmgrId::HEAP, 0x10, &[0, 0, 0, 0, 0, 0, 0, 1], &one), [(10, 3)]);
    assert_eq!(clears(RmgrId::HEAP, 0x60, &[0, 0, 0, 0, 0, 0, 0, 1], &one), [(10, 2)]);
    assert_eq!(clears(RmgrId::HEAP2, 0x60, &[0, 0, 0, 0, 0, 0, 0, 1], &one), [(10, 2)]);
    assert_eq!(clears(RmgrId::HEAP2, 0xD0, &[1], &one), [(10, 3)]);
    assert_eq!(clears(RmgrId::HEAP2, 0x40, &[1, 1, 1, 1, 1, 1, 1, 1], &one), []);
    let update = |flags| [0, 0, 0, 0, 0, 0, 0, flags];
    assert_eq!(clears(RmgrId::HEAP, 0x20, &update(1), &two), [(20, 3)]);
    assert_eq!(clears(RmgrId::HEAP, 0x20, &update(2), &two), [(10, 3)]);
    assert_eq!(clears(RmgrId::HEAP, 0x20, &update(3), &two), [(20, 3), (10, 3)]);
    assert_eq!(clears(RmgrId::HEAP, 0x40, &update(1), &one), [(10, 3)]);
}

#[test]
fn a_map_block_reference_replaces_the_implicit_change() {
    let with_map = [block(0, 0, 10), block(1, VM_FORK, 0)];
    assert_eq!(clears(RmgrId::HEAP, 0x10, &[0, 0, 0, 0, 0, 0, 0, 1], &with_map), []);
}
