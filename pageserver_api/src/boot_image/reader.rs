//! Fields of a file that ends in a CRC-32C of everything before it.

use super::error::BootImageError;
use crate::reltag::RelTag;

const CRC_LEN: usize = 4;

/// Reads fields in order.
pub(super) struct Reader<'a> {
    what: &'static str,
    rest: &'a [u8],
}

/// Completes a file by appending its checksum.
pub(super) fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    let crc = utils::crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_be_bytes());
    bytes
}

impl<'a> Reader<'a> {
    /// Checks the file `bytes`, which must begin with `magic` and `version`.
    pub(super) fn open(
        what: &'static str,
        bytes: &'a [u8],
        magic: &[u8; 8],
        version: u32,
    ) -> Result<Self, BootImageError> {
        let foreign = BootImageError::Foreign(what);
        let rest = bytes.strip_prefix(magic).ok_or_else(|| foreign.clone())?;
        let damaged = |problem| BootImageError::Damaged { what, problem };
        let (content, crc) = bytes.split_last_chunk::<CRC_LEN>().ok_or(damaged("it is cut short"))?;
        let mut reader = Self { what, rest: rest.split_last_chunk::<CRC_LEN>().ok_or(damaged("it is cut short"))?.0 };
        if reader.u32()? != version {
            return Err(foreign);
        }
        if utils::crc32c::crc32c(content) != u32::from_be_bytes(*crc) {
            return Err(damaged("its checksum is wrong"));
        }
        Ok(reader)
    }

    pub(super) fn damaged(&self, problem: &'static str) -> BootImageError {
        BootImageError::Damaged { what: self.what, problem }
    }

    pub(super) fn bytes<const N: usize>(&mut self) -> Result<[u8; N], BootImageError> {
        let (bytes, rest) = self.rest.split_first_chunk::<N>().ok_or(self.damaged("it is cut short"))?;
        self.rest = rest;
        Ok(*bytes)
    }

    pub(super) fn u8(&mut self) -> Result<u8, BootImageError> {
        Ok(u8::from_be_bytes(self.bytes()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, BootImageError> {
        Ok(u32::from_be_bytes(self.bytes()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, BootImageError> {
        Ok(u64::from_be_bytes(self.bytes()?))
    }

    pub(super) fn rel(&mut self) -> Result<RelTag, BootImageError> {
        Ok(RelTag { spcnode: self.u32()?, dbnode: self.u32()?, relnode: self.u32()?, forknum: self.u8()? })
    }

    /// Reads the number of entries of `size` bytes; they must be exactly the rest of the file.
    pub(super) fn count(&mut self, size: usize) -> Result<usize, BootImageError> {
        let count = self.u64()?;
        let left = self.rest.len() / size;
        if self.rest.len().is_multiple_of(size) && u64::try_from(left) == Ok(count) {
            Ok(left)
        } else {
            Err(self.damaged("it has another number of entries than it says"))
        }
    }
}

pub(super) fn put_rel(bytes: &mut Vec<u8>, rel: RelTag) {
    for number in [rel.spcnode, rel.dbnode, rel.relnode] {
        bytes.extend_from_slice(&number.to_be_bytes());
    }
    bytes.push(rel.forknum);
}
