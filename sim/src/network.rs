//! The network between clients, servers and those who write WAL: it is slow, loses connections, and goes silent.

use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::time::Duration;

use env::process::Process;
use pageserver::page_service::PageService;
use pq_proto::stream::BoxStream;
use simulated::random::Random;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex, split};
use tokio_util::sync::CancellationToken;

/// Bytes on their way in one direction, and at once.
const WINDOW: usize = 16 << 10;
const PIECE: usize = 4 << 10;
/// How long a connection that is lost stays silent: longer than anybody waits.
const SILENCE: Duration = Duration::from_secs(3600);

/// What a connection is like.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// How long a piece takes at most, in microseconds.
    micros: u64,
    /// When it ends, if it does before one of its ends wants that.
    ends: Option<Duration>,
    /// And how.
    loss: Loss,
}

/// How a connection is lost.
#[derive(Clone, Copy, Debug)]
enum Loss {
    /// Both ends are told.
    Closed,
    /// Nobody is told.
    Silent,
    /// Only what one end says arrives still.
    OneWay,
}

impl Link {
    /// As networks are.
    pub fn draw(random: &mut Random) -> Self {
        let micros = [0, 500, 30_000][random.below(3) as usize];
        // Some while the ends are still introducing themselves.
        let scale = 1 << (9 + random.below(14));
        let ends = (random.below(3) == 0).then(|| Duration::from_micros(random.below(scale)));
        let loss = [Loss::Closed, Loss::Closed, Loss::Silent, Loss::OneWay][random.below(4) as usize];
        Self { micros, ends, loss }
    }

    /// One on which nothing is lost.
    pub const GOOD: Self = Self { micros: 500, ends: None, loss: Loss::Closed };

    /// The two ends of a connection of this kind, and what carries bytes between them.
    pub fn lay(self, chance: u64) -> (BoxStream, BoxStream, impl Future<Output = ()> + Send + 'static) {
        let (near, from) = duplex(WINDOW);
        let (to, far) = duplex(WINDOW);
        (Box::new(near), Box::new(far), carry(from, to, self, Random::new(chance)))
    }

    /// A connection of this kind to a process's page service.
    pub fn connect(
        self,
        process: &Process,
        service: &PageService,
        cancel: &CancellationToken,
        chance: u64,
    ) -> BoxStream {
        let (near, far, carry) = self.lay(chance);
        let (peer, service, cancel) = (SocketAddr::from((Ipv4Addr::LOCALHOST, 1)), service.clone(), cancel.clone());
        let serve = service.serve_one(far, peer, cancel);
        drop(process.enter(|| env::spawn::task("page service connection", serve)));
        drop(env::spawn::task("network", carry));
        near
    }
}

/// Carries what the two ends say, until one of them leaves or the connection is lost.
async fn carry(near: DuplexStream, far: DuplexStream, link: Link, mut random: Random) {
    let (mut from_near, mut to_near) = split(near);
    let (mut from_far, mut to_far) = split(far);
    let (there, back) = (Random::new(random.next()), Random::new(random.next()));
    let lost = async {
        match link.ends {
            Some(after) => env::clock::sleep(after).await,
            None => std::future::pending().await,
        }
    };
    let mut there = pin!(one_way(&mut from_near, &mut to_far, link, there));
    let mut back = pin!(one_way(&mut from_far, &mut to_near, link, back));
    tokio::select! {
        () = &mut there => return,
        () = &mut back => return,
        () = lost => {}
    }
    match link.loss {
        Loss::Closed => {}
        // The ends wait until they have enough.
        Loss::Silent => env::clock::sleep(SILENCE).await,
        Loss::OneWay => drop(env::clock::timeout(SILENCE, there).await),
    }
}

async fn one_way(
    from: &mut (impl AsyncReadExt + Unpin),
    to: &mut (impl AsyncWriteExt + Unpin),
    link: Link,
    mut random: Random,
) {
    let mut piece = vec![0; PIECE];
    loop {
        let most = 1 + random.below(PIECE as u64) as usize;
        let Ok(count @ 1..) = from.read(&mut piece[..most]).await else { return };
        if link.micros > 0 {
            env::clock::sleep(Duration::from_micros(random.below(link.micros))).await;
        }
        if to.write_all(&piece[..count]).await.is_err() {
            return;
        }
    }
}
