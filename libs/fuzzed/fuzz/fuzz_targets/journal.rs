//! Any bytes as a file of the journal, and as frames in one: what is found lies within it.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzzed::run("journal", input));
