//! Reads single pages from the files of a data directory.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use anyhow::Context;
use camino::Utf8PathBuf;
use postgres_formats::page::PageBytes;
use postgres_formats::record::RelFile;
use postgres_formats::slru::{PAGES_PER_SEGMENT, SlruKind, segment_file_name};
use postgres_formats::version::PgVersion;

/// Blocks per file of a relation (1 GiB).
const BLOCKS_PER_FILE: u32 = 131_072;

const DEFAULT_TABLESPACE: u32 = 1663;
const GLOBAL_TABLESPACE: u32 = 1664;

/// A data directory whose files stay open.
pub(super) struct DataFiles {
    root: Utf8PathBuf,
    version: PgVersion,
    open: HashMap<Utf8PathBuf, Option<File>>,
}

impl DataFiles {
    pub(super) fn new(root: Utf8PathBuf, version: PgVersion) -> Self {
        Self { root, version, open: HashMap::new() }
    }

    /// A page of a relation, if its file exists and is long enough.
    pub(super) fn relation_page(&mut self, rel: RelFile, fork: u8, blkno: u32) -> anyhow::Result<Option<PageBytes>> {
        let fork = ["", "_fsm", "_vm", "_init"].get(usize::from(fork)).context("no such fork")?;
        let suffix = match blkno / BLOCKS_PER_FILE {
            0 => String::new(),
            number => format!(".{number}"),
        };
        self.page(self.database_dir(rel).join(format!("{}{fork}{suffix}", rel.rel)), blkno % BLOCKS_PER_FILE)
    }

    /// A page of an SLRU, if its file exists and is long enough.
    pub(super) fn slru_page(&mut self, kind: SlruKind, page: u32) -> anyhow::Result<Option<PageBytes>> {
        let file = self.root.join(kind.directory()).join(segment_file_name(page / PAGES_PER_SEGMENT));
        self.page(file, page % PAGES_PER_SEGMENT)
    }

    /// The directory of the relation's database; in user tablespaces the path includes the catalog version.
    fn database_dir(&self, rel: RelFile) -> Utf8PathBuf {
        let catalog = format!("PG_{}_{}", self.version.major(), self.version.catalog_version());
        match rel.spc {
            DEFAULT_TABLESPACE => self.root.join("base").join(rel.db.to_string()),
            GLOBAL_TABLESPACE => self.root.join("global"),
            spc => self.root.join("pg_tblspc").join(spc.to_string()).join(catalog).join(rel.db.to_string()),
        }
    }

    fn page(&mut self, path: Utf8PathBuf, number: u32) -> anyhow::Result<Option<PageBytes>> {
        if !self.open.contains_key(&path) {
            let file = match File::open(&path) {
                Ok(file) => Some(file),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(error).with_context(|| format!("cannot open {path}")),
            };
            self.make_room();
            self.open.insert(path.clone(), file);
        }
        let Some(Some(file)) = self.open.get(&path) else { return Ok(None) };
        let mut page = [0; 8192];
        match file.read_exact_at(&mut page, u64::from(number) * 8192) {
            Ok(()) => Ok(Some(page)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {path} block {number}")),
        }
    }

    /// A regression suite has more relations than a process may have open files.
    fn make_room(&mut self) {
        const MOST: usize = 400;
        if self.open.len() >= MOST {
            self.open.clear();
        }
    }
}
