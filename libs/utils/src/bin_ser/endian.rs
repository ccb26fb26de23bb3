//! Byte order.

/// A byte order.
pub(crate) trait Endian {
    /// Whether the most significant byte comes first.
    const BIG: bool;
}
pub(crate) struct Big;
pub(crate) struct Little;
impl Endian for Big {
    const BIG: bool = true;
}
impl Endian for Little {
    const BIG: bool = false;
}
