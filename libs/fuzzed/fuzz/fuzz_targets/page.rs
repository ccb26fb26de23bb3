//! Any bytes as a page and any sequence of operations on it: all operations are total. On an initially sane page,
//! items never leave the item area.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzzed::run("page", input));
