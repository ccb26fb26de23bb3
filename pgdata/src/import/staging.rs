//! Files of a backup that are kept until it has arrived completely, laid out like a data directory.

use std::collections::HashSet;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};

use super::room::Room;
use errors::StorageError;
use virtual_file::fs;
use virtual_file::{BufferedWriter, OpenMode, Shutdown, VirtualFile};

/// Name of the directory within the timeline's directory.
const NAME: &str = "import";

/// The directory.
#[derive(Debug)]
pub(super) struct Staging {
    root: Utf8PathBuf,
    directories: HashSet<Utf8PathBuf>,
    room: Arc<Room>,
}

impl Staging {
    /// The staging directory of the timeline in `dir`.
    pub(super) fn path(dir: &Utf8Path) -> Utf8PathBuf {
        dir.join(NAME)
    }

    /// Creates an empty one in the timeline's directory, which must exist.
    pub(super) async fn create(dir: &Utf8Path, room: Arc<Room>) -> Result<Self, StorageError> {
        let root = Self::path(dir);
        fs::remove_tree(&root).await?;
        fs::create_dir_all(&root).await?;
        Ok(Self { root, directories: HashSet::new(), room })
    }

    /// The directory.
    pub(super) fn root(&self) -> &Utf8Path {
        &self.root
    }

    /// Creates a directory in it.
    pub(super) async fn directory(&mut self, path: &Utf8Path) -> Result<(), StorageError> {
        let dir = self.root.join(path);
        if !self.directories.contains(&dir) {
            fs::create_dir_all(&dir).await?;
            self.directories.insert(dir);
        }
        Ok(())
    }

    /// Begins a file.
    pub(super) async fn file(&mut self, path: &Utf8Path) -> Result<StagedFile, StorageError> {
        if let Some(parent) = path.parent() {
            self.directory(parent).await?;
        }
        let file = VirtualFile::open(&self.root.join(path), OpenMode::CreateNew).await?;
        Ok(StagedFile { writer: BufferedWriter::new(Arc::new(file), 0), room: Arc::clone(&self.room) })
    }

    /// Creates a sparse file of which only name and length matter.
    pub(super) async fn placeholder(&mut self, path: &Utf8Path, len: u64) -> Result<(), StorageError> {
        self.file(path).await?.writer.file().set_len(len).await
    }

    /// Removes the directory with all files.
    pub async fn remove(self) -> Result<(), StorageError> {
        fs::remove_tree(&self.root).await
    }
}

/// A file that is being written. It need not be durable.
pub(super) struct StagedFile {
    writer: BufferedWriter,
    room: Arc<Room>,
}

impl StagedFile {
    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
        self.room.take(bytes.len() as u64).await?;
        self.writer.reserve(bytes.len()).await?;
        self.writer.push(bytes);
        Ok(())
    }

    pub(super) async fn finish(mut self) -> Result<(), StorageError> {
        self.writer.shutdown(Shutdown::PadThenTruncate).await.map(drop)
    }
}
