//! Faults of the surroundings: when they are, so that errors can be told from broken promises.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use simulated::bucket::{Fault, FaultyStore, Op};
use simulated::random::Random;

/// Faults that are, and have been. Cheap to clone.
#[derive(Clone, Default)]
pub struct Weather(Arc<Mutex<Option<Instant>>>);

impl Weather {
    /// From now on, for `length`, something fails.
    pub fn worsen(&self, length: Duration) {
        let until = env::clock::now() + length;
        let mut end = self.0.lock();
        *end = Some(end.map_or(until, |end| end.max(until)));
    }

    /// All faults end now.
    pub fn clear(&self) {
        let now = env::clock::now();
        if let Some(end) = &mut *self.0.lock() {
            *end = (*end).min(now);
        }
    }

    /// Whether anything has failed since `since`, or could still have its consequences then.
    pub fn was_bad_since(&self, since: Instant) -> bool {
        self.0.lock().is_some_and(|end| end >= since)
    }

    /// The end of the last fault.
    pub fn ends(&self) -> Option<Instant> {
        *self.0.lock()
    }
}

/// Makes calls of the bucket fail, as drawn from `seed`: some kinds of faults, of some kinds of calls.
pub fn break_bucket(bucket: &FaultyStore, seed: u64) -> String {
    let mut random = Random::new(seed);
    let mut some = |all: usize| (0..all).map(|_| random.below(3) == 0).collect::<Vec<bool>>();
    let (ops, kinds) = (some(Op::ALL.len()), some(Fault::ALL.len()));
    let ops: Vec<Op> = Op::ALL.into_iter().zip(&ops).filter(|(_, on)| **on).map(|(op, _)| op).collect();
    let kinds: Vec<Fault> = Fault::ALL.into_iter().zip(&kinds).filter(|(_, on)| **on).map(|(it, _)| it).collect();
    let kinds = if kinds.is_empty() { vec![Fault::ErrorAfter] } else { kinds };
    let one_in = 1 + random.below(6);
    let told = format!("one in {one_in} calls of {ops:?} with {kinds:?}");
    bucket.set_plan(move |op, _, _| {
        let chance = random.next();
        let fault = kinds.get((chance >> 32) as usize % kinds.len())?;
        let is_hit = chance.is_multiple_of(one_in) && (ops.is_empty() || ops.contains(&op)) && fault.applies(op);
        is_hit.then_some(*fault)
    });
    told
}
