//! Negotiation with the kernel at the beginning.

use rustix::io::Errno;

use crate::fs::wire::{Body, Out};

/// Maximum size in bytes of a read or write.
pub(crate) const TRANSFER_MAX: usize = 1 << 20;

const MAJOR: u32 = 7;

/// The newest version that we know.
const MINOR: u32 = 40;

/// Linux 4.20: directories need not be opened. Older kernels lack the features required below.
const MINOR_LEAST: u32 = 29;

/// Maximum number of background requests, read-ahead and write-back included, that the kernel has in flight.
const BACKGROUND: u16 = 64;

/// Flags: the kernel offers its features, and we select from them.
mod flag {
    pub(super) const ASYNC_READ: u64 = 1;
    pub(super) const BIG_WRITES: u64 = 1 << 5;
    /// Writes of Postgres stay in the kernel until they are synced: this makes them as fast as on a disk.
    pub(super) const WRITEBACK_CACHE: u64 = 1 << 16;
    /// Files are opened without asking us, and keep their page cache.
    pub(super) const NO_OPEN: u64 = 1 << 17;
    pub(super) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(super) const MAX_PAGES: u64 = 1 << 22;
    pub(super) const CACHE_SYMLINKS: u64 = 1 << 23;
    /// Only the kernel changes contents, so a new modification time does not invalidate its cache.
    pub(super) const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub(super) const INIT_EXT: u64 = 1 << 30;
    /// Requests that a daemon left unanswered are resent to the next one.
    pub(super) const HAS_RESEND: u64 = 1 << 39;

    pub(super) const WANTED: u64 = ASYNC_READ
        | BIG_WRITES
        | WRITEBACK_CACHE
        | NO_OPEN
        | PARALLEL_DIROPS
        | MAX_PAGES
        | CACHE_SYMLINKS
        | EXPLICIT_INVAL_DATA
        | INIT_EXT
        | HAS_RESEND;
    /// Without these, results would be wrong or access far too slow.
    pub(super) const REQUIRED: u64 = WRITEBACK_CACHE | MAX_PAGES | EXPLICIT_INVAL_DATA | NO_OPEN;
}

/// Answers the kernel's first request.
pub(crate) fn answer(body: &mut Body<'_>) -> Result<Out, Errno> {
    let (major, minor) = (body.u32()?, body.u32()?);
    let readahead = body.u32()?;
    let mut offered: u64 = body.u32()?.into();
    if offered & flag::INIT_EXT != 0 {
        offered |= u64::from(body.u32()?) << 32;
    }
    if major > MAJOR {
        // The kernel repeats the request with our version.
        return Ok(Out::default().u32(MAJOR).u32(MINOR).zeros(56));
    }
    if major < MAJOR || minor < MINOR_LEAST || offered & flag::REQUIRED != flag::REQUIRED {
        tracing::error!(major, minor, offered, "this kernel's FUSE lacks what a data directory needs");
        return Err(Errno::PROTO);
    }
    if offered & flag::HAS_RESEND == 0 {
        tracing::warn!(
            "this kernel (older than 6.9) cannot hand a mount over: the loss of this process costs Postgres"
        );
    }
    let flags = offered & flag::WANTED;
    Ok(Out::default()
        .u32(MAJOR)
        .u32(MINOR.min(minor))
        .u32(readahead)
        .u32(flags as u32)
        .u16(BACKGROUND)
        .u16(BACKGROUND * 3 / 4)
        .u32(TRANSFER_MAX as u32)
        .u32(1)
        .u16(pages_max(rustix::param::page_size()))
        .u16(0)
        .u32((flags >> 32) as u32)
        .zeros(28))
}

/// Pages per transfer, in units of the kernel's page size: with 64 KiB pages, 256 of them would be 16 MiB. We would
/// answer such a read only up to [`TRANSFER_MAX`], and a kernel with write-back caching takes the missing part for a
/// hole: zeros.
fn pages_max(page_size: usize) -> u16 {
    u16::try_from(TRANSFER_MAX / page_size).unwrap_or(u16::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_is_the_same_whatever_the_size_of_pages() {
        for page_size in [4096, 16384, 65536] {
            assert_eq!(usize::from(pages_max(page_size)) * page_size, TRANSFER_MAX);
        }
    }
}
