//! Any bytes as messages of a server.

use bytes::BytesMut;
use pq_proto::backend::BackendMessage;
use pq_proto::framing::take_message;

const LIMIT: usize = 1 << 16;

pub(crate) fn run(input: &[u8]) {
    let mut buf = BytesMut::from(input);
    while let Ok(Some(raw)) = take_message(&mut buf, LIMIT) {
        let tag = raw.tag;
        if let Ok(message) = BackendMessage::decode(raw) {
            assert_eq!(message.tag(), char::from(tag));
        }
    }
}
