//! The file behind an in-memory layer. Sealing makes it a delta layer file; otherwise it is removed when dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use camino::Utf8Path;

use super::block_source::{BlockSource, Blocks};
use super::block_writer::{BlockWriter, first_block};
use super::layer_writer::{Owner, new_file_id};
use errors::StorageError;
use virtual_file::{OpenMode, VirtualFile, fs};

/// Names of ephemeral files start with this; recovery removes them.
pub const EPHEMERAL_PREFIX: &str = "ephemeral-";

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct EphemeralFile {
    file: Arc<VirtualFile>,
    writer: tokio::sync::Mutex<BlockWriter>,
    source: BlockSource,
    kept: AtomicBool,
}

impl EphemeralFile {
    pub(super) async fn create(owner: &Owner) -> Result<Self, StorageError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = owner.timeline_path().join(format!("{EPHEMERAL_PREFIX}{}-{number}", std::process::id()));
        let file = Arc::new(VirtualFile::open(&path, OpenMode::CreateNew).await?);
        let mut writer = BlockWriter::new(Arc::clone(&file), new_file_id());
        writer.keep_written(owner.conf.ephemeral_keep_bytes);
        writer.keep_all(Arc::clone(&owner.conf.resources.kept));
        let source = writer.source();
        Ok(Self { file, writer: tokio::sync::Mutex::new(writer), source, kept: AtomicBool::new(false) })
    }

    pub(super) fn source(&self) -> &BlockSource {
        &self.source
    }

    /// All blocks with values, if they are in memory.
    pub(super) fn in_memory(&self) -> Option<Blocks> {
        self.source.all_in_memory(first_block(&self.file))
    }

    pub(super) fn writer(&self) -> &tokio::sync::Mutex<BlockWriter> {
        &self.writer
    }

    /// Renames the file; from then on, dropping this value does not remove it.
    pub(super) async fn keep_as(&self, path: &Utf8Path) -> Result<(), StorageError> {
        self.file.rename(path).await?;
        self.kept.store(true, Ordering::Release);
        Ok(())
    }
}

impl Drop for EphemeralFile {
    fn drop(&mut self) {
        if !self.kept.load(Ordering::Acquire) {
            fs::unlink_aside(self.file.path());
        }
    }
}
