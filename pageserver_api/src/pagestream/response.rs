//! Encoding of responses.

use bytes::{BufMut, Bytes};

use super::fields::{Fields, put_header};
use super::{
    Answer, DecodeError, PAGE_SIZE, ProtocolVersion, Query, Request, RequestHeader, SLRU_PAGES_PER_SEGMENT, tag,
};

/// A response as the client receives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The request's header as repeated by the server; `None` in version 2.
    pub header: Option<RequestHeader>,
    /// The query as repeated by the server; `None` in version 2 and for errors.
    pub query: Option<Query>,
    /// The answer.
    pub answer: Answer<Bytes>,
}

impl<P: AsRef<[u8]>> Answer<P> {
    fn tag(&self) -> u8 {
        match self {
            Answer::Exists(_) => tag::RESPONSE_EXISTS,
            Answer::Nblocks(_) => tag::RESPONSE_NBLOCKS,
            Answer::Page(_) => tag::RESPONSE_PAGE,
            Answer::Error(_) => tag::ERROR,
            Answer::DbSize(_) => tag::RESPONSE_DB_SIZE,
            Answer::SlruSegment(_) => tag::RESPONSE_SLRU_SEGMENT,
        }
    }

    /// Appends this answer to `request`. The page is copied only into `buf`.
    ///
    /// # Panics
    /// If the answer is of another kind than the request, or pages are not whole.
    pub fn encode(&self, version: ProtocolVersion, request: &Request, buf: &mut impl BufMut) {
        buf.put_u8(self.tag());
        if version == ProtocolVersion::V3 {
            put_header(buf, version, &request.header);
            if !matches!(self, Answer::Error(_)) {
                assert_eq!(request_tag(self.tag()), Some(request.query.tag()), "an answer is of its request's kind");
                request.query.put_what(buf);
            }
        }
        match self {
            Answer::Exists(exists) => buf.put_u8((*exists).into()),
            Answer::Nblocks(blocks) => buf.put_u32(*blocks),
            Answer::Page(page) => {
                assert_eq!(page.as_ref().len(), PAGE_SIZE, "a page is whole");
                buf.put_slice(page.as_ref());
            }
            Answer::DbSize(bytes) => buf.put_i64(*bytes),
            Answer::SlruSegment(pages) => put_segment(buf, pages.as_ref()),
            Answer::Error(message) => {
                // The text ends at its first NUL.
                message.as_ref().iter().take_while(|byte| **byte != 0).for_each(|byte| buf.put_u8(*byte));
                buf.put_u8(0);
            }
        }
    }
}

fn put_segment(buf: &mut impl BufMut, pages: &[u8]) {
    let blocks = (pages.len() / PAGE_SIZE) as u32;
    assert_eq!(blocks as usize * PAGE_SIZE, pages.len(), "a segment is of few pages, all whole");
    buf.put_u32(blocks);
    buf.put_slice(pages);
}

/// The tag of the request that a response with `response_tag` answers; `None` for errors, which answer any request.
fn request_tag(response_tag: u8) -> Option<u8> {
    match response_tag {
        tag::RESPONSE_EXISTS => Some(tag::EXISTS),
        tag::RESPONSE_NBLOCKS => Some(tag::NBLOCKS),
        tag::RESPONSE_PAGE => Some(tag::GET_PAGE),
        tag::RESPONSE_DB_SIZE => Some(tag::DB_SIZE),
        tag::RESPONSE_SLRU_SEGMENT => Some(tag::GET_SLRU_SEGMENT),
        _ => None,
    }
}

impl Response {
    /// Decodes a response. Pages are slices of `message`, not copies.
    pub fn decode(version: ProtocolVersion, message: Bytes) -> Result<Self, DecodeError> {
        let mut fields = Fields::new(message)?;
        let kind = fields.tag();
        if request_tag(kind).is_none() && kind != tag::ERROR {
            return Err(DecodeError::UnknownTag(kind));
        }
        let (mut header, mut query) = (None, None);
        if version == ProtocolVersion::V3 {
            header = Some(fields.header(version)?);
            query = request_tag(kind).map(|request_tag| Query::get(request_tag, &mut fields)).transpose()?;
        }
        Ok(Response { header, query, answer: decode_answer(fields)? })
    }
}

fn decode_answer(mut fields: Fields<Bytes>) -> Result<Answer<Bytes>, DecodeError> {
    let answer = match fields.tag() {
        tag::RESPONSE_EXISTS => match fields.u8()? {
            0 => Answer::Exists(false),
            1 => Answer::Exists(true),
            _ => return Err(fields.malformed("neither true nor false")),
        },
        tag::RESPONSE_NBLOCKS => Answer::Nblocks(fields.u32()?),
        tag::RESPONSE_DB_SIZE => Answer::DbSize(fields.u64()? as i64),
        tag::RESPONSE_PAGE => return whole_pages(fields, 1).map(Answer::Page),
        tag::RESPONSE_SLRU_SEGMENT => {
            let blocks = fields.u32()?;
            if blocks > SLRU_PAGES_PER_SEGMENT {
                return Err(fields.malformed("there are too many pages"));
            }
            return whole_pages(fields, blocks as usize).map(Answer::SlruSegment);
        }
        tag::ERROR => {
            let malformed = fields.malformed("its text does not end with NUL");
            let mut text = fields.rest();
            return match text.iter().position(|byte| *byte == 0) {
                Some(end) if end + 1 == text.len() => Ok(Answer::Error(text.split_to(end))),
                _ => Err(malformed),
            };
        }
        unknown => return Err(DecodeError::UnknownTag(unknown)),
    };
    fields.end()?;
    Ok(answer)
}

fn whole_pages(fields: Fields<Bytes>, count: usize) -> Result<Bytes, DecodeError> {
    let malformed = fields.malformed("it has not the right number of bytes of pages");
    let pages = fields.rest();
    if pages.len() == count * PAGE_SIZE { Ok(pages) } else { Err(malformed) }
}
