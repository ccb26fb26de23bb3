//! Heap2 records, on heap and visibility map pages: the redo contract.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzzed::run("heap2", input));
