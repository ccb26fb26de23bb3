//! Any bytes as WAL, as they are or with page headers and CRCs made right: decoding is total, gives the same records
//! whatever the pieces, and only records with right CRCs and ascending places.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzzed::run("stream", input));
