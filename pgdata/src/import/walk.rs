//! Walks a data directory in key order.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use camino::Utf8PathBuf;
use pageserver_api::key::{
    CHECKPOINT_KEY, CONTROLFILE_KEY, DBDIR_KEY, Key, PARAMETERS_KEY, SETTINGS_KEY, TABLESPACES_KEY, TWOPHASEDIR_KEY,
    rel_block_key, rel_entry_key, rel_size_key, relmap_key, repl_origin_key, slru_block_key, slru_dir_key,
    slru_segment_size_key, twophase_file_key,
};
use pageserver_api::reltag::{RelTag, SlruKind};
use postgres_formats::page::{PageBytes, PageRef};
use postgres_formats::{relmap, replorigin, twophase};
use utils::lsn::Lsn;

use super::segment::Ready;
use super::sink::{FinishedLayer, ImageSink};
use super::stats::ImportStats;
use crate::directory::{DbDir, EXISTS, encode, encode_progress, encode_size, encode_twophase};
use crate::settings::ClusterSettings;
use datadir::{DataDir, DatabaseFiles, ForkFiles, PageChunk, PageReader, check_page};
use errors::StorageError;
use virtual_file::fs;

/// An import in progress.
pub(super) struct Walk<'a> {
    source: &'a DataDir,
    sink: ImageSink,
    progress: &'a mut (dyn FnMut(&ImportStats) + Send),
    stats: ImportStats,
    /// Results of segment files that were already imported, by file.
    ready: HashMap<Utf8PathBuf, Ready>,
    rels: Vec<RelTag>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        source: &'a DataDir,
        sink: ImageSink,
        progress: &'a mut (dyn FnMut(&ImportStats) + Send),
    ) -> Self {
        let (stats, ready, rels) = Default::default();
        Self { source, sink, progress, stats, ready, rels }
    }

    /// Uses `ready` instead of the files that it names, and continues counting from `stats`.
    pub(super) fn with_ready(self, ready: HashMap<Utf8PathBuf, Ready>, stats: ImportStats) -> Self {
        Self { ready, stats, ..self }
    }

    /// Writes all keys, in ascending order.
    pub(super) async fn run(&mut self) -> Result<(), StorageError> {
        let databases = self.databases()?;
        let dir: DbDir = databases.iter().map(|(name, (_, relmap))| (*name, relmap.is_some())).collect();
        self.sink.put(DBDIR_KEY, &encode(&dir)).await?;
        for ((spcnode, dbnode), (files, relmap)) in databases {
            if let Some(relmap) = relmap {
                self.sink.put(relmap_key(spcnode, dbnode), &relmap).await?;
            }
            self.relations(spcnode, dbnode, &files).await?;
        }
        for kind in SlruKind::ALL {
            self.slru(kind).await?;
        }
        self.twophase().await?;
        self.single_files().await?;
        self.replication_origins().await?;
        for rel in std::mem::take(&mut self.rels) {
            self.sink.put(rel_entry_key(rel), EXISTS).await?;
        }
        Ok(())
    }

    /// Returns all layers. Removes those of files that turned out not to count.
    pub(super) async fn finish(self) -> Result<(Vec<FinishedLayer>, ImportStats), StorageError> {
        for (_, unused) in self.ready.into_values().flat_map(|segment| segment.layers) {
            fs::unlink(&unused).await?;
        }
        let layers = self.sink.finish().await?;
        let stats = ImportStats { layers: layers.len() as u64, ..self.stats };
        (self.progress)(&stats);
        Ok((layers, stats))
    }

    /// Databases by tablespace number and OID, with their files and relation maps.
    #[allow(clippy::type_complexity)]
    fn databases(&self) -> Result<BTreeMap<(u32, u32), (DatabaseFiles, Option<Vec<u8>>)>, StorageError> {
        let mut found = BTreeMap::new();
        for files in self.source.databases()? {
            let number = self.source.tablespaces().number(files.spc);
            let number = number.map_err(|error| StorageError::Invalid(error.to_string()))?;
            let relmap = self.relmap(&files)?;
            found.insert((number, files.db), (files, relmap));
        }
        Ok(found)
    }

    fn relmap(&self, files: &DatabaseFiles) -> Result<Option<Vec<u8>>, StorageError> {
        let path = files.dir.join(relmap::FILE_NAME);
        let Some(mut bytes) = datadir::read_optional(&path)? else { return Ok(None) };
        let version = self.source.version();
        relmap::decode(version, &bytes).map_err(|error| datadir::corrupt(&path, 0, error.to_string()))?;
        bytes.truncate(relmap::file_size(version));
        Ok(Some(bytes))
    }

    async fn relations(&mut self, spcnode: u32, dbnode: u32, files: &DatabaseFiles) -> Result<(), StorageError> {
        for ((relnode, forknum), fork) in files.forks()? {
            let rel = RelTag { spcnode, dbnode, relnode, forknum };
            let blocks = fork.blocks;
            self.fork(rel, fork).await?;
            self.sink.put(rel_size_key(rel), &encode_size(blocks)).await?;
            self.rels.push(rel);
            self.stats.forks += 1;
        }
        Ok(())
    }

    async fn fork(&mut self, rel: RelTag, files: ForkFiles) -> Result<(), StorageError> {
        let mut reader = PageReader::new(files);
        loop {
            if let Some(segment) = reader.at_start_of().and_then(|file| self.ready.remove(file)) {
                if let Some(mismatch) = segment.mismatch.filter(|_| self.source.has_checksums()) {
                    return Err(mismatch);
                }
                self.sink.splice(segment.layers).await?;
                reader.skip_segment();
                continue;
            }
            let Some(chunk) = reader.next_chunk().await? else { return Ok(()) };
            for (blkno, page) in chunk.pages() {
                self.check(page, blkno, &chunk)?;
                self.sink.put(rel_block_key(rel, blkno), page).await?;
            }
            self.stats.pages += chunk.pages().count() as u64;
            self.count_bytes(&chunk);
        }
    }

    /// A page that a running server wrote after the backup's start may be torn; the WAL has it whole.
    fn check(&self, page: &PageBytes, blkno: u32, chunk: &PageChunk) -> Result<(), StorageError> {
        let written_later = |start: Lsn| PageRef::new(page).lsn() > start.0;
        let in_backup = self.source.backup_label().is_some_and(|label| written_later(label.start));
        if !self.source.has_checksums() || in_backup {
            return Ok(());
        }
        check_page(page, blkno, &chunk.path, chunk.offset_of(blkno))
    }

    async fn slru(&mut self, kind: SlruKind) -> Result<(), StorageError> {
        let segments = self.source.slru_segments(kind)?;
        let dir: BTreeSet<u32> = segments.keys().copied().collect();
        self.sink.put(slru_dir_key(kind), &encode(&dir)).await?;
        for (segno, files) in segments {
            let blocks = files.blocks;
            let mut reader = PageReader::new(files);
            while let Some(chunk) = reader.next_chunk().await? {
                for (blkno, page) in chunk.pages() {
                    self.sink.put(slru_block_key(kind, segno, blkno), page).await?;
                }
                self.stats.slru_pages += chunk.pages().count() as u64;
                self.count_bytes(&chunk);
            }
            self.sink.put(slru_segment_size_key(kind, segno), &encode_size(blocks)).await?;
        }
        Ok(())
    }

    async fn twophase(&mut self) -> Result<(), StorageError> {
        let files = self.source.twophase_files()?;
        let dir = files.keys().copied().collect();
        self.sink.put(TWOPHASEDIR_KEY, &encode_twophase(self.source.version(), &dir)).await?;
        let mut states: BTreeMap<Key, Vec<u8>> = BTreeMap::new();
        for (xid, path) in files {
            states.insert(twophase_file_key(xid), prepared_state(path)?);
        }
        for (key, state) in states {
            self.sink.put(key, &state).await?;
        }
        Ok(())
    }

    async fn single_files(&mut self) -> Result<(), StorageError> {
        let (source, control) = (self.source, self.source.control());
        self.sink.put(CONTROLFILE_KEY, &control.encode()).await?;
        self.sink.put(CHECKPOINT_KEY, &control.fields.checkpoint_copy.encode()).await?;
        self.sink.put(TABLESPACES_KEY, &source.tablespaces().encode()).await?;
        self.sink.put(PARAMETERS_KEY, &encode(&source.parameters())).await?;
        self.sink.put(SETTINGS_KEY, &ClusterSettings::of(source)?.encode()).await
    }

    async fn replication_origins(&mut self) -> Result<(), StorageError> {
        let Some(bytes) = self.source.read_optional(replorigin::CHECKPOINT_FILE)? else { return Ok(()) };
        let progress = replorigin::decode_checkpoint(&bytes).map_err(|error| {
            datadir::corrupt(&self.source.root().join(replorigin::CHECKPOINT_FILE), 0, error.to_string())
        })?;
        for (origin, lsn) in progress {
            self.sink.put(repl_origin_key(origin), &encode_progress(lsn)).await?;
        }
        Ok(())
    }

    fn count_bytes(&mut self, chunk: &PageChunk) {
        self.stats.bytes += chunk.bytes.len() as u64;
        self.stats.layers = self.sink.layers();
        (self.progress)(&self.stats);
    }
}

/// The state of a prepared transaction, without the file's CRC.
fn prepared_state(path: Utf8PathBuf) -> Result<Vec<u8>, StorageError> {
    let bytes = datadir::read(&path)?;
    let state = twophase::main_data_of_file(&bytes);
    Ok(state.map_err(|error| datadir::corrupt(&path, 0, error.to_string()))?.to_vec())
}
