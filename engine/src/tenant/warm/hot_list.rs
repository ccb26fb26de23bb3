//! The hot list: which layers of a tenant were read lately, as decaying read counts, with its encoding. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use camino::Utf8Path;
use serde::{Deserialize, Serialize};
use utils::bin_ser::BeSer;
use utils::id::TimelineId;

use crate::tenant::storage_layer::{LayerFileName, LayerName};
use errors::StorageError;

/// A layer's heat halves in this time without reads.
const HALF_LIFE: Duration = Duration::from_secs(3600);
/// Colder layers are dropped.
const HEAT_MIN: f64 = 0.05;
/// Upper bound of an encoded list's size, in bytes.
pub(super) const MAX_LEN: u64 = 16 << 20;
/// Maximum number of layers in an encoded list.
const LAYERS_MAX: usize = 20_000;

const MAGIC: [u8; 8] = *b"PGSHOTLY";
const FORMAT_VERSION: u32 = 1;
const HEADER_LEN: usize = 12;
const CRC_LEN: usize = 4;

/// A layer, by its timeline and file name.
pub type Named = (TimelineId, String);

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HotList {
    layers: BTreeMap<Named, f64>,
}

/// A layer as encoded.
#[derive(Serialize, Deserialize)]
struct Entry {
    timeline_id: TimelineId,
    layer: String,
    /// In thousandths of a read.
    heat: u64,
}

impl HotList {
    /// Decays all heats by the given time.
    pub fn fade(&mut self, by: Duration) {
        let factor = 0.5_f64.powf(by.as_secs_f64() / HALF_LIFE.as_secs_f64());
        self.layers.values_mut().for_each(|heat| *heat *= factor);
        self.layers.retain(|_, heat| *heat >= HEAT_MIN);
    }

    /// Counts `reads` reads of a layer.
    pub fn note(&mut self, layer: Named, reads: u64) {
        if reads > 0 {
            *self.layers.entry(layer).or_default() += reads as f64;
        }
    }

    /// Drops layers that no longer exist.
    pub fn retain(&mut self, is_there: impl Fn(&Named) -> bool) {
        self.layers.retain(|layer, _| is_there(layer));
    }

    /// All layers, hottest first.
    pub fn hottest_first(&self) -> Vec<Named> {
        let mut all: Vec<(&Named, f64)> = self.layers.iter().map(|(layer, heat)| (layer, *heat)).collect();
        all.sort_by(|(one, heat), (other, heat_of_other)| heat_of_other.total_cmp(heat).then(one.cmp(other)));
        all.into_iter().map(|(layer, _)| layer.clone()).collect()
    }

    /// The heat of a layer.
    pub fn heat(&self, layer: &Named) -> f64 {
        self.layers.get(layer).copied().unwrap_or(0.0)
    }

    /// Number of layers.
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// Whether no layer is hot.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// Replaces layers `old` by `new`: each new layer gets the heat of the hottest old one whose key range overlaps
    /// its own. Returns the new layers that are hot, which should stay on the local disk.
    pub fn keep_warm(&mut self, timeline: TimelineId, old: &[String], new: &[String]) -> Vec<String> {
        let heats: Vec<(std::ops::Range<_>, f64)> = old
            .iter()
            .filter_map(|name| {
                let heat = self.layers.remove(&(timeline, name.clone()))?;
                Some((keys_of(name)?, heat))
            })
            .collect();
        let mut hot = Vec::new();
        for name in new {
            let Some(keys) = keys_of(name) else { continue };
            let overlapping = heats.iter().filter(|(of_old, _)| of_old.start < keys.end && keys.start < of_old.end);
            let heat = overlapping.map(|(_, heat)| *heat).fold(0.0, f64::max);
            if heat >= HEAT_MIN {
                self.layers.insert((timeline, name.clone()), heat);
                hot.push(name.clone());
            }
        }
        hot
    }

    /// Encodes the list for the file and the object.
    pub fn encode(&self) -> Result<Vec<u8>, StorageError> {
        let entries: Vec<Entry> = self
            .hottest_first()
            .into_iter()
            .take(LAYERS_MAX)
            .map(|layer| Entry { heat: (self.heat(&layer) * 1000.0) as u64, timeline_id: layer.0, layer: layer.1 })
            .collect();
        let mut out = Vec::new();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&FORMAT_VERSION.to_be_bytes());
        entries.ser_into(&mut out).map_err(|error| StorageError::Internal(format!("hot layers: {error}")))?;
        let crc = utils::crc32c::crc32c(&out);
        out.extend_from_slice(&crc.to_be_bytes());
        Ok(out)
    }

    /// Decodes the output of [`HotList::encode`]; `path` is for the error.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn decode(path: &Utf8Path, bytes: &[u8]) -> Result<Self, StorageError> {
        let corrupt = |reason: String| StorageError::Corrupt { path: path.to_owned(), offset: 0, reason };
        let (covered, crc) = bytes.split_last_chunk::<CRC_LEN>().ok_or_else(|| corrupt("too short".to_owned()))?;
        if utils::crc32c::crc32c(covered).to_be_bytes() != *crc {
            return Err(corrupt("the checksum is wrong".to_owned()));
        }
        let (header, body) = covered.split_at_checked(HEADER_LEN).ok_or_else(|| corrupt("too short".to_owned()))?;
        if header.strip_prefix(&MAGIC[..]) != Some(&FORMAT_VERSION.to_be_bytes()[..]) {
            return Err(corrupt("this is no list of hot layers of a known version".to_owned()));
        }
        let entries = Vec::<Entry>::des(body).map_err(|error| corrupt(error.to_string()))?;
        let layers = entries.into_iter().map(|it| ((it.timeline_id, it.layer), it.heat as f64 / 1000.0));
        Ok(Self { layers: layers.collect() })
    }
}

fn keys_of(name: &str) -> Option<std::ops::Range<pageserver_api::key::Key>> {
    match name.parse::<LayerFileName>().ok()?.name {
        LayerName::Delta { key_range, .. } | LayerName::Image { key_range, .. } => Some(key_range),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pageserver_api::key::Key;
    use utils::lsn::Lsn;

    fn timeline() -> TimelineId {
        TimelineId::from([7; 16])
    }

    fn layer(first: u32, end: u32, lsn: u64) -> String {
        let key = |field6| Key { field6, ..Key::MIN };
        LayerName::Image { key_range: key(first)..key(end), lsn: Lsn(lsn) }.file_name(1, 7).to_string()
    }

    #[test]
    fn what_is_read_is_hot_and_fades() {
        let mut list = HotList::default();
        let named = |number| (timeline(), layer(number, number + 1, 1));
        list.note(named(1), 4);
        list.note(named(2), 10);
        list.note(named(3), 0);
        assert_eq!(list.hottest_first(), [named(2), named(1)]);
        list.fade(HALF_LIFE * 2);
        assert_eq!((list.heat(&named(1)), list.heat(&named(2))), (1.0, 2.5));
        list.note(named(1), 2);
        assert_eq!(list.hottest_first(), [named(1), named(2)]);
        list.retain(|named| named.1 == layer(1, 2, 1));
        assert_eq!(list.len(), 1);
        list.fade(HALF_LIFE * 20);
        assert!(list.is_empty());
    }

    #[test]
    fn bytes_round_trip_and_damage_is_noticed() {
        let mut list = HotList::default();
        for number in 0..20 {
            list.note((timeline(), layer(number, number + 1, 1)), u64::from(number) + 1);
        }
        let bytes = list.encode().unwrap();
        assert_eq!(HotList::decode(Utf8Path::new("x"), &bytes).unwrap(), list);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            HotList::decode(Utf8Path::new("x"), &damaged).unwrap_err();
            HotList::decode(Utf8Path::new("x"), &bytes[..at]).unwrap_err();
        }
    }

    #[test]
    fn what_replaces_hot_layers_is_hot() {
        let mut list = HotList::default();
        let old = [layer(0, 10, 1), layer(10, 20, 1), layer(20, 30, 1)];
        list.note((timeline(), old[0].clone()), 3);
        list.note((timeline(), old[1].clone()), 8);
        let new = [layer(0, 5, 2), layer(5, 15, 2), layer(15, 20, 2), layer(20, 40, 2)];
        assert_eq!(list.keep_warm(timeline(), &old, &new), new[..3]);
        let heats = new.clone().map(|name| list.heat(&(timeline(), name)));
        assert_eq!(heats, [3.0, 8.0, 8.0, 0.0]);
        assert_eq!(list.len(), 3, "the old ones are gone");
        assert!(list.keep_warm(timeline(), &[layer(50, 60, 1)], &[layer(50, 60, 2)]).is_empty());
    }
}
