//! Planted bugs: typical mistakes of storage engines, switched on one at a time to see whether the tests catch them.
//!
//! A test suite that finds nothing proves nothing unless it is known to find something. Each [`Bug`] is a line of
//! production code that calls [`planted`]. In a build without debug assertions, such as any release, the result is
//! constant and costs nothing.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::sync::atomic::{AtomicU64, Ordering};

/// Whether bugs can be planted in this build.
pub const CAN_BE_PLANTED: bool = cfg!(debug_assertions);

macro_rules! bugs {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// A mistake that can be switched on.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Bug {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Bug {
            /// All bugs.
            pub const ALL: &[Bug] = &[$(Bug::$name,)+];
        }
    };
}

bugs! {
    /// Syncing a file does nothing.
    SkipFileSync,
    /// Syncing a directory does nothing.
    SkipDirSync,
    /// The manifest names a layer that was not synced.
    PublishUnsyncedLayer,
    /// The manifest replaces the old one without having been synced.
    PublishUnsyncedManifest,
    /// History is reported durable before the manifest says so.
    PromiseTooEarly,
    /// A block is used whatever its checksum says.
    IgnoreChecksum,
    /// A file is accepted as the requested layer, whatever its header says.
    IgnoreIdentity,
    /// The last value of a batch is not indexed.
    DropLastOfBatch,
    /// A read as of an LSN omits changes at that LSN.
    ReadEndsEarly,
    /// Of two values with the same key and LSN the earlier one wins.
    ForgetNewerOfEquals,
    /// A failed write is treated as successful.
    SwallowWriteError,
    /// Bytes that are still on their way to disk are read from disk.
    ReadBehindWrite,
    /// Recovery leaves unfinished files behind.
    KeepLeftovers,
    /// The next in-memory layer begins one LSN too late.
    SkipOneLsn,
    /// A layer's filter lacks some of its keys.
    FilterFalseNegative,
    /// Compaction leaves out a version.
    DropOneDelta,
    /// Rewritten layers begin one LSN too late.
    MergeOffByOneLsn,
    /// An image among the records of a page lacks the last of them.
    EmbedTooEarly,
    /// An image layer lacks a key.
    ImageLosesKey,
    /// The file of a replaced layer goes while it may still be read.
    UnlinkBeforeLastReader,
    /// Garbage collection forgets branch points.
    ForgetBranchPoint,
    /// Garbage collection forgets leases and holds.
    ForgetLease,
    /// Garbage collection forgets what a read at the cutoff needs.
    ForgetCutoff,
    /// The manifest says only later below which LSN history has gone.
    RetainAfterNotBefore,
    /// A read does not check whether its LSN is still readable.
    ReadWithoutRecheck,
    /// The images of a branch that is detached lack what it inherits.
    ImageOfBranchWithoutAncestor,
    /// The name of a layer's file comes again if another has the same keys and LSNs: all have the same id.
    ReuseLayerName,
    /// The LSN below which history has gone goes back with the settings.
    CutoffGoesBack,
    /// A branch does without its ancestor before its manifest says so.
    AncestorBeforeChildCutoff,
    /// Trimming forgets the oldest of the LSNs that keep a layer.
    TrimForgetsLsn,
    /// Objects go before the bucket's index part says that they are not needed.
    DeleteBeforeConfirm,
    /// A layer counts as uploaded although its upload has failed.
    SwallowUploadError,
    /// A state counts as safe in the bucket before an index part says so.
    PromiseUploadTooEarly,
    /// An index part counts, and objects go, without a look whether another server has taken over.
    ConfirmWithoutLook,
    /// The object of a layer goes while it may still be read.
    DeleteBeforeLastReader,
    /// Of index parts only those count that a listing names.
    TrustListing,
    /// A generation that another server has taken already is taken.
    TakeTakenGeneration,
    /// A timeline is deleted without a mark in the bucket.
    DeleteWithoutMark,
    /// A lease is promised before it is stored.
    PromiseUnstoredLease,
    /// Leases and holds that were stored are forgotten at a start.
    ForgetStoredHolds,
    /// Garbage collection takes what a branch needs of its ancestor's ancestor for the ancestor's own.
    ForgetGrandparent,
    /// Layers of history go without a look whether the image is still there at which reads end.
    PublishWithoutRecheck,
    /// Ingest opens a layer where there are as many L0 layers as it waits at.
    RollPastTheLimit,
    /// Whoever receives WAL waits for a server's answer, however long.
    WaitForEver,
    /// What has arrived counts as safe.
    ReportReceivedAsDurable,
    /// The journal says that WAL is durable before it has synced it.
    JournalBeforeSync,
    /// The server is told what the journal has before a slot keeps that.
    ReportBeforeKept,
    /// The journal forgets the last page's WAL when a receiver goes on, which that comes again for.
    VoidWholePage,
    /// A server's lease counts from when its renewal was answered.
    CountLeaseFromAnswer,
    /// A server whose lease has ended goes on as if it had not.
    OutliveLease,
    /// A server that renews its lease does not look for claims to what it owns.
    IgnoreClaims,
    /// A standby takes over without a second look at the lease.
    TakeWithoutSecondLook,
    /// A standby takes over sooner than it should.
    TakeTooEarly,
    /// A standby forgets at its takeover what it has journaled.
    ForgetAtTakeover,
    /// A server that becomes the standby of a tenant that it had forgets what it has journaled.
    ForgetWhenSteppingDown,
    /// A standby that owns nothing gives up what it has journaled, as its journal is full.
    GiveUpForNobody,
    /// A server that has just started, and owns nothing yet, gives up what its journal has of tenants it does not know.
    GiveUpUnknownAtOnce,
    /// A standby tells the server what it has received before its journal has synced that.
    StandbyBeforeSync,
    /// A standby that was away goes on where the server is, and not where it left off.
    StandbyLeavesGap,
    /// A standby replays what another writer wrote, whose place was taken.
    ReplayOtherWriter,
    /// The tail in the bucket begins behind the page in which what layers have ends.
    TailLeavesGap,
    /// An owner that hands a tenant over goes on as if it did not.
    GiveAndGoOn,
    /// A server takes a tenant that is to be handed over to it before it was given.
    TakeUngiven,
    /// An owner whose tenant was not taken goes on in the generation that it has given up.
    GoOnInGivenGeneration,
}

impl Bug {
    fn bit(self) -> u64 {
        1 << self as u64
    }

    /// Whether it has happened since it was planted.
    pub fn has_happened(self) -> bool {
        HAPPENED.load(Ordering::Relaxed) & self.bit() != 0
    }
}

static PLANTED: AtomicU64 = AtomicU64::new(0);
static HAPPENED: AtomicU64 = AtomicU64::new(0);

/// Whether `bug` shall happen.
#[inline(always)]
pub fn planted(bug: Bug) -> bool {
    CAN_BE_PLANTED && PLANTED.load(Ordering::Relaxed) & bug.bit() != 0 && happen(bug)
}

#[cold]
fn happen(bug: Bug) -> bool {
    HAPPENED.fetch_or(bug.bit(), Ordering::Relaxed);
    true
}

/// Enables exactly the bugs in `bugs`, disables all others, and marks all as not having happened.
pub fn plant(bugs: &[Bug]) {
    PLANTED.store(bugs.iter().fold(0, |bits, bug| bits | bug.bit()), Ordering::Relaxed);
    HAPPENED.store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bugs_happen_only_where_they_are_planted_and_can_be() {
        let bits: u64 = Bug::ALL.iter().map(|bug| bug.bit()).sum();
        assert_eq!(bits.count_ones() as usize, Bug::ALL.len());
        plant(&[Bug::SkipDirSync]);
        assert!(!planted(Bug::SkipFileSync) && !Bug::SkipDirSync.has_happened());
        assert_eq!(planted(Bug::SkipDirSync), CAN_BE_PLANTED);
        assert_eq!(Bug::SkipDirSync.has_happened(), CAN_BE_PLANTED);
        plant(&[]);
        assert!(!planted(Bug::SkipDirSync) && !Bug::SkipDirSync.has_happened());
    }
}
