//! Which LSNs of a timeline are readable: all above its cutoff, and some below it.

use utils::lsn::Lsn;

/// See the module's documentation. The default is the whole history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Retention {
    /// Below it layers may be missing.
    pub(crate) cutoff: Lsn,
    /// LSNs below the cutoff of which all layers are there, ascending.
    pub(crate) retained: Vec<Lsn>,
}

impl Retention {
    /// Whether `lsn` is readable; otherwise the cutoff.
    pub(crate) fn check(&self, lsn: Lsn) -> Result<(), Lsn> {
        let is_retained = || self.retained.binary_search(&lsn).is_ok();
        if lsn >= self.cutoff || is_retained() { Ok(()) } else { Err(self.cutoff) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_the_cutoff_only_what_is_retained_is_readable() {
        let retention = Retention { cutoff: Lsn(100), retained: vec![Lsn(20), Lsn(50)] };
        let readable: Vec<u64> = (0..=101).filter(|lsn| retention.check(Lsn(*lsn)).is_ok()).collect();
        assert_eq!(readable, [20, 50, 100, 101]);
        assert_eq!(retention.check(Lsn(99)), Err(Lsn(100)));
        assert_eq!(Retention::default().check(Lsn(0)), Ok(()));
    }
}
