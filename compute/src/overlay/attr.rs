//! File attributes as Postgres sees them.

use std::fs::{Metadata, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use crate::BLOCK;
use crate::overlay::tree::NodeId;

/// Seconds and nanoseconds since the epoch.
pub(crate) type Time = (i64, u32);

const REGULAR: u32 = 0o100_000;

/// The mode with which Postgres creates relation files.
const PRIVATE: u32 = 0o600;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attr {
    pub(crate) id: NodeId,
    pub(crate) size: u64,
    pub(crate) sectors: u64,
    pub(crate) atime: Time,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
    pub(crate) mode: u32,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rdev: u32,
}

/// Attributes shared by all files of the manifest.
pub(crate) struct Owner {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) time: Time,
}

impl Attr {
    /// Attributes of a real file.
    pub(crate) fn of(id: NodeId, metadata: &Metadata) -> Self {
        let nanoseconds = |n: i64| u32::try_from(n).unwrap_or(0);
        Self {
            id,
            size: metadata.size(),
            sectors: metadata.blocks(),
            atime: (metadata.atime(), nanoseconds(metadata.atime_nsec())),
            mtime: (metadata.mtime(), nanoseconds(metadata.mtime_nsec())),
            ctime: (metadata.ctime(), nanoseconds(metadata.ctime_nsec())),
            mode: metadata.mode(),
            nlink: u32::try_from(metadata.nlink()).unwrap_or(u32::MAX),
            uid: metadata.uid(),
            gid: metadata.gid(),
            rdev: 0,
        }
    }

    /// Attributes of a file that is only in the manifest.
    pub(crate) fn lazy(id: NodeId, size: u64, owner: &Owner) -> Self {
        let time = owner.time;
        Self {
            id,
            size,
            sectors: size.div_ceil(BLOCK as u64) * (BLOCK as u64 / 512),
            atime: time,
            mtime: time,
            ctime: time,
            mode: REGULAR | PRIVATE,
            nlink: 1,
            uid: owner.uid,
            gid: owner.gid,
            rdev: 0,
        }
    }
}

/// Options for creating a file that stands for one of the manifest.
pub(crate) fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(PRIVATE);
    options
}
