//! Any bytes as WAL, unmodified or with corrected page headers and CRCs: decoding is total, returns the same records
//! however the bytes are split, and only records with valid CRCs at ascending positions.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzzed::run("stream", input));
