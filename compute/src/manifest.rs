//! The file `manifest`: the relation files at the boot LSN, and their lengths.
//!
//! Little-endian: `PSMANI01`, count (u32), for each file tablespace, database, relation, blocks (u32 each), fork
//! (u8), length of the path (u16) and the path; at the end CRC-32C (u32) of everything before. The order determines
//! the file system's node numbers, so a manifest is never rewritten during the life of its compute.

use std::io;
use std::path::Path;

use crate::private::Trust;
use crate::source::{RelFork, RelationFile};

const MAGIC: &[u8; 8] = b"PSMANI01";

/// Writes the manifest of `files` to `path`, durably.
pub fn write(path: &Path, files: &[RelationFile]) -> io::Result<()> {
    Trust::me().replace(path, &encode(files)?, |_| Ok(()))
}

/// Reads the manifest at `path`.
pub fn read(path: &Path) -> io::Result<Vec<RelationFile>> {
    decode(&Trust::me().read(path)?).ok_or_else(|| {
        let text = format!("{}: not a manifest, or damaged", path.display());
        io::Error::new(io::ErrorKind::InvalidData, text)
    })
}

fn encode(files: &[RelationFile]) -> io::Result<Vec<u8>> {
    let too_long = |_| io::Error::new(io::ErrorKind::InvalidInput, "the manifest is too long");
    let mut out = MAGIC.to_vec();
    out.extend(u32::try_from(files.len()).map_err(too_long)?.to_le_bytes());
    for file in files {
        for number in [file.rel.spc, file.rel.db, file.rel.rel, file.blocks] {
            out.extend(number.to_le_bytes());
        }
        out.push(file.rel.fork);
        out.extend(u16::try_from(file.path.len()).map_err(too_long)?.to_le_bytes());
        out.extend(file.path.as_bytes());
    }
    out.extend(utils::crc32c::crc32c(&out).to_le_bytes());
    Ok(out)
}

fn decode(bytes: &[u8]) -> Option<Vec<RelationFile>> {
    let (body, crc) = bytes.split_last_chunk::<4>()?;
    if utils::crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
        return None;
    }
    let mut rest = body.strip_prefix(MAGIC)?;
    let count = number(&mut rest)?;
    let mut files = Vec::new();
    for _ in 0..count {
        let (spc, db, rel) = (number(&mut rest)?, number(&mut rest)?, number(&mut rest)?);
        let blocks = number(&mut rest)?;
        let [fork, low, high] = take(&mut rest)?;
        let (path, after) = rest.split_at_checked(u16::from_le_bytes([low, high]).into())?;
        rest = after;
        let path = str::from_utf8(path).ok()?.to_owned();
        files.push(RelationFile { path, rel: RelFork { spc, db, rel, fork }, blocks });
    }
    rest.is_empty().then_some(files)
}

fn number(rest: &mut &[u8]) -> Option<u32> {
    take(rest).map(u32::from_le_bytes)
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, after) = rest.split_first_chunk::<N>()?;
    *rest = after;
    Some(*head)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<RelationFile> {
        let rel = RelFork { spc: 1663, db: 5, rel: 16384, fork: 0 };
        vec![
            RelationFile { path: "base/5/16384".into(), rel, blocks: 200_000 },
            RelationFile { path: "base/5/16384_vm".into(), rel: RelFork { fork: 2, ..rel }, blocks: 0 },
        ]
    }

    #[test]
    fn comes_back_as_written() {
        let bytes = encode(&sample()).unwrap();
        assert_eq!(decode(&bytes), Some(sample()));
        assert_eq!(decode(&encode(&[]).unwrap()), Some(Vec::new()));
    }

    #[test]
    fn any_damage_is_seen() {
        let bytes = encode(&sample()).unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert_eq!(decode(&damaged), None, "byte {at}");
            assert_eq!(decode(&bytes[..at]), None, "cut at {at}");
        }
    }
}
