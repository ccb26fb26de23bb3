//! The contents of a publication and the conditions that it must meet. Pure.

use std::collections::HashSet;

use crate::tenant::layer_map::{Violation, invariants};
use crate::tenant::storage_layer::{LayerFileName, PersistentLayerDesc};
use crate::tenant::timeline::manifest::{LayerEntry, Manifest};

/// Why an index part must not be written: others would trust it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unfit {
    /// The layers violate an invariant of the layer map.
    #[error("{0}")]
    Layers(#[from] Violation),
    /// A named layer is not in the bucket.
    #[error("layer {0} is not uploaded")]
    NotUploaded(String),
    /// A layer is of a later generation than this server's.
    #[error("layer {0} is of a later generation than {1}")]
    LaterGeneration(String, u32),
    /// The consistent LSN would go back.
    #[error("the consistent LSN would go back from {before} to {after}")]
    Backwards {
        /// That of the previous index part.
        before: utils::lsn::Lsn,
        /// That of the new one.
        after: utils::lsn::Lsn,
    },
    /// The edition would go back.
    #[error("the edition would go back from {before} to {after}")]
    EarlierEdition {
        /// That of the previous index part.
        before: u64,
        /// That of the new one.
        after: u64,
    },
    /// Nothing below the cutoff may become readable again.
    #[error("the cutoff would go back from {before} to {after}")]
    CutoffBackwards {
        /// That of the previous index part.
        before: utils::lsn::Lsn,
        /// That of the new one.
        after: utils::lsn::Lsn,
    },
    /// It would need its ancestor again, which may be gone.
    #[error("the timeline was detached from its ancestor, and would need it again")]
    Reattached,
    /// The origin differs from the previous one.
    #[error("the timeline would have another origin than before")]
    OtherOrigin,
    /// Its generation is not that of this server.
    #[error("it is of generation {found}, this server holds {own}")]
    NotOwn {
        /// The generation that it states.
        found: u32,
        /// This server's generation.
        own: u32,
    },
}

fn desc_of(manifest: &Manifest, entry: &LayerEntry) -> PersistentLayerDesc {
    entry.desc(manifest.tenant_shard_id, manifest.timeline_id)
}

/// The names of all layers of a manifest. Not as text: there may be ten thousands, and each publication compares them.
pub(super) fn names(manifest: &Manifest) -> impl Iterator<Item = LayerFileName> {
    let (tenant, timeline) = (manifest.tenant_shard_id, manifest.timeline_id);
    manifest.layers.iter().map(move |entry| entry.file_name(tenant, timeline))
}

/// The file names of all layers of a manifest, as a set.
pub fn layer_names(manifest: &Manifest) -> HashSet<LayerFileName> {
    names(manifest).collect()
}

/// Whether two manifests describe the same state of the timeline, regardless of who wrote them.
pub(super) fn same_contents(one: &Manifest, other: &Manifest) -> bool {
    let neutral =
        |manifest: &Manifest| Manifest { generation: 0, in_bucket: false, layers: Vec::new(), ..manifest.clone() };
    let is_like = one.layers.len() == other.layers.len() && neutral(one) == neutral(other);
    is_like && layer_names(one) == layer_names(other)
}

/// Checks all conditions that an index part must meet before it is written. `before` is its predecessor.
pub(super) fn check(
    next: &Manifest,
    before: Option<&Manifest>,
    uploaded: &HashSet<LayerFileName>,
    own: u32,
) -> Result<(), Unfit> {
    if next.generation != own {
        return Err(Unfit::NotOwn { found: next.generation, own });
    }
    let descs: Vec<PersistentLayerDesc> = next.layers.iter().map(|entry| desc_of(next, entry)).collect();
    invariants::check(descs.iter())?;
    invariants::within_consistent(descs.iter(), next.disk_consistent_lsn)?;
    for name in names(next) {
        if name.generation > own {
            return Err(Unfit::LaterGeneration(name.to_string(), own));
        }
        if !uploaded.contains(&name) {
            return Err(Unfit::NotUploaded(name.to_string()));
        }
    }
    match before {
        Some(before) if before.origin != next.origin => Err(Unfit::OtherOrigin),
        Some(before) if before.disk_consistent_lsn > next.disk_consistent_lsn => {
            Err(Unfit::Backwards { before: before.disk_consistent_lsn, after: next.disk_consistent_lsn })
        }
        Some(before) if before.edition > next.edition => {
            Err(Unfit::EarlierEdition { before: before.edition, after: next.edition })
        }
        Some(before) if before.detached && !next.detached => Err(Unfit::Reattached),
        Some(before) if before.gc_cutoff > next.gc_cutoff => {
            Err(Unfit::CutoffBackwards { before: before.gc_cutoff, after: next.gc_cutoff })
        }
        _ => Ok(()),
    }
}

/// Layers that `before` names and `next` does not: nobody needs them once all later owners see `next`.
pub(super) fn unnamed(before: &Manifest, next: &Manifest) -> Vec<LayerFileName> {
    let named = layer_names(next);
    names(before).filter(|name| !named.contains(name)).collect()
}

#[cfg(test)]
mod tests {
    use pageserver_api::key::Key;
    use pageserver_api::shard::TenantShardId;
    use postgres_formats::version::PgVersion;
    use utils::id::{TenantId, TimelineId};
    use utils::lsn::Lsn;

    use super::*;
    use crate::tenant::storage_layer::LayerIdentity;
    use crate::tenant::timeline::manifest::{Kept, Origin};

    fn l0(start: u64, end: u64, generation: u32) -> LayerEntry {
        LayerEntry {
            is_delta: true,
            keys: (Key::MIN, Key::MAX),
            lsns: (Lsn(start), Lsn(end)),
            generation,
            file_size: 1,
            identity: LayerIdentity { file_id: start, tail_offset: 0, filter_blocks: 0 },
            id_in_name: true,
            visible: None,
        }
    }

    /// Three layers up to LSN 400; the manifest is of generation 3.
    fn manifest() -> Manifest {
        Manifest {
            tenant_shard_id: TenantShardId::unsharded(TenantId::from([1; 16])),
            timeline_id: TimelineId::from([2; 16]),
            generation: 3,
            in_bucket: true,
            deleted: false,
            wal_source: None,
            origin: Origin { data_checksums: true, ..Origin::of_initdb(PgVersion::V17, 7, Lsn(100)) },
            wal_log_hints_changes: Vec::new(),
            disk_consistent_lsn: Lsn(400),
            prev_record_lsn: Lsn::INVALID,
            edition: 7,
            gc_cutoff: Lsn(150),
            retained: vec![Lsn(120)],
            layers: vec![l0(101, 201, 1), l0(201, 301, 2), l0(301, 401, 3)],
            kept: Kept::default(),
            detached: false,
        }
    }

    #[test]
    fn what_others_could_not_trust_is_not_written() {
        let good = manifest();
        let uploaded = layer_names(&good);
        let result = |change: fn(&mut Manifest)| {
            let mut next = manifest();
            change(&mut next);
            check(&next, Some(&good), &uploaded, 3)
        };
        assert_eq!(result(|_| {}), Ok(()));
        assert_eq!(result(|next| next.generation = 2), Err(Unfit::NotOwn { found: 2, own: 3 }));
        let without_middle = |next: &mut Manifest| next.layers.retain(|entry| entry.generation != 2);
        assert!(matches!(result(without_middle), Err(Unfit::Layers(Violation::Gap { .. }))));
        assert!(matches!(result(|next| next.layers.push(l0(401, 501, 3))), Err(Unfit::Layers(_))));
        assert!(matches!(result(|next| next.layers[2].generation = 4), Err(Unfit::LaterGeneration(..))));
        assert!(matches!(result(|next| next.layers[2].generation = 2), Err(Unfit::NotUploaded(_))));
        assert_eq!(result(|next| next.origin.system_identifier = 8), Err(Unfit::OtherOrigin));
        let backwards = |next: &mut Manifest| {
            next.layers.pop();
            next.disk_consistent_lsn = Lsn(300);
        };
        assert!(matches!(result(backwards), Err(Unfit::Backwards { .. })));
        let edition = Unfit::EarlierEdition { before: 7, after: 6 };
        assert_eq!(result(|next| next.edition = 6), Err(edition));
        let cutoff = Unfit::CutoffBackwards { before: Lsn(150), after: Lsn(149) };
        assert_eq!(result(|next| next.gc_cutoff = Lsn(149)), Err(cutoff));
        let detached = Manifest { detached: true, ..manifest() };
        assert_eq!(check(&good, Some(&detached), &uploaded, 3), Err(Unfit::Reattached));
        assert_eq!(check(&detached, Some(&good), &uploaded, 3), Ok(()));
        assert_eq!(
            check(&good, None, &HashSet::new(), 3).unwrap_err(),
            Unfit::NotUploaded(good.file_name(&good.layers[0]))
        );
    }

    #[test]
    fn what_is_no_longer_named_is_known_and_order_does_not_matter() {
        let (before, mut next) = (manifest(), manifest());
        next.layers.reverse();
        next.generation = 9;
        assert!(same_contents(&before, &next) && unnamed(&before, &next).is_empty());
        let dropped = next.layers.pop().unwrap();
        assert!(!same_contents(&before, &next));
        assert_eq!(unnamed(&before, &next)[..], [dropped.file_name(before.tenant_shard_id, before.timeline_id)]);
        assert!(unnamed(&next, &before).is_empty());
    }
}
