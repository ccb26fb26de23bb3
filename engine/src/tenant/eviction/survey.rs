//! Surveys the local disk by walking over all layers, and evicts some of them.

use std::sync::Arc;

use super::limits::Usage;
use super::policy::{self, Candidate, Want};
use crate::disk_budget::DiskBudget;
use crate::tenant::layer_map::Layer;
use crate::tenant::timeline::Timeline;
use metrics::METRICS;

/// The layers that take room on the local disk, and the bytes of in-memory layers and imports.
#[derive(Debug, Default)]
pub(super) struct Survey {
    layers: Vec<Arc<Layer>>,
    candidates: Vec<Candidate>,
    in_memory: u64,
    importing: u64,
    promised: u64,
}

impl Survey {
    pub(super) async fn of(timelines: &[Timeline], budget: &DiskBudget) -> Self {
        let (importing, promised) = (budget.held(), budget.promised());
        let in_memory = timelines.iter().map(|timeline| timeline.info().in_memory_bytes).sum();
        let of = |timeline: &Timeline| {
            let archived = timeline.is_archived();
            timeline.layer_files().into_iter().map(move |layer| (layer, archived))
        };
        let layers: Vec<(Arc<Layer>, bool)> = timelines.iter().flat_map(of).collect();
        // File sizes are queried one by one, which blocks the thread.
        let walk = env::spawn::blocking(move || {
            let all = layers.into_iter().map(|(layer, archived)| (candidate(&layer, archived), layer));
            all.filter(|(it, _)| it.bytes > 0).unzip()
        });
        let (candidates, layers) = walk.await.unwrap_or_default();
        Self { layers, candidates, in_memory, importing, promised }
    }

    pub(super) fn usage(&self) -> Usage {
        let sum = |wanted: &dyn Fn(&&Candidate) -> bool| self.candidates.iter().filter(wanted).map(|it| it.bytes).sum();
        Usage {
            resident: sum(&|_| true),
            not_uploaded: sum(&|it| !it.uploaded),
            in_memory: self.in_memory,
            importing: self.importing,
            promised: self.promised,
        }
    }

    /// Bytes of layers that are only partially on the local disk.
    pub(super) fn partial_bytes(&self) -> u64 {
        self.candidates.iter().filter(|it| it.partial).map(|it| it.bytes).sum()
    }

    /// Evicts until `want` is met. Returns the bytes freed.
    pub(super) async fn evict(&mut self, want: Want) -> u64 {
        let mut all = 0;
        for number in policy::choose(&self.candidates, want) {
            let (Some(layer), Some(candidate)) = (self.layers.get(number), self.candidates.get_mut(number)) else {
                continue;
            };
            match layer.evict().await {
                Ok(0) => {}
                Ok(freed) => {
                    candidate.bytes = 0;
                    all += freed;
                    METRICS.evicted_bytes.inc_by(freed);
                }
                Err(error) => tracing::warn!("{}: not evicted: {error}", layer.path()),
            }
        }
        all
    }
}

fn candidate(layer: &Layer, archived: bool) -> Candidate {
    Candidate {
        tenant: layer.desc().tenant_shard_id,
        last_access: layer.last_access(),
        bytes: layer.local_bytes(),
        partial: !layer.is_local(),
        uploaded: layer.is_remote(),
        archived,
    }
}
