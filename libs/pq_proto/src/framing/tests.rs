//! What is sent, by streams that take any number of bytes at a time.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use proptest::prelude::*;
use tokio::io::AsyncWrite;

use super::{MessageWriter, put_message};

/// Takes as many bytes at a time as `takes` says in turn; none for a 0, but the next time.
struct Sink {
    takes: Vec<usize>,
    calls: usize,
    vectored: bool,
    sent: Vec<u8>,
}

impl AsyncWrite for Sink {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sink = self.get_mut();
        let takes = sink.takes[sink.calls % sink.takes.len()];
        sink.calls += 1;
        if takes == 0 {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = sink.sent.len();
        sink.sent.extend(pieces.iter().flat_map(|piece| piece.iter()).take(takes));
        Poll::Ready(Ok(sink.sent.len() - before))
    }

    fn is_write_vectored(&self) -> bool {
        self.vectored
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

proptest! {
    #[test]
    fn shared_bytes_are_sent_in_their_place(
        messages in prop::collection::vec((0usize..40, prop::option::of(0usize..300)), 0..120),
        takes in prop::collection::vec(0usize..400, 1..6).prop_filter("some are taken", |takes| takes.iter().any(|n| *n > 0)),
        flush_every in 1usize..60,
        vectored: bool,
    ) {
        let mut writer = MessageWriter::new(Sink { takes, calls: 0, vectored, sent: Vec::new() });
        let mut expected = BytesMut::new();
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
            for (number, (own, shared)) in messages.iter().enumerate() {
                let start = |buf: &mut BytesMut| buf.put_bytes(number as u8, *own);
                match shared {
                    None => put_message(writer.buffer(), b'x', start),
                    Some(len) => {
                        let shared = Bytes::from(vec![!(number as u8); *len]);
                        writer.put_sharing(b'd', shared, |_, buf| start(buf));
                    }
                }
                let end = |buf: &mut BytesMut| buf.put_bytes(!(number as u8), shared.unwrap_or(0));
                put_message(&mut expected, if shared.is_some() { b'd' } else { b'x' }, |buf| {
                    start(buf);
                    end(buf);
                });
                if number % flush_every == 0 {
                    writer.flush().await.unwrap();
                }
            }
            writer.flush().await.unwrap();
        });
        prop_assert_eq!(&writer.into_inner().sent, &expected[..]);
    }
}

/// Nothing is sent twice or left out if the future of a flush is dropped while the stream takes nothing.
#[test]
fn a_flush_that_was_dropped_goes_on_where_it_was() {
    let sink = Sink { takes: vec![3, 0], calls: 0, vectored: true, sent: Vec::new() };
    let mut writer = MessageWriter::new(sink);
    writer.put_sharing(b'd', Bytes::from_static(b"shared"), |_, buf| buf.put_slice(b"own"));
    put_message(writer.buffer(), b'x', |buf| buf.put_slice(b"last"));
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
        let mut waited = 0;
        loop {
            let mut flush = Box::pin(writer.flush());
            let once = std::future::poll_fn(|cx| Poll::Ready(flush.as_mut().poll(cx)));
            if once.await.is_ready() {
                break;
            }
            waited += 1;
        }
        assert!(waited > 3, "it waited {waited} times");
    });
    assert_eq!(writer.into_inner().sent, b"d\0\0\0\x0downsharedx\0\0\0\x08last");
}
