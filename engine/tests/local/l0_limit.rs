//! There are never more L0 layers than ingest waits at.

use crate::sim::history::root;
use crate::sim::l0_limit::freeze_for_wal;

#[test]
fn layers_frozen_for_their_wal_wait_for_sorts_like_full_ones() -> anyhow::Result<()> {
    freeze_for_wal(&root("l0-limit"))
}
