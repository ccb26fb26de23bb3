//! Imports a base backup into a timeline while it arrives (`BASE_BACKUP`, `basebackup.c`).
//!
//! A server sends its files in no particular order of keys. Most of the bytes are in large segment files of
//! relations, each of which arrives in block order: these go directly into layers that cover only their keys. Small
//! files are kept in a staging directory that is laid out like a data directory, with sparse placeholder files for
//! the large ones. Once everything has arrived, that directory is walked in key order like any other, and the
//! finished layers are spliced in at the positions of their files.
//!
//! Files may change while they are copied. One that grew by part of a page is truncated to whole pages; a segment
//! that follows one that was not yet full is left out. In both cases the WAL has the missing data.

mod place;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use camino::{Utf8Path, Utf8PathBuf};
use pageserver_api::key::Key;
use pageserver_api::reltag::RelTag;
use pageserver_api::shard::TenantShardId;
use postgres_formats::BLCKSZ;
use utils::id::TimelineId;
use utils::lsn::Lsn;
use wal_decoder::tablespaces::TablespaceTable;

use super::room::Room;
use super::segment::{Ready, Segment};
use super::sink::{ImageSink, Target};
use super::staging::{StagedFile, Staging};
use super::tar::{TarError, TarEvent, TarReader};
use super::walk::Walk;
use super::{ImportStats, check_lsn, origin};
use datadir::{DataDir, corrupt};
use engine::config::PageServerConf;
use engine::context::RequestContext;
use engine::tenant::remote::{TenantRemote, check_new};
use engine::tenant::timeline::{Imported, MANIFEST_NAME, NewTimeline, Timeline, Told, has_manifest};
use errors::{ErrorKind, StorageError};
use place::Place;
use virtual_file::fs;

/// Segment files of at least this size, in bytes, get their own layers.
const LARGE: u64 = 16 << 20;
const PAGE: u64 = BLCKSZ as u64;

/// A tablespace of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupTablespace {
    /// Its OID.
    pub oid: u32,
    /// Its location on the server.
    pub path: String,
}

/// What a server announces before it sends files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupStart {
    /// WAL replay starts here.
    pub lsn: Lsn,
    /// All user tablespaces.
    pub tablespaces: Vec<BackupTablespace>,
}

/// What a failed import may have left in the bucket.
pub struct Left(Arc<Room>);

impl Left {
    /// Removes it.
    pub async fn discard(self) {
        self.0.discard().await;
    }
}

/// A base backup that is being imported into a new timeline.
pub struct BackupImport {
    target: Target,
    dir: Utf8PathBuf,
    staging: Staging,
    tablespaces: TablespaceTable,
    archive: Archive,
    open: Option<OpenFile>,
    ready: HashMap<Utf8PathBuf, Ready>,
    /// What has become layers so far.
    stats: ImportStats,
    received: u64,
    files: u64,
    /// The tenant in its bucket.
    remote: Option<Arc<TenantRemote>>,
    room: Arc<Room>,
    told: Option<Told>,
}

/// The archive that is being received.
#[derive(Default)]
struct Archive {
    name: String,
    /// The tablespace; `None` for the main directory.
    tablespace: Option<u32>,
    tar: TarReader,
}

/// A file that is being received.
struct OpenFile {
    content: Content,
    /// Bytes still to be taken; whatever follows is a partial page.
    left: u64,
}

enum Content {
    Staged(StagedFile),
    Segment(Utf8PathBuf, Box<Segment>),
    Ignored,
}

impl BackupImport {
    /// Prepares for receiving a backup into a new timeline, which is uploaded if its tenant has a bucket. Removes
    /// what an earlier attempt left behind.
    ///
    /// # Errors
    /// [`StorageError::Invalid`] if the timeline exists.
    pub async fn begin(
        conf: &'static PageServerConf,
        tenant_shard_id: TenantShardId,
        timeline_id: TimelineId,
        start: &BackupStart,
        remote: Option<Arc<TenantRemote>>,
        ctx: &RequestContext,
    ) -> Result<Self, StorageError> {
        let dir = conf.timeline_path(&tenant_shard_id, &timeline_id);
        if has_manifest(&dir).await? {
            return Err(StorageError::Invalid(format!("timeline {timeline_id} exists already: {dir}")));
        }
        if let Some(remote) = &remote {
            check_new(remote, timeline_id).await?;
        }
        fs::remove_tree(&Staging::path(&dir)).await?;
        Timeline::prepare(conf, tenant_shard_id, timeline_id).await?;
        let room = Room::new(conf, tenant_shard_id, timeline_id, remote.clone());
        let (lsn, layer_bytes, ctx) = (start.lsn, room.layer_bytes(), ctx.clone());
        let target = Target { conf, tenant_shard_id, timeline_id, lsn, layer_bytes, room: Arc::clone(&room), ctx };
        let (archive, open, ready, stats, received, files) = Default::default();
        let (staging, tablespaces) = (Staging::create(&dir, Arc::clone(&room)).await?, table(&start.tablespaces)?);
        Ok(Self {
            target,
            dir,
            staging,
            tablespaces,
            archive,
            open,
            ready,
            stats,
            received,
            files,
            remote,
            room,
            told: None,
        })
    }

    /// Sets the metadata that comes from outside; the timeline never exists without it.
    pub fn tell(&mut self, told: Told) {
        self.told = Some(told);
    }

    /// The bytes that follow are those of archive `name`: that of a tablespace, or of the main directory if
    /// `tablespace` is `None`.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`] if the previous archive is incomplete.
    pub async fn archive(&mut self, name: &str, tablespace: Option<u32>) -> Result<(), StorageError> {
        self.end_archive()?;
        self.archive = Archive { name: name.to_owned(), tablespace, tar: TarReader::default() };
        if let Some(oid) = tablespace {
            self.staging.directory(&place::tablespace_dir(oid)).await?;
        }
        Ok(())
    }

    /// Takes the next bytes of the archive.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`] with archive and offset; write errors.
    pub async fn data(&mut self, bytes: Bytes) -> Result<(), StorageError> {
        self.received += bytes.len() as u64;
        self.archive.tar.push(bytes);
        while let Some(event) = self.archive.tar.next().map_err(|error| self.archive.damaged(error))? {
            match event {
                TarEvent::File { path, size } => self.begin_file(&path, size).await?,
                TarEvent::Data(data) => self.write(data).await?,
                TarEvent::End => self.end_file().await?,
            }
        }
        Ok(())
    }

    /// Bytes received so far.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Files received so far.
    pub fn files(&self) -> u64 {
        self.files
    }

    /// Layers finished so far.
    pub fn layers(&self) -> u64 {
        match self.open.as_ref().map(|open| &open.content) {
            Some(Content::Segment(_, segment)) => self.stats.layers + segment.layers(),
            _ => self.stats.layers,
        }
    }

    /// Creates the timeline. Its pages are correct from `end` on, the LSN of the backup's end.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`] if something is missing or damaged.
    pub async fn finish(
        self,
        end: Lsn,
        progress: &mut (dyn FnMut(&ImportStats) + Send),
    ) -> Result<(Timeline, ImportStats), StorageError> {
        self.end_archive()?;
        let source = self.staged()?;
        let Target { conf, tenant_shard_id, timeline_id, lsn, .. } = self.target;
        let sink = ImageSink::new(self.target.clone(), Key::MIN..Key::MAX);
        let mut walk = Walk::new(&source, sink, progress).with_ready(self.ready, self.stats);
        walk.run().await?;
        let (layers, stats) = walk.finish().await?;
        self.staging.remove().await?;
        let origin = origin(&source, lsn, end.max(lsn));
        let new = NewTimeline { tenant_shard_id, timeline_id, origin, prev_record_lsn: Lsn::INVALID };
        let cold = self.room.end(&layers).await?;
        let timeline = Timeline::create_in(conf, new, Imported { layers, cold, told: self.told }, self.remote).await?;
        Ok((timeline, stats))
    }

    /// Removes everything that was written: the timeline's directory, and its objects in the bucket.
    pub async fn abort(self) -> Result<(), StorageError> {
        let (dir, left) = (self.dir.clone(), self.left());
        drop(self);
        left.discard().await;
        discard(&dir).await
    }

    /// What must be removed from the bucket if the import fails.
    pub fn left(&self) -> Left {
        Left(Arc::clone(&self.room))
    }

    /// The staged files as a data directory.
    fn staged(&self) -> Result<DataDir, StorageError> {
        let opened = DataDir::open(self.staging.root()).map_err(|error| match error.kind() {
            ErrorKind::Gone => corrupt(Utf8Path::new("base backup"), 0, format!("it is not complete: {error}")),
            _ => error,
        })?;
        let source = opened.with_tablespaces(self.tablespaces.clone())?;
        let (expected, label) = (self.target.lsn, source.backup_label().map(|label| label.start));
        check_lsn(&source, expected)?;
        if label != Some(expected) {
            let label = label.map_or_else(|| "is missing".to_owned(), |lsn| format!("says that it starts at {lsn}"));
            let reason = format!("the server began the backup at LSN {expected}, but its backup_label {label}");
            return Err(corrupt(Utf8Path::new("base backup"), 0, reason));
        }
        Ok(source)
    }

    async fn begin_file(&mut self, name: &str, size: u64) -> Result<(), StorageError> {
        let path = place::in_data_dir(self.archive.tablespace, name);
        let place = Place::of(&path);
        let size = if matches!(place, Place::Relation { .. } | Place::Slru) { size - size % PAGE } else { size };
        let content = match place {
            Place::Relation { number, .. } if size >= LARGE => match self.rel_tag(&place) {
                Some(rel) => self.begin_segment(&path, rel, number, size).await?,
                None => Content::Staged(self.staging.file(&path).await?),
            },
            Place::Ignored => Content::Ignored,
            _ => Content::Staged(self.staging.file(&path).await?),
        };
        self.open = Some(OpenFile { content, left: size });
        Ok(())
    }

    /// `None` if the tablespace has no number: it lies in the data directory and was not announced.
    fn rel_tag(&self, place: &Place) -> Option<RelTag> {
        match place {
            Place::Relation { rel, .. } => Some(RelTag { spcnode: self.tablespaces.number(rel.spcnode).ok()?, ..*rel }),
            _ => None,
        }
    }

    async fn begin_segment(
        &mut self,
        path: &Utf8Path,
        rel: RelTag,
        number: u32,
        size: u64,
    ) -> Result<Content, StorageError> {
        self.staging.placeholder(path, size).await?;
        let path = self.staging.root().join(path);
        let blocks = u32::try_from(size / PAGE).ok();
        let segment = blocks.and_then(|blocks| Segment::new(self.target.clone(), &path, rel, number, blocks));
        let segment = segment.ok_or_else(|| corrupt(&path, 0, "the segment file is longer than 1 GiB"))?;
        Ok(Content::Segment(path, Box::new(segment)))
    }

    async fn write(&mut self, mut data: Bytes) -> Result<(), StorageError> {
        let Some(open) = &mut self.open else { return Ok(()) };
        data.truncate(usize::try_from(open.left).unwrap_or(usize::MAX));
        open.left -= data.len() as u64;
        match &mut open.content {
            Content::Staged(file) => file.write(&data).await,
            Content::Segment(_, segment) => segment.write(data).await,
            Content::Ignored => Ok(()),
        }
    }

    async fn end_file(&mut self) -> Result<(), StorageError> {
        self.files += 1;
        match self.open.take().map(|open| open.content) {
            Some(Content::Staged(file)) => file.finish().await,
            Some(Content::Segment(path, segment)) => {
                let (pages, ready) = segment.finish().await?;
                self.stats.pages += pages;
                self.stats.bytes += pages * PAGE;
                self.stats.layers += ready.layers.len() as u64;
                self.ready.insert(path, ready);
                Ok(())
            }
            Some(Content::Ignored) | None => Ok(()),
        }
    }

    fn end_archive(&self) -> Result<(), StorageError> {
        self.archive.tar.finish().map_err(|error| self.archive.damaged(error))
    }
}

impl Archive {
    fn damaged(&self, error: TarError) -> StorageError {
        corrupt(Utf8Path::new(&self.name), error.offset, error.reason)
    }
}

/// Removes the directory of an unfinished import; leaves that of a timeline alone.
pub async fn discard(dir: &Utf8Path) -> Result<(), StorageError> {
    if has_manifest(dir).await? { Ok(()) } else { remove(dir).await }
}

/// Removes the directory of a closed timeline.
pub async fn remove(dir: &Utf8Path) -> Result<(), StorageError> {
    // First, so that whatever is left after a crash is not a timeline.
    fs::unlink(&dir.join(MANIFEST_NAME)).await?;
    fs::remove_tree(dir).await?;
    match dir.parent() {
        Some(parent) => fs::fsync_dir(parent).await,
        None => Ok(()),
    }
}

/// Tablespaces are numbered by OID, whatever the order of the archives.
fn table(tablespaces: &[BackupTablespace]) -> Result<TablespaceTable, StorageError> {
    let mut sorted: Vec<_> = tablespaces.iter().collect();
    sorted.sort_by_key(|tablespace| tablespace.oid);
    let mut table = TablespaceTable::default();
    for BackupTablespace { oid, path } in sorted {
        table.create(*oid, path.as_bytes()).map_err(|error| StorageError::Invalid(error.to_string()))?;
    }
    Ok(table)
}

impl std::fmt::Debug for BackupImport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BackupImport").field("dir", &self.dir).field("received", &self.received).finish_non_exhaustive()
    }
}
