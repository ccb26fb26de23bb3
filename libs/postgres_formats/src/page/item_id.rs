//! Line pointers (`ItemIdData`): location, length and kind of an item.

/// Kind of a line pointer (`lp_flags`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LpFlags {
    /// Free for reuse.
    Unused,
    /// Points at an item.
    Normal,
    /// Points at another line pointer (heap-only tuples).
    Redirect,
    /// Dead; may still have an item.
    Dead,
}

/// A line pointer: bits 0-14 offset, 15-16 kind, 17-31 length.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct ItemId(pub u32);

const FIELD: u32 = 0x7FFF;
const KIND_SHIFT: u32 = 15;
const LEN_SHIFT: u32 = 17;

impl ItemId {
    /// An unused line pointer (`ItemIdSetUnused`).
    pub const UNUSED: Self = Self(0);
    /// A dead line pointer without an item (`ItemIdSetDead`).
    pub const DEAD: Self = Self::from_parts(0, LpFlags::Dead, 0);

    const fn from_parts(offset: u16, flags: LpFlags, len: u16) -> Self {
        Self((offset as u32 & FIELD) | ((flags as u32) << KIND_SHIFT) | ((len as u32 & FIELD) << LEN_SHIFT))
    }

    /// Points at the item of `len` bytes at `offset` (`ItemIdSetNormal`). Both are truncated to 15 bits.
    pub const fn normal(offset: u16, len: u16) -> Self {
        Self::from_parts(offset, LpFlags::Normal, len)
    }

    /// Points at line pointer `target` (`ItemIdSetRedirect`).
    pub const fn redirect(target: u16) -> Self {
        Self::from_parts(target, LpFlags::Redirect, 0)
    }

    /// Offset of the item in the page, or the target of a redirection.
    pub const fn offset(self) -> u16 {
        (self.0 & FIELD) as u16
    }

    /// Length of the item in bytes.
    pub const fn len(self) -> u16 {
        (self.0 >> LEN_SHIFT) as u16
    }

    /// Whether the length is 0.
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The kind.
    pub const fn flags(self) -> LpFlags {
        match (self.0 >> KIND_SHIFT) & 3 {
            0 => LpFlags::Unused,
            1 => LpFlags::Normal,
            2 => LpFlags::Redirect,
            _ => LpFlags::Dead,
        }
    }

    /// Whether the kind is not [`LpFlags::Unused`] (`ItemIdIsUsed`).
    pub const fn is_used(self) -> bool {
        !matches!(self.flags(), LpFlags::Unused)
    }

    /// Whether the kind is [`LpFlags::Normal`] (`ItemIdIsNormal`).
    pub const fn is_normal(self) -> bool {
        matches!(self.flags(), LpFlags::Normal)
    }

    /// Whether it has an item (`ItemIdHasStorage`).
    pub const fn has_storage(self) -> bool {
        !self.is_empty()
    }

    /// The same with another kind (`ItemIdMarkDead` and the like: offset and length are kept).
    pub const fn with_flags(self, flags: LpFlags) -> Self {
        Self::from_parts(self.offset(), flags, self.len())
    }

    /// The same with another offset.
    pub const fn with_offset(self, offset: u16) -> Self {
        Self::from_parts(offset, self.flags(), self.len())
    }

    /// The same with another length.
    pub const fn with_len(self, len: u16) -> Self {
        Self::from_parts(self.offset(), self.flags(), len)
    }
}

impl std::fmt::Debug for ItemId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}({}+{})", self.flags(), self.offset(), self.len())
    }
}
