//! Encoding of requests.

use bytes::{Buf, BufMut};

use super::fields::{Fields, put_header, put_rel};
use super::{DecodeError, ProtocolVersion, Query, Request, tag};

impl Request {
    /// Appends the request.
    pub fn encode(&self, version: ProtocolVersion, buf: &mut impl BufMut) {
        buf.put_u8(self.query.tag());
        put_header(buf, version, &self.header);
        self.query.put_what(buf);
    }

    /// Decodes a request.
    pub fn decode(version: ProtocolVersion, message: impl Buf) -> Result<Self, DecodeError> {
        let mut fields = Fields::new(message)?;
        if fields.tag() > tag::GET_SLRU_SEGMENT {
            return Err(DecodeError::UnknownTag(fields.tag()));
        }
        let header = fields.header(version)?;
        let query = Query::get(fields.tag(), &mut fields)?;
        fields.end()?;
        Ok(Request { header, query })
    }
}

impl Query {
    pub(super) fn tag(&self) -> u8 {
        match self {
            Query::Exists(_) => tag::EXISTS,
            Query::Nblocks(_) => tag::NBLOCKS,
            Query::GetPage(..) => tag::GET_PAGE,
            Query::DbSize { .. } => tag::DB_SIZE,
            Query::GetSlruSegment { .. } => tag::GET_SLRU_SEGMENT,
        }
    }

    /// The body of the query, as it appears in requests and is repeated in responses.
    pub(super) fn put_what(&self, buf: &mut impl BufMut) {
        match self {
            Query::Exists(rel) | Query::Nblocks(rel) => put_rel(buf, rel),
            Query::GetPage(rel, block) => {
                put_rel(buf, rel);
                buf.put_u32(*block);
            }
            Query::DbSize { dbnode } => buf.put_u32(*dbnode),
            Query::GetSlruSegment { kind, segno } => {
                buf.put_u8(kind.number());
                buf.put_u32(*segno);
            }
        }
    }

    /// The inverse of [`Query::put_what`], for the request with `request_tag`.
    pub(super) fn get(request_tag: u8, fields: &mut Fields<impl Buf>) -> Result<Self, DecodeError> {
        Ok(match request_tag {
            tag::EXISTS => Query::Exists(fields.rel()?),
            tag::NBLOCKS => Query::Nblocks(fields.rel()?),
            tag::GET_PAGE => Query::GetPage(fields.rel()?, fields.u32()?),
            tag::DB_SIZE => Query::DbSize { dbnode: fields.u32()? },
            tag::GET_SLRU_SEGMENT => Query::GetSlruSegment { kind: fields.slru()?, segno: fields.u32()? },
            unknown => return Err(DecodeError::UnknownTag(unknown)),
        })
    }
}
