//! As soon as a read needs a layer that is in the bucket, opens the timeline's others, too: reads that follow are about
//! other keys, and would have to wait for each of them to be opened.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::StreamExt as _;
use futures_util::stream;

use crate::context::{DownloadBehavior, RequestContext};
use crate::task_mgr::TaskKind;
use crate::tenant::layer_map::Layer;
use crate::tenant::timeline::state::{Layers, TimelineState};

/// Maximum number of layers that are opened: a request to the bucket for each.
const LAYERS_MAX: usize = 64;
/// Of these, so many at once.
const AT_ONCE: usize = 16;

/// Starts to open those that cost least, once after the timeline was opened.
pub(super) fn open_ahead(state: &TimelineState, layers: &Layers) {
    if state.is_opened_ahead.swap(true, Ordering::Relaxed) {
        return;
    }
    let cheapest = cheapest(layers, state.conf.resources.blocks.open_ahead_max());
    let Ok(guard) = state.enter() else { return };
    env::spawn::task("opening of layers ahead", async move {
        let open = |layer: Arc<Layer>| async move {
            let ctx = RequestContext::new(TaskKind::LayerDownload, DownloadBehavior::Download);
            layer.open(&ctx).await
        };
        let mut opened = stream::iter(cheapest).map(open).buffer_unordered(AT_ONCE);
        while let Some(opened) = opened.next().await {
            if let Err(error) = opened {
                // Whoever needs the layer meets the error again.
                tracing::debug!("not opened ahead: {error}");
            }
        }
        drop(guard);
    });
}

/// The layers in the bucket that are not open yet, those first that need the fewest bytes, `most` in all.
fn cheapest(layers: &Layers, most: u64) -> Vec<Arc<Layer>> {
    let costs = layers.map.iter().map(|layer| (layer.opening_bytes(), layer));
    let mut cold: Vec<(u64, &Arc<Layer>)> = costs.filter(|(bytes, _)| *bytes > 0).collect();
    cold.sort_by_key(|(bytes, _)| *bytes);
    let mut all = 0;
    let fits = |(bytes, _): &&(u64, &Arc<Layer>)| {
        all += bytes;
        all <= most
    };
    cold.iter().take(LAYERS_MAX).take_while(fits).map(|(_, layer)| Arc::clone(layer)).collect()
}
