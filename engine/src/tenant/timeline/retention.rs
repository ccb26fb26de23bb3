//! Which LSNs of a timeline are readable: all above its cutoff, and some below it.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use pageserver_api::keyspace::KeySpace;
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
    /// The same where there is nothing below `begin`, of which all layers are there.
    pub(crate) fn beginning_at(&self, begin: Lsn) -> Self {
        let cutoff = self.cutoff.max(begin);
        let above = self.retained.iter().copied().filter(|lsn| *lsn > begin);
        Self { cutoff, retained: (begin < cutoff).then_some(begin).into_iter().chain(above).collect() }
    }

    /// Whether `lsn` is readable; otherwise the cutoff.
    pub(crate) fn check(&self, lsn: Lsn) -> Result<(), Lsn> {
        let is_retained = || self.retained.binary_search(&lsn).is_ok();
        if lsn >= self.cutoff || is_retained() { Ok(()) } else { Err(self.cutoff) }
    }
}

/// Which keys are in use, as far as that was found out.
#[derive(Debug, Default)]
pub(crate) struct KnownLive {
    /// Keys in use at LSNs that are kept, or are about to be.
    pub(crate) at: BTreeMap<Lsn, Arc<KeySpace>>,
    /// The edition for which this was found out; at first that in which the timeline was opened.
    pub(crate) edition: u64,
    /// Files of newest images of which most keys are no longer in use.
    pub(crate) dead_images: HashSet<u64>,
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

    #[test]
    fn where_history_begins_stays_readable() {
        let at = |cutoff, retained: &[u64]| Retention {
            cutoff: Lsn(cutoff),
            retained: retained.iter().copied().map(Lsn).collect(),
        };
        assert_eq!(Retention::default().beginning_at(Lsn(50)), at(50, &[]));
        assert_eq!(at(100, &[20, 70]).beginning_at(Lsn(50)), at(100, &[50, 70]));
        assert_eq!(at(100, &[50, 70]).beginning_at(Lsn(50)), at(100, &[50, 70]));
        assert_eq!(at(100, &[]).beginning_at(Lsn(100)), at(100, &[]));
    }
}
