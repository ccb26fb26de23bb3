//! The operations: what each owns, how it looks to the kernel, what its future yields.

pub(crate) mod file;
pub(crate) mod path;
pub(crate) mod rw;

use std::io;

/// The kernel takes an offset of -1 for "where the file's cursor is", and no other beyond `i64::MAX`.
fn check_offset(offset: u64) -> io::Result<u64> {
    if i64::try_from(offset).is_ok() { Ok(offset) } else { Err(io::Error::from_raw_os_error(libc::EINVAL)) }
}
