//! Detects an index part that is an older one somebody has restored.
//!
//! An owner writes an index part after the layers that it names. So if a layer of the same generation continues where
//! the index part ends and is *older* than it, an earlier version of the index part named it: trusting this one would
//! lose data that was reported safe. A layer that is younger is left over from an unfinished publication. And a list of
//! layers is copied from an index part: if its edition is later, so was that index part.

use std::fmt;

use pageserver_api::key::Key;
use utils::id::TimelineId;
use utils::lsn::Lsn;

use super::{IndexPart, LayerList, TenantRemote};
use crate::tenant::storage_layer::{LayerFileName, LayerName};
use crate::tenant::timeline::manifest::Manifest;
use errors::StorageError;
use remote_storage::{Listed, RemotePath, RequestClass};

/// In seconds: buckets report times in whole seconds, and a write may take effect slightly after the one that follows
/// it.
const TOLERANCE: i64 = 1;

/// Layers that continue where an index part ends and that it does not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Beyond {
    /// Number of these layers.
    pub(crate) layers: usize,
    /// Where the index part ends.
    pub(crate) from: Lsn,
    /// Where these layers end.
    pub(crate) to: Lsn,
    /// It is certain that the index part is an older one that was restored.
    pub(crate) is_certain: bool,
}

impl fmt::Display for Beyond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { layers, from, to, is_certain } = self;
        write!(f, "it ends at LSN {from}, and {layers} layers that it does not name go on from there to LSN {to}: ")?;
        match is_certain {
            true => {
                write!(f, "they were there before it was written, so it is an older one that somebody has put back")
            }
            false => write!(f, "a publication that did not end, or an older index part that somebody has put back"),
        }
    }
}

/// The list of layers that proves that an index part is an older one, if there is one.
pub(crate) fn later_list(index: &Manifest, lists: &[LayerList]) -> Option<String> {
    let later = lists.iter().filter(|list| list.is_later_than(index)).max()?;
    let (own, there, name) = (index.edition, later.edition, later.file_name());
    Some(format!(
        "its layers are of edition {own}, and {name} was copied from one of edition {there}, so it is an older one \
         that somebody has put back"
    ))
}

/// Looks for such layers. Costs one request.
pub(crate) async fn look(
    remote: &TenantRemote,
    timeline: TimelineId,
    index: &IndexPart,
) -> Result<Option<Beyond>, StorageError> {
    let prefix = RemotePath::timeline(&remote.tenant, &timeline);
    let end = index.manifest.disk_consistent_lsn;
    // Flushed layers span all keys: their names sort by LSN, before those of all other layers.
    let all_keys = format!("{}-{}__", Key::MIN, Key::MAX);
    let after = RemotePath::layer(&remote.tenant, &timeline, &format!("{all_keys}{:016X}", end.0.saturating_add(1)));
    let listed = remote.storage.list_page(RequestClass::Control, &prefix, &after).await?;
    Ok(beyond(&listed, index.manifest.generation, end, index.modified))
}

/// Finds such layers in `listed`, for an index part of `generation` that ends at `end` and was written at `written`
/// (seconds since 1970; 0 if not known).
pub(crate) fn beyond(listed: &[Listed], generation: u32, end: Lsn, written: i64) -> Option<Beyond> {
    let mut found = Beyond { layers: 0, from: end, to: end, is_certain: false };
    for object in listed {
        let Ok(file) = object.path.file_name().parse::<LayerFileName>() else { continue };
        let (LayerName::Delta { key_range, lsn_range }, by) = (file.name, file.generation) else { continue };
        if key_range == (Key::MIN..Key::MAX) && by == generation && lsn_range.start > end {
            found.layers += 1;
            found.to = found.to.max(Lsn(lsn_range.end.0.saturating_sub(1)));
            found.is_certain |= object.modified > 0 && object.modified + TOLERANCE < written;
        }
    }
    (found.layers > 0).then_some(found)
}

#[cfg(test)]
mod tests {
    use object_store::path::Path;

    use super::*;

    fn layer(start: u64, end: u64, generation: u32, modified: i64) -> Listed {
        let name = LayerName::Delta { key_range: Key::MIN..Key::MAX, lsn_range: Lsn(start)..Lsn(end) };
        let path = Path::from(format!("t/{}", name.file_name(generation, start)));
        Listed { path: path.into(), size: 1, modified }
    }

    #[test]
    fn layers_tell_an_older_index_part_by_their_age() {
        let certain = |listed: &[Listed]| beyond(listed, 3, Lsn(100), 1000).map(|it| (it.layers, it.to, it.is_certain));
        assert_eq!(certain(&[]), None);
        assert_eq!(certain(&[layer(51, 101, 3, 1)]), None, "it may be named");
        assert_eq!(certain(&[layer(101, 201, 3, 1001)]), Some((1, Lsn(200), false)));
        assert_eq!(certain(&[layer(101, 201, 3, 999)]), Some((1, Lsn(200), false)), "as good as at once");
        assert_eq!(certain(&[layer(101, 201, 3, 998)]), Some((1, Lsn(200), true)));
        assert_eq!(certain(&[layer(101, 201, 3, 998), layer(201, 301, 3, 1001)]), Some((2, Lsn(300), true)));
        assert_eq!(certain(&[layer(101, 201, 2, 1), layer(101, 201, 4, 1)]), None, "of other owners");
        assert_eq!(beyond(&[layer(101, 201, 3, 1)], 3, Lsn(100), 0).map(|it| it.is_certain), Some(false));
    }
}
