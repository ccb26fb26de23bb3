//! Any bytes as messages of an authenticated client.

use bytes::BytesMut;
use pq_proto::framing::take_message;
use pq_proto::frontend::FrontendMessage;

const LIMIT: usize = 1 << 16;

pub(crate) fn run(input: &[u8]) {
    let mut buf = BytesMut::from(input);
    while let Ok(Some(raw)) = take_message(&mut buf, LIMIT) {
        assert!(raw.body.len() + 4 <= LIMIT);
        let tag = raw.tag;
        if let Ok(message) = FrontendMessage::decode(raw) {
            assert_eq!(message.tag(), char::from(tag));
        }
    }
}
