//! Any bytes as what a client sends once it is let in.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzzed::run("frontend", input));
