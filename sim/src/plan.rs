//! What a run does, drawn from its seed: which operations and faults there are at all, how often, and in which order.

use std::time::Duration;

use engine::config::LeasePolicy;
use simulated::random::Random;

macro_rules! acts {
    ($($(#[doc = $doc:literal])+ $name:ident = $most:literal,)+) => {
        /// Something that happens to the world.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Act {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Act {
            /// All of them, and how often each comes at most beside the others.
            pub const ALL: &[(Act, u64)] = &[$((Act::$name, $most),)+];
        }
    };
}

acts! {
    /// Postgres writes some records.
    Write = 12,
    /// Postgres goes on with another timeline of its own.
    Promote = 1,
    /// A timeline is written to layers.
    Flush = 4,
    /// Somebody reads, at several moments of a history.
    Read = 8,
    /// Layers leave the local disk.
    Evict = 2,
    /// Layers that left the disk are replaced while they are read.
    ReadReplaced = 1,
    /// A branch is made at some moment.
    Branch = 3,
    /// A branch is deleted.
    DeleteBranch = 1,
    /// A branch becomes a timeline of its own.
    DetachBranch = 1,
    /// A moment is held by name.
    Hold = 2,
    /// A hold ends.
    Release = 1,
    /// A moment is leased for a time.
    Lease = 1,
    /// Compaction does what is due.
    Compact = 3,
    /// History that nothing keeps goes.
    CollectGarbage = 4,
    /// A server ends as it should, and starts again.
    Restart = 1,
    /// A server is killed, its machine goes on.
    Kill = 2,
    /// A server is killed in the middle of what an operator asks for.
    KillMeanwhile = 2,
    /// A server's machine stops, and what was not synced is lost or torn.
    Crash = 2,
    /// A server's disk is lost.
    LoseDisk = 1,
    /// The other server takes a tenant over; the former owner does not know yet.
    TakeOver = 1,
    /// A server does nothing for a while.
    Pause = 1,
    /// A server's clock is set.
    SetClock = 1,
    /// The bucket fails now and then.
    BreakBucket = 2,
    /// The bucket is gone.
    LoseBucket = 1,
    /// A disk has no room for a while.
    FillDisk = 1,
    /// A sync fails, which ends the server.
    FailSync = 1,
    /// A layer on the disk is not what was written; the bucket has a good copy.
    Rot = 1,
    /// Lists of the bucket lag for a while.
    LagLists = 1,
    /// Another part of the history is kept from now on.
    Limit = 1,
    /// Time passes.
    Wait = 3,
}

/// One thing that happens, and all the chance that it takes.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Its number in the plan of the seed.
    pub number: usize,
    /// Time that passes before.
    pub after: Duration,
    /// What happens.
    pub act: Act,
    /// The seed of everything about it, so that it is the same whatever else is left out.
    pub chance: u64,
}

/// What is the same for a whole run.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// What writes is a Postgres, whose WAL is received over connections. Otherwise values come as from a decoder.
    pub is_postgres: bool,
    /// Servers have a journal, which makes the WAL durable that they receive.
    pub has_journal: bool,
    /// Number of tenants.
    pub tenants: usize,
    /// Size in bytes at which an in-memory layer is frozen.
    pub checkpoint_distance: u64,
    /// Bytes of history that are always kept.
    pub gc_horizon: u64,
    /// Time for which history is kept; zero: none.
    pub pitr_interval: Duration,
    /// How often history goes by itself; zero: never.
    pub gc_period: Duration,
    /// How long no history goes after a tenant was attached; the bucket's lists may lag so long.
    pub quiet_after_attach: Duration,
    /// L0 layers at which ingest is slowed; 0: never.
    pub l0_slow: usize,
    /// How long a call of the disk takes at most, in microseconds; 0: no time at all.
    pub disk_micros: u64,
    /// How long a call of the bucket takes, in microseconds.
    pub bucket_micros: u64,
    /// Whether servers keep leases and take over by themselves; no world of [`Plan`] does.
    pub lease: LeasePolicy,
    /// How often WAL that only the journal has is put into the bucket; no world of [`Plan`] does.
    pub tail: Option<Duration>,
    /// What a server may take.
    pub memory: Memory,
}

/// Limits of a server's memory, each of them tight or roomy.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Bytes for blocks from the bucket.
    pub blocks: u64,
    /// Pages of 8 KiB for what layers' indexes and reads need.
    pub pages: usize,
    /// Bytes of an in-memory layer that stay in memory although the disk has them.
    pub kept: u64,
    /// In-memory layers that are written out at once.
    pub flushes: usize,
    /// Bytes for what a job of compaction reads.
    pub job: u64,
    /// Bytes of all in-memory layers together that stay in memory if they are all of their layer.
    pub values: u64,
    /// At how many bytes an in-memory layer is copied in order if its values are scattered.
    pub copied: u64,
}

impl Memory {
    /// The same for worlds in which nothing depends on how layers are written: that takes no turn of anything else.
    pub fn sealed_in_place(self) -> Self {
        Self { values: 0, copied: u64::MAX, ..self }
    }

    /// From a seed of its own, so that no plan changes with it.
    fn draw(seed: u64) -> Self {
        let mut random = Random::new(!seed);
        let mut one_of = |choices: &[u64]| choices[random.below(choices.len() as u64) as usize];
        Self {
            blocks: one_of(&[96 << 10, 1 << 20, 16 << 20]),
            pages: one_of(&[2, 16, 1024]) as usize,
            kept: one_of(&[0, 4096, 16 << 20]),
            flushes: one_of(&[1, 2, 8]) as usize,
            job: one_of(&[30_000, 60_000, 1_000_000]),
            values: one_of(&[0, 100_000, 16 << 20]),
            copied: one_of(&[0, 4 << 20]),
        }
    }
}

/// A run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What all of it was drawn from.
    pub seed: u64,
    /// What is the same for the whole run.
    pub setting: Setting,
    /// What happens.
    pub steps: Vec<Step>,
    /// How long nothing happens afterwards.
    pub idle: Duration,
}

impl Plan {
    /// The plan of a seed.
    pub fn draw(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let setting = Setting::draw(Memory::draw(seed), &mut random);
        // As with memory.
        let has_journal = setting.is_postgres && Random::new(seed.rotate_left(17)).coin();
        let setting = Setting { has_journal, ..setting };
        let mut weights: Vec<(Act, u64)> = Vec::new();
        for (act, most) in Act::ALL {
            // A third of all kinds are not there: what is rare beside everything else is then frequent.
            let weight = if random.below(3) == 0 { 0 } else { 1 + random.below(*most * 2) };
            let least = match act {
                Act::Write => 6,
                Act::Read => 1,
                _ => 0,
            };
            weights.push((*act, weight.max(least)));
        }
        // Most of what was ever found takes few steps, and many small worlds differ in more ways than few large ones.
        let most = [10, 10, 10, 10, 24, 24, 24, 60][random.below(8) as usize];
        let count = 2 + random.below(most - 1) as usize;
        let longest = [200, 5_000, 60_000][random.below(3) as usize];
        let step = |number| Step {
            number,
            after: Duration::from_millis(random.below(longest)),
            act: pick(&weights, &mut random),
            chance: random.next(),
        };
        Self { seed, setting, steps: (0..count).map(step).collect(), idle: Duration::ZERO }
    }

    /// The same with only the steps that have these numbers.
    #[must_use]
    pub fn only(&self, numbers: &[usize]) -> Self {
        let steps = self.steps.iter().filter(|step| numbers.contains(&step.number)).copied().collect();
        Self { steps, ..self.clone() }
    }
}

impl Setting {
    fn draw(memory: Memory, random: &mut Random) -> Self {
        let mut one_of = |choices: &[u64]| choices[random.below(choices.len() as u64) as usize];
        Self {
            is_postgres: one_of(&[0, 0, 1]) == 1,
            has_journal: false,
            lease: LeasePolicy::OFF,
            tail: None,
            memory,
            // What takes many steps of one tenant is then found all the same.
            tenants: one_of(&[1, 1, 2, 3]) as usize,
            checkpoint_distance: one_of(&[8_000, 30_000, 100_000, 400_000]),
            gc_horizon: one_of(&[64, 500, 5_000]),
            pitr_interval: Duration::from_secs(one_of(&[0, 0, 60, 900])),
            gc_period: Duration::from_secs(one_of(&[0, 20, 120])),
            quiet_after_attach: Duration::from_secs(one_of(&[0, 300])),
            l0_slow: one_of(&[0, 3]) as usize,
            disk_micros: one_of(&[0, 2_000, 20_000]),
            bucket_micros: one_of(&[0, 4_000, 40_000]),
        }
    }
}

fn pick(weights: &[(Act, u64)], random: &mut Random) -> Act {
    let sum = weights.iter().map(|(_, weight)| weight).sum();
    let mut at = random.below(sum);
    for (act, weight) in weights {
        match at.checked_sub(*weight) {
            Some(left) => at = left,
            None => return *act,
        }
    }
    Act::Wait
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_has_one_plan_and_every_act_occurs() {
        let (one, again) = (Plan::draw(7), Plan::draw(7));
        assert_eq!(format!("{one:?}"), format!("{again:?}"));
        let acts: Vec<Act> = (0..100).flat_map(|seed| Plan::draw(seed).steps).map(|step| step.act).collect();
        for (act, _) in Act::ALL {
            assert!(acts.contains(act), "{act:?}");
        }
        assert_eq!(one.only(&[2, 5]).steps.iter().map(|step| step.number).collect::<Vec<_>>(), [2, 5]);
    }
}
