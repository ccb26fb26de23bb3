//! `pagectl layer dump|verify`: inspects single layer files.

use camino::Utf8Path;
use engine::tenant::storage_layer::LayerFileName;
use engine::tenant::storage_layer::inspect::LayerInspector;
use layer_format::header::LayerKind;
use serde_json::json;

use crate::output;
use crate::store::Store;

/// Lists header, footer and all versions.
pub(crate) async fn dump(store: &Store, file: &Utf8Path) -> anyhow::Result<()> {
    let layer = LayerInspector::open(file).await?;
    let (header, footer) = (layer.header(), layer.footer());
    let (kind, json) = (kind_name(header.kind), store.common.json);
    if !json {
        output::line(format_args!("{kind} layer of tenant {} timeline {}", header.tenant_shard_id, header.timeline_id));
        output::line(format_args!("keys {} to {}", header.key_range.start, header.key_range.end));
        output::line(format_args!("LSNs {} to {}", header.lsn_range.start, header.lsn_range.end));
        output::line(format_args!("index at block {}, {} pages", footer.index_block, footer.index_pages));
        print_versions(&layer).await?;
    }
    let (keys, lsns) = (&header.key_range, &header.lsn_range);
    let result = json!({
        "file": file, "kind": kind, "tenant": header.tenant_shard_id.to_string(),
        "timeline": header.timeline_id.to_string(), "keys": [keys.start.to_string(), keys.end.to_string()],
        "lsns": [lsns.start, lsns.end], "entries": footer.entries, "value_bytes": footer.value_bytes,
    });
    let summary = format!("{file}: {kind} layer with {} versions in {} bytes", footer.entries, footer.value_bytes);
    output::finish(json, &result, summary);
    Ok(())
}

async fn print_versions(layer: &LayerInspector) -> anyhow::Result<()> {
    let flag_name = match layer.header().kind {
        LayerKind::Delta => "init",
        LayerKind::Image => "compressed",
    };
    for page in 0..layer.pages() {
        for version in layer.versions_of_page(page).await? {
            let flag = if version.flag { flag_name } else { "" };
            output::line(format_args!(
                "{} {} position {} length {} {flag}",
                version.key, version.lsn, version.position, version.stored_len
            ));
        }
    }
    Ok(())
}

/// Verifies every byte, and that the file's name agrees with its header.
pub(crate) async fn verify(store: &Store, file: &Utf8Path) -> anyhow::Result<()> {
    let layer = LayerInspector::open(file).await?;
    let seen = layer.verify().await?;
    if let Some(Ok(LayerFileName { name, .. })) = file.file_name().map(str::parse) {
        let inside = layer.desc().layer_name();
        anyhow::ensure!(name == inside, "corrupt file {file} at offset 0: its header says that it is {inside}");
    }
    let result = json!({ "file": file, "blocks": seen.blocks, "values": seen.values });
    let summary = format!("{file}: {} blocks and {} values are right", seen.blocks, seen.values);
    output::finish(store.common.json, &result, summary);
    Ok(())
}

fn kind_name(kind: LayerKind) -> &'static str {
    match kind {
        LayerKind::Delta => "delta",
        LayerKind::Image => "image",
    }
}
