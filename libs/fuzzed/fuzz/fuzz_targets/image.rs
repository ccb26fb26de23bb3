//! Any bytes as a full-page image: restoring is total and bounded; the hole is zero.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzzed::run("image", input));
