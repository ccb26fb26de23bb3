//! Which images within the history that is kept go: those that only make reads of old LSNs shorter, once nobody has
//! read them for a while, or as soon as they take too much space.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::state::TimelineState;
use crate::tenant::layer_map::thin::thin;
use crate::tenant::layer_map::{Layer, LayerMap};
use utils::lsn::Lsn;

/// The images of `map`, of which everything above `cutoff` is kept, that are to go.
pub(super) fn superfluous(state: &TimelineState, map: &LayerMap, cutoff: Lsn) -> Vec<Arc<Layer>> {
    let policy = &state.conf.compaction;
    let mut spare = thin(map, cutoff, |_| true);
    let bytes = |layer: &Layer| layer.desc().file_size;
    let all: u64 = map.iter().map(|layer| bytes(layer)).sum();
    let others = all - spare.iter().map(|layer| bytes(layer)).sum::<u64>();
    let mut room = others / 100 * policy.spare_percent;
    let now = env::clock::system_now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    // Just after a start nobody knows who would have read them.
    let is_known = env::clock::now().saturating_duration_since(state.compaction.opened) >= policy.thin_after;
    let is_idle = |last: u64| is_known && Duration::from_millis(last).saturating_add(policy.thin_after) <= now;
    spare.sort_by_key(|layer| std::cmp::Reverse((layer.last_access(), layer.desc().image_lsn())));
    let stays = |layer: &Arc<Layer>| {
        let fits = bytes(layer) <= room && !is_idle(layer.last_access());
        room = if fits { room - bytes(layer) } else { 0 };
        fits
    };
    let stay: Vec<bool> = spare.iter().map(stays).collect();
    spare.into_iter().zip(stay).filter(|(_, stays)| !stays).map(|(layer, _)| layer).collect()
}
