//! Tenants that are handed over from one server to the other while things fail: an order, and soon after it, in the
//! midst of what follows from that, a server that does nothing for some time, or is killed.

use std::time::{Duration, Instant};

use engine::placement::What;
use pageserver_api::shard::TenantShardId;
use simulated::random::Random;

use crate::server::Server;
use crate::story::{Story, tell};

/// How long an order holds.
const HOLDS: Duration = Duration::from_secs(20);
/// How long somebody waits until it is given.
const PATIENCE: Duration = Duration::from_secs(5);
/// An order takes about as long, if nothing fails.
const COURSE_MILLIS: u64 = 3_000;
/// What happens in its course lasts up to so long.
const LENGTH_MILLIS: u64 = 15_000;

/// What happens to a server in the course of a handover.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doom {
    /// When.
    pub(crate) at: Instant,
    /// To which server.
    pub(crate) number: usize,
    /// It is killed, and otherwise does nothing.
    pub(crate) is_death: bool,
    /// For how long.
    pub(crate) length: Duration,
}

/// Has some server order that some server is to own the tenant. Returns what happens then, if anything does.
pub(crate) async fn order(
    servers: &[Server],
    tenant: TenantShardId,
    random: &mut Random,
    story: &Story,
) -> Option<Doom> {
    let mut some = || random.below(servers.len() as u64) as usize;
    let (asked, to, number) = (servers.get(some())?, servers.get(some())?.name, some());
    let (at, length) = (random.below(COURSE_MILLIS), Duration::from_millis(random.below(LENGTH_MILLIS)));
    let (is_death, is_calm) = (random.coin(), random.below(4) == 0);
    let manager = asked.manager()?;
    let giving = async move { manager.order(tenant, What::Move, to, HOLDS).await };
    match asked.run("an order", PATIENCE, giving).await {
        Some(Ok(order)) => tell!(story, "{} is told that {to} is to own the tenant: {order:?}", asked.name),
        Some(Err(error)) => tell!(story, "{} takes no order that {to} is to own the tenant: {error}", asked.name),
        None => {}
    }
    // They look for it by themselves, too, after some time.
    for server in servers {
        let Some(manager) = server.manager() else { continue };
        let looking = async move { drop(manager.order_status(tenant).await) };
        let process = server.process()?.clone();
        drop(process.enter(|| env::spawn::task("a look at an order", looking)));
    }
    let at = env::clock::now() + Duration::from_millis(at);
    (!is_calm).then_some(Doom { at, number, is_death, length })
}
