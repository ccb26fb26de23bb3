//! Btree records: the contract of redo.

#![no_main]

use libfuzzer_sys::fuzz_target;
use postgres_formats::rmgr::RmgrId;

fuzz_target!(|input: &[u8]| redo_fuzz::keeps_the_contract(RmgrId::BTREE, input));
