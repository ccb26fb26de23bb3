//! Passes bytes between a client and its compute.

use std::io;

use bytes::{Bytes, BytesMut};
use pq_proto::frontend::{StartupPacket, StartupParameters};
use pq_proto::stream::BoxStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional_with_sizes};

use crate::greeting::Greeting;

/// Buffers of a session, from the client and to it: answers are longer than questions. Nearly all messages are shorter
/// than a pipe would be worth, by which the kernel could pass them on without their being copied.
const FROM_CLIENT: usize = 8 << 10;
const TO_CLIENT: usize = 16 << 10;
/// Read at once until the session is ready.
const PIECE: usize = 2 << 10;

/// How the start of a session ended.
pub(crate) enum Begun<K> {
    /// It is ready, or refused; with its key for cancel requests, if it has one.
    Ready(Option<K>),
    /// One side has gone.
    Gone,
}

/// Starts a session at `server`, and passes bytes until it is ready. Its key for cancel requests goes to `know` before
/// the client can send one.
pub(crate) async fn begin<K>(
    client: &mut BoxStream,
    server: &mut BoxStream,
    startup: StartupParameters,
    know: impl Fn(Bytes) -> K,
) -> io::Result<Begun<K>> {
    let mut questions = BytesMut::with_capacity(PIECE);
    StartupPacket::Startup(startup).encode(&mut questions);
    server.write_all_buf(&mut questions).await?;
    let (mut greeting, mut answers) = (Greeting::default(), BytesMut::with_capacity(PIECE));
    let mut known = None;
    while !greeting.is_over() {
        questions.reserve(PIECE);
        answers.reserve(PIECE);
        tokio::select! {
            read = client.read_buf(&mut questions) => {
                if read? == 0 {
                    return Ok(Begun::Gone);
                }
                server.write_all_buf(&mut questions).await?;
                server.flush().await?;
            }
            read = server.read_buf(&mut answers) => {
                if read? == 0 {
                    return Ok(Begun::Gone);
                }
                greeting.read(&answers);
                known = greeting.key().map(&know);
                client.write_all_buf(&mut answers).await?;
                client.flush().await?;
            }
        }
    }
    Ok(Begun::Ready(known))
}

/// Passes bytes both ways until both sides have ended, or one is broken.
pub(crate) async fn pass(client: &mut BoxStream, server: &mut BoxStream) -> io::Result<()> {
    copy_bidirectional_with_sizes(client, server, FROM_CLIENT, TO_CLIENT).await.map(drop)
}
