//! Layers that could not be read: no jobs are made of them for a while, and all others go on.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::tenant::layer_map::{Layer, LayerMap};

/// How long a layer is left alone before it is tried again: it may have been repaired.
const PAUSE: Duration = Duration::from_secs(600);

/// Layers by the ids of their files, why they could not be read, and when to try again.
#[derive(Debug, Default)]
pub(crate) struct Damage {
    layers: HashMap<u64, (String, Instant)>,
}

impl Damage {
    /// The files that are to be left alone now.
    pub(crate) fn files(&mut self) -> HashSet<u64> {
        let now = env::clock::now();
        self.layers.retain(|_, (_, until)| *until > now);
        self.layers.keys().copied().collect()
    }

    /// Why a layer cannot be read, if there is one.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.layers.values().map(|(reason, _)| reason.as_str()).min()
    }

    /// Leaves `layer` alone for a while, and returns how long.
    pub(crate) fn note(&mut self, layer: &Layer, reason: String) -> Duration {
        self.layers.insert(layer.identity().file_id, (reason, env::clock::now() + PAUSE));
        PAUSE
    }

    /// Forgets layers that are gone.
    pub(crate) fn retain(&mut self, map: &LayerMap) {
        if !self.layers.is_empty() {
            let present: HashSet<u64> = map.iter().map(|layer| layer.identity().file_id).collect();
            self.layers.retain(|id, _| present.contains(id));
        }
    }
}
