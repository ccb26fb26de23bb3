//! Any bytes as messages of an authenticated client.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzzed::run("frontend", input));
