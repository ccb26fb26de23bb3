//! Encoding of the FUSE protocol, as in `linux/fuse.h`. Integers are in native byte order.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;

use crate::overlay::attr::{Attr, Time};

/// Opcodes of requests.
pub(crate) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const RENAME2: u32 = 45;
}

/// Set in the number of a request that is resent after the loss of a daemon.
const RESENT: u64 = 1 << 63;

const HEADER: usize = 40;

/// One day: nobody but us changes names and attributes.
const VALID_SECONDS: u64 = 24 * 3600;

/// A request from the kernel.
pub(crate) struct Request<'a> {
    pub(crate) opcode: u32,
    pub(crate) unique: u64,
    pub(crate) node: u64,
    pub(crate) body: Body<'a>,
}

/// The bytes after the header, from which fields are taken in order. Too few bytes yield `EINVAL`.
pub(crate) struct Body<'a>(&'a [u8]);

impl<'a> Request<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut header = Body(bytes.get(4..HEADER)?);
        let opcode = header.u32().ok()?;
        let unique = header.u64().ok()?;
        let node = header.u64().ok()?;
        Some(Self { opcode, unique, node, body: Body(&bytes[HEADER..]) })
    }

    pub(crate) fn is_resent(&self) -> bool {
        self.unique & RESENT != 0
    }
}

impl<'a> Body<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Errno> {
        self.take().map(u32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Errno> {
        self.take().map(u64::from_ne_bytes)
    }

    pub(crate) fn skip(&mut self, bytes: usize) -> Result<(), Errno> {
        self.bytes(bytes).map(drop)
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], Errno> {
        let (head, rest) = self.0.split_at_checked(count).ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(head)
    }

    /// A zero-terminated name.
    pub(crate) fn name(&mut self) -> Result<&'a OsStr, Errno> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(Errno::INVAL)?;
        let name = OsStr::from_bytes(&self.0[..end]);
        self.0 = &self.0[end + 1..];
        Ok(name)
    }
}

/// An answer under construction.
#[derive(Default)]
pub(crate) struct Out(pub(crate) Vec<u8>);

impl Out {
    pub(crate) fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub(crate) fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub(crate) fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub(crate) fn zeros(mut self, count: usize) -> Self {
        self.0.resize(self.0.len() + count, 0);
        self
    }

    fn attr(self, attr: &Attr) -> Self {
        let seconds = |time: Time| time.0.cast_unsigned();
        self.u64(attr.id)
            .u64(attr.size)
            .u64(attr.sectors)
            .u64(seconds(attr.atime))
            .u64(seconds(attr.mtime))
            .u64(seconds(attr.ctime))
            .u32(attr.atime.1)
            .u32(attr.mtime.1)
            .u32(attr.ctime.1)
            .u32(attr.mode)
            .u32(attr.nlink)
            .u32(attr.uid)
            .u32(attr.gid)
            .u32(attr.rdev)
            .u32(4096)
            .u32(0)
    }
}

/// Answers a request for attributes.
pub(crate) fn attr_out(attr: &Attr) -> Out {
    Out::default().u64(VALID_SECONDS).u64(0).attr(attr)
}

/// Answers a lookup; without attributes it says that the name does not exist and will not appear by itself.
pub(crate) fn entry_out(attr: Option<&Attr>) -> Out {
    let head = |id| Out::default().u64(id).u64(0).u64(VALID_SECONDS).u64(VALID_SECONDS).u64(0);
    attr.map_or_else(|| head(0).zeros(88), |attr| head(attr.id).attr(attr))
}

/// Appends a directory entry; returns `false` if `out` would exceed `room`.
pub(crate) fn push_dirent(out: &mut Vec<u8>, room: usize, id: u64, cookie: u64, kind: u32, name: &OsStr) -> bool {
    let length = name.as_bytes().len();
    let padded = (24 + length).next_multiple_of(8);
    if out.len() + padded > room {
        return false;
    }
    let end = out.len() + padded;
    out.extend(id.to_ne_bytes());
    out.extend(cookie.to_ne_bytes());
    out.extend((length as u32).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(name.as_bytes());
    out.resize(end, 0);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overlay::attr::Owner;

    #[test]
    fn answers_have_the_lengths_that_the_kernel_expects() {
        let owner = Owner { uid: 1, gid: 2, time: (3, 4) };
        let attr = Attr::lazy(77, 8192, &owner);
        assert_eq!(attr_out(&attr).0.len(), 104);
        assert_eq!(entry_out(Some(&attr)).0.len(), 128);
        assert_eq!(entry_out(None).0.len(), 128);
    }

    #[test]
    fn a_request_that_is_cut_short_is_refused() {
        let mut bytes = vec![0; 40];
        bytes[4] = 1;
        bytes.extend(b"base\0");
        let mut request = Request::parse(&bytes).unwrap();
        assert_eq!(request.body.name().unwrap(), "base");
        assert_eq!(request.body.name(), Err(Errno::INVAL));
        assert_eq!(request.body.u32(), Err(Errno::INVAL));
        assert!(Request::parse(&bytes[..39]).is_none());
    }
}
