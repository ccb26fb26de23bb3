//! A plain data directory as a source: for tests, and for a compute on a copy of a cluster.

mod boot;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use boot::boot;

use crate::source::{PageSource, RelFork, RelationFile, SourceError};
use crate::{BLOCK, SEGMENT_BLOCKS};

const DEFAULT_TABLESPACE: u32 = 1663;
const GLOBAL_TABLESPACE: u32 = 1664;

/// The data directory of a Postgres that is shut down.
pub struct DirectorySource {
    root: PathBuf,
    files: Vec<RelationFile>,
    delay: Duration,
}

impl DirectorySource {
    /// Opens the data directory `root`.
    pub fn open(root: impl Into<PathBuf>) -> io::Result<Self> {
        let root = root.into();
        let files = relation_files(&root)?;
        Ok(Self { root, files, delay: Duration::ZERO })
    }

    /// Delays every answer by `delay`, as a network would.
    pub fn with_delay(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    fn read(&self, rel: RelFork, first: u32, count: u32, out: &mut [u8]) -> Result<(), SourceError> {
        let file = self.files.iter().find(|file| file.rel == rel);
        let file = file.ok_or_else(|| SourceError::Failed(format!("no relation {rel:?}")))?;
        let (mut at, mut rest) = (first, out);
        while at < first + count {
            let segment = at / SEGMENT_BLOCKS;
            let until = (first + count).min((segment + 1) * SEGMENT_BLOCKS);
            let (run, after) = rest.split_at_mut((until - at) as usize * BLOCK);
            let path = self.root.join(segment_path(&file.path, segment));
            let offset = u64::from(at % SEGMENT_BLOCKS) * BLOCK as u64;
            File::open(&path)
                .and_then(|file| file.read_exact_at(run, offset))
                .map_err(|error| SourceError::Failed(format!("{}: {error}", path.display())))?;
            (at, rest) = (until, after);
        }
        Ok(())
    }
}

impl PageSource for DirectorySource {
    async fn manifest(&self) -> Result<Vec<RelationFile>, SourceError> {
        Ok(self.files.clone())
    }

    async fn read_blocks(&self, rel: RelFork, first: u32, count: u32, out: &mut [u8]) -> Result<(), SourceError> {
        if !self.delay.is_zero() {
            env::clock::sleep(self.delay).await;
        }
        self.read(rel, first, count, out)
    }
}

/// Path of segment `segment` of a relation file.
pub fn segment_path(path: &str, segment: u32) -> String {
    if segment == 0 { path.to_owned() } else { format!("{path}.{segment}") }
}

/// All relation files below the data directory `root`, sorted by path.
pub fn relation_files(root: &Path) -> io::Result<Vec<RelationFile>> {
    let mut files = Vec::new();
    in_database(root, "global", (GLOBAL_TABLESPACE, 0), &mut files)?;
    in_tablespace(root, "base", DEFAULT_TABLESPACE, &mut files)?;
    for (name, spc) in numbered(&root.join("pg_tblspc"))? {
        for version in std::fs::read_dir(root.join("pg_tblspc").join(&name))? {
            let version = version?.file_name();
            in_tablespace(root, &format!("pg_tblspc/{name}/{}", version.to_string_lossy()), spc, &mut files)?;
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

fn in_tablespace(root: &Path, dir: &str, spc: u32, files: &mut Vec<RelationFile>) -> io::Result<()> {
    for (name, db) in numbered(&root.join(dir))? {
        in_database(root, &format!("{dir}/{name}"), (spc, db), files)?;
    }
    Ok(())
}

fn in_database(root: &Path, dir: &str, (spc, db): (u32, u32), files: &mut Vec<RelationFile>) -> io::Result<()> {
    for entry in std::fs::read_dir(root.join(dir))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some((rel, fork)) = parse_name(&name) else { continue };
        let path = format!("{dir}/{name}");
        let blocks = length(&root.join(&path))?;
        files.push(RelationFile { path, rel: RelFork { spc, db, rel, fork }, blocks });
    }
    Ok(())
}

/// Number of blocks of the relation file whose segment 0 is `first`.
fn length(first: &Path) -> io::Result<u32> {
    let mut blocks = 0;
    for segment in 0.. {
        let path = PathBuf::from(segment_path(&first.to_string_lossy(), segment));
        let Ok(metadata) = path.metadata() else { break };
        blocks += u32::try_from(metadata.len() / BLOCK as u64).map_err(io::Error::other)?;
    }
    Ok(blocks)
}

fn numbered(dir: &Path) -> io::Result<Vec<(String, u32)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if let Ok(number) = name.parse() {
            found.push((name, number));
        }
    }
    Ok(found)
}

/// Relation and fork of a file name, if it names a segment 0.
fn parse_name(name: &str) -> Option<(u32, u8)> {
    let (rel, fork) = match name.split_once('_') {
        None => (name, 0),
        Some((rel, "fsm")) => (rel, 1),
        Some((rel, "vm")) => (rel, 2),
        Some((rel, "init")) => (rel, 3),
        Some(_) => return None,
    };
    Some((rel.parse().ok()?, fork))
}

/// Whether a name in a database's directory is that of a relation segment.
fn is_segment(name: &str) -> bool {
    let (first, segment) = name.split_once('.').unwrap_or((name, "1"));
    parse_name(first).is_some() && segment.parse::<u32>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn finds_relations_and_reads_their_blocks() {
        let dir = camino_tempfile::tempdir().unwrap();
        for (path, blocks) in [("global/1262_vm", 1), ("base/5/16384", 3), ("pg_tblspc/16400/PG_15_1/5/77_init", 2)] {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let contents: Vec<u8> = (0..blocks).flat_map(|block: u8| [block + 1; BLOCK]).collect();
            std::fs::write(path, contents).unwrap();
        }
        std::fs::write(dir.path().join("base/5/PG_VERSION"), "15\n").unwrap();
        std::fs::write(dir.path().join("base/5/t3_16399"), "").unwrap();
        let source = DirectorySource::open(dir.path()).unwrap();
        let manifest = source.manifest().await.unwrap();
        let seen: Vec<_> = manifest.iter().map(|f| (f.path.as_str(), f.rel.spc, f.rel.fork, f.blocks)).collect();
        let expected = [
            ("base/5/16384", 1663, 0, 3),
            ("global/1262_vm", 1664, 2, 1),
            ("pg_tblspc/16400/PG_15_1/5/77_init", 16400, 3, 2),
        ];
        assert_eq!(seen, expected);
        let mut out = vec![0; 2 * BLOCK];
        source.read_blocks(manifest[0].rel, 1, 2, &mut out).await.unwrap();
        assert_eq!((out[0], out[BLOCK]), (2, 3));
        assert!(source.read_blocks(manifest[0].rel, 2, 2, &mut out).await.is_err());
    }
}
