//! CRC-32C (Castagnoli; iSCSI, RFC 3720), the checksum of our blocks and of most of what Postgres stores.

use crc_fast::{CrcAlgorithm, Digest};

/// The checksum of `bytes`.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c_append(0, bytes)
}

/// The checksum of bytes whose checksum is `crc`, followed by `bytes`.
#[inline]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    // What the register holds between two pieces is the complement of the checksum.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bit by bit, as the polynomial says.
    fn expected(bytes: &[u8]) -> u32 {
        let divided = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0x82F6_3B78 } else { crc >> 1 };
        !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| divided(crc)))
    }

    /// Appendix B.4 of RFC 3720 has these.
    #[test]
    fn the_rfcs_examples() {
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(crc32c(&[0xFF; 32]), 0x62A8_AB43);
        assert_eq!(crc32c(&std::array::from_fn::<u8, 32, _>(|at| at as u8)), 0x46DD_794E);
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    }

    proptest! {
        /// Lengths around those at which other instructions are used.
        #[test]
        fn any_bytes_in_any_pieces(
            bytes in prop::collection::vec(any::<u8>(), 0..5000),
            cuts: [prop::sample::Index; 2],
        ) {
            let mut cuts = cuts.map(|cut| cut.index(bytes.len() + 1));
            cuts.sort_unstable();
            let pieces = [&bytes[..cuts[0]], &bytes[cuts[0]..cuts[1]], &bytes[cuts[1]..]];
            let found = pieces.iter().fold(0, |crc, piece| crc32c_append(crc, piece));
            prop_assert_eq!(found, expected(&bytes));
            prop_assert_eq!(crc32c(&bytes), found);
        }
    }
}
