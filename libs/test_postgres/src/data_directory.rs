//! Directories that look like data directories, made without a server.

use camino_tempfile::{Utf8TempDir, tempdir};
use postgres_formats::control_file::{ClusterState, ControlFields, ControlFile};
use postgres_formats::version::PgVersion;
use utils::lsn::Lsn;

/// `pg_control` of a Postgres 15 cluster in `state`, with checksums and the default sizes.
pub fn control(state: ClusterState) -> ControlFile {
    let mut bytes = [0; 8192];
    let version = PgVersion::V15;
    bytes[8..12].copy_from_slice(&version.control_version().to_le_bytes());
    bytes[12..16].copy_from_slice(&version.catalog_version().to_le_bytes());
    let crc = utils::crc32c::crc32c(&bytes[..288]);
    bytes[288..292].copy_from_slice(&crc.to_le_bytes());
    let empty = ControlFile::decode(&bytes).unwrap();
    let fields = ControlFields {
        state: state as u32,
        checkpoint: Lsn(0x1_0000_0028),
        block_size: 8192,
        relation_segment_size: 131_072,
        wal_block_size: 8192,
        wal_segment_size: 16 << 20,
        data_checksum_version: 1,
        ..empty.fields
    };
    ControlFile { fields, ..empty }
}

/// An empty data directory with `control` as its `pg_control`.
///
/// # Panics
///
/// If it cannot be written.
pub fn data_dir(control: &[u8]) -> Utf8TempDir {
    let dir = tempdir().unwrap();
    for sub in ["global", "base/5", "pg_tblspc/70000", "pg_xact"] {
        std::fs::create_dir_all(dir.path().join(sub)).unwrap();
    }
    std::fs::write(dir.path().join("PG_VERSION"), "15\n").unwrap();
    std::fs::write(dir.path().join("global/pg_control"), control).unwrap();
    dir
}
