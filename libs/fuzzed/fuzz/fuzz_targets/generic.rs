//! Generic records, as extensions write them: the redo contract.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzzed::run("generic", input));
