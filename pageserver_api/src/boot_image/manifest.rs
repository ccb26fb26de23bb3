//! Lists the relation files.

use utils::lsn::Lsn;

use super::error::BootImageError;
use super::reader::{Reader, put_rel, seal};
use crate::reltag::{BlockNumber, DEFAULT_TABLESPACE, GLOBAL_TABLESPACE, MAIN_FORK, RelTag, fork_name};

const WHAT: &str = "manifest";
const MAGIC: &[u8; 8] = b"PGSBOOTM";
const VERSION: u32 = 1;
const ENTRY_LEN: usize = 17;

/// A relation fork that a compute reads from its timeline until it writes the fork itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RelationSize {
    /// The fork; the tablespace is given by OID.
    pub rel: RelTag,
    /// Its size.
    pub blocks: BlockNumber,
}

/// All relation files at an LSN, except those of unlogged relations, which start out empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The LSN.
    pub lsn: Lsn,
    /// Major version of Postgres.
    pub pg_version: u32,
    /// Version of its system catalog, which is part of the names of tablespace directories.
    pub catalog_version: u32,
    /// Whether the cluster has data checksums. Pages from the page service never carry them.
    pub data_checksums: bool,
    /// The cluster's own identifier.
    pub system_identifier: u64,
    /// The forks in ascending order.
    pub relations: Vec<RelationSize>,
}

impl Manifest {
    /// Encodes the file.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64 + self.relations.len() * ENTRY_LEN);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_be_bytes());
        bytes.extend_from_slice(&self.lsn.0.to_be_bytes());
        bytes.extend_from_slice(&self.pg_version.to_be_bytes());
        bytes.extend_from_slice(&self.catalog_version.to_be_bytes());
        bytes.push(self.data_checksums.into());
        bytes.extend_from_slice(&self.system_identifier.to_be_bytes());
        bytes.extend_from_slice(&(self.relations.len() as u64).to_be_bytes());
        for RelationSize { rel, blocks } in &self.relations {
            put_rel(&mut bytes, *rel);
            bytes.extend_from_slice(&blocks.to_be_bytes());
        }
        seal(bytes)
    }

    /// Decodes the file.
    pub fn decode(bytes: &[u8]) -> Result<Self, BootImageError> {
        let mut reader = Reader::open(WHAT, bytes, MAGIC, VERSION)?;
        let (lsn, pg_version, catalog_version) = (Lsn(reader.u64()?), reader.u32()?, reader.u32()?);
        let data_checksums = match reader.u8()? {
            0 => false,
            1 => true,
            _ => return Err(reader.damaged("a flag is neither set nor not")),
        };
        let system_identifier = reader.u64()?;
        let count = reader.count(ENTRY_LEN)?;
        let mut relations = Vec::with_capacity(count);
        for _ in 0..count {
            relations.push(RelationSize { rel: reader.rel()?, blocks: reader.u32()? });
        }
        if !relations.is_sorted_by(|one: &RelationSize, next: &RelationSize| one.rel < next.rel) {
            return Err(reader.damaged("its entries are out of order"));
        }
        Ok(Self { lsn, pg_version, catalog_version, data_checksums, system_identifier, relations })
    }

    /// Path of the first file of a fork, relative to the data directory.
    pub fn path(&self, rel: RelTag) -> String {
        let RelTag { spcnode, dbnode, relnode, forknum } = rel;
        let dir = match spcnode {
            GLOBAL_TABLESPACE => "global".to_owned(),
            DEFAULT_TABLESPACE => format!("base/{dbnode}"),
            oid => format!("pg_tblspc/{oid}/PG_{}_{}/{dbnode}", self.pg_version, self.catalog_version),
        };
        match (forknum, fork_name(forknum)) {
            (MAIN_FORK, _) | (_, None) => format!("{dir}/{relnode}"),
            (_, Some(fork)) => format!("{dir}/{relnode}_{fork}"),
        }
    }
}
