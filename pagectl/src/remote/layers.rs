//! `pagectl layers`: shows the layers of a timeline as a table or a picture.

use anyhow::Context;
use camino::Utf8PathBuf;
use serde_json::json;

use super::connection::Remote;
use crate::output;
use crate::table::{bytes, table, text};

/// Runs the command.
pub(super) fn run(remote: &Remote<'_>, svg: Option<Utf8PathBuf>) -> anyhow::Result<()> {
    let base = remote.base()?;
    match svg {
        None => list(remote, &base),
        Some(file) => {
            let picture = remote.client.bytes("GET", &format!("{base}/layers.svg"), None)?;
            utils::durable::replace_file(file.as_std_path(), &picture)
                .with_context(|| format!("cannot write {file}"))?;
            output::finish(remote.common.json, &json!({ "file": file }), format!("{file} written"));
            Ok(())
        }
    }
}

fn list(remote: &Remote<'_>, base: &str) -> anyhow::Result<()> {
    let layers = remote.client.get(&format!("{base}/layer"))?;
    let mut rows = Vec::new();
    for layer in layers["in_memory_layers"].as_array().into_iter().flatten() {
        let size = bytes(layer, "size");
        rows.push(vec![
            text(layer, "kind"),
            text(layer, "lsn_start"),
            text(layer, "lsn_end"),
            size,
            "memory".to_owned(),
            String::new(),
        ]);
    }
    for layer in layers["historic_layers"].as_array().into_iter().flatten() {
        let kind = if layer["l0"] == true { "Delta L0".to_owned() } else { text(layer, "kind") };
        let (size, file) = (bytes(layer, "layer_file_size"), text(layer, "layer_file_name"));
        let place = match (layer["remote"] == true, layer["in_bucket"] == true) {
            (true, _) => "bucket",
            (false, true) => "disk, bucket",
            (false, false) => "disk",
        };
        rows.push(vec![kind, text(layer, "lsn_start"), text(layer, "lsn_end"), size, place.to_owned(), file]);
    }
    output::finish(remote.common.json, &layers, table(&["KIND", "FROM LSN", "TO LSN", "SIZE", "WHERE", "FILE"], &rows));
    Ok(())
}
