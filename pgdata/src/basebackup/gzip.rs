//! Compression of the output.

use std::io::{self, Write};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;

use super::request::Sink;

/// Approximate size of the pieces in which compressed bytes are passed on.
const PIECE: usize = 64 * 1024;

/// Compresses at the fastest level of gzip.
pub(super) struct Gzip<'a, W> {
    encoder: GzEncoder<Vec<u8>>,
    sink: &'a mut W,
}

impl<'a, W: Sink> Gzip<'a, W> {
    pub(super) fn new(sink: &'a mut W) -> Self {
        Self { encoder: GzEncoder::new(Vec::new(), Compression::fast()), sink }
    }

    /// Ends the stream.
    pub(super) async fn finish(self) -> io::Result<()> {
        let rest = self.encoder.finish()?;
        self.sink.write(rest.into()).await
    }
}

impl<W: Sink> Sink for Gzip<'_, W> {
    async fn write(&mut self, bytes: Bytes) -> io::Result<()> {
        // This blocks the other tasks of the thread, but not for long.
        for piece in bytes.chunks(PIECE) {
            self.encoder.write_all(piece)?;
            if self.encoder.get_ref().len() >= PIECE {
                let compressed = std::mem::take(self.encoder.get_mut());
                self.sink.write(compressed.into()).await?;
            }
            tokio::task::coop::consume_budget().await;
        }
        Ok(())
    }
}
