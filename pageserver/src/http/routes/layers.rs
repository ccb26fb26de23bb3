//! The layers of a timeline, as a list and as a picture.

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::http::app::App;
use crate::http::error::{ApiError, ErrorBody};
use crate::http::extract::{At, TimelinePath};
use crate::http::models::{HistoricLayer, InMemoryLayer, LayersAnswer};
use crate::http::svg;
use engine::tenant::timeline::{LayerInfo, LayerKind};

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
    let layers = app.manager.get(path.tenant_shard_id, path.timeline_id)?.layers();
    let mut answer = LayersAnswer { in_memory_layers: Vec::new(), historic_layers: Vec::new() };
    for layer in layers {
        let kind = kind(&layer);
        let LayerInfo { lsns, keys, size, l0, resident, in_bucket, .. } = layer;
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
                key_start: keys.start.to_string(),
                key_end: keys.end.to_string(),
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
    let title = format!("timeline {} of tenant {}", path.timeline_id, path.tenant_shard_id);
    let picture = svg::draw(&title, &timeline.layers(), timeline.disk_consistent_lsn());
    Ok(([(header::CONTENT_TYPE, "image/svg+xml")], picture).into_response())
}
