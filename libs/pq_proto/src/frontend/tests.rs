//! Encoding against decoding, and bytes that are not valid messages.

use bytes::{Buf, Bytes, BytesMut};
use proptest::prelude::*;

use super::{FrontendMessage, StartupPacket, StartupParameters, Target, put, startup_len};
use crate::framing::{RawMessage, take_message};

fn packet(packet: &StartupPacket) -> BytesMut {
    let mut buf = BytesMut::new();
    packet.encode(&mut buf);
    buf
}

fn decode_packet(mut buf: BytesMut) -> StartupPacket {
    assert_eq!(startup_len(*buf.first_chunk().unwrap()).unwrap(), buf.len());
    buf.advance(4);
    StartupPacket::decode(buf.freeze()).unwrap()
}

#[test]
fn startup_packets() {
    assert_eq!(packet(&StartupPacket::Ssl), [0, 0, 0, 8, 4, 210, 22, 47].as_slice());
    assert_eq!(packet(&StartupPacket::GssEnc), [0, 0, 0, 8, 4, 210, 22, 48].as_slice());
    let parameters = vec![("user".to_owned(), "u".to_owned()), ("options".to_owned(), String::new())];
    let startup = StartupPacket::Startup(StartupParameters { minor: 2, parameters });
    for case in [StartupPacket::Ssl, StartupPacket::GssEnc, StartupPacket::Cancel, startup] {
        assert_eq!(decode_packet(packet(&case)), case);
    }
    for (len, good) in [(7, false), (8, true), (10_000, true), (10_001, false), (-1, false)] {
        assert_eq!(startup_len(i32::to_be_bytes(len)).is_ok(), good, "{len}");
    }
}

#[test]
fn startup_packets_that_are_refused() {
    let bad: [&[u8]; 5] = [
        b"",
        b"\0\x02\0\0user\0u\0\0",               // version 2
        b"\0\x03\0\0user\0",                    // a name without a value
        b"\0\x03\0\0user\0u\0\0more",           // something after the end
        b"\x04\xd2\x16\x2fmore than a request", // a request with a body
    ];
    for body in bad {
        assert!(StartupPacket::decode(Bytes::from_static(body)).is_err(), "{body:?}");
    }
}

#[test]
fn round_trip() {
    let mut buf = BytesMut::new();
    put::query(&mut buf, "pagestream_v3 x y");
    put::parse(&mut buf, "lease lsn");
    put::bind(&mut buf);
    put::describe(&mut buf, Target::Portal);
    put::execute(&mut buf);
    put::sync(&mut buf);
    put::copy_data(&mut buf, |buf| buf.extend_from_slice(b"abc"));
    put::copy_done(&mut buf);
    put::password(&mut buf, b"secret");
    put::terminate(&mut buf);
    let expected = [
        FrontendMessage::Query("pagestream_v3 x y".into()),
        FrontendMessage::Parse { name: String::new(), text: "lease lsn".into() },
        FrontendMessage::Bind { portal: String::new(), statement: String::new() },
        FrontendMessage::Describe(Target::Portal, String::new()),
        FrontendMessage::Execute { portal: String::new() },
        FrontendMessage::Sync,
        FrontendMessage::CopyData(Bytes::from_static(b"abc")),
        FrontendMessage::CopyDone,
        FrontendMessage::Password(Bytes::from_static(b"secret\0")),
        FrontendMessage::Terminate,
    ];
    for message in expected {
        let raw = take_message(&mut buf, 100).unwrap().unwrap();
        assert_eq!(FrontendMessage::decode(raw).unwrap(), message);
    }
    assert!(buf.is_empty());
}

#[test]
fn parameters_are_refused_and_names_and_row_limits_are_not() {
    let decode = |tag, body: &'static [u8]| FrontendMessage::decode(RawMessage { tag, body: Bytes::from_static(body) });
    let named = FrontendMessage::Parse { name: "name".into(), text: "SELECT".into() };
    assert_eq!(decode(b'P', b"name\0SELECT\0\0\0").unwrap(), named);
    let bound = FrontendMessage::Bind { portal: "p".into(), statement: "name".into() };
    assert_eq!(decode(b'B', b"p\0name\0\0\0\0\0\0\0").unwrap(), bound);
    assert_eq!(decode(b'C', b"Sname\0").unwrap(), FrontendMessage::Close(Target::Statement, "name".into()));
    assert!(decode(b'P', b"\0SELECT\0\0\x01\0\0\0\0").is_err());
    assert!(decode(b'B', b"\0\0\0\0\0\x01\xff\xff\xff\xff\0\0").is_err());
    assert!(decode(b'B', b"\0\0\0\0\0\0\0\x01\0\x01").is_ok());
    assert_eq!(decode(b'E', b"\0\0\0\0\x01").unwrap(), FrontendMessage::Execute { portal: String::new() });
    assert!(decode(b'E', b"\0\0\0\x01").is_err());
    assert!(decode(b'Q', b"no end").is_err());
    assert!(decode(b'X', b"more").is_err());
    assert!(decode(b'F', b"").is_err());
}

proptest! {
    #[test]
    fn any_message_is_decoded_or_refused(tag: u8, body: Vec<u8>) {
        let tag = if tag < 128 { b"QPBDECHSf"[usize::from(tag) % 9] } else { tag };
        if let Ok(message) = FrontendMessage::decode(RawMessage { tag, body: body.into() }) {
            prop_assert_eq!(message.tag(), char::from(tag));
        }
    }

    #[test]
    fn any_startup_packet_is_decoded_or_refused(version in 0..8u8, body: Vec<u8>) {
        let head = [[0, 3, 0, 0], [0, 3, 0, 2], [4, 210, 22, 47], [4, 210, 22, 48], [4, 210, 22, 46]];
        let head = head.get(usize::from(version)).copied().unwrap_or_default();
        let body = [head.as_slice(), &body].concat();
        if let Ok(startup @ StartupPacket::Startup(_)) = StartupPacket::decode(body.into()) {
            prop_assert_eq!(decode_packet(packet(&startup)), startup);
        }
    }
}
