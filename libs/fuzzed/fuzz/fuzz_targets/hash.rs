//! Hash index records: the redo contract.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzzed::run("hash", input));
