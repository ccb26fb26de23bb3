//! The control file of every version survives a round trip; damage is detected.

use super::*;

fn sample(version: PgVersion) -> ControlFile {
    let fields = ControlFields::get(&[0; 256], 0).unwrap();
    let checkpoint = CheckPoint { next_xid: 0x1_0000_0300, time: 5, oldest_active_xid: 9, ..CheckPoint::default() };
    let mut file = ControlFile {
        version,
        fields: ControlFields {
            system_identifier: 7_000_000_000_000_000_001,
            control_version: version.control_version(),
            catalog_version: version.catalog_version(),
            float_format: 1_234_567.0,
            wal_segment_size: 16 << 20,
            backup_end_required: true,
            ..fields
        },
        default_char_signedness: true,
        mock_authentication_nonce: [0xAB; 32],
    };
    file.set_shut_down(Lsn(0x1234_5678), checkpoint);
    file
}

#[test]
fn round_trip_in_every_version() {
    for version in PgVersion::ALL {
        let file = sample(version);
        let bytes = file.encode();
        let decoded = ControlFile::decode(&bytes).unwrap();
        assert_eq!(decoded, file);
        assert_eq!(decoded.state(), ClusterState::Shutdowned);
        assert_eq!(
            (decoded.fields.checkpoint_copy.redo, decoded.fields.backup_end_required),
            (Lsn(0x1234_5678), false)
        );
        assert_eq!(ControlFile::decode(&bytes[..296]), Ok(file));
        assert!(bytes[296..].iter().all(|byte| *byte == 0));
        let crc_at = if version == PgVersion::V18 { 292 } else { 288 };
        assert_eq!(u32_at(&bytes, crc_at).unwrap(), utils::crc32c::crc32c(&bytes[..crc_at]));
    }
}

#[test]
fn damage_is_found() {
    for version in PgVersion::ALL {
        let bytes = sample(version).encode();
        for at in 0..296 {
            let mut damaged = bytes;
            damaged[at] ^= 0x10;
            let padding_behind_crc = version != PgVersion::V18 && at >= 292;
            assert_eq!(ControlFile::decode(&damaged).is_ok(), padding_behind_crc, "{version:?} byte {at}");
            assert!(ControlFile::decode(&bytes[..at]).is_err() || padding_behind_crc);
        }
    }
}
