//! Shared by all parsers of records' main data: their error, and counted arrays.

use thiserror::Error;

use crate::{
    cursor::{Cursor, Truncated},
    record::RelFile,
    rmgr::RmgrId,
};

/// Why main data does not match its record type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MainDataError {
    /// The data ends before a field.
    #[error("record data is too short: {0}")]
    Truncated(#[from] Truncated),
    /// A negative count.
    #[error("record data has a count of {0}")]
    Count(i32),
    /// Text without its terminating zero byte.
    #[error("text in record data is not terminated")]
    Text,
    /// A value out of range.
    #[error("record data has {field} {value}")]
    Value {
        /// Name of the field.
        field: &'static str,
        /// The value.
        value: u64,
    },
    /// The resource manager has no such operation in this version.
    #[error("resource manager {} has no operation {opcode:#04x}", rmgr.name())]
    Opcode {
        /// Resource manager.
        rmgr: RmgrId,
        /// High nibble of `xl_info`.
        opcode: u8,
    },
}

/// Reads an `int` count, which must not be negative.
pub(crate) fn count(cursor: &mut Cursor<'_>) -> Result<u32, MainDataError> {
    let count = cursor.i32()?;
    u32::try_from(count).map_err(|_| MainDataError::Count(count))
}

/// Reads a counted array of `u32` values.
pub(crate) fn counted_u32s(cursor: &mut Cursor<'_>) -> Result<Vec<u32>, MainDataError> {
    let count = count(cursor)?;
    Ok(cursor.u32_array(count)?)
}

/// Reads the three numbers that identify a relation.
pub(crate) fn rel_file(cursor: &mut Cursor<'_>) -> Result<RelFile, Truncated> {
    Ok(RelFile { spc: cursor.u32()?, db: cursor.u32()?, rel: cursor.u32()? })
}

/// Reads `count` relations.
pub(crate) fn rel_files(cursor: &mut Cursor<'_>, count: u32) -> Result<Vec<RelFile>, MainDataError> {
    const SIZE: usize = 12;
    let mut bytes = Cursor::new(cursor.take((count as usize).saturating_mul(SIZE))?);
    let mut rels = Vec::with_capacity(bytes.remaining() / SIZE);
    while bytes.remaining() > 0 {
        rels.push(rel_file(&mut bytes)?);
    }
    Ok(rels)
}

/// Skips a counted array of entries of `size` bytes.
pub(crate) fn skip_counted(cursor: &mut Cursor<'_>, size: usize) -> Result<(), MainDataError> {
    let count = count(cursor)? as usize;
    Ok(cursor.skip(count.saturating_mul(size))?)
}

/// Reads text up to its terminating zero byte, and skips that.
pub(crate) fn text<'a>(cursor: &mut Cursor<'a>) -> Result<&'a [u8], MainDataError> {
    let len = cursor.rest().iter().position(|byte| *byte == 0).ok_or(MainDataError::Text)?;
    let text = cursor.take(len)?;
    cursor.skip(1)?;
    Ok(text)
}
