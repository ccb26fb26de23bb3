//! Rebuilds an index part from other sources: the manifest on disk, or the layers themselves.
//!
//! Nothing is guessed. The timeline's origin was stored when it was first published, and its layers were listed when
//! they were last replaced or removed. Which layers of the time since belong together follows from their names: images
//! cover all keys at the import LSN; flushed deltas adjoin from there on, or from the list's end; where an owner
//! restarted below the end of an earlier owner's uploads, the earlier layers above that point were never reported
//! safe; and what compaction has made since was made of layers that are still there. If the layers do not fit together,
//! no index part is written, and the reason is reported.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use camino::Utf8Path;
use pageserver_api::key::{Key, PARAMETERS_KEY};
use pageserver_api::keyspace::KeySpace;
use pageserver_api::parameters::ClusterParameters;
use utils::bin_ser::BeSer;
use utils::id::TimelineId;
use utils::lsn::Lsn;

use super::inventory::There;
use super::objects::{Bucket, Objects};
use crate::context::{DownloadBehavior, RequestContext};
use crate::resources::Resources;
use crate::task_mgr::TaskKind;
use crate::tenant::layer_map::{Layer, LayerMap, invariants};
use crate::tenant::remote::trace;
use crate::tenant::storage_layer::{
    LayerFileName, LayerIdentity, LayerName, PersistentLayerDesc, ReconstructState, RemoteObject, read_remote_identity,
};
use crate::tenant::timeline::manifest::{Kept, LayerEntry, Manifest};
use crate::tenant::timeline::{Ancestor, Origin, Told};
use errors::{ErrorKind, StorageError};
use remote_storage::RemotePath;

/// A layer in the bucket, as described by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Named {
    is_delta: bool,
    keys: (Key, Key),
    lsns: (Lsn, Lsn),
    generation: u32,
    /// In its name.
    file_id: Option<u64>,
    size: u64,
}

impl Named {
    fn of(name: &str, there: &There) -> Option<Self> {
        let LayerFileName { name, generation, file_id } = name.parse().ok()?;
        let (is_delta, keys, lsns) = match name {
            LayerName::Delta { key_range, lsn_range } => (true, key_range, (lsn_range.start, lsn_range.end)),
            LayerName::Image { key_range, lsn } => (false, key_range, (lsn, lsn + 1)),
        };
        Some(Self { is_delta, keys: (keys.start, keys.end), lsns, generation, file_id, size: there.size })
    }

    fn covers_all_keys(&self) -> bool {
        self.keys == (Key::MIN, Key::MAX)
    }

    fn describe(&self) -> String {
        format!("of LSNs {} to {}, generation {}", self.lsns.0, self.lsns.1, self.generation)
    }
}

/// Chooses the layers that make up the timeline from all layers in the bucket. The last list of layers ends at LSN
/// `listed`, exclusive; layers that it has are not in `all`, and not in the result.
fn choose(origin: &Origin, listed: Option<Lsn>, all: Vec<Named>) -> Result<Vec<Named>, String> {
    let (flushed, others): (Vec<Named>, Vec<Named>) =
        all.into_iter().partition(|layer| layer.is_delta && layer.covers_all_keys());
    let (imported, made): (Vec<Named>, Vec<Named>) =
        others.into_iter().partition(|layer| !layer.is_delta && layer.lsns.0 == origin.import_lsn);
    let mut chosen = match listed {
        Some(_) => Vec::new(),
        None => choose_images(origin, imported)?,
    };
    let begin = listed.unwrap_or(origin.import_lsn + 1);
    chosen.extend(choose_deltas(begin, flushed.into_iter().filter(|layer| layer.lsns.0 >= begin).collect())?);
    let end = chosen.iter().map(|layer| layer.lsns.1).max().map_or(begin, |end| end.max(begin));
    match made.iter().find(|layer| layer.lsns.1 > end) {
        Some(layer) => Err(format!("there is a layer of some keys only, {}, beyond all others", layer.describe())),
        None => Ok(chosen),
    }
}

fn choose_images(origin: &Origin, mut images: Vec<Named>) -> Result<Vec<Named>, String> {
    if let Some(Ancestor { timeline_id, .. }) = origin.ancestor {
        return match images.first() {
            None => Ok(images),
            Some(image) => {
                Err(format!("a branch of {timeline_id} has no images, but there is one {}", image.describe()))
            }
        };
    }
    images.sort_by_key(|image| image.keys);
    let mut next = Key::MIN;
    for image in &images {
        if image.lsns.0 != origin.import_lsn || image.keys.0 != next {
            return Err(format!(
                "images of the import are missing, or there are others, such as one {}",
                image.describe()
            ));
        }
        next = image.keys.1;
    }
    if next == Key::MAX { Ok(images) } else { Err("the last images of the import are missing".to_owned()) }
}

/// `begin` is where the first one should begin.
fn choose_deltas(begin: Lsn, mut deltas: Vec<Named>) -> Result<Vec<Named>, String> {
    deltas.sort_by_key(|delta| (delta.generation, delta.lsns));
    let mut chosen: Vec<Named> = Vec::new();
    for delta in deltas {
        // A later owner began there: it did not see what earlier owners have above, so that was not safe.
        while chosen.last().is_some_and(|last| last.lsns.0 >= delta.lsns.0 && last.generation < delta.generation) {
            chosen.pop();
        }
        let expected = chosen.last().map_or(begin, |last| last.lsns.1);
        if delta.lsns.0 != expected {
            return Err(format!(
                "a layer {} should begin at LSN {expected}: what is before it is missing",
                delta.describe()
            ));
        }
        chosen.push(delta);
    }
    Ok(chosen)
}

/// What is known about a timeline besides its layers.
struct Known {
    origin: Origin,
    /// Identities of the layers that some manifest names.
    identities: HashMap<String, LayerIdentity>,
    /// The last record's end and start LSN, if some manifest states them.
    end: (Lsn, Lsn),
    told: Option<Told>,
    /// The last index part of which a copy exists.
    listed: Option<Manifest>,
}

/// The timeline whose index part is to be rebuilt.
pub(super) struct Rebuild<'a> {
    pub(super) bucket: &'a Bucket,
    pub(super) timeline: TimelineId,
    pub(super) objects: &'a Objects,
    /// The manifest on disk.
    pub(super) local: Option<&'a Manifest>,
    /// The generation of the defective index part, if known.
    pub(super) bad: Option<u32>,
    /// The directory in which blocks may be cached.
    pub(super) dir: &'a Utf8Path,
    /// The caches for these blocks.
    pub(super) resources: &'a Resources,
}

impl Rebuild<'_> {
    /// The contents of the new index part, or the reason why they cannot be determined.
    pub(super) async fn manifest(&self) -> Result<Result<Manifest, String>, StorageError> {
        if let Some(local) = self.local.filter(|local| self.says_all(local)) {
            return Ok(match local.layers.iter().all(|entry| self.is_there(local, entry)) {
                true => Ok(local.clone()),
                false => Err("the server itself writes it anew, from its own manifest, when it starts".to_owned()),
            });
        }
        let Some(known) = self.known().await? else {
            return Ok(Err("what the timeline was made of is not written down in the bucket".to_owned()));
        };
        let listed: HashSet<String> = known.listed.iter().flat_map(layer_names).collect();
        if let Some(lost) = listed.iter().find(|name| !self.objects.there.contains_key(*name)) {
            return Ok(Err(format!("layer {lost}, which the last list of layers names, is missing")));
        }
        let new = self.objects.there.iter().filter(|(name, _)| !listed.contains(*name));
        let new = new.filter_map(|(name, there)| Named::of(name, there)).collect();
        match choose(&known.origin, known.listed.as_ref().map(|list| end_of_deltas(&list.layers, &list.origin)), new) {
            Ok(chosen) => self.assemble(known, chosen).await,
            Err(reason) => Ok(Err(reason)),
        }
    }

    /// Whether nobody else has written anything since this manifest was written.
    fn says_all(&self, local: &Manifest) -> bool {
        let last = self.objects.there.keys().filter_map(|name| trace(name)).max();
        local.in_bucket && !local.deleted && last.max(self.bad) <= Some(local.generation)
    }

    fn is_there(&self, manifest: &Manifest, entry: &LayerEntry) -> bool {
        self.objects.there.get(&manifest.file_name(entry)).is_some_and(|there| there.size == entry.file_size)
    }

    async fn known(&self) -> Result<Option<Known>, StorageError> {
        let written = self.bucket.read_origin(self.timeline, self.objects).await?;
        let list = self.bucket.read_list(self.timeline, self.objects).await?;
        let index = self.objects.index.as_ref().map(|(_, index)| index);
        // An older index part may be later than the list, if not that of an earlier edition.
        let position = |manifest: &&Manifest| (manifest.edition, manifest.disk_consistent_lsn);
        let listed = index.into_iter().chain(&list).filter(|manifest| manifest.edition > 0).max_by_key(position);
        let index = [index, listed].into_iter().flatten().max_by_key(position);
        let manifests: Vec<&Manifest> = index.into_iter().chain(self.local).chain(written.as_ref()).collect();
        let Some(first) = manifests.first() else { return Ok(None) };
        // The index part's entries come last and take precedence.
        let entries = manifests.iter().rev().flat_map(|it| it.layers.iter().map(move |entry| (*it, entry)));
        Ok(Some(Known {
            origin: first.origin,
            identities: entries.map(|(manifest, entry)| (manifest.file_name(entry), entry.identity)).collect(),
            end: index.map_or_else(Default::default, |index| (index.disk_consistent_lsn, index.prev_record_lsn)),
            told: index.and_then(|index| index.wal_source.clone()),
            listed: listed.cloned(),
        }))
    }

    /// The manifest of the listed layers and of `chosen`.
    async fn assemble(&self, known: Known, chosen: Vec<Named>) -> Result<Result<Manifest, String>, StorageError> {
        let list = known.listed.as_ref();
        let mut entries = list.map_or_else(Vec::new, |list| list.layers.clone());
        let mut layers = Vec::new();
        for named in &chosen {
            let (entry, layer) = match self.entry(&known, named).await {
                Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Gone) => {
                    return Ok(Err(error.to_string()));
                }
                entry => entry?,
            };
            entries.push(entry);
            layers.push(Arc::new(layer));
        }
        let detached = list.is_some_and(|list| list.detached);
        let new_hints = hints(&known.origin, detached, &layers).await?;
        let last = end_of_deltas(&entries, &known.origin) - 1;
        let (last, prev) = if known.end.0 >= last { known.end } else { (last, Lsn::INVALID) };
        let manifest = Manifest {
            tenant_shard_id: self.bucket.tenant,
            timeline_id: self.timeline,
            generation: 0,
            in_bucket: true,
            deleted: false,
            wal_source: known.told,
            origin: known.origin,
            wal_log_hints_changes: new_hints
                .or(list.map(|list| list.wal_log_hints_changes.clone()))
                .unwrap_or_default(),
            disk_consistent_lsn: last,
            prev_record_lsn: prev,
            edition: list.map_or(0, |list| list.edition),
            gc_cutoff: list.map_or(Lsn::INVALID, |list| list.gc_cutoff),
            retained: list.map_or_else(Vec::new, |list| list.retained.clone()),
            kept: list.map_or_else(Kept::default, |list| list.kept.clone()),
            layers: entries,
            // Before the list says so, the ancestor stays: one without a list was not detached.
            detached,
        };
        let cold =
            |entry: &LayerEntry| Arc::new(entry.to_layer(self.resources, self.dir, self.bucket.tenant, self.timeline));
        let layers: Vec<Arc<Layer>> = manifest.layers.iter().map(cold).collect();
        Ok(invariant_broken(&manifest, &layers).map_or(Ok(manifest), Err))
    }

    async fn entry(&self, known: &Known, named: &Named) -> Result<(LayerEntry, Layer), StorageError> {
        let Named { is_delta, keys, lsns, generation, file_id, size } = *named;
        let desc = PersistentLayerDesc {
            tenant_shard_id: self.bucket.tenant,
            timeline_id: self.timeline,
            key_range: keys.0..keys.1,
            lsn_range: lsns.0..lsns.1,
            is_delta,
            file_size: size,
        };
        let file = LayerFileName { name: desc.layer_name(), generation, file_id };
        let name = file.to_string();
        let path = RemotePath::layer(&self.bucket.tenant, &self.timeline, &name);
        let object = RemoteObject { storage: self.bucket.storage.clone(), path };
        let identity = match known.identities.get(&name) {
            Some(identity) => *identity,
            None => read_remote_identity(&object, &desc).await?,
        };
        let id_in_name = file_id.is_some();
        let entry =
            LayerEntry { is_delta, keys, lsns, generation, id_in_name, file_size: size, identity, visible: None };
        Ok((entry, Layer::cold(self.resources, self.dir, desc, file, identity, object)))
    }
}

fn layer_names(manifest: &Manifest) -> impl Iterator<Item = String> {
    manifest.layers.iter().map(|entry| manifest.file_name(entry))
}

/// Where these deltas end, exclusive.
fn end_of_deltas(entries: &[LayerEntry], origin: &Origin) -> Lsn {
    let ends = entries.iter().filter(|entry| entry.is_delta).map(|entry| entry.lsns.1);
    ends.max().unwrap_or(origin.import_lsn + 1)
}

/// Checks the invariants of every timeline; returns the first violation.
pub(super) fn invariant_broken(manifest: &Manifest, layers: &[Arc<Layer>]) -> Option<String> {
    let descs = layers.iter().map(|layer| layer.desc());
    let within = invariants::within_consistent(descs, manifest.disk_consistent_lsn);
    let fit = within.and_then(|()| LayerMap::new(layers.to_vec()).map(drop));
    fit.err().map(|violation| violation.to_string())
}

/// The changes of `wal_log_hints` since the import: the newest cluster parameters in these layers contain all of
/// them. `None` if these layers have no cluster parameters.
async fn hints(
    origin: &Origin,
    detached: bool,
    layers: &[Arc<Layer>],
) -> Result<Option<Vec<(Lsn, bool)>>, StorageError> {
    let ctx = RequestContext::new(TaskKind::Scrub, DownloadBehavior::Download);
    let keys = KeySpace::single(PARAMETERS_KEY..PARAMETERS_KEY.next());
    let deltas: BTreeMap<Lsn, &Arc<Layer>> = layers
        .iter()
        .filter(|layer| layer.desc().is_delta)
        .map(|layer| (layer.desc().lsn_range.start, layer))
        .collect();
    for layer in deltas.into_values().rev() {
        let mut state = ReconstructState::new();
        layer.collect(&keys, layer.desc().lsn_range.clone(), &mut state, &ctx).await?;
        let newest = state.into_histories().remove(&PARAMETERS_KEY).and_then(|history| history.image);
        let Some((lsn, bytes)) = newest else { continue };
        let parameters = ClusterParameters::des(&bytes).map_err(|error| StorageError::Corrupt {
            path: layer.path().to_owned(),
            offset: 0,
            reason: format!("the cluster's parameters at LSN {lsn}: {error}"),
        })?;
        // Changes up to the branch point belong to the ancestor, if there still is one.
        let changes = parameters.wal_log_hints_changes.into_iter();
        let own = changes.filter(|(changed, _)| detached || *changed > origin.import_lsn);
        return Ok(Some(own.collect()));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use postgres_formats::version::PgVersion;

    use super::*;

    const MIDDLE: Key = Key { field1: 3, ..Key::MIN };

    fn origin() -> Origin {
        Origin::of_initdb(PgVersion::V17, 7, Lsn(100))
    }

    fn image(keys: (Key, Key), lsn: u64) -> Named {
        Named { is_delta: false, keys, lsns: (Lsn(lsn), Lsn(lsn + 1)), generation: 1, file_id: None, size: 8192 }
    }

    fn delta(start: u64, end: u64, generation: u32) -> Named {
        Named {
            is_delta: true,
            keys: (Key::MIN, Key::MAX),
            lsns: (Lsn(start), Lsn(end)),
            generation,
            file_id: None,
            size: 8192,
        }
    }

    fn images() -> Vec<Named> {
        vec![image((MIDDLE, Key::MAX), 100), image((Key::MIN, MIDDLE), 100)]
    }

    fn chosen(deltas: &[Named]) -> Result<Vec<(u64, u64, u32)>, String> {
        let chosen = choose(&origin(), None, images().into_iter().chain(deltas.to_vec()).collect())?;
        let deltas = chosen.into_iter().filter(|layer| layer.is_delta);
        Ok(deltas.map(|layer| (layer.lsns.0.0, layer.lsns.1.0, layer.generation)).collect())
    }

    #[test]
    fn layers_join_from_the_import_on() {
        assert_eq!(chosen(&[]), Ok(vec![]));
        let both = [delta(201, 301, 2), delta(101, 201, 1)];
        assert_eq!(chosen(&both), Ok(vec![(101, 201, 1), (201, 301, 2)]));
        assert!(chosen(&[delta(201, 301, 1)]).unwrap_err().contains("0/65"), "a hole at the beginning");
        assert!(chosen(&[delta(101, 201, 1), delta(202, 301, 1)]).is_err(), "a hole");
        assert!(chosen(&[delta(101, 201, 1), delta(150, 301, 1)]).is_err(), "of one owner, and they overlap");
        let of_some_keys = Named { keys: (MIDDLE, Key::MAX), ..delta(101, 201, 1) };
        assert!(chosen(&[of_some_keys]).is_err());
    }

    #[test]
    fn what_a_later_owner_did_not_know_of_was_not_safe() {
        let old = [delta(101, 201, 1), delta(201, 301, 1), delta(301, 401, 1)];
        let with = |more: &[Named]| chosen(&[&old, more].concat());
        let begun_again = with(&[delta(201, 261, 2), delta(261, 321, 3)]);
        assert_eq!(begun_again, Ok(vec![(101, 201, 1), (201, 261, 2), (261, 321, 3)]));
        assert!(with(&[delta(221, 261, 2)]).is_err(), "it cannot have begun inside a layer");
        assert!(with(&[delta(501, 601, 2)]).is_err());
    }

    #[test]
    fn what_was_flushed_since_the_list_adjoins_it() {
        let of_some_keys = |start, end| Named { keys: (MIDDLE, Key::MAX), ..delta(start, end, 1) };
        let chosen = |all: &[Named]| {
            let chosen = choose(&origin(), Some(Lsn(301)), all.to_vec())?;
            Ok::<_, String>(chosen.into_iter().map(|layer| (layer.lsns.0.0, layer.lsns.1.0)).collect::<Vec<_>>())
        };
        assert_eq!(chosen(&[]), Ok(vec![]));
        let replaced = [images(), vec![delta(101, 201, 1), delta(201, 301, 1)]].concat();
        assert_eq!(chosen(&replaced), Ok(vec![]), "the list would name what it has");
        let since = [delta(301, 401, 1), delta(401, 501, 1)];
        assert_eq!(chosen(&[&replaced[..], &since].concat()), Ok(vec![(301, 401), (401, 501)]));
        let made_of_them = [of_some_keys(301, 501), image((Key::MIN, MIDDLE), 500)];
        assert_eq!(chosen(&[&since[..], &made_of_them].concat()), Ok(vec![(301, 401), (401, 501)]));
        let gone = chosen(&made_of_them).unwrap_err();
        assert!(gone.contains("beyond all others"), "{gone}");
        assert!(chosen(&since[1..]).unwrap_err().contains("what is before it is missing"));
    }

    #[test]
    fn images_cover_all_keys_at_the_import_and_a_branch_has_none() {
        let choose = |origin: &Origin, images: Vec<Named>| choose(origin, None, images);
        assert_eq!(choose(&origin(), images()).unwrap().len(), 2);
        assert!(choose(&origin(), vec![]).is_err());
        assert!(choose(&origin(), vec![image((Key::MIN, MIDDLE), 100)]).is_err());
        assert!(choose(&origin(), vec![image((MIDDLE, Key::MAX), 100)]).is_err());
        assert!(choose(&origin(), vec![image((Key::MIN, Key::MAX), 90)]).is_err());
        let ancestor = Some(Ancestor { timeline_id: TimelineId::from([1; 16]), lsn: Lsn(100) });
        let branch = Origin { ancestor, ..origin() };
        assert!(choose(&branch, vec![]).is_ok() && choose(&branch, images()).is_err());
    }
}
