//! Full-page images of every kind: the redo contract.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzzed::run("xlog", input));
