//! Objects of the tail. The name says where the WAL begins and ends, and which generation put it there:
//! `tail-<16 digits>-<16 digits>-<8 digits>`, hexadecimal. The object is the magic, the CRC-32C of all that follows,
//! the length of the writer's mark, the mark, where the WAL begins, and the WAL; numbers are little-endian.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use pageserver_api::shard::TenantShardId;
use remote_storage::{RemotePath, TAIL_PREFIX};
use utils::crc32c::crc32c;
use utils::id::TimelineId;
use utils::lsn::Lsn;

const MAGIC: &[u8; 8] = b"PSTAIL01";
/// Magic and checksum.
const HEAD: usize = MAGIC.len() + 4;
/// Marks are one line about a compute, or a slot.
const MARK_MAX: usize = 1024;
/// The most WAL that one object has, in bytes.
pub(super) const WAL_MAX: usize = 8 << 20;
/// The most bytes of an object.
pub(super) const OBJECT_MAX: u64 = (WAL_MAX + MARK_MAX + 64) as u64;

/// The name of an object. They are sorted by where their WAL begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) start: Lsn,
    pub(super) end: Lsn,
    pub(super) generation: u32,
}

impl Name {
    /// Parses an object's file name.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.strip_prefix(TAIL_PREFIX)?.split('-').map(|digits| u64::from_str_radix(digits, 16).ok());
        let mut next = || numbers.next().flatten();
        let name = Self { start: Lsn(next()?), end: Lsn(next()?), generation: next()?.try_into().ok()? };
        (name.file_name() == text && name.start < name.end).then_some(name)
    }

    fn file_name(&self) -> String {
        format!("{TAIL_PREFIX}{:016x}-{:016x}-{:08x}", self.start.0, self.end.0, self.generation)
    }

    pub(super) fn path(&self, tenant: &TenantShardId, timeline: &TimelineId) -> RemotePath {
        RemotePath::layer(tenant, timeline, &self.file_name())
    }
}

/// What is in an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tail {
    /// Who wrote it, as [`WalSource::writer_mark`](super::super::WalSource::writer_mark) says.
    pub(super) mark: String,
    pub(super) start: Lsn,
    pub(super) wal: Bytes,
}

impl Tail {
    pub(super) fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(HEAD + 12 + self.mark.len() + self.wal.len());
        bytes.put_slice(MAGIC);
        bytes.put_u32_le(0);
        bytes.put_u32_le(self.mark.len() as u32);
        bytes.put_slice(self.mark.as_bytes());
        bytes.put_u64_le(self.start.0);
        bytes.put_slice(&self.wal);
        let checksum = crc32c(bytes.get(HEAD..).unwrap_or_default());
        if let Some(field) = bytes.get_mut(MAGIC.len()..HEAD) {
            field.copy_from_slice(&checksum.to_le_bytes());
        }
        bytes.freeze()
    }

    /// Reads an object.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn decode(name: &Name, mut bytes: Bytes) -> Result<Self, &'static str> {
        if bytes.len() < HEAD + 12 || !bytes.starts_with(MAGIC) {
            return Err("it is no tail, or one of a later version");
        }
        bytes.advance(MAGIC.len());
        let checksum = bytes.get_u32_le();
        if checksum != crc32c(&bytes) {
            return Err("its checksum is wrong");
        }
        let mark_len = bytes.get_u32_le() as usize;
        if mark_len > MARK_MAX || bytes.len() < mark_len + 8 {
            return Err("its writer's name has no end");
        }
        let mark = String::from_utf8_lossy(&bytes.split_to(mark_len)).into_owned();
        let start = Lsn(bytes.get_u64_le());
        if start != name.start || start + bytes.len() as u64 != name.end {
            return Err("it is not what its name says");
        }
        Ok(Self { mark, start, wal: bytes })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tail() -> (Name, Tail) {
        let wal = Bytes::from_static(b"some bytes of WAL");
        let start = Lsn(0x0015_6000);
        let name = Name { start, end: start + wal.len() as u64, generation: 7 };
        (name, Tail { mark: "compute x from 0/1".to_owned(), start, wal })
    }

    #[test]
    fn names_tell_where_and_of_whom() {
        let (name, _) = tail();
        assert_eq!(name.file_name(), "tail-0000000000156000-0000000000156011-00000007");
        assert_eq!(Name::parse(&name.file_name()), Some(name));
        let backwards = "tail-0000000000156011-0000000000156000-00000007";
        for bad in ["tail-1-2-3", "origin-00000001", "tail-0000000000156000-0000000000156011", backwards] {
            assert_eq!(Name::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_object_is_what_its_name_says_and_no_other() {
        let (name, tail) = tail();
        let bytes = tail.encode();
        assert_eq!(Tail::decode(&name, bytes.clone()), Ok(tail));
        let moved = Name { start: name.start + 8, end: name.end + 8, ..name };
        assert_eq!(Tail::decode(&moved, bytes), Err("it is not what its name says"));
    }

    proptest! {
        #[test]
        fn a_changed_byte_is_found(at in any::<prop::sample::Index>(), bit in 0..8u8) {
            let (name, tail) = tail();
            let mut bytes = tail.encode().to_vec();
            bytes[at.index(tail.encode().len())] ^= 1 << bit;
            prop_assert!(Tail::decode(&name, bytes.into()).is_err());
        }

        #[test]
        fn anything_else_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(Tail::decode(&tail().0, bytes.into()).is_err());
        }
    }
}
