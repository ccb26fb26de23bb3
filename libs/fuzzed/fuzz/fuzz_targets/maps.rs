//! Changes to visibility map and SLRU pages without a block reference: total for any arguments, deterministic, and
//! written values can be read back.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzzed::run("maps", input));
