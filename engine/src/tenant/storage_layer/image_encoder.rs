//! Images in the form in which layers store them: compressed, where that is worth it.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;
use pageserver_api::key::Key;
use tokio::task::JoinHandle;

use errors::StorageError;

/// Images shorter than this, in bytes, are not worth compressing.
const COMPRESS_LEN_MIN: usize = 128;
const ZSTD_LEVEL: i32 = 1;
/// After this many images in a row that do not compress, only one in `TRY_EVERY` is tried: trying is not cheap.
const TRIES_MAX: u32 = 8;
const TRY_EVERY: u32 = 16;
/// Images that one thread encodes at a time: some 64 pages, which take about a millisecond.
const BATCH_BYTES: usize = 512 << 10;
/// Batches that are encoded at once. A server sends no faster than that many threads compress.
const BATCHES_AT_ONCE: usize = 3;

/// An image as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stored<'a> {
    pub(super) bytes: &'a [u8],
    /// It is compressed, and has its raw length in front.
    pub(super) compressed: bool,
}

/// Compresses images one after the other.
pub(super) struct ImageEncoder {
    compressor: zstd::bulk::Compressor<'static>,
    compressed: Vec<u8>,
    /// Images in a row that were not compressed.
    uncompressed: u32,
}

impl ImageEncoder {
    pub(super) fn new() -> Result<Self, StorageError> {
        let compressor =
            zstd::bulk::Compressor::new(ZSTD_LEVEL).map_err(|error| StorageError::Internal(error.to_string()))?;
        Ok(Self { compressor, compressed: Vec::new(), uncompressed: 0 })
    }

    /// `image`, compressed if that saves at least an eighth and is not known to be vain.
    pub(super) fn encode<'a>(&'a mut self, image: &'a [u8]) -> Stored<'a> {
        let is_tried = self.uncompressed < TRIES_MAX || self.uncompressed.is_multiple_of(TRY_EVERY);
        let compressed = is_tried && self.compress(image);
        self.uncompressed = if compressed { 0 } else { self.uncompressed.wrapping_add(1) };
        Stored { bytes: if compressed { &self.compressed } else { image }, compressed }
    }

    /// Compresses into `self.compressed`, prefixed with the raw length. Returns whether that is worth it.
    fn compress(&mut self, image: &[u8]) -> bool {
        if image.len() < COMPRESS_LEN_MIN {
            return false;
        }
        let limit = image.len() - image.len() / 8;
        self.compressed.clear();
        self.compressed.extend_from_slice(&(image.len() as u32).to_le_bytes());
        self.compressed.resize(limit, 0);
        let body = self.compressed.get_mut(4..).unwrap_or_default();
        match self.compressor.compress_to_buffer(image, body) {
            Ok(len) => {
                self.compressed.truncate(4 + len);
                true
            }
            // The only way the compressor can fail here is that the result does not fit.
            Err(_) => false,
        }
    }
}

/// Neighboring images as they are stored.
#[derive(Debug, Default)]
pub struct EncodedImages {
    bytes: Vec<u8>,
    images: Vec<(Key, Range<usize>, bool)>,
}

impl EncodedImages {
    fn push(&mut self, key: Key, stored: Stored<'_>) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(stored.bytes);
        self.images.push((key, start..self.bytes.len(), stored.compressed));
    }

    /// Each image, in the order in which they came.
    pub fn iter(&self) -> impl Iterator<Item = EncodedImage<'_>> {
        self.images.iter().filter_map(|(key, range, compressed)| {
            let bytes = self.bytes.get(range.clone())?;
            Some(EncodedImage { key: *key, stored: Stored { bytes, compressed: *compressed } })
        })
    }
}

/// An image of a key as it is stored.
#[derive(Clone, Copy, Debug)]
pub struct EncodedImage<'a> {
    /// Its key.
    pub key: Key,
    pub(super) stored: Stored<'a>,
}

impl EncodedImage<'_> {
    /// Bytes that it takes in a layer.
    pub fn stored_bytes(&self) -> u64 {
        self.stored.bytes.len() as u64
    }
}

/// Images on their way into layers: other threads compress them, and they come out in the order in which they came.
/// Takes a few MiB of memory.
#[derive(Default)]
pub struct ImageEncoding {
    batch: Vec<(Key, Bytes)>,
    batch_bytes: usize,
    running: VecDeque<JoinHandle<(ImageEncoder, EncodedImages)>>,
    idle: Vec<ImageEncoder>,
}

impl ImageEncoding {
    /// Takes in an image.
    ///
    /// # Errors
    /// [`StorageError::Internal`] if there is no memory for a compressor.
    pub fn push(&mut self, key: Key, image: Bytes) -> Result<(), StorageError> {
        self.batch_bytes += image.len();
        self.batch.push((key, image));
        if self.batch_bytes >= BATCH_BYTES { self.start_batch() } else { Ok(()) }
    }

    /// Whether [`ImageEncoding::next`] should be called before more is taken in.
    pub fn is_full(&self) -> bool {
        self.running.len() >= BATCHES_AT_ONCE
    }

    /// Begins to encode what has been taken in, though more might come.
    ///
    /// # Errors
    /// As [`ImageEncoding::push`].
    pub fn start_batch(&mut self) -> Result<(), StorageError> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let mut encoder = self.idle.pop().map_or_else(ImageEncoder::new, Ok)?;
        let (batch, bytes) = (std::mem::take(&mut self.batch), std::mem::take(&mut self.batch_bytes));
        self.running.push_back(env::spawn::blocking(move || {
            let mut encoded =
                EncodedImages { bytes: Vec::with_capacity(bytes), images: Vec::with_capacity(batch.len()) };
            for (key, image) in batch {
                encoded.push(key, encoder.encode(&image));
            }
            (encoder, encoded)
        }));
        Ok(())
    }

    /// Waits for the oldest images that are being encoded; `None` if there are none.
    ///
    /// # Errors
    /// [`StorageError::Internal`] if encoding them broke off.
    pub async fn next(&mut self) -> Result<Option<EncodedImages>, StorageError> {
        let Some(oldest) = self.running.pop_front() else { return Ok(None) };
        let (encoder, encoded) =
            oldest.await.map_err(|error| StorageError::Internal(format!("encoding images: {error}")))?;
        self.idle.push(encoder);
        Ok(Some(encoded))
    }
}

impl std::fmt::Debug for ImageEncoding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImageEncoding").field("running", &self.running.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of every third image a compressed form is longer; one is short.
    fn image(number: u32) -> Bytes {
        let mut chaos = number.wrapping_mul(0x9E37_79B9) | 1;
        let mut next = || {
            chaos ^= chaos << 13;
            chaos ^= chaos >> 17;
            chaos ^= chaos << 5;
            chaos as u8
        };
        match number % 3 {
            0 => (0..8192).map(|_| next()).collect(),
            1 => Bytes::from(vec![number as u8; 8192]),
            _ => Bytes::from(vec![number as u8; 100]),
        }
    }

    fn key(number: u32) -> Key {
        pageserver_api::key::rel_block_key(
            pageserver_api::reltag::RelTag { spcnode: 1, dbnode: 2, relnode: 3, forknum: 0 },
            number,
        )
    }

    /// The raw forms of what is stored, by key.
    fn decoded(encoded: &EncodedImages) -> Vec<(Key, Bytes)> {
        let raw = |it: EncodedImage<'_>| {
            super::super::image_writer::decompress(Bytes::copy_from_slice(it.stored.bytes), it.stored.compressed)
                .unwrap()
        };
        encoded.iter().map(|it| (it.key, raw(it))).collect()
    }

    #[tokio::test]
    async fn images_come_out_as_they_went_in_and_in_order() {
        let mut encoding = ImageEncoding::default();
        let (mut out, mut most) = (Vec::new(), 0);
        for number in 0..1500 {
            encoding.push(key(number), image(number)).unwrap();
            most = most.max(encoding.running.len());
            if encoding.is_full() {
                out.extend(decoded(&encoding.next().await.unwrap().unwrap()));
            }
        }
        encoding.start_batch().unwrap();
        while let Some(encoded) = encoding.next().await.unwrap() {
            out.extend(decoded(&encoded));
        }
        assert_eq!(out, (0..1500).map(|number| (key(number), image(number))).collect::<Vec<_>>());
        assert_eq!((most, encoding.idle.len()), (BATCHES_AT_ONCE, BATCHES_AT_ONCE));
    }

    #[test]
    fn only_what_gets_shorter_is_compressed() {
        let mut encoder = ImageEncoder::new().unwrap();
        for number in 0..6 {
            let image = image(number);
            let stored = encoder.encode(&image);
            assert_eq!(stored.compressed, number % 3 == 1, "{number}");
            assert!(stored.compressed && stored.bytes.len() < 100 || stored.bytes == image);
        }
    }
}
