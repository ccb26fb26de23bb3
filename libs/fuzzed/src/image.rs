//! Any bytes as a full-page image: restoring is total and bounded; the hole is zero.

use postgres_formats::{
    BLCKSZ,
    image::restore_image,
    record::{BlockImage, ImageCompression},
};

pub(crate) fn run(input: &[u8]) {
    let Some((head, bytes)) = input.split_first_chunk::<5>() else { return };
    let methods = [None, Some(ImageCompression::Pglz), Some(ImageCompression::Lz4), Some(ImageCompression::Zstd)];
    let image = BlockImage {
        bytes,
        hole_offset: u16::from_le_bytes([head[0], head[1]]),
        hole_length: u16::from_le_bytes([head[2], head[3]]),
        compression: methods[usize::from(head[4]) % 4],
        apply: true,
    };
    let mut page = [0xCC; BLCKSZ];
    if restore_image(&image, &mut page).is_ok() {
        let start = usize::from(image.hole_offset);
        assert!(page[start..start + usize::from(image.hole_length)].iter().all(|byte| *byte == 0));
    }
}
