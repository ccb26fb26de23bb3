//! Seeds that need no server: output of our own encoders, and short programs for the targets that interpret them.

use bytes::BytesMut;
use pageserver_api::pagestream::{Answer, ProtocolVersion, Query, Request, RequestHeader};
use pageserver_api::reltag::{RelTag, SlruKind};
use postgres_formats::page::Page;
use pq_proto::backend::{self, ErrorFields};
use pq_proto::frontend::{self, StartupPacket, StartupParameters, Target};
use pq_proto::sqlstate::SqlState;
use utils::lsn::Lsn;

use crate::kept::Kept;

pub fn add_all(kept: &mut Kept) {
    add_startup(kept);
    add_frontend(kept);
    add_backend(kept);
    add_pagestream(kept);
    add_images(kept);
    add_pages(kept);
    add_maps(kept);
}

fn encoded(write: impl FnOnce(&mut BytesMut)) -> Vec<u8> {
    let mut buf = BytesMut::new();
    write(&mut buf);
    buf.to_vec()
}

fn add_startup(kept: &mut Kept) {
    let parameters = [("user", "postgres"), ("database", "db"), ("options", "-c a=b"), ("_pq_.x", "")];
    let parameters = parameters.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let session = StartupPacket::Startup(StartupParameters { minor: 2, parameters });
    let packets = [("session", session), ("tls", StartupPacket::Ssl), ("gss", StartupPacket::GssEnc)];
    for (name, packet) in packets {
        // The target's input begins after the length.
        kept.add("startup", name, None, encoded(|buf| packet.encode(buf))[4..].to_vec());
    }
    kept.add("startup", "cancel", None, [&80_877_102_u32.to_be_bytes()[..], &[7; 8]].concat());
}

fn add_frontend(kept: &mut Kept) {
    use frontend::put;
    kept.add("frontend", "simple", None, encoded(|buf| put::query(buf, "SELECT 1")));
    let extended = encoded(|buf| {
        put::parse(buf, "pagestream_v3 a b");
        put::bind(buf);
        put::describe(buf, Target::Portal);
        put::execute(buf);
        put::sync(buf);
    });
    kept.add("frontend", "extended", None, extended);
    let copy = encoded(|buf| {
        put::copy_data(buf, |buf| buf.extend_from_slice(b"some data"));
        put::copy_done(buf);
        put::terminate(buf);
    });
    kept.add("frontend", "copy", None, copy);
    let login = encoded(|buf| {
        put::password(buf, b"secret");
        put::sasl_initial(buf, "SCRAM-SHA-256", b"n,,n=,r=nonce");
        put::sasl_response(buf, b"c=biws,r=nonce");
    });
    kept.add("frontend", "login", None, login);
}

fn add_backend(kept: &mut Kept) {
    use backend::put;
    let greeting = encoded(|buf| {
        put::authentication_cleartext(buf);
        put::authentication_ok(buf);
        put::parameter_status(buf, "server_version", "15.1");
        put::negotiate_protocol_version(buf, ["_pq_.x"].into_iter());
        put::ready_for_query(buf);
    });
    kept.add("backend", "greeting", None, greeting);
    let rows = encoded(|buf| {
        put::row_description(buf, &["a", "b"]);
        put::data_row(buf, &[Some(b"1"), None]);
        put::command_complete(buf, "SELECT 1");
        put::empty_query(buf);
    });
    kept.add("backend", "rows", None, rows);
    let copy = encoded(|buf| {
        put::copy_both(buf);
        put::copy_out(buf);
        put::copy_data(buf, |buf| buf.extend_from_slice(b"some data"));
        put::copy_done(buf);
    });
    kept.add("backend", "copy", None, copy);
    let extended = encoded(|buf| {
        put::parse_complete(buf);
        put::bind_complete(buf);
        put::close_complete(buf);
        put::no_parameters(buf);
        put::no_data(buf);
    });
    kept.add("backend", "extended", None, extended);
    let error = ErrorFields {
        severity: "ERROR".to_owned(),
        code: SqlState::PROTOCOL_VIOLATION,
        message: "no".to_owned(),
        detail: Some("because".to_owned()),
        hint: Some("do".to_owned()),
        position: None,
    };
    kept.add("backend", "error", None, encoded(|buf| put::error(buf, &error)));
}

fn add_pagestream(kept: &mut Kept) {
    let rel = RelTag { spcnode: 1663, dbnode: 5, relnode: 16384, forknum: 0 };
    let pages = [7; 8192];
    let messages: [(&str, Query, Answer<&[u8]>); 6] = [
        ("exists", Query::Exists(rel), Answer::Exists(true)),
        ("nblocks", Query::Nblocks(rel), Answer::Nblocks(3)),
        ("page", Query::GetPage(rel, 2), Answer::Page(&pages)),
        ("size", Query::DbSize { dbnode: 5 }, Answer::DbSize(24_576)),
        ("slru", Query::GetSlruSegment { kind: SlruKind::Clog, segno: 1 }, Answer::SlruSegment(&pages)),
        ("error", Query::Nblocks(rel), Answer::Error(b"no")),
    ];
    for (name, query, answer) in messages {
        for (version, reqid) in [(ProtocolVersion::V2, 0), (ProtocolVersion::V3, 9)] {
            let header = RequestHeader { reqid, request_lsn: Lsn(0x0123_4568), not_modified_since: Lsn(0x0123_4560) };
            let request = Request { header, query };
            let asked = encoded(|buf| request.encode(version, buf));
            kept.add("pagestream", &format!("{name}-{version:?}-asked"), None, asked);
            let answered = encoded(|buf| answer.encode(version, &request, buf));
            kept.add("pagestream", &format!("{name}-{version:?}-answered"), None, answered);
        }
    }
}

/// A page with a large hole, compressed with each method.
fn add_images(kept: &mut Kept) {
    let (offset, length) = (100u16, 7900u16);
    let bytes: Vec<u8> = (0..8192 - usize::from(length)).map(|at| if at % 3 == 0 { at as u8 } else { 0x40 }).collect();
    let literal = |bytes: &[u8]| bytes.chunks(8).flat_map(|part| [&[0], part].concat()).collect();
    let zstd = zstd::bulk::compress(&bytes, 3).expect("a small image");
    let methods = [
        ("none", bytes.clone()),
        ("pglz", literal(&bytes)),
        ("lz4", lz4_flex::block::compress(&bytes)),
        ("zstd", zstd),
    ];
    for (number, (name, compressed)) in (0u8..).zip(methods) {
        let head = [offset.to_le_bytes(), length.to_le_bytes()].concat();
        kept.add("image", name, None, [&head[..], &[number], &compressed].concat());
    }
}

/// First the initial page, then steps of four bytes: operation, place, size, fill byte.
fn add_pages(kept: &mut Kept) {
    let fill = [0, 0, 40, 1].repeat(20);
    let change =
        [[2, 3, 9, 2], [4, 5, 0, 0], [5, 2, 3, 7], [6, 4, 0, 0], [7, 1, 40, 3], [8, 0, 0, 1], [9, 6, 0, 2]].concat();
    let end = [[9, 0, 0, 1], [3, 255, 60, 9], [9, 2, 1, 0], [9, 3, 2, 0], [8, 0, 0, 0]].concat();
    kept.add("page", "sane", None, [&[32][..], &fill, &change, &end].concat());
    let mut page = Page::new(Box::new([0; 8192]));
    page.init(16);
    kept.add("page", "any", None, [&[1][..], &page.bytes()[..300], &fill, &change, &end].concat());
}

/// The page's initial fill, then a number for each change and its arguments.
fn add_maps(kept: &mut Kept) {
    for kind in 0u8..8 {
        let change = |value: u32, count: u8| {
            let more: &[u8] = if matches!(kind, 4 | 5) { &[5, 0, 0, 0] } else { &[] };
            [&[kind][..], &(value / 1000).to_le_bytes(), &[count], &value.to_le_bytes(), more].concat()
        };
        let changes = [change(1234, 3), change(40_000, 1), change(u32::MAX, 200)].concat();
        kept.add("maps", &format!("change-{kind}"), None, [&[0x55][..], &changes].concat());
    }
}
