//! Any bytes as the first packet of a connection: decoding is total, and its result encodes to the same bytes again.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzzed::run("startup", input));
