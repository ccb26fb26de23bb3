//! Turns of work that only one at a time may do, fair between tenants: whose work has taken least so far comes first.
//!
//! Each piece of work starts, on a clock of bytes, where the tenant's last one ends, but not before what is being done
//! now; the one that starts first is next (start-time fair queueing). So a tenant with many large timelines leaves
//! others their share, one that comes late has saved up nothing, and a lone one has all; a timeline that asks again
//! only after it has worked waits for one piece of another tenant's work meanwhile. Who has waited for [`PATIENCE`]
//! comes first whatever the clock says.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use utils::shard::TenantShardId;

/// Nobody who has waited for this long waits for others who came later.
const PATIENCE: Duration = Duration::from_secs(600);

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Turns {
    queue: Mutex<Queue>,
}

/// The right to work, until it is dropped; before it is granted, a place in the queue.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    number: u64,
}

#[derive(Default)]
struct Queue {
    /// Who works.
    holder: Option<u64>,
    waiting: Vec<Waiting>,
    /// Number of the next one.
    next: u64,
    /// Where the work that is being done, or was last, starts.
    clock: u64,
    /// Where each tenant's work ends, if after `clock`.
    ends: HashMap<TenantShardId, u64>,
}

struct Waiting {
    number: u64,
    start: u64,
    since: Instant,
    granted: oneshot::Sender<()>,
}

impl Turns {
    /// Waits for a turn to do `bytes` of work for a tenant.
    pub(crate) async fn take(&self, tenant: TenantShardId, bytes: u64) -> Turn<'_> {
        let (number, granted) = self.queue.lock().enter(tenant, bytes);
        // Leaves the queue, or passes the turn on, if this future is dropped.
        let turn = Turn { turns: self, number };
        // The sender goes only when it was used, or with `turn`.
        let _ = granted.await;
        turn
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.queue.lock().leave(self.number);
    }
}

impl Queue {
    fn enter(&mut self, tenant: TenantShardId, bytes: u64) -> (u64, oneshot::Receiver<()>) {
        let (number, (granted, receiver)) = (self.next, oneshot::channel());
        self.next += 1;
        let clock = self.clock;
        self.ends.retain(|_, end| *end > clock);
        let end = self.ends.entry(tenant).or_insert(clock);
        let start = *end;
        *end = start.saturating_add(bytes.max(1));
        self.waiting.push(Waiting { number, start, since: env::clock::now(), granted });
        self.grant();
        (number, receiver)
    }

    fn leave(&mut self, number: u64) {
        self.waiting.retain(|waiting| waiting.number != number);
        if self.holder == Some(number) {
            self.holder = None;
        }
        self.grant();
    }

    /// Grants the turn to who is next, if nobody has it.
    fn grant(&mut self) {
        if self.holder.is_some() {
            return;
        }
        let now = env::clock::now();
        let order = |waiting: &Waiting| {
            let is_patient = now.saturating_duration_since(waiting.since) < PATIENCE;
            (is_patient, if is_patient { waiting.start } else { 0 }, waiting.number)
        };
        let next = self.waiting.iter().enumerate().min_by_key(|(_, waiting)| order(waiting)).map(|(at, _)| at);
        if let Some(at) = next {
            let Waiting { number, start, granted, .. } = self.waiting.swap_remove(at);
            self.holder = Some(number);
            self.clock = self.clock.max(start);
            // Who does not wait any more passes it on when its `Turn` is dropped.
            let _ = granted.send(());
        }
    }
}

impl fmt::Debug for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = self.queue.lock();
        f.debug_struct("Turns").field("holder", &queue.holder).field("waiting", &queue.waiting.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use futures_util::poll;
    use utils::id::TenantId;

    use super::*;

    fn tenant(number: u8) -> TenantShardId {
        TenantShardId::unsharded(TenantId::from([number; 16]))
    }

    /// Works whenever it has a turn, from when `begin` bytes are done in all until `end` are.
    async fn work(turns: &Turns, done: &Mutex<Vec<(u8, u64)>>, number: u8, bytes: u64, (begin, end): (u64, u64)) {
        let all = || done.lock().iter().map(|(_, bytes)| bytes).sum::<u64>();
        while all() < begin {
            tokio::task::yield_now().await;
        }
        while all() < end {
            let _turn = turns.take(tenant(number), bytes).await;
            done.lock().push((number, bytes));
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn tenants_have_equal_shares_however_much_they_ask_for() {
        let (turns, done) = (Turns::default(), Mutex::default());
        // Of the first tenant eight timelines with large layers, of the second many with small ones; the last one comes
        // late.
        let some = |count: usize, tenant: u8, bytes: u64, begin: u64| {
            std::iter::repeat_n((tenant, bytes, (begin, 60_000)), count)
        };
        let timelines = some(8, 1, 256, 0).chain(some(40, 2, 16, 0)).chain(some(8, 3, 64, 30_000));
        join_all(timelines.map(|(number, bytes, when)| work(&turns, &done, number, bytes, when))).await;
        let done = done.into_inner();
        // What each has done between these bytes of all work.
        let of = |number: u8, when: std::ops::Range<u64>| -> u64 {
            let mut all = 0;
            let within = done.iter().filter(|(_, bytes)| {
                all += bytes;
                when.contains(&all)
            });
            within.filter(|(of, _)| *of == number).map(|(_, bytes)| bytes).sum()
        };
        let shares = [1, 2].map(|number| of(number, 0..30_000));
        assert!(shares.iter().all(|bytes| (14_000..=16_000).contains(bytes)), "{shares:?} of 30,000");
        let shares = [1, 2, 3].map(|number| of(number, 30_000..60_000));
        assert!(shares.iter().all(|bytes| (9_000..=11_000).contains(bytes)), "{shares:?} of 30,000");
    }

    #[tokio::test]
    async fn who_goes_leaves_the_turn_to_others() {
        let turns = Turns::default();
        let first = turns.take(tenant(1), 10).await;
        let mut second = Box::pin(turns.take(tenant(2), 10));
        let mut third = Box::pin(turns.take(tenant(3), 10));
        assert!(poll!(&mut second).is_pending() && poll!(&mut third).is_pending());
        drop(first);
        // It was granted, and is dropped before it was looked at.
        drop(second);
        let third = third.await;
        let mut fourth = Box::pin(turns.take(tenant(1), 10));
        assert!(poll!(&mut fourth).is_pending());
        drop(fourth);
        drop(third);
        drop(turns.take(tenant(4), 10).await);
        assert!(turns.queue.lock().waiting.is_empty() && turns.queue.lock().holder.is_none());
    }

    #[tokio::test]
    async fn nobody_waits_for_ever() {
        env::clock::freeze_thread();
        let turns = Turns::default();
        drop(turns.take(tenant(1), u64::MAX / 2).await);
        let mut holder = turns.take(tenant(2), 1).await;
        let mut first = Box::pin(turns.take(tenant(1), 1));
        for second in 0..700u64 {
            assert!(poll!(&mut first).is_pending());
            let mut next = Box::pin(turns.take(tenant(2), 1));
            assert!(poll!(&mut next).is_pending());
            drop(holder);
            if poll!(&mut first).is_ready() {
                assert!(second >= 599, "after {second} s");
                env::clock::thaw_thread();
                return;
            }
            holder = next.await;
            env::clock::advance_thread(Duration::from_secs(1));
        }
        panic!("it waits for more than eleven minutes");
    }
}
