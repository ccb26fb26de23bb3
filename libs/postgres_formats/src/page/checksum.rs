//! The 16-bit checksum of data pages (`pg_checksum_page`): 32 parallel FNV-like sums over the page, XORed together
//! and with the block number.

use super::{PageBytes, PageMut, PageRef, field};

const PRIME: u32 = 16_777_619;

const START: [u32; 32] = [
    0x5B1F36E9, 0xB8525960, 0x02AB50AA, 0x1DE66D2A, 0x79FF467A, 0x9BB9F8A3, 0x217E7CD2, 0x83E13D2C, 0xF8D4474F,
    0xE39EB970, 0x42C6AE16, 0x993216FA, 0x7B093B5D, 0x98DAFF3C, 0xF718902A, 0x0B1C9CDB, 0xE58F764B, 0x187636BC,
    0x5D7B3BB1, 0xE73DE7DE, 0x92BEC979, 0xCCA6C0B2, 0x304A0979, 0x85AA43D4, 0x783125BB, 0x6CA8EAA2, 0xE407EAC6,
    0x4B5CFC3E, 0x9FBF8C76, 0x15CA20BE, 0xF2CA9FD3, 0x959BD756,
];

/// The checksum of `page` as block `blkno` of its fork. The stored checksum is ignored.
///
/// New pages (`pd_upper` 0) are never checksummed; the caller must check for that.
pub fn data_checksum(page: &PageBytes, blkno: u32) -> u16 {
    let mut sums = START;
    let (rows, _) = page.as_chunks::<128>();
    for (number, row) in rows.iter().enumerate() {
        let (words, _) = row.as_chunks::<4>();
        for (at, (sum, word)) in sums.iter_mut().zip(words).enumerate() {
            let mut word = u32::from_le_bytes(*word);
            if (number, at) == (0, field::CHECKSUM / 4) {
                word &= 0xFFFF_0000;
            }
            mix(sum, word);
        }
    }
    for _ in 0..2 {
        sums.iter_mut().for_each(|sum| mix(sum, 0));
    }
    let all = sums.iter().fold(blkno, |all, sum| all ^ sum);
    (all % 65535) as u16 + 1
}

fn mix(sum: &mut u32, value: u32) {
    let mixed = *sum ^ value;
    *sum = mixed.wrapping_mul(PRIME) ^ (mixed >> 17);
}

/// Stores the checksum of block `blkno`, unless the page is new.
pub fn set_data_checksum(page: &mut PageBytes, blkno: u32) {
    if !PageRef::new(page).is_new() {
        let checksum = data_checksum(page, blkno);
        PageMut::new(page).set_checksum(checksum);
    }
}
