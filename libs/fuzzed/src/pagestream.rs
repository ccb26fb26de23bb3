//! Any bytes as page requests and responses: decoding is total, and a request encodes to the bytes it came from.

use bytes::{Bytes, BytesMut};
use pageserver_api::pagestream::{ProtocolVersion, Request, Response};

pub(crate) fn run(input: &[u8]) {
    for version in [ProtocolVersion::V2, ProtocolVersion::V3] {
        if let Ok(request) = Request::decode(version, input) {
            let mut encoded = BytesMut::new();
            request.encode(version, &mut encoded);
            assert_eq!(&encoded[..], input);
        }
        let _ = Response::decode(version, Bytes::copy_from_slice(input));
    }
}
