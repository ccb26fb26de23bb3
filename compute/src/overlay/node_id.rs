//! Node numbers.

/// The number by which the kernel knows a file.
pub(crate) type NodeId = u64;

/// The root of the file system.
pub(crate) const ROOT: NodeId = 1;

const LAZY: u64 = 1 << 62;

/// Inode numbers begin at 1, which is taken by the root.
const FIRST_INODE: u64 = 16;

/// The number of the manifest's segment `index`.
pub(crate) fn lazy_id(index: u64) -> NodeId {
    LAZY | index
}

/// The number of a file that is not from the manifest.
pub(crate) fn inode_id(inode: u64) -> NodeId {
    inode + FIRST_INODE
}
