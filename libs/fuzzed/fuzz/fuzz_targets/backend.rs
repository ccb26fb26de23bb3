//! Any bytes as what a server sends.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzzed::run("backend", input));
