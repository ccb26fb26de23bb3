//! The files of a backup and their contents.

use bytes::Bytes;
use pageserver_api::boot_image::{MANIFEST_NAME, Manifest, RelationSize};
use pageserver_api::key::{CONTROLFILE_KEY, relmap_key, slru_block_key, twophase_file_key};
use pageserver_api::reltag::{BlockNumber, DEFAULT_TABLESPACE, GLOBAL_TABLESPACE, RelTag, SlruKind};
use postgres_formats::control_file::ControlFile;
use postgres_formats::relmap;
use postgres_formats::replorigin::{self, DO_NOT_REPLICATE};
use postgres_formats::slru::segment_file_name;
use postgres_formats::twophase;
use postgres_formats::version::PgVersion;
use utils::lsn::Lsn;

use super::cluster::{Cluster, Relations, tablespace_oid};
use super::request::{BackupError, BackupRequest, Extent, Sink};
use super::server_files::{checkpoint_lsn, control_file, history_file, wal_segments};
use super::tar::Tar;
use super::{catalog, relations, settings};
use crate::listing::Listing;
use crate::store::PageStore;
use errors::StorageError;

const DIRS: [&str; 22] = [
    "base",
    "global",
    "pg_commit_ts",
    "pg_dynshmem",
    "pg_logical",
    "pg_logical/mappings",
    "pg_logical/snapshots",
    "pg_multixact",
    "pg_multixact/members",
    "pg_multixact/offsets",
    "pg_notify",
    "pg_replslot",
    "pg_serial",
    "pg_snapshots",
    "pg_stat",
    "pg_stat_tmp",
    "pg_subtrans",
    "pg_tblspc",
    "pg_twophase",
    "pg_wal",
    "pg_wal/archive_status",
    "pg_xact",
];

pub(super) async fn write<S: PageStore, W: Sink>(
    store: &S,
    request: BackupRequest,
    tar: &mut Tar<'_, W>,
) -> Result<(), BackupError> {
    let listing = Listing::new(store, request.lsn);
    let imported = listing.required(CONTROLFILE_KEY).await?;
    let imported = ControlFile::decode(&imported).map_err(|error| damaged("control file", &error))?;
    let parameters = listing.parameters().await?;
    let (tablespaces, mut origins) = (listing.tablespaces().await?, listing.replication_origins().await?);
    origins.retain(|origin, _| *origin != DO_NOT_REPLICATE);
    let settings = listing.settings().await?;
    let cluster = Cluster { version: imported.version, parameters, settings, tablespaces, origins };
    write_common(&cluster, tar).await?;
    let relations = write_databases(&listing, &cluster, request.extent, tar).await?;
    for kind in SlruKind::ALL {
        write_slru(&listing, kind, tar).await?;
    }
    for xid in listing.twophase(cluster.version).await? {
        let state = twophase::state_file(&listing.required(twophase_file_key(xid)).await?);
        let name = twophase::file_name(cluster.version, xid);
        tar.file(&format!("pg_twophase/{name}"), &state).await?;
    }
    // Without it, a subscriber would apply changes that it has applied already.
    tar.file(replorigin::CHECKPOINT_FILE, &replorigin::encode_checkpoint(&cluster.origins)).await?;
    let lsn = checkpoint_lsn(request.lsn, &cluster.parameters);
    let control = control_file(imported, &cluster.parameters, listing.checkpoint().await?, lsn);
    write_wal(&control, request.prev, tar).await?;
    if request.extent == Extent::BootImage {
        write_boot_files(&listing, &cluster, lsn, relations, tar).await?;
    }
    // Last, as in Postgres's own backups: an incomplete copy lacks it and cannot be started.
    tar.file("global/pg_control", &control.encode()).await?;
    Ok(tar.finish().await?)
}

fn damaged(what: &str, error: &dyn std::fmt::Display) -> StorageError {
    StorageError::Internal(format!("stored {what}: {error}"))
}

async fn write_common<W: Sink>(cluster: &Cluster, tar: &mut Tar<'_, W>) -> Result<(), BackupError> {
    for dir in DIRS {
        tar.dir(dir).await?;
    }
    if cluster.version >= PgVersion::V17 {
        tar.dir("pg_wal/summaries").await?;
    }
    tar.file("PG_VERSION", version_file(cluster.version).as_bytes()).await?;
    settings::write(cluster, tar).await
}

fn version_file(version: PgVersion) -> String {
    format!("{}\n", version.major())
}

async fn write_databases<S: PageStore, W: Sink>(
    listing: &Listing<'_, S>,
    cluster: &Cluster,
    extent: Extent,
    tar: &mut Tar<'_, W>,
) -> Result<Relations, BackupError> {
    let version = cluster.version;
    let mut all = Relations::default();
    for tablespace in cluster.tablespaces.entries() {
        tar.dir(&format!("pg_tblspc/{}", tablespace.oid)).await?;
        tar.dir(&tablespace_dir(version, tablespace.oid)).await?;
    }
    for ((spcnode, dbnode), has_relmap) in listing.databases().await? {
        let dir = database_dir(cluster, spcnode, dbnode)?;
        if spcnode != GLOBAL_TABLESPACE {
            tar.dir(&dir).await?;
        }
        if has_relmap {
            let map = listing.required(relmap_key(spcnode, dbnode)).await?;
            tar.file(&format!("{dir}/{}", relmap::FILE_NAME), &map).await?;
            let entries = relmap::decode(version, &map).map_err(|error| damaged("relation map", &error))?;
            all.mapped.insert((spcnode, dbnode), entries);
            if spcnode != GLOBAL_TABLESPACE {
                tar.file(&format!("{dir}/PG_VERSION"), version_file(version).as_bytes()).await?;
            }
        }
        let checksums = cluster.parameters.data_checksums;
        let source = relations::Source { listing, spcnode, dbnode, dir: &dir, checksums };
        all.forks.append(&mut relations::write(&source, extent, tar).await?);
    }
    Ok(all)
}

/// Writes what a compute needs besides the data directory: the list of relations, and the blocks that it reads first.
async fn write_boot_files<S: PageStore, W: Sink>(
    listing: &Listing<'_, S>,
    cluster: &Cluster,
    lsn: Lsn,
    relations: Relations,
    tar: &mut Tar<'_, W>,
) -> Result<(), BackupError> {
    let parameters = &cluster.parameters;
    catalog::write(listing, parameters.data_checksums, &relations, &cluster.tablespaces, tar).await?;
    let by_oid = |(rel, blocks): (RelTag, BlockNumber)| {
        let rel = RelTag { spcnode: tablespace_oid(&cluster.tablespaces, rel.spcnode)?, ..rel };
        Ok(RelationSize { rel, blocks })
    };
    let mut relations: Vec<_> = relations.forks.into_iter().map(by_oid).collect::<Result<_, StorageError>>()?;
    relations.sort_unstable();
    let manifest = Manifest {
        lsn,
        pg_version: cluster.version.major(),
        catalog_version: cluster.version.catalog_version(),
        data_checksums: parameters.data_checksums,
        system_identifier: parameters.system_identifier,
        relations,
    };
    Ok(tar.file_beside(MANIFEST_NAME, &manifest.encode()).await?)
}

fn tablespace_dir(version: PgVersion, oid: u32) -> String {
    format!("pg_tblspc/{oid}/PG_{}_{}", version.major(), version.catalog_version())
}

/// A database's directory. Tablespaces become directories inside the data directory, because their locations on the
/// original server may be in use or not exist.
fn database_dir(cluster: &Cluster, spcnode: u32, dbnode: u32) -> Result<String, StorageError> {
    match spcnode {
        GLOBAL_TABLESPACE => Ok("global".to_owned()),
        DEFAULT_TABLESPACE => Ok(format!("base/{dbnode}")),
        number => {
            let oid = tablespace_oid(&cluster.tablespaces, number)?;
            Ok(format!("{}/{dbnode}", tablespace_dir(cluster.version, oid)))
        }
    }
}

async fn write_slru<S: PageStore, W: Sink>(
    listing: &Listing<'_, S>,
    kind: SlruKind,
    tar: &mut Tar<'_, W>,
) -> Result<(), BackupError> {
    for (segment, pages) in listing.slru_segments(kind).await? {
        let range = slru_block_key(kind, segment, 0)..slru_block_key(kind, segment, pages);
        let content: Vec<Bytes> = listing.dense(range).await?.into_values().collect();
        tar.file(&format!("{}/{}", kind.dir(), segment_file_name(segment)), &content.concat()).await?;
    }
    Ok(())
}

async fn write_wal<W: Sink>(control: &ControlFile, prev: Lsn, tar: &mut Tar<'_, W>) -> Result<(), BackupError> {
    if let Some((name, content)) = history_file(control) {
        tar.file(&format!("pg_wal/{name}"), content).await?;
    }
    let size = u64::from(control.fields.wal_segment_size);
    for segment in wal_segments(control, prev) {
        tar.begin_file(&format!("pg_wal/{}", segment.name), size).await?;
        let mut at = 0;
        for (offset, piece) in segment.pieces {
            tar.zeros(offset - at).await?;
            at = offset + piece.len() as u64;
            tar.content(piece.into()).await?;
        }
        tar.zeros(size - at).await?;
        tar.end_file().await?;
    }
    Ok(())
}
