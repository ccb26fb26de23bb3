//! SP-GiST records: the contract of redo.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzzed::run("spgist", input));
