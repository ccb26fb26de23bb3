//! `pagectl status`: what the store contains and how far its history reaches.

use crate::output;
use crate::store::Store;

/// Runs the command.
pub(crate) async fn run(store: &Store) -> anyhow::Result<()> {
    let opened = store.open().await?;
    let info = opened.timeline().info();
    let height = opened.timeline().height();
    let mut value = serde_json::to_value(&info)?;
    value["height"] = height.into();
    value["holds"] = serde_json::to_value(opened.timeline().holds())?;
    if let (false, Some(fields)) = (store.common.json, value.as_object()) {
        for (name, field) in fields {
            let text = field.as_str().map_or_else(|| field.to_string(), str::to_owned);
            output::line(format_args!("{name:22} {text}"));
        }
    }
    let summary = format!(
        "timeline {} from LSN {} to {}: {} layers, {} bytes, height {height}, {} L0 layers",
        info.timeline_id, info.import_lsn, info.last_record_lsn, info.layers, info.layer_bytes, info.l0_layers
    );
    output::finish(store.common.json, &value, summary);
    Ok(())
}
