//! The layers of a timeline, as a list and as a picture.

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::http::app::App;
use crate::http::condition::Words;
use crate::http::error::{ApiError, ErrorBody};
use crate::http::extract::{At, TimelinePath};
use crate::http::models::{AccessStats, HistoricLayer, InMemoryLayer, LayersAnswer};
use crate::http::svg;
use engine::tenant::timeline::{LayerInfo, LayerKind, Timeline};

fn kind(layer: &LayerInfo) -> &'static str {
    match layer.kind {
        LayerKind::Open => "Open",
        LayerKind::Frozen => "Frozen",
        LayerKind::Delta => "Delta",
        LayerKind::Image => "Image",
    }
}

/// Lists all layers.
#[utoipa::path(get, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/layer", tag = "layers",
    params(TimelinePath), responses((status = 200, body = LayersAnswer), (status = 404, body = ErrorBody)))]
pub(crate) async fn list(State(app): State<App>, At(path): At<TimelinePath>) -> Result<Json<LayersAnswer>, ApiError> {
    let timeline = app.manager.get(path.tenant_shard_id, path.timeline_id)?;
    let condition = timeline.condition();
    let mut answer = LayersAnswer {
        in_memory_layers: Vec::new(),
        historic_layers: Vec::new(),
        height: condition.height,
        l0_layer_count: condition.l0_layers,
        condition: condition.into(),
    };
    for layer in timeline.layers() {
        let kind = kind(&layer);
        let LayerInfo { lsns, keys, size, l0, resident, in_bucket, filter, last_access, accesses, .. } = layer;
        match layer.file_name {
            None => {
                let layer = InMemoryLayer { kind, lsn_start: lsns.start, lsn_end: lsns.end, size };
                answer.in_memory_layers.push(layer);
            }
            Some(layer_file_name) => answer.historic_layers.push(HistoricLayer {
                kind,
                layer_file_name,
                layer_file_size: size,
                lsn_start: lsns.start,
                lsn_end: (layer.kind == LayerKind::Delta).then_some(lsns.end),
                remote: !resident,
                in_bucket,
                l0,
                filter,
                key_start: keys.start.to_string(),
                key_end: keys.end.to_string(),
                access_stats: AccessStats {
                    access_time: last_access,
                    residence_time: last_access,
                    accesses,
                    visible: true,
                },
            }),
        }
    }
    Ok(Json(answer))
}

/// Draws all layers as SVG: keys horizontally, LSNs vertically, one box per layer.
#[utoipa::path(get, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/layers.svg", tag = "layers",
    params(TimelinePath),
    responses((status = 200, body = String, content_type = "image/svg+xml"), (status = 404, body = ErrorBody)))]
pub(crate) async fn picture(State(app): State<App>, At(path): At<TimelinePath>) -> Result<Response, ApiError> {
    let timeline = app.manager.get(path.tenant_shard_id, path.timeline_id)?;
    let title = title(&timeline);
    let picture = svg::draw(&title, &timeline.layers(), timeline.disk_consistent_lsn());
    Ok(([(header::CONTENT_TYPE, "image/svg+xml")], picture).into_response())
}

/// What the picture shows, and what is to be said of the layers as a whole.
fn title(timeline: &Timeline) -> String {
    let (info, condition) = (timeline.info(), timeline.condition());
    let mut title = format!(
        "timeline {} of tenant {}: height {}, {} L0, {} to be rewritten",
        timeline.timeline_id(),
        timeline.tenant_shard_id(),
        condition.height,
        condition.l0_layers,
        svg::size(condition.debt.total()),
    );
    if info.replaced_layers > 0 {
        let size = svg::size(info.replaced_bytes);
        title.push_str(&format!(", {} replaced ones still being read ({size})", info.replaced_layers));
    }
    let Words { state, reason, .. } = Words::of(&condition.activity);
    title.push_str(&format!("; compaction {state}: {reason}"));
    title
}
