//! The operations: what each owns, its form for the kernel, and what its future yields.

pub(crate) mod file;
pub(crate) mod path;
pub(crate) mod rw;

use std::io;

/// The kernel interprets offset -1 as the file's cursor, and accepts no other beyond `i64::MAX`.
fn check_offset(offset: u64) -> io::Result<u64> {
    if i64::try_from(offset).is_ok() { Ok(offset) } else { Err(io::Error::from_raw_os_error(libc::EINVAL)) }
}
