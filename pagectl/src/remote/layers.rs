//! `pagectl layers`: shows the layers of a timeline as a table or a picture.

use anyhow::Context;
use camino::Utf8PathBuf;
use serde_json::json;

use super::condition;
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
    let mut layers = remote.client.get(&format!("{base}/layer"))?;
    let info = remote.client.get(base)?;
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
        let filter = if layer["filter"] == true { "yes" } else { "no" };
        let (from, to) = (text(layer, "lsn_start"), text(layer, "lsn_end"));
        rows.push(vec![kind, from, to, size, place.to_owned(), filter.to_owned(), file]);
    }
    for name in condition::STATE {
        layers[name] = info[name].clone();
    }
    let listed = table(&["KIND", "FROM LSN", "TO LSN", "SIZE", "WHERE", "FILTER", "FILE"], &rows);
    let shown = format!("{listed}\n\n{}\n\n{}", condition::details(&info), condition::summary(&info));
    output::finish(remote.common.json, &layers, shown);
    Ok(())
}
