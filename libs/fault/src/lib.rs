//! Planted bugs: mistakes that storage engines make, switched on one at a time to see whether the tests catch them.
//!
//! A test suite that finds nothing proves nothing unless it is known to find something. Each [`Bug`] is a line of
//! production code that asks [`planted`]; without the feature `planted-bugs` the answer is constant and costs nothing.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};

/// A mistake that can be switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Bug {
    /// A sync of a file does nothing.
    SkipFileSync,
    /// A sync of a directory does nothing.
    SkipDirSync,
    /// A layer is named in the manifest without having been synced.
    PublishUnsyncedLayer,
    /// The manifest replaces the old one without having been synced.
    PublishUnsyncedManifest,
    /// History is called durable before the manifest says so.
    PromiseTooEarly,
    /// A block is used whatever its checksum says.
    IgnoreChecksum,
    /// A file is taken for the layer that is wanted, whatever its header says.
    IgnoreIdentity,
    /// The last value of a batch is not indexed.
    DropLastOfBatch,
    /// A read as of an LSN leaves out what happened at that LSN.
    ReadEndsEarly,
    /// Of two values of one key and LSN the earlier counts.
    ForgetNewerOfEquals,
    /// A failed write is taken for a successful one.
    SwallowWriteError,
    /// Bytes on their way to disk are read from disk.
    ReadBehindWrite,
    /// Recovery leaves unfinished files behind.
    KeepLeftovers,
    /// The next in-memory layer begins one LSN too late.
    SkipOneLsn,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 14] = [
        Bug::SkipFileSync,
        Bug::SkipDirSync,
        Bug::PublishUnsyncedLayer,
        Bug::PublishUnsyncedManifest,
        Bug::PromiseTooEarly,
        Bug::IgnoreChecksum,
        Bug::IgnoreIdentity,
        Bug::DropLastOfBatch,
        Bug::ReadEndsEarly,
        Bug::ForgetNewerOfEquals,
        Bug::SwallowWriteError,
        Bug::ReadBehindWrite,
        Bug::KeepLeftovers,
        Bug::SkipOneLsn,
    ];

    fn bit(self) -> u32 {
        1 << self as u32
    }
}

static PLANTED: AtomicU32 = AtomicU32::new(0);

/// Whether `bug` is to happen. Constant `false` without the feature `planted-bugs`.
#[inline(always)]
pub fn planted(bug: Bug) -> bool {
    cfg!(feature = "planted-bugs") && PLANTED.load(Ordering::Relaxed) & bug.bit() != 0
}

/// Switches exactly the bugs of `bugs` on; the others are off. Does nothing without the feature `planted-bugs`.
pub fn plant(bugs: &[Bug]) {
    PLANTED.store(bugs.iter().fold(0, |bits, bug| bits | bug.bit()), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bugs_happen_only_where_they_are_planted_and_the_feature_is_on() {
        let bits: u32 = Bug::ALL.iter().map(|bug| bug.bit()).sum();
        assert_eq!(bits.count_ones() as usize, Bug::ALL.len());
        plant(&[Bug::SkipDirSync]);
        assert_eq!(planted(Bug::SkipDirSync), cfg!(feature = "planted-bugs"));
        assert!(!planted(Bug::SkipFileSync));
        plant(&[]);
        assert!(!planted(Bug::SkipDirSync));
    }
}
