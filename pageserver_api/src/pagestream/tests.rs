//! Literal bytes, sizes, round trips, and invalid messages.

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use utils::lsn::Lsn;

use super::ProtocolVersion::{V2, V3};
use super::{Answer, DecodeError, PAGE_SIZE, ProtocolVersion, Query, Request, RequestHeader, Response};
use crate::reltag::{RelTag, SlruKind};

const REL: RelTag = RelTag { spcnode: 1663, dbnode: 5, relnode: 16384, forknum: 2 };
const HEADER: RequestHeader =
    RequestHeader { reqid: 0x0102_0304_0506_0708, request_lsn: Lsn::MAX, not_modified_since: Lsn(0x1_1234_5678) };
const QUERIES: [Query; 5] = [
    Query::Exists(REL),
    Query::Nblocks(REL),
    Query::GetPage(REL, 7),
    Query::DbSize { dbnode: 5 },
    Query::GetSlruSegment { kind: SlruKind::MultiXactOffsets, segno: 0x1F },
];

fn request(version: ProtocolVersion, query: Query) -> Bytes {
    let mut buf = BytesMut::new();
    Request { header: HEADER, query }.encode(version, &mut buf);
    buf.freeze()
}

fn response(version: ProtocolVersion, query: Query, answer: &Answer<Bytes>) -> Bytes {
    let mut buf = BytesMut::new();
    answer.encode(version, &Request { header: HEADER, query }, &mut buf);
    buf.freeze()
}

fn answer_to(query: Query) -> Answer<Bytes> {
    match query {
        Query::Exists(_) => Answer::Exists(true),
        Query::Nblocks(_) => Answer::Nblocks(9),
        Query::GetPage(..) => Answer::Page(vec![3; PAGE_SIZE].into()),
        Query::DbSize { .. } => Answer::DbSize(-2),
        Query::GetSlruSegment { .. } => Answer::SlruSegment(vec![4; 2 * PAGE_SIZE].into()),
    }
}

#[test]
fn sizes_of_requests() {
    let sizes = |version| QUERIES.map(|query| request(version, query).len());
    assert_eq!(sizes(V2), [30, 30, 34, 21, 22]);
    assert_eq!(sizes(V3), [38, 38, 42, 29, 30]);
}

#[test]
fn sizes_of_responses() {
    let sizes = |version| QUERIES.map(|query| response(version, query, &answer_to(query)).len());
    assert_eq!(sizes(V2), [2, 5, 1 + 8192, 9, 5 + 2 * 8192]);
    assert_eq!(sizes(V3), [39, 42, 8234, 37, 34 + 2 * 8192]);
    let error = Answer::Error(Bytes::from_static(b"wrong"));
    assert_eq!(response(V2, QUERIES[0], &error).len(), 1 + 6);
    assert_eq!(response(V3, QUERIES[0], &error).len(), 25 + 6);
}

#[test]
fn literal_bytes_of_requests() {
    let header = b"\x01\x02\x03\x04\x05\x06\x07\x08\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\x01\x12\x34\x56\x78";
    let rel = b"\0\0\x06\x7f\0\0\0\x05\0\0\x40\0\x02";
    let page = [b"\x02".as_slice(), header, rel, b"\0\0\0\x07"].concat();
    assert_eq!(request(V3, QUERIES[2]), page);
    assert_eq!(request(V2, QUERIES[0]), [b"\0".as_slice(), &header[8..], rel].concat());
    assert_eq!(request(V3, QUERIES[1]), [b"\x01".as_slice(), header, rel].concat());
    assert_eq!(request(V3, QUERIES[3]), [b"\x03".as_slice(), header, b"\0\0\0\x05"].concat());
    assert_eq!(request(V2, QUERIES[4]), [b"\x04".as_slice(), &header[8..], b"\x02\0\0\0\x1f"].concat());
}

#[test]
fn literal_bytes_of_responses() {
    let header = b"\x01\x02\x03\x04\x05\x06\x07\x08\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\x01\x12\x34\x56\x78";
    let rel = b"\0\0\x06\x7f\0\0\0\x05\0\0\x40\0\x02";
    let whole = |version, i: usize| response(version, QUERIES[i], &answer_to(QUERIES[i]));
    assert_eq!(whole(V2, 0), b"\x64\x01".as_slice());
    assert_eq!(whole(V2, 1), b"\x65\0\0\0\x09".as_slice());
    assert_eq!(whole(V3, 0), [b"\x64".as_slice(), header, rel, b"\x01"].concat());
    assert_eq!(whole(V3, 1), [b"\x65".as_slice(), header, rel, b"\0\0\0\x09"].concat());
    assert_eq!(whole(V3, 2), [b"\x66".as_slice(), header, rel, b"\0\0\0\x07", &[3; PAGE_SIZE]].concat());
    let size = b"\0\0\0\x05\xff\xff\xff\xff\xff\xff\xff\xfe";
    assert_eq!(whole(V3, 3), [b"\x68".as_slice(), header, size].concat());
    assert_eq!(whole(V2, 4), [b"\x69\0\0\0\x02".as_slice(), &[4; 2 * PAGE_SIZE]].concat());
    let error = Answer::Error(Bytes::from_static(b"wr\0ng"));
    assert_eq!(response(V2, QUERIES[0], &error), b"\x67wr\0".as_slice());
    assert_eq!(response(V3, QUERIES[0], &error), [b"\x67".as_slice(), header, b"wr\0"].concat());
}

#[test]
fn malformed_requests() {
    for version in [V2, V3] {
        for query in QUERIES {
            let whole = request(version, query);
            for len in 0..whole.len() {
                assert!(Request::decode(version, whole.slice(..len)).is_err(), "{query:?} {len}");
            }
            let longer = [&whole[..], b"x"].concat();
            let error = DecodeError::Malformed { tag: whole[0], problem: "it is too long" };
            assert_eq!(Request::decode(version, &longer[..]), Err(error));
        }
    }
    let mut bad_fork = request(V3, QUERIES[0]).to_vec();
    *bad_fork.last_mut().unwrap() = 4;
    assert!(Request::decode(V3, &bad_fork[..]).is_err());
    let mut bad_slru = request(V3, QUERIES[4]).to_vec();
    bad_slru[25] = 3;
    assert!(Request::decode(V3, &bad_slru[..]).is_err());
    assert_eq!(Request::decode(V3, [99u8; 60].as_slice()), Err(DecodeError::UnknownTag(99)));
    assert_eq!(Request::decode(V3, [].as_slice()), Err(DecodeError::Empty));
}

#[test]
fn malformed_responses() {
    for version in [V2, V3] {
        for query in QUERIES {
            let whole = response(version, query, &answer_to(query));
            for len in (0..whole.len().min(60)).chain([whole.len() - 1]).filter(|len| *len < whole.len()) {
                assert!(Response::decode(version, whole.slice(..len)).is_err(), "{query:?} {len}");
            }
            assert!(Response::decode(version, [&whole[..], b"x"].concat().into()).is_err());
        }
    }
    let too_many = [b"\x69\0\0\0\x21".as_slice(), &[0; 33 * PAGE_SIZE]].concat();
    assert!(Response::decode(V2, too_many.into()).is_err());
    assert!(Response::decode(V2, Bytes::from_static(b"\x67no end")).is_err());
    assert!(Response::decode(V2, Bytes::from_static(b"\x67two\0ends\0")).is_err());
    assert!(Response::decode(V2, Bytes::from_static(b"\x64\x02")).is_err());
}

fn any_query() -> impl Strategy<Value = Query> {
    let rel = (any::<[u32; 3]>(), 0..4u8);
    let rel = rel.prop_map(|([spcnode, dbnode, relnode], forknum)| RelTag { spcnode, dbnode, relnode, forknum });
    (rel, any::<u32>(), 0..3u8, 0..5).prop_map(|(rel, number, slru, kind)| match kind {
        0 => Query::Exists(rel),
        1 => Query::Nblocks(rel),
        2 => Query::GetPage(rel, number),
        3 => Query::DbSize { dbnode: number },
        _ => Query::GetSlruSegment { kind: SlruKind::from_number(slru).unwrap(), segno: number },
    })
}

fn any_request() -> impl Strategy<Value = Request> {
    (any::<[u64; 3]>(), any_query()).prop_map(|([reqid, at, since], query)| Request {
        header: RequestHeader { reqid, request_lsn: Lsn(at), not_modified_since: Lsn(since) },
        query,
    })
}

proptest! {
    #[test]
    fn requests_round_trip(request in any_request()) {
        for version in [V2, V3] {
            let mut buf = BytesMut::new();
            request.encode(version, &mut buf);
            let reqid = if version == V3 { request.header.reqid } else { 0 };
            let expected = Request { header: RequestHeader { reqid, ..request.header }, ..request };
            prop_assert_eq!(Request::decode(version, buf), Ok(expected));
        }
    }

    #[test]
    fn responses_round_trip(request in any_request(), failed: bool, text in "[^\0]*") {
        let answer = if failed { Answer::Error(Bytes::from(text)) } else { answer_to(request.query) };
        for version in [V2, V3] {
            let mut buf = BytesMut::new();
            answer.encode(version, &request, &mut buf);
            let echoed = version == V3;
            let expected = Response {
                header: echoed.then_some(request.header),
                query: (echoed && !failed).then_some(request.query),
                answer: answer.clone(),
            };
            prop_assert_eq!(Response::decode(version, buf.freeze()), Ok(expected));
        }
    }

    #[test]
    fn any_bytes(tag in 0..110u8, rest: Vec<u8>) {
        let message = Bytes::from([&[tag], rest.as_slice()].concat());
        for version in [V2, V3] {
            if let Ok(request) = Request::decode(version, message.clone()) {
                let mut buf = BytesMut::new();
                request.encode(version, &mut buf);
                prop_assert_eq!(buf.freeze(), message.clone());
            }
            let _ = Response::decode(version, message.clone());
        }
    }
}
