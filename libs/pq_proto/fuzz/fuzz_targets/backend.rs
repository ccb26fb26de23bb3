//! Any bytes as what a server sends.

#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use pq_proto::backend::BackendMessage;
use pq_proto::framing::take_message;

const LIMIT: usize = 1 << 16;

fuzz_target!(|input: &[u8]| {
    let mut buf = BytesMut::from(input);
    while let Ok(Some(raw)) = take_message(&mut buf, LIMIT) {
        let tag = raw.tag;
        if let Ok(message) = BackendMessage::decode(raw) {
            assert_eq!(message.tag(), char::from(tag));
        }
    }
});
