//! Any bytes as a record: decoding is total, reduction keeps what it must, parsers of main data are total.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzzed::run("record", input));
