//! What a server sends until a session is ready, read along as it passes: the key for cancel requests is in it.

use bytes::Bytes;

/// Type and length of a message.
const HEADER: usize = 5;
/// A longer key is no key: `CancelRequest` carries 256 bytes at most, besides the process.
const KEY_MAX: usize = 260;

/// A reader of the server's first messages, in pieces as they arrive.
#[derive(Debug, Default)]
pub(crate) struct Greeting {
    header: Vec<u8>,
    /// Bytes of the present message that are still to come, and whether they are the key.
    left: usize,
    is_key: bool,
    key: Vec<u8>,
    is_over: bool,
}

impl Greeting {
    /// Reads on.
    pub(crate) fn read(&mut self, mut bytes: &[u8]) {
        while !self.is_over && !bytes.is_empty() {
            let wanted = if self.left > 0 { self.left } else { HEADER - self.header.len() };
            let (piece, rest) = bytes.split_at(wanted.min(bytes.len()));
            bytes = rest;
            if self.left == 0 {
                self.header.extend_from_slice(piece);
                self.begin();
                continue;
            }
            self.left -= piece.len();
            if self.is_key {
                self.key.extend_from_slice(piece);
            }
        }
    }

    /// Begins a message once its header is complete.
    fn begin(&mut self) {
        let Some(&[tag, a, b, c, d]) = self.header.first_chunk::<HEADER>() else { return };
        self.header.clear();
        let len = usize::try_from(i32::from_be_bytes([a, b, c, d])).ok().and_then(|len| len.checked_sub(4));
        // ReadyForQuery, an error, or nothing that a server would send.
        let Some(len) = len.filter(|_| tag != b'Z' && tag != b'E') else {
            self.is_over = true;
            return;
        };
        self.left = len;
        self.is_key = tag == b'K' && len <= KEY_MAX && self.key.is_empty();
    }

    /// Whether nothing more is to be found.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Process and secret, as a cancel request has them.
    pub(crate) fn key(&self) -> Option<Bytes> {
        (self.is_over && !self.key.is_empty()).then(|| Bytes::copy_from_slice(&self.key))
    }
}

#[cfg(test)]
mod tests {
    use bytes::{BufMut, BytesMut};
    use pq_proto::backend::put;
    use pq_proto::framing::put_message;
    use proptest::prelude::*;

    use super::*;

    fn start_of_session(secret: &[u8]) -> BytesMut {
        let mut bytes = BytesMut::new();
        put::authentication_ok(&mut bytes);
        put::parameter_status(&mut bytes, "client_encoding", "UTF8");
        put_message(&mut bytes, b'K', |body| body.put_slice(secret));
        put::ready_for_query(&mut bytes);
        bytes
    }

    proptest! {
        #[test]
        fn the_key_is_found_however_it_arrives(
            secret in prop::collection::vec(any::<u8>(), 8..260),
            cuts in prop::collection::vec(1usize..40, 1..40),
        ) {
            let bytes = start_of_session(&secret);
            let (mut greeting, mut rest) = (Greeting::default(), &bytes[..]);
            for cut in cuts.iter().cycle() {
                // The body of the last message tells nothing more.
                prop_assert!(!greeting.is_over() || rest.len() == 1);
                let (piece, next) = rest.split_at((*cut).min(rest.len()));
                greeting.read(piece);
                rest = next;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert!(greeting.is_over());
            prop_assert_eq!(greeting.key(), Some(Bytes::from(secret)));
        }

        #[test]
        fn any_bytes_are_read(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..30), 0..10)) {
            let mut greeting = Greeting::default();
            pieces.iter().for_each(|piece| greeting.read(piece));
            prop_assert!(greeting.key().is_none_or(|key| key.len() <= KEY_MAX));
        }
    }

    #[test]
    fn a_server_that_refuses_has_no_key() {
        let mut greeting = Greeting::default();
        greeting.read(b"E\0\0\0\x05\0");
        assert!(greeting.is_over() && greeting.key().is_none());
    }
}
