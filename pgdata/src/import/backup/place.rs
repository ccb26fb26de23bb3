//! Classifies files by their path in the data directory.

use camino::{Utf8Path, Utf8PathBuf};
use pageserver_api::reltag::{DEFAULT_TABLESPACE, GLOBAL_TABLESPACE, RelTag, SlruKind};
use postgres_formats::conf_file::{AUTO_CONF, CONF};
use postgres_formats::{replorigin, twophase};

use datadir::parse_relation_file;

/// The role of a file in an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A segment of a relation fork.
    Relation {
        /// The fork, with the tablespace's OID in place of its number.
        rel: RelTag,
        /// Number of the segment.
        number: u32,
    },
    /// A segment of an SLRU.
    Slru,
    /// A small file that is needed.
    Small,
    /// A file that is not kept.
    Ignored,
}

/// Directory of the files of tablespace `oid`, relative to the data directory.
pub(super) fn tablespace_dir(oid: u32) -> Utf8PathBuf {
    Utf8Path::new("pg_tblspc").join(oid.to_string())
}

/// Path of the archive's file `name`, relative to the data directory.
pub(super) fn in_data_dir(tablespace: Option<u32>, name: &str) -> Utf8PathBuf {
    tablespace.map_or_else(|| name.into(), |oid| tablespace_dir(oid).join(name))
}

impl Place {
    /// Classifies the file at `path` in the data directory.
    pub(super) fn of(path: &Utf8Path) -> Self {
        let parts: Vec<&str> = path.as_str().split('/').collect();
        match *parts.as_slice() {
            ["PG_VERSION" | "backup_label" | CONF | AUTO_CONF] | ["global", "pg_control"] => Self::Small,
            ["global", name] => Self::in_database(GLOBAL_TABLESPACE, "0", name),
            ["base", db, name] => Self::in_database(DEFAULT_TABLESPACE, db, name),
            ["pg_tblspc", spc, _, db, name] => {
                spc.parse().map_or(Self::Ignored, |oid| Self::in_database(oid, db, name))
            }
            [twophase::DIRECTORY, _] => Self::Small,
            _ if path == replorigin::CHECKPOINT_FILE => Self::Small,
            _ if path.parent().is_some_and(is_slru) => Self::Slru,
            _ => Self::Ignored,
        }
    }

    fn in_database(spcnode: u32, db: &str, name: &str) -> Self {
        let Ok(dbnode) = db.parse() else { return Self::Ignored };
        match (parse_relation_file(name), name) {
            (Some((relnode, forknum, number)), _) => {
                Self::Relation { rel: RelTag { spcnode, dbnode, relnode, forknum }, number }
            }
            (None, "pg_filenode.map" | "PG_VERSION") => Self::Small,
            _ => Self::Ignored,
        }
    }
}

fn is_slru(dir: &Utf8Path) -> bool {
    SlruKind::ALL.into_iter().any(|kind| dir == kind.dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_by_their_paths() {
        let relation = |spcnode, dbnode, relnode, forknum, number| Place::Relation {
            rel: RelTag { spcnode, dbnode, relnode, forknum },
            number,
        };
        for (path, place) in [
            ("PG_VERSION", Place::Small),
            ("backup_label", Place::Small),
            ("base/5/PG_VERSION", Place::Small),
            ("base/5/pg_filenode.map", Place::Small),
            ("base/5/16384", relation(1663, 5, 16384, 0, 0)),
            ("base/5/16384_vm.2", relation(1663, 5, 16384, 2, 2)),
            ("base/5/t3_16384", Place::Ignored),
            ("base/pgsql_tmp/pgsql_tmp1.0", Place::Ignored),
            ("global/1262", relation(1664, 0, 1262, 0, 0)),
            ("global/pg_control", Place::Small),
            ("pg_tblspc/70000/PG_15_202209061/5/16390_fsm", relation(70000, 5, 16390, 1, 0)),
            ("pg_xact/0000", Place::Slru),
            ("pg_multixact/members/0000", Place::Slru),
            ("pg_multixact/0000", Place::Ignored),
            ("pg_twophase/000002C1", Place::Small),
            ("pg_logical/replorigin_checkpoint", Place::Small),
            ("pg_logical/mappings/x", Place::Ignored),
            ("pg_wal/000000010000000000000001", Place::Ignored),
            ("log/postgresql.log", Place::Ignored),
            ("postgresql.conf", Place::Small),
            ("postgresql.auto.conf", Place::Small),
            ("pg_hba.conf", Place::Ignored),
            ("conf.d/postgresql.conf", Place::Ignored),
        ] {
            assert_eq!(Place::of(path.into()), place, "{path}");
        }
        assert_eq!(in_data_dir(Some(7), "PG_15_1/5/1"), "pg_tblspc/7/PG_15_1/5/1");
        assert_eq!(in_data_dir(None, "base/5/1"), "base/5/1");
    }
}
