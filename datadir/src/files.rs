//! Files of a data directory: databases by tablespace, relation forks by segment, SLRU segments.

use std::collections::BTreeMap;

use camino::{Utf8DirEntry, Utf8Path, Utf8PathBuf};
use pageserver_api::reltag::{
    BlockNumber, DEFAULT_TABLESPACE, GLOBAL_TABLESPACE, INIT_FORK, MAIN_FORK, SlruKind, fork_name,
};
use postgres_formats::BLCKSZ;
use postgres_formats::slru::{PAGES_PER_SEGMENT, parse_segment_file_name};
use postgres_formats::twophase;

use super::small_files::{PG_TBLSPC, corrupt, entries, io_error};
use super::{DataDir, GLOBAL, RELATION_SEGMENT_BLOCKS};
use errors::StorageError;

const PAGE: u64 = BLCKSZ as u64;

/// The directory of a database in a tablespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseFiles {
    /// Tablespace OID.
    pub spc: u32,
    /// Database OID, 0 for shared relations.
    pub db: u32,
    /// The directory.
    pub dir: Utf8PathBuf,
    /// Whether the files were copied while a server was writing to them.
    pub(crate) in_backup: bool,
}

/// The files of a relation fork, or of one SLRU segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForkFiles {
    /// The files in order; all but the last are full.
    pub segments: Vec<Utf8PathBuf>,
    /// Length in blocks.
    pub blocks: BlockNumber,
}

impl DataDir {
    /// The directories of all databases.
    pub fn databases(&self) -> Result<Vec<DatabaseFiles>, StorageError> {
        let in_backup = self.backup_label.is_some();
        let mut found = vec![DatabaseFiles { spc: GLOBAL_TABLESPACE, db: 0, dir: self.root.join(GLOBAL), in_backup }];
        add_databases(DEFAULT_TABLESPACE, &self.root.join("base"), in_backup, &mut found)?;
        let version_dir = format!("PG_{}_{}", self.version().major(), self.version().catalog_version());
        for tablespace in self.tablespaces.entries() {
            let dir = self.root.join(PG_TBLSPC).join(tablespace.oid.to_string()).join(&version_dir);
            if dir.exists() {
                add_databases(tablespace.oid, &dir, in_backup, &mut found)?;
            }
        }
        Ok(found)
    }

    /// The segments of an SLRU.
    pub fn slru_segments(&self, kind: SlruKind) -> Result<BTreeMap<u32, ForkFiles>, StorageError> {
        let mut found = BTreeMap::new();
        for entry in entries(&self.root.join(kind.dir()))? {
            let Some(segment) = parse_segment_file_name(entry.file_name()) else { continue };
            let blocks = blocks_of(&entry)?;
            if blocks > PAGES_PER_SEGMENT {
                let reason = format!("an SLRU segment has at most {PAGES_PER_SEGMENT} pages, not {blocks}");
                return Err(corrupt(entry.path(), u64::from(PAGES_PER_SEGMENT) * PAGE, reason));
            }
            if blocks > 0 {
                found.insert(segment, ForkFiles { segments: vec![entry.path().to_owned()], blocks });
            }
        }
        Ok(found)
    }

    /// The state files of prepared transactions, by transaction id (with its epoch from version 17 on).
    pub fn twophase_files(&self) -> Result<BTreeMap<u64, Utf8PathBuf>, StorageError> {
        let mut found = BTreeMap::new();
        for entry in entries(&self.root.join(twophase::DIRECTORY))? {
            let Ok(xid) = u64::from_str_radix(entry.file_name(), 16) else { continue };
            if twophase::file_name(self.version(), xid) == entry.file_name() {
                found.insert(xid, entry.path().to_owned());
            }
        }
        Ok(found)
    }
}

impl DatabaseFiles {
    /// The relation forks. For unlogged relations only the init fork counts: the WAL does not cover the other forks,
    /// and a recovering server recreates them.
    pub fn forks(&self) -> Result<BTreeMap<(u32, u8), ForkFiles>, StorageError> {
        let mut forks = self.all_forks()?;
        let unlogged: Vec<u32> = forks.keys().filter(|(_, fork)| *fork == INIT_FORK).map(|(rel, _)| *rel).collect();
        for rel in unlogged {
            (MAIN_FORK..INIT_FORK).for_each(|fork| drop(forks.remove(&(rel, fork))));
        }
        Ok(forks)
    }

    fn all_forks(&self) -> Result<BTreeMap<(u32, u8), ForkFiles>, StorageError> {
        let mut files: BTreeMap<(u32, u8), BTreeMap<u32, (Utf8PathBuf, u32)>> = BTreeMap::new();
        for entry in entries(&self.dir)? {
            let Some((rel, fork, segment)) = parse_relation_file(entry.file_name()) else { continue };
            let blocks = blocks_of(&entry)?;
            files.entry((rel, fork)).or_default().insert(segment, (entry.path().to_owned(), blocks));
        }
        let in_backup = self.in_backup;
        files.into_iter().map(|(name, segments)| Ok((name, join_segments(segments, in_backup)?))).collect()
    }
}

/// Joins the segments of a fork. A segment that is not full is the last one, though empty ones may follow
/// (`mdnblocks`). In a backup, nonempty ones may follow too, if segments were copied one by one while the fork grew
/// or was dropped: the WAL has their contents, or their removal.
fn join_segments(files: BTreeMap<u32, (Utf8PathBuf, u32)>, in_backup: bool) -> Result<ForkFiles, StorageError> {
    let mut fork = ForkFiles::default();
    let mut ended = false;
    for (number, (segment, (path, blocks))) in files.into_iter().enumerate() {
        let gap = number as u32 != segment;
        if (gap || ended) && blocks > 0 && !in_backup {
            return Err(corrupt(&path, 0, "the segment files before it are not all there and full"));
        }
        if gap || ended {
            ended = true;
            continue;
        }
        if blocks > RELATION_SEGMENT_BLOCKS {
            let end = u64::from(RELATION_SEGMENT_BLOCKS) * PAGE;
            return Err(corrupt(&path, end, "the segment file is longer than 1 GiB"));
        }
        ended = blocks < RELATION_SEGMENT_BLOCKS;
        fork.blocks += blocks;
        fork.segments.push(path);
    }
    Ok(fork)
}

/// Parses `REL[_FORK][.SEGMENT]`; any other name is not a relation that is kept (`t3_16384` is a temporary one).
pub fn parse_relation_file(name: &str) -> Option<(u32, u8, u32)> {
    let (name, segment) = match name.split_once('.') {
        Some((name, segment)) => (name, segment.parse().ok().filter(|number| *number > 0)?),
        None => (name, 0),
    };
    let (rel, fork) = match name.split_once('_') {
        Some((rel, fork)) => (rel, (1..=INIT_FORK).find(|number| fork_name(*number) == Some(fork))?),
        None => (name, MAIN_FORK),
    };
    let is_number = !rel.is_empty() && rel.bytes().all(|byte| byte.is_ascii_digit());
    Some((is_number.then(|| rel.parse().ok()).flatten()?, fork, segment))
}

fn add_databases(
    spc: u32,
    parent: &Utf8Path,
    in_backup: bool,
    found: &mut Vec<DatabaseFiles>,
) -> Result<(), StorageError> {
    let mut dbs: Vec<(u32, Utf8PathBuf)> = entries(parent)?
        .iter()
        .filter_map(|entry| Some((entry.file_name().parse().ok()?, entry.path().to_owned())))
        .collect();
    dbs.sort();
    found.extend(dbs.into_iter().map(|(db, dir)| DatabaseFiles { spc, db, dir, in_backup }));
    Ok(())
}

fn blocks_of(entry: &Utf8DirEntry) -> Result<u32, StorageError> {
    let path = entry.path();
    let len = entry.metadata().map_err(|source| io_error("stat", path, 0, source))?.len();
    if !len.is_multiple_of(PAGE) {
        let reason = format!("its length of {len} bytes is no multiple of {PAGE}");
        return Err(corrupt(path, len - len % PAGE, reason));
    }
    u32::try_from(len / PAGE).map_err(|_| corrupt(path, 0, format!("{len} bytes are too many")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_relation_files() {
        assert_eq!(parse_relation_file("16384"), Some((16384, 0, 0)));
        assert_eq!(parse_relation_file("16384.12"), Some((16384, 0, 12)));
        assert_eq!(parse_relation_file("16384_vm.1"), Some((16384, 2, 1)));
        assert_eq!(parse_relation_file("16384_init"), Some((16384, 3, 0)));
        for other in ["t3_16384", "PG_VERSION", "pg_filenode.map", "16384.x", "16384.0", "16384_main", "+1", ""] {
            assert_eq!(parse_relation_file(other), None, "{other}");
        }
    }

    #[test]
    fn segments_join_in_order() {
        let full = RELATION_SEGMENT_BLOCKS;
        let files = |blocks: &[(u32, u32)]| {
            blocks
                .iter()
                .map(|(segment, blocks)| (*segment, (Utf8PathBuf::from(segment.to_string()), *blocks)))
                .collect()
        };
        let join = |blocks: &[(u32, u32)], in_backup| join_segments(files(blocks), in_backup);
        assert_eq!(join(&[(0, full), (1, 5)], false).unwrap().blocks, full + 5);
        assert_eq!(join(&[(0, full), (1, full), (2, 0)], false).unwrap().blocks, 2 * full);
        assert_eq!(join(&[(0, 7), (1, 0)], false).unwrap().blocks, 7);
        let gap = [(0, full), (2, 1), (3, 1)];
        for (bad, blocks) in [(&[(0, 7), (1, 1)][..], 7), (&[(1, 1)], 0), (&gap, full)] {
            assert!(join(bad, false).is_err(), "{bad:?}");
            assert_eq!(join(bad, true).unwrap().blocks, blocks, "{bad:?}");
        }
        assert!(join(&[(0, full + 1)], true).is_err());
    }
}
