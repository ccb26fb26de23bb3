//! Encoding against decoding, and bytes that are not valid messages.

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

use super::{BackendMessage, ErrorFields, put};
use crate::framing::{RawMessage, take_message};
use crate::sqlstate::SqlState;

fn decode_all(mut buf: BytesMut) -> Vec<BackendMessage> {
    let mut messages = vec![];
    while let Some(raw) = take_message(&mut buf, 1 << 20).unwrap() {
        messages.push(BackendMessage::decode(raw).unwrap());
    }
    assert!(buf.is_empty());
    messages
}

#[test]
fn literal_bytes() {
    let mut buf = BytesMut::new();
    put::authentication_ok(&mut buf);
    put::parameter_status(&mut buf, "client_encoding", "UTF8");
    put::ready_for_query(&mut buf);
    put::copy_both(&mut buf);
    put::error(&mut buf, &ErrorFields::new(SqlState::ADMIN_SHUTDOWN, "shutdown"));
    let expected = [
        b"R\0\0\0\x08\0\0\0\0".as_slice(),
        b"S\0\0\0\x19client_encoding\0UTF8\0",
        b"Z\0\0\0\x05I",
        b"W\0\0\0\x07\0\0\0",
        b"E\0\0\0\x1dSERROR\0C57P01\0Mshutdown\0\0",
    ];
    assert_eq!(buf, expected.concat());
}

#[test]
fn round_trip() {
    let error = ErrorFields::new(SqlState::SYNTAX_ERROR, "no").with_detail("because");
    let mut buf = BytesMut::new();
    put::row_description(&mut buf, &["a", "b"]);
    put::data_row(&mut buf, &[None, Some(b"x")]);
    put::command_complete(&mut buf, "SELECT 1");
    put::copy_out(&mut buf);
    put::copy_data(&mut buf, |buf| buf.extend_from_slice(b"data"));
    put::copy_done(&mut buf);
    put::error(&mut buf, &error);
    let expected = vec![
        BackendMessage::RowDescription(vec!["a".into(), "b".into()]),
        BackendMessage::DataRow(vec![None, Some(Bytes::from_static(b"x"))]),
        BackendMessage::CommandComplete("SELECT 1".into()),
        BackendMessage::CopyOutResponse,
        BackendMessage::CopyData(Bytes::from_static(b"data")),
        BackendMessage::CopyDone,
        BackendMessage::ErrorResponse(error),
    ];
    assert_eq!(decode_all(buf), expected);
}

#[test]
fn a_nul_in_text_does_not_break_the_frame() {
    let mut buf = BytesMut::new();
    put::command_complete(&mut buf, "SEL\0ECT");
    assert_eq!(decode_all(buf), vec![BackendMessage::CommandComplete("SEL".into())]);
}

proptest! {
    #[test]
    fn any_message_is_decoded_or_refused(tag: u8, body: Vec<u8>) {
        let tag = if tag < 128 { b"RKSCDTEv"[usize::from(tag) % 8] } else { tag };
        if let Ok(message) = BackendMessage::decode(RawMessage { tag, body: body.into() }) {
            prop_assert_eq!(message.tag(), char::from(tag));
        }
    }

    #[test]
    fn any_bytes_as_frames(bytes: Vec<u8>) {
        let mut buf = BytesMut::from(&bytes[..]);
        while let Ok(Some(message)) = take_message(&mut buf, 64) {
            prop_assert!(message.body.len() <= 60);
        }
    }
}
