//! The extended attribute that links a real file to the manifest's file that it stands for: node number and limit. A
//! block below the limit that is a hole has never been written.

use std::fs::File;
use std::io;

use rustix::fs::{SeekFrom, XattrFlags};
use rustix::io::Errno;

use crate::BLOCK;
use crate::overlay::bitmap::Bitmap;

const NAME: &str = "user.compute.lazy";

/// Node number and limit in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) id: u64,
    pub(crate) limit: u32,
}

pub(crate) fn write(file: &File, mark: Mark) -> io::Result<()> {
    let mut value = [0; 12];
    value[..8].copy_from_slice(&mark.id.to_le_bytes());
    value[8..].copy_from_slice(&mark.limit.to_le_bytes());
    Ok(rustix::fs::fsetxattr(file, NAME, &value, XattrFlags::empty())?)
}

/// `None`: a file created by Postgres.
pub(crate) fn read(file: &File) -> io::Result<Option<Mark>> {
    let mut value = [0_u8; 12];
    match rustix::fs::fgetxattr(file, NAME, &mut value) {
        Ok(12) => {}
        Ok(_) => return Err(io::Error::new(io::ErrorKind::InvalidData, "damaged attribute user.compute.lazy")),
        Err(Errno::NODATA) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let [id @ .., l0, l1, l2, l3] = value;
    Ok(Some(Mark { id: u64::from_le_bytes(id), limit: u32::from_le_bytes([l0, l1, l2, l3]) }))
}

/// The blocks below `limit` that are in the file, that is, contain no hole.
///
/// After a power failure half a block may be there, from a write that was never acknowledged as durable; such a block
/// counts as never written, and recovery writes it again from its full-page image.
pub(crate) fn present(file: &File, limit: u32) -> io::Result<Bitmap> {
    let mut present = Bitmap::default();
    let end = u64::from(limit) * BLOCK as u64;
    let mut at = 0;
    while at < end {
        let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let hole = rustix::fs::seek(file, SeekFrom::Hole(data))?;
        let blocks = data.div_ceil(BLOCK as u64)..hole.min(end) / BLOCK as u64;
        for block in blocks {
            present.insert(u32::try_from(block).map_err(io::Error::other)?);
        }
        at = hole;
    }
    Ok(present)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn holes_are_not_present() {
        let dir = camino_tempfile::tempdir().unwrap();
        let file = File::create_new(dir.path().join("f")).unwrap();
        file.set_len(10 * BLOCK as u64).unwrap();
        file.write_all_at(&[1; 2 * BLOCK], 3 * BLOCK as u64).unwrap();
        file.write_all_at(&[0; BLOCK], 7 * BLOCK as u64).unwrap();
        file.write_all_at(&[1; BLOCK / 2], 9 * BLOCK as u64).unwrap();
        let present = present(&file, 10).unwrap();
        let seen: Vec<u32> = (0..12).filter(|block| present.contains(*block)).collect();
        assert_eq!(seen, [3, 4, 7]);
        assert_eq!(read(&file).unwrap(), None);
        let mark = Mark { id: 1 << 62 | 5, limit: 10 };
        write(&file, mark).unwrap();
        assert_eq!(read(&file).unwrap(), Some(mark));
    }
}
