//! Any bytes as messages of a server.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzzed::run("backend", input));
