//! Fields of messages, read from the front.

use bytes::{Buf, BufMut};
use utils::lsn::Lsn;

use super::{DecodeError, ProtocolVersion, RequestHeader};
use crate::reltag::{RelTag, SlruKind};

/// The unread rest of a message.
pub(super) struct Fields<B> {
    rest: B,
    tag: u8,
}

impl<B: Buf> Fields<B> {
    /// The fields after the tag of `message`.
    pub(super) fn new(mut message: B) -> Result<Self, DecodeError> {
        let tag = message.try_get_u8().map_err(|_| DecodeError::Empty)?;
        Ok(Self { rest: message, tag })
    }

    pub(super) fn tag(&self) -> u8 {
        self.tag
    }

    pub(super) fn malformed(&self, problem: &'static str) -> DecodeError {
        DecodeError::Malformed { tag: self.tag, problem }
    }

    fn short(&self) -> DecodeError {
        self.malformed("it is cut short")
    }

    pub(super) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.rest.try_get_u8().map_err(|_| self.short())
    }

    pub(super) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.rest.try_get_u32().map_err(|_| self.short())
    }

    pub(super) fn u64(&mut self) -> Result<u64, DecodeError> {
        self.rest.try_get_u64().map_err(|_| self.short())
    }

    pub(super) fn header(&mut self, version: ProtocolVersion) -> Result<RequestHeader, DecodeError> {
        let reqid = match version {
            ProtocolVersion::V2 => 0,
            ProtocolVersion::V3 => self.u64()?,
        };
        Ok(RequestHeader { reqid, request_lsn: Lsn(self.u64()?), not_modified_since: Lsn(self.u64()?) })
    }

    pub(super) fn rel(&mut self) -> Result<RelTag, DecodeError> {
        let rel = RelTag { spcnode: self.u32()?, dbnode: self.u32()?, relnode: self.u32()?, forknum: self.u8()? };
        if crate::reltag::fork_name(rel.forknum).is_none() {
            return Err(self.malformed("there is no such fork"));
        }
        Ok(rel)
    }

    /// Reads an SLRU kind. Only those that Postgres may ask for are part of the protocol.
    pub(super) fn slru(&mut self) -> Result<SlruKind, DecodeError> {
        match SlruKind::from_number(self.u8()?) {
            Some(kind @ (SlruKind::Clog | SlruKind::MultiXactMembers | SlruKind::MultiXactOffsets)) => Ok(kind),
            _ => Err(self.malformed("there is no such SLRU")),
        }
    }

    pub(super) fn rest(self) -> B {
        self.rest
    }

    /// Fails if anything is left.
    pub(super) fn end(self) -> Result<(), DecodeError> {
        if self.rest.has_remaining() { Err(self.malformed("it is too long")) } else { Ok(()) }
    }
}

pub(super) fn put_header(buf: &mut impl BufMut, version: ProtocolVersion, header: &RequestHeader) {
    if version == ProtocolVersion::V3 {
        buf.put_u64(header.reqid);
    }
    buf.put_u64(header.request_lsn.0);
    buf.put_u64(header.not_modified_since.0);
}

pub(super) fn put_rel(buf: &mut impl BufMut, rel: &RelTag) {
    buf.put_u32(rel.spcnode);
    buf.put_u32(rel.dbnode);
    buf.put_u32(rel.relnode);
    buf.put_u8(rel.forknum);
}
