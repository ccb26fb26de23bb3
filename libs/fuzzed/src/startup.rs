//! Any bytes as the first packet of a connection: decoding is total, and its result encodes to the same bytes again.

use bytes::{Buf, Bytes, BytesMut};
use pq_proto::frontend::{StartupPacket, startup_len};

pub(crate) fn run(input: &[u8]) {
    if let Some(field) = input.first_chunk::<4>() {
        let _ = startup_len(*field);
    }
    let Ok(packet) = StartupPacket::decode(Bytes::copy_from_slice(input)) else { return };
    let mut encoded = BytesMut::new();
    packet.encode(&mut encoded);
    encoded.advance(4);
    assert_eq!(StartupPacket::decode(encoded.freeze()), Ok(packet));
}
