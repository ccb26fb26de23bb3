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
    let spare = thin(map, cutoff);
    let all: u64 = map.iter().map(|layer| layer.desc().file_size).sum();
    let others = all - spare.iter().map(|layer| layer.desc().file_size).sum::<u64>();
    let now = env::clock::system_now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    // Just after a start nobody knows who would have read them.
    let is_known = env::clock::now().saturating_duration_since(state.compaction.opened) >= policy.thin_after;
    let is_idle = |last: u64| is_known && Duration::from_millis(last).saturating_add(policy.thin_after) <= now;
    let sizes = spare.iter().map(|layer| (layer.last_access(), layer.desc().image_lsn(), layer.desc().file_size));
    let stays = staying(&sizes.collect::<Vec<_>>(), others / 100 * policy.spare_percent, is_idle);
    spare.into_iter().zip(stays).filter(|(_, stays)| !stays).map(|(layer, _)| layer).collect()
}

/// Which of the images (when it was last read, LSN, bytes) stay where there is `room` for so many bytes of them: those
/// that were read last, then the newest, until one does not fit or is idle.
fn staying(images: &[(u64, Lsn, u64)], mut room: u64, is_idle: impl Fn(u64) -> bool) -> Vec<bool> {
    let mut order: Vec<usize> = (0..images.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(images.get(*at).map(|(read, lsn, _)| (*read, *lsn))));
    let mut stay = vec![false; images.len()];
    for at in order {
        let Some(((last, _, bytes), stays)) = images.get(at).zip(stay.get_mut(at)) else { continue };
        if *bytes > room || is_idle(*last) {
            break;
        }
        (room, *stays) = (room - bytes, true);
    }
    stay
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_were_read_last_stay_while_there_is_room() {
        let images = [(5, Lsn(10), 3), (7, Lsn(20), 4), (5, Lsn(30), 2), (1, Lsn(40), 1)];
        let stay = |room| staying(&images, room, |last| last < 4);
        assert_eq!(stay(100), [true, true, true, false], "nobody has read the last for long");
        assert_eq!(stay(9), [true, true, true, false]);
        assert_eq!(stay(8), [false, true, true, false], "of two that were read at once the newer one");
        assert_eq!(stay(5), [false, true, false, false]);
        assert_eq!(stay(3), [false; 4], "none that was read earlier stays instead");
        assert_eq!(staying(&[], 1, |_| false), [false; 0]);
    }
}
