//! Changes of visibility map and SLRU pages that no block reference announces: total whatever the numbers,
//! deterministic, and what was written can be read.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzzed::run("maps", input));
