//! Unpacks the archive as it arrives: memory is bounded, zeros take no space on disk, and every file is verified
//! against the checksums at the end.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use bytes::{Buf, Bytes};
use pageserver_api::boot_image::{SUMS_NAME, Sums};
use pageserver_client::BackupStream;
use tar::{Archive, EntryType};

use super::error::{BootError, io_error};
use crate::private;

/// Maximum number of pieces of the archive that wait to be written.
const PIECES: usize = 16;
const CHUNK: usize = 64 * 1024;

/// Size and checksum of what was written, by path.
type Written = BTreeMap<String, (u64, u32)>;

/// Unpacks into `root`. Returns the total size of all files in bytes.
pub(super) async fn unpack(stream: BackupStream, root: &Path) -> Result<u64, BootError> {
    let root = root.to_owned();
    run(stream, move |reader| {
        let mut archive = Archive::new(reader);
        let mut written = Written::new();
        for entry in archive.entries().map_err(io_error(&root))? {
            let mut entry = entry.map_err(io_error(&root))?;
            let name = entry.path().map_err(io_error(&root))?.to_string_lossy().into_owned();
            let path = inside(&root, &name)?;
            if entry.header().entry_type() == EntryType::Directory {
                private::make_dirs(&path).map_err(io_error(&path))?;
            } else {
                path.parent().map_or(Ok(()), private::make_dirs).map_err(io_error(&path))?;
                let sum = write_sparse(&mut entry, &path).map_err(io_error(&path))?;
                written.insert(name, sum);
            }
        }
        check(&root, &written)
    })
    .await
}

/// Returns the content of one file.
pub(super) async fn one_file(stream: BackupStream, name: &'static str) -> Result<Vec<u8>, BootError> {
    run(stream, move |reader| {
        let path = Path::new(name);
        let mut archive = Archive::new(reader);
        let mut content = None;
        for entry in archive.entries().map_err(io_error(path))? {
            let mut entry = entry.map_err(io_error(path))?;
            if entry.path().map_err(io_error(path))? == path {
                let mut bytes = Vec::new();
                entry.read_to_end(&mut bytes).map_err(io_error(path))?;
                content = Some(bytes);
            }
        }
        content.ok_or_else(|| BootError::File { path: name.to_owned(), problem: "it is missing" })
    })
    .await
}

/// Runs `work` on the archive in a thread that may block. Fails unless the stream ends properly.
async fn run<T: Send + 'static>(
    mut stream: BackupStream,
    work: impl FnOnce(Incoming) -> Result<T, BootError> + Send + 'static,
) -> Result<T, BootError> {
    let (sender, receiver) = sync_channel(PIECES);
    let working = env::spawn::blocking(move || work(Incoming { receiver, piece: Bytes::new() }));
    let fed = feed(&mut stream, sender).await;
    let worked = working.await.map_err(|error| BootError::Io {
        path: "boot image".to_owned(),
        source: io::Error::other(error.to_string()),
    })?;
    fed?;
    worked
}

async fn feed(stream: &mut BackupStream, sender: SyncSender<Bytes>) -> Result<(), BootError> {
    while let Some(bytes) = stream.next().await? {
        // Blocking here would stall the runtime's thread.
        let sender = sender.clone();
        let sent = env::spawn::blocking(move || sender.send(bytes).is_ok()).await;
        if !sent.unwrap_or(false) {
            return Ok(());
        }
    }
    Ok(())
}

struct Incoming {
    receiver: Receiver<Bytes>,
    piece: Bytes,
}

impl Read for Incoming {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.receiver.recv() {
                Ok(piece) => self.piece = piece,
                Err(_) => return Ok(0),
            }
        }
        let len = buf.len().min(self.piece.len());
        self.piece.copy_to_slice(buf.get_mut(..len).unwrap_or_default());
        Ok(len)
    }
}

/// The path of a file of the archive; an error if it leads out of `root`.
fn inside(root: &Path, name: &str) -> Result<PathBuf, BootError> {
    let plain = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    if plain && !name.is_empty() {
        return Ok(root.join(name));
    }
    Err(BootError::File { path: name.to_owned(), problem: "the path leads elsewhere" })
}

/// Copies `from` to `path`, leaving holes for zeros; returns size and checksum.
fn write_sparse(from: &mut impl Read, path: &Path) -> io::Result<(u64, u32)> {
    let mut file = File::options().write(true).create_new(true).mode(private::FILE_MODE).open(path)?;
    let mut chunk = vec![0; CHUNK];
    let (mut size, mut crc) = (0, 0);
    loop {
        let len = from.read(&mut chunk)?;
        let bytes = chunk.get(..len).unwrap_or_default();
        if bytes.is_empty() {
            break;
        }
        crc = utils::crc32c::crc32c_append(crc, bytes);
        size += len as u64;
        if bytes.iter().all(|byte| *byte == 0) {
            file.seek(SeekFrom::Current(len as i64))?;
        } else {
            file.write_all(bytes)?;
        }
    }
    file.set_len(size)?;
    Ok((size, crc))
}

fn check(root: &Path, written: &Written) -> Result<u64, BootError> {
    let path = root.join(SUMS_NAME);
    let bytes = std::fs::read(&path).map_err(io_error(&path))?;
    let sums = Sums::decode(&bytes)?.0;
    for sum in &sums {
        let problem = match written.get(&sum.path) {
            None => "it is missing",
            Some(found) if *found != (sum.size, sum.crc) => "its checksum is wrong",
            Some(_) => continue,
        };
        return Err(BootError::File { path: sum.path.clone(), problem });
    }
    if sums.len() + 1 != written.len() {
        return Err(BootError::File { path: SUMS_NAME.to_owned(), problem: "it does not name all files" });
    }
    Ok(sums.iter().map(|sum| sum.size).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside() {
        let root = Path::new("/x");
        assert_eq!(inside(root, "upper/base/5").unwrap(), Path::new("/x/upper/base/5"));
        for bad in ["", "/etc/passwd", "../y", "upper/../../y", "./x"] {
            assert!(inside(root, bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn zeros_take_no_room() {
        use std::os::unix::fs::MetadataExt;
        let dir = camino_tempfile::tempdir().unwrap();
        let path = dir.path().join("f").into_std_path_buf();
        let content = [vec![1; 100], vec![0; 1 << 20], vec![2; 5], vec![0; 200_000]].concat();
        let sum = write_sparse(&mut &content[..], &path).unwrap();
        assert_eq!(sum, (content.len() as u64, utils::crc32c::crc32c(&content)));
        assert_eq!(std::fs::read(&path).unwrap(), content);
        assert!(std::fs::metadata(&path).unwrap().blocks() * 512 < 512 * 1024);
    }
}
