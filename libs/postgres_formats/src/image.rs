//! Restores pages from full-page images: decompression and the zero-filled hole (`RestoreBlockImage`).

mod pglz;

use thiserror::Error;

use crate::{
    BLCKSZ,
    page::PageBytes,
    record::{BlockImage, ImageCompression},
};

pub use pglz::PglzError;

/// Why an image cannot be restored.
#[derive(Debug, Error)]
pub enum ImageError {
    /// The hole extends beyond the page.
    #[error("hole {offset}+{length} is not within a page")]
    Hole {
        /// Start of the hole.
        offset: u16,
        /// Length of the hole.
        length: u16,
    },
    /// The image's length differs from that of the page without its hole.
    #[error("image has {found} bytes, {expected} expected")]
    Length {
        /// Bytes of the page without its hole.
        expected: usize,
        /// Bytes of the image, after decompression.
        found: usize,
    },
    /// Damaged pglz data.
    #[error("pglz: {0}")]
    Pglz(#[from] PglzError),
    /// Damaged LZ4 block.
    #[error("lz4: {0}")]
    Lz4(#[from] lz4_flex::block::DecompressError),
    /// Damaged zstd frame, or one that holds more than a page.
    #[error("zstd: {0}")]
    Zstd(#[source] std::io::Error),
}

/// Restores the page in `image` to `page`. After an error the content of `page` is unspecified.
///
/// The image's hole is zero-filled. Nothing else is changed: the LSN is the one in the image.
pub fn restore_image(image: &BlockImage<'_>, page: &mut PageBytes) -> Result<(), ImageError> {
    let (offset, length) = (usize::from(image.hole_offset), usize::from(image.hole_length));
    if offset + length > BLCKSZ {
        return Err(ImageError::Hole { offset: image.hole_offset, length: image.hole_length });
    }
    let expected = BLCKSZ - length;
    let (packed, _) = page.split_at_mut(expected);
    let found = decompress(image, packed)?;
    if found != expected {
        return Err(ImageError::Length { expected, found });
    }
    page.copy_within(offset..expected, offset + length);
    let (head, _) = page.split_at_mut(offset + length);
    let (_, hole) = head.split_at_mut(offset);
    hole.fill(0);
    Ok(())
}

/// Decompresses into `out`, never more than fits; returns the number of bytes.
fn decompress(image: &BlockImage<'_>, out: &mut [u8]) -> Result<usize, ImageError> {
    match image.compression {
        None if image.bytes.len() == out.len() => out.copy_from_slice(image.bytes),
        None => return Err(ImageError::Length { expected: out.len(), found: image.bytes.len() }),
        Some(ImageCompression::Pglz) => pglz::decompress(image.bytes, out)?,
        Some(ImageCompression::Lz4) => return Ok(lz4_flex::block::decompress_into(image.bytes, out)?),
        Some(ImageCompression::Zstd) => {
            return zstd::bulk::decompress_to_buffer(image.bytes, out).map_err(ImageError::Zstd);
        }
    }
    Ok(out.len())
}

#[cfg(test)]
mod tests;
