//! Writes large objects past the kernel's cache, a piece at a time.
//!
//! Out of the cache they would go to the disk all at once when they are synced, and whoever waits for that disk, as
//! commits do for a journal, would wait for them. Copying them into it costs processor time, too.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use object_store::{MultipartUpload, PutPayload, PutResult, Result, UploadPart};
use parking_lot::Mutex;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::root::{Root, blocking, failed};
use pageserver_api::models::virtual_file::IoMode;
use utils::durable::fsync_dir;
use virtual_file::{AlignedBuf, direct_io_alignment, io_mode};

/// Bytes of what is uploaded that are read or written at once, a multiple of all alignments: whoever else waits for the
/// disk, as commits do for a journal, waits for no more than these.
pub(crate) const PIECE: usize = 1 << 20;

/// An upload: a file beside the object's, which takes its place in the end.
pub(super) struct Upload {
    root: Root,
    file: Arc<Mutex<Begun>>,
    /// What the file is called, until it has the object's place.
    begun: Option<PathBuf>,
    object: PathBuf,
    /// Where the next part begins.
    offset: u64,
    /// Nobody waits for it any more: it takes no place, since a later one may have.
    given_up: Arc<AtomicBool>,
}

/// A file that is being written.
struct Begun {
    file: File,
    /// Of offsets, lengths and memory for direct I/O, in bytes; `None` if everything goes through the cache.
    align: Option<usize>,
}

impl Upload {
    /// Begins one of `object`, the last `depth` directories of which are the bucket's, and are made if need be.
    pub(super) async fn begin(root: Root, object: PathBuf, depth: usize) -> Result<Self> {
        blocking(move || {
            root.check()?;
            let (file, begun) = create(&object, depth).map_err(failed)?;
            let (file, begun) = (Arc::new(Mutex::new(Begun::new(file))), Some(begun));
            Ok(Self { root, file, begun, object, offset: 0, given_up: Arc::default() })
        })
        .await
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let Some(begun) = self.begun.take() else { return };
        self.given_up.store(true, Ordering::Release);
        // What cannot be removed is found as what a killed process leaves is.
        env::spawn::blocking_or_now(move || drop(std::fs::remove_file(begun)));
    }
}

/// Creates a file beside that of `object`, with a name that no other upload has.
fn create(object: &Path, depth: usize) -> io::Result<(File, PathBuf)> {
    for number in 1_u64.. {
        let mut begun = object.as_os_str().to_owned();
        begun.push(format!("#{number}"));
        match OpenOptions::new().write(true).create_new(true).open(&begun) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => create_parents(object, depth)?,
            file => return Ok((file?, begun.into())),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Creates the last `depth` directories of `object` durably. What these are in must be there.
fn create_parents(object: &Path, depth: usize) -> io::Result<()> {
    let below: Vec<&Path> = object.ancestors().skip(1).take(depth).collect();
    for dir in below.into_iter().rev() {
        match std::fs::create_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made?,
        }
        sync_parent(dir)?;
    }
    Ok(())
}

fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fsync_dir)
}

impl Begun {
    fn new(file: File) -> Self {
        let align = (io_mode() == IoMode::DirectRw).then(|| direct_io_alignment(&file)).flatten();
        let mut begun = Self { file, align: align.and_then(|align| align.try_into().ok()) };
        if begun.align.is_some() && begun.set_direct(true).is_err() {
            begun.align = None;
        }
        begun
    }

    fn set_direct(&mut self, direct: bool) -> io::Result<()> {
        let mut flags = fcntl_getfl(&self.file)?;
        flags.set(OFlags::DIRECT, direct);
        Ok(fcntl_setfl(&self.file, flags)?)
    }

    /// Writes `bytes` at `offset`. What is no whole block, such as the end of a file, goes through the cache.
    fn write(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let Some(align) = self.align else { return self.file.write_all_at(bytes, offset) };
        let whole = if offset.is_multiple_of(align as u64) { bytes.len() - bytes.len() % align } else { 0 };
        let (direct, rest) = bytes.split_at(whole);
        self.write_directly(direct, offset, align)?;
        if rest.is_empty() {
            return Ok(());
        }
        self.set_direct(false)?;
        self.file.write_all_at(rest, offset + whole as u64)?;
        self.set_direct(true)
    }

    fn write_directly(&self, bytes: &[u8], mut offset: u64, align: usize) -> io::Result<()> {
        let is_aligned = (bytes.as_ptr() as usize).is_multiple_of(align);
        let len = PIECE.next_multiple_of(align);
        let mut copy = AlignedBuf::with_capacity(if is_aligned { 0 } else { len.min(bytes.len()) });
        for piece in bytes.chunks(len) {
            if is_aligned {
                self.file.write_all_at(piece, offset)?;
            } else {
                copy.set_len(0);
                copy.extend_from_slice(piece);
                self.file.write_all_at(&copy, offset)?;
            }
            offset += piece.len() as u64;
        }
        Ok(())
    }
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (file, mut at) = (Arc::clone(&self.file), self.offset);
        self.offset += data.content_length() as u64;
        let write = move || {
            let mut file = file.lock();
            for bytes in &data {
                file.write(bytes, at).map_err(failed)?;
                at += bytes.len() as u64;
            }
            Ok(())
        };
        Box::pin(blocking(write))
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let (file, given_up) = (Arc::clone(&self.file), Arc::clone(&self.given_up));
        let (begun, object) = (self.begun.clone().unwrap_or_default(), self.object.clone());
        let publish = blocking(move || {
            file.lock().file.sync_all().map_err(failed)?;
            if given_up.load(Ordering::Acquire) {
                return Err(failed(io::ErrorKind::Interrupted.into()));
            }
            std::fs::rename(&begun, &object).map_err(failed)?;
            sync_parent(&object).map_err(failed)
        });
        self.root.during(publish).await?;
        self.begun = None;
        Ok(PutResult { e_tag: None, version: None, extensions: Default::default() })
    }

    async fn abort(&mut self) -> Result<()> {
        let Some(begun) = self.begun.take() else { return Ok(()) };
        blocking(move || std::fs::remove_file(begun).map_err(failed)).await
    }
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload").field("begun", &self.begun).field("offset", &self.offset).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use camino::Utf8Path;
    use futures_util::future::try_join_all;
    use futures_util::{StreamExt, TryStreamExt};
    use object_store::path::Path as ObjectPath;
    use object_store::{ObjectStore, ObjectStoreExt, PutMultipartOptions};

    use super::super::Directory;
    use super::*;

    fn bytes(len: usize, seed: usize) -> AlignedBuf {
        let mut buf = AlignedBuf::with_capacity(len);
        let content: Vec<u8> = (0..len).map(|at| ((at * 7 + seed) % 251) as u8).collect();
        buf.extend_from_slice(&content);
        buf
    }

    /// Parts of these lengths, the last of which are finished first; the memory of every other one is not aligned.
    async fn uploaded(place: &Utf8Path, name: &str, lens: &[usize], are_aligned: bool) {
        let directory = Directory::open(place).await.unwrap();
        let path = ObjectPath::from(name);
        let mut upload = directory.put_multipart_opts(&path, PutMultipartOptions::default()).await.unwrap();
        let mut expected = Vec::new();
        let mut parts = Vec::new();
        for (seed, len) in lens.iter().enumerate() {
            let part = Bytes::from_owner(bytes(*len + 1, seed));
            let part = if are_aligned || seed % 2 == 0 { part.slice(..*len) } else { part.slice(1..) };
            expected.extend_from_slice(&part);
            parts.push(upload.put_part(part.into()));
        }
        parts.reverse();
        try_join_all(parts).await.unwrap();
        assert!(directory.list(None).all(async |found| found.unwrap().location != path).await, "it is there already");
        upload.complete().await.unwrap();
        let found = directory.get(&path).await.unwrap().bytes().await.unwrap();
        assert!(found == expected, "{lens:?}");
        let all: Vec<_> = directory.list(None).try_collect().await.unwrap();
        assert_eq!(all.len(), 1, "{all:?}");
        let files = std::fs::read_dir(place.join(name).parent().unwrap()).unwrap().count();
        assert_eq!(files, 1, "something is left of the upload");
        directory.delete(&path).await.unwrap();
    }

    #[tokio::test]
    async fn parts_come_together_whatever_their_lengths_are() {
        let disk = camino_tempfile::tempdir().unwrap();
        // In memory there may be no direct I/O.
        let memory = camino_tempfile::tempdir_in("/dev/shm").unwrap();
        for place in [disk.path(), memory.path()] {
            for lens in [&[PIECE * 5 / 2, PIECE * 5 / 2, 12_345][..], &[8192, 4096], &[1, 1, 4095, 7], &[0], &[]] {
                uploaded(place, "tenants/t/a", lens, true).await;
                uploaded(place, "tenants/t/b", lens, false).await;
            }
        }
    }

    #[tokio::test]
    async fn what_is_aborted_leaves_nothing_and_replaces_nothing() {
        let place = camino_tempfile::tempdir().unwrap();
        let directory = Directory::open(place.path()).await.unwrap();
        let path = ObjectPath::from("t/a");
        directory.put(&path, "before".into()).await.unwrap();
        let mut upload = directory.put_multipart_opts(&path, PutMultipartOptions::default()).await.unwrap();
        upload.put_part(Bytes::from_owner(bytes(9000, 1)).into()).await.unwrap();
        upload.abort().await.unwrap();
        assert_eq!(directory.get(&path).await.unwrap().bytes().await.unwrap(), "before");
        assert_eq!(std::fs::read_dir(place.path().join("t")).unwrap().count(), 1);
    }

    #[tokio::test]
    async fn what_nobody_waits_for_goes() {
        let place = camino_tempfile::tempdir().unwrap();
        let directory = Directory::open(place.path()).await.unwrap();
        let path = ObjectPath::from("t/a");
        let mut upload = directory.put_multipart_opts(&path, PutMultipartOptions::default()).await.unwrap();
        upload.put_part(Bytes::from_owner(bytes(9000, 1)).into()).await.unwrap();
        let mut completing = upload.complete();
        assert!(futures_util::poll!(&mut completing).is_pending());
        drop(completing);
        drop(upload);
        let left = || std::fs::read_dir(place.path().join("t")).unwrap().map(|entry| entry.unwrap().file_name());
        while left().any(|name| name != "a") {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn an_object_is_replaced_by_a_large_one_at_once() {
        let place = camino_tempfile::tempdir().unwrap();
        let directory = Directory::open(place.path()).await.unwrap();
        let path = ObjectPath::from("t/a");
        for seed in 0..3 {
            let content = Bytes::from_owner(bytes(PIECE + 10, seed));
            directory.put(&path, content.clone().into()).await.unwrap();
            assert!(directory.get(&path).await.unwrap().bytes().await.unwrap() == content);
            assert_eq!(std::fs::read_dir(place.path().join("t")).unwrap().count(), 1);
        }
    }

    #[tokio::test]
    async fn only_the_buckets_own_directories_are_made_and_synced() {
        let place = camino_tempfile::tempdir().unwrap();
        let (real, link) = (place.path().join("real"), place.path().join("link"));
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        uploaded(&link, "tenants/t/a", &[8192, 10], true).await;
        let object = place.path().join("gone/tenants/t/a");
        create(object.as_std_path(), 2).unwrap_err();
        assert!(!place.path().join("gone").exists(), "the bucket itself was made");
    }

    #[tokio::test]
    async fn a_directory_that_is_away_takes_nothing() {
        let place = camino_tempfile::tempdir().unwrap();
        let root = place.path().join("bucket");
        let directory = Directory::open(&root).await.unwrap();
        let path = ObjectPath::from("t/a");
        let mut upload = directory.put_multipart_opts(&path, PutMultipartOptions::default()).await.unwrap();
        upload.put_part("part".into()).await.unwrap();
        std::fs::rename(&root, place.path().join("elsewhere")).unwrap();
        upload.complete().await.unwrap_err();
        directory.put_multipart_opts(&path, PutMultipartOptions::default()).await.unwrap_err();
        assert!(!root.exists(), "another one was made in its place");
    }
}
