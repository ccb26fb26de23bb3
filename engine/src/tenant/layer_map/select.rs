//! The rule for choosing between the newest delta layer and the newest image layer below an LSN.

use std::sync::Arc;

use utils::lsn::Lsn;

use super::Layer;

/// The newest layers of each kind that cover some keys and begin below the LSN searched.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Candidates<'a> {
    pub(super) delta: Option<&'a Arc<Layer>>,
    pub(super) image: Option<&'a Arc<Layer>>,
}

/// The layer to read, and down to which LSN.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice<'a> {
    pub(super) layer: &'a Arc<Layer>,
    pub(super) lsn_floor: Lsn,
}

impl<'a> Candidates<'a> {
    /// The newer one of each kind. Layers of one kind that share a key do not overlap in LSN, so the one that begins
    /// later is newer altogether.
    pub(super) fn newer(self, other: Candidates<'a>) -> Candidates<'a> {
        Candidates { delta: newer(self.delta, other.delta), image: newer(self.image, other.image) }
    }

    /// The image layer if no delta has anything newer below `end_lsn`; else the delta layer, down to the image.
    pub(super) fn choose(self, end_lsn: Lsn) -> Option<Choice<'a>> {
        let image_choice = |image: &'a Arc<Layer>| Choice { layer: image, lsn_floor: image.desc().image_lsn() };
        match (self.delta, self.image) {
            (None, None) => None,
            (None, Some(image)) => Some(image_choice(image)),
            (Some(delta), None) => Some(Choice { layer: delta, lsn_floor: delta.desc().lsn_range.start }),
            (Some(delta), Some(image)) => {
                let above_image = image.desc().image_lsn() + 1;
                if above_image >= delta.desc().lsn_range.end || above_image == end_lsn {
                    return Some(image_choice(image));
                }
                Some(Choice { layer: delta, lsn_floor: delta.desc().lsn_range.start.max(above_image) })
            }
        }
    }
}

fn newer<'a>(one: Option<&'a Arc<Layer>>, other: Option<&'a Arc<Layer>>) -> Option<&'a Arc<Layer>> {
    match (one, other) {
        (Some(a), Some(b)) if b.desc().lsn_range.start > a.desc().lsn_range.start => other,
        (Some(_), _) => one,
        (None, _) => other,
    }
}

/// The last of `layers`, sorted by start LSN, that begins below `end_lsn`.
pub(super) fn newest_below(layers: &[Arc<Layer>], end_lsn: Lsn) -> Option<&Arc<Layer>> {
    let count = layers.partition_point(|layer| layer.desc().lsn_range.start < end_lsn);
    count.checked_sub(1).and_then(|at| layers.get(at))
}
