//! `pagectl import` of a base backup in tar archives, as written by `pg_basebackup -Ft`.

use std::fs::File;
use std::io::Read;

use anyhow::{Context, bail};
use bytes::Bytes;
use camino::{Utf8Path, Utf8PathBuf};
use engine::tenant::timeline::Timeline;
use pageserver_api::shard::TenantShardId;
use pgdata::import::{BackupImport, BackupStart, BackupTablespace, ImportStats};
use utils::id::TimelineId;
use utils::lsn::Lsn;

use crate::store::Store;

const BASE: &str = "base.tar";
/// Bytes read at once.
const PIECE: usize = 1 << 20;

/// Whether `dir` contains such a backup.
pub(crate) fn is_backup(dir: &Utf8Path) -> bool {
    dir.join(BASE).exists()
}

/// Makes a timeline from the archives in `dir`.
pub(crate) async fn import(
    store: &Store,
    tenant: TenantShardId,
    timeline: TimelineId,
    dir: &Utf8Path,
    progress: &mut (dyn FnMut(&ImportStats) + Send),
) -> anyhow::Result<(Timeline, ImportStats)> {
    let start = read_start(&dir.join(BASE))?;
    let end = read_end(&dir.join("backup_manifest"))?;
    let mut import = BackupImport::begin(store.conf, tenant, timeline, &start, None, &store.ctx).await?;
    let received = receive(&mut import, &start, dir, progress).await;
    if let Err(error) = received {
        import.abort().await?;
        return Err(error);
    }
    Ok(import.finish(end.unwrap_or(start.lsn), progress).await?)
}

async fn receive(
    import: &mut BackupImport,
    start: &BackupStart,
    dir: &Utf8Path,
    progress: &mut (dyn FnMut(&ImportStats) + Send),
) -> anyhow::Result<()> {
    let tablespaces = start.tablespaces.iter().map(|tablespace| Some(tablespace.oid));
    for tablespace in tablespaces.chain([None]) {
        let name = tablespace.map_or_else(|| BASE.to_owned(), |oid| format!("{oid}.tar"));
        import.archive(&name, tablespace).await?;
        let path = dir.join(&name);
        let mut file = File::open(&path).with_context(|| format!("cannot open {path}"))?;
        loop {
            let mut piece = Vec::with_capacity(PIECE);
            (&mut file).take(PIECE as u64).read_to_end(&mut piece).with_context(|| format!("cannot read {path}"))?;
            if piece.is_empty() {
                break;
            }
            import.data(Bytes::from(piece)).await?;
            let (bytes, layers) = (import.received(), import.layers());
            progress(&ImportStats { bytes, layers, ..ImportStats::default() });
        }
    }
    Ok(())
}

/// Reads the backup's start and tablespaces from the main archive.
fn read_start(path: &Utf8PathBuf) -> anyhow::Result<BackupStart> {
    let mut archive = tar::Archive::new(File::open(path).with_context(|| format!("cannot open {path}"))?);
    let (mut lsn, mut tablespaces) = (None, Vec::new());
    for entry in archive.entries()?.take(3) {
        let mut entry = entry?;
        let name = entry.path()?.to_string_lossy().into_owned();
        if !matches!(name.as_str(), "backup_label" | "tablespace_map") {
            continue;
        }
        let mut text = String::new();
        entry.read_to_string(&mut text)?;
        match name.as_str() {
            "backup_label" => {
                let line = text.lines().find_map(|line| line.strip_prefix("START WAL LOCATION: "));
                lsn = line.and_then(|line| line.split(' ').next()?.parse().ok());
            }
            _ => tablespaces = text.lines().filter_map(tablespace).collect(),
        }
    }
    match lsn {
        Some(lsn) => Ok(BackupStart { lsn, tablespaces }),
        None => bail!("{path} does not begin with a backup_label that says where the backup starts"),
    }
}

/// Parses `OID PATH`.
fn tablespace(line: &str) -> Option<BackupTablespace> {
    let (oid, path) = line.split_once(' ')?;
    Some(BackupTablespace { oid: oid.parse().ok()?, path: path.to_owned() })
}

/// Reads the backup's end from its manifest.
fn read_end(path: &Utf8Path) -> anyhow::Result<Option<Lsn>> {
    if !path.exists() {
        return Ok(None);
    }
    let text = std::fs::read(path).with_context(|| format!("cannot read {path}"))?;
    let manifest: serde_json::Value = serde_json::from_slice(&text).with_context(|| format!("cannot read {path}"))?;
    let ranges = manifest["WAL-Ranges"].as_array().cloned().unwrap_or_default();
    Ok(ranges.iter().filter_map(|range| range["End-LSN"].as_str()?.parse().ok()).max())
}
