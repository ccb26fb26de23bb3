//! Any bytes as page requests and responses: decoding is total, and a request encodes to the bytes it came from.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzzed::run("pagestream", input));
