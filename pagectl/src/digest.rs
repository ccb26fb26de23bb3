//! `pagectl digest`: one hash over everything that exists at an LSN, independent of the layout in layers.

use std::sync::Arc;

use serde_json::json;
use utils::lsn::Lsn;
use verify::digest::{Digest, digest};

use crate::output;
use crate::store::{Store, lsn_to_read};

/// Runs the command.
pub(crate) async fn run(store: &Store, lsn: Option<Lsn>) -> anyhow::Result<()> {
    let opened = Arc::new(store.open().await?);
    let lsn = lsn_to_read(&opened, lsn)?;
    let Digest { sum, keys } = digest(&opened, lsn).await?;
    let result = json!({ "digest": format!("{sum:032x}"), "keys": keys, "lsn": lsn.to_string() });
    output::finish(store.common.json, &result, format!("digest {sum:032x} of {keys} keys as of LSN {lsn}"));
    Ok(())
}
