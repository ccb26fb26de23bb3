//! The limits of the local disk, computed from the settings, the file system, and what is stored.

use crate::config::PageServerConf;
use crate::disk_budget::Measured;
use virtual_file::fs::DiskSpace;

/// Maximum room to keep free in advance, unless in-memory layers are large.
const HEADROOM_MAX: u64 = 1 << 30;
/// Maximum reserve if `disk_reserve` is 0.
const RESERVE_MAX: u64 = 2 << 30;

/// Bytes on the local disk, by what can be done about them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// Layers, resident and partially cached.
    pub(super) resident: u64,
    /// Those of them that the bucket does not have.
    pub(super) not_uploaded: u64,
    /// Values of in-memory layers, stored in ephemeral files.
    pub(super) in_memory: u64,
    /// Files of imports under way, and what compaction writes.
    pub(super) importing: u64,
    /// Those of their bytes that are not written yet.
    pub(super) promised: u64,
}

/// The limits of the local disk at one moment.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    /// `disk_budget`, if set.
    pub(super) budget: Option<u64>,
    pub(super) space: Option<DiskSpace>,
    /// Bytes of the file system to keep free.
    pub(super) reserve: u64,
    pub(super) checkpoint_distance: u64,
    /// The bucket, if there is one.
    pub(super) bucket: Option<String>,
}

impl Limits {
    pub(super) fn of(conf: &PageServerConf, space: Option<DiskSpace>) -> Self {
        let default = space.map_or(0, |space| (space.total / 20).min(RESERVE_MAX));
        Self {
            budget: Some(conf.disk_budget_bytes).filter(|bytes| *bytes > 0),
            space,
            reserve: if conf.disk_reserve > 0 { conf.disk_reserve } else { default },
            checkpoint_distance: conf.checkpoint_distance,
            bucket: conf.remote_storage.as_ref().map(|storage| storage.url().to_owned()),
        }
    }

    pub(super) fn measure(&self, usage: &Usage) -> Measured {
        let room_in = |limit: u64, used: u64| signed(limit) - signed(used);
        let used = usage.resident.saturating_add(usage.in_memory).saturating_add(usage.importing);
        let by_budget = self.budget.map(|budget| room_in(budget, used));
        let by_disk = self.space.map(|space| room_in(space.free, self.reserve.saturating_add(usage.promised)));
        let room = by_budget.into_iter().chain(by_disk).min().unwrap_or(i64::MAX);
        let capacity = self.budget.into_iter().chain(self.space.map(|space| space.total)).min();
        let evict_below = signed((capacity.unwrap_or(0) / 8).min(HEADROOM_MAX.max(4 * self.checkpoint_distance)));
        Measured {
            room,
            capacity: capacity.unwrap_or(u64::MAX),
            slow_below: evict_below / 2,
            evict_below,
            resident: usage.resident,
            not_uploaded: usage.not_uploaded,
            in_memory: usage.in_memory,
            importing: usage.importing,
            disk_free: self.space.map(|space| space.free),
            advice: self.advice(usage, by_budget.is_some_and(|by_budget| by_budget == room)),
        }
    }

    /// Explains why room is short, and what to do.
    fn advice(&self, usage: &Usage, by_budget: bool) -> String {
        let limit = match (by_budget, self.budget, self.space) {
            (true, Some(budget), _) => format!("disk_budget is {}", mib(budget)),
            (_, _, Some(space)) => format!(
                "no space: the file system has {} free, and disk_reserve keeps {} of it",
                mib(space.free),
                mib(self.reserve)
            ),
            _ => "there is no limit".to_owned(),
        };
        let mut held = format!("{} of layers and {} in memory", mib(usage.not_uploaded), mib(usage.in_memory));
        if usage.importing > 0 {
            held = format!("{} of imports, {held}", mib(usage.importing));
        }
        let larger = if by_budget { "raise disk_budget" } else { "free disk" };
        match &self.bucket {
            Some(bucket) => {
                format!("{limit}; {held} are not in the bucket yet. See that {bucket} can be reached, or {larger}")
            }
            None => {
                format!("{limit}; {held} are here, and no bucket (remote_storage) takes them. Set one, or {larger}")
            }
        }
    }
}

impl Measured {
    /// Bytes to evict: somewhat more than needed, so that the next eviction is not due at once.
    pub(super) fn shortage(&self) -> u64 {
        if self.room >= self.evict_below {
            return 0;
        }
        u64::try_from(self.evict_below + self.evict_below / 4 - self.room).unwrap_or(0)
    }
}

fn signed(bytes: u64) -> i64 {
    // Halved so that differences do not overflow.
    i64::try_from(bytes).unwrap_or(i64::MAX).min(i64::MAX / 2)
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn limits(budget: Option<u64>, free: Option<u64>) -> Limits {
        Limits {
            budget: budget.map(|mib| mib * MIB),
            space: free.map(|free| DiskSpace { total: 1000 * MIB, free: free * MIB }),
            reserve: 50 * MIB,
            checkpoint_distance: 4 * MIB,
            bucket: Some("s3://bucket".to_owned()),
        }
    }

    fn usage(resident: u64, in_memory: u64) -> Usage {
        Usage { resident: resident * MIB, not_uploaded: 3 * MIB, in_memory: in_memory * MIB, ..Usage::default() }
    }

    #[test]
    fn the_tighter_limit_counts() {
        let room = |limits: Limits| limits.measure(&usage(60, 20)).room >> 20;
        assert_eq!(room(limits(Some(100), None)), 20);
        assert_eq!(room(limits(None, Some(40))), -10);
        assert_eq!(room(limits(Some(100), Some(60))), 10);
        assert_eq!(room(limits(Some(64), Some(900))), -16);
        assert_eq!(limits(None, None).measure(&usage(60, 20)).room, i64::MAX);
        let importing = Usage { importing: 7 * MIB, ..usage(60, 20) };
        assert_eq!(limits(Some(100), None).measure(&importing).room >> 20, 13);
        assert_eq!(limits(None, Some(60)).measure(&importing).room >> 20, 10, "they are not free any more");
        let promised = Usage { promised: 5 * MIB, ..importing };
        assert_eq!(limits(Some(100), None).measure(&promised).room >> 20, 13);
        assert_eq!(limits(None, Some(60)).measure(&promised).room >> 20, 5, "they are free, but not for others");
    }

    #[test]
    fn eviction_comes_before_slowing_and_slowing_before_refusal() {
        let measured = limits(Some(80), None).measure(&usage(75, 0));
        assert_eq!((measured.evict_below, measured.slow_below), (10 << 20, 5 << 20));
        assert_eq!(measured.shortage(), 7 * MIB + MIB / 2);
        assert_eq!(limits(Some(80), None).measure(&usage(70, 0)).shortage(), 0);
        assert_eq!(limits(Some(80), None).measure(&usage(100, 0)).shortage(), 32 * MIB + MIB / 2);
        assert_eq!(limits(None, None).measure(&usage(100, 0)).shortage(), 0);
    }

    #[test]
    fn advice_names_the_limit_and_what_to_do() {
        let advice = |limits: Limits| limits.measure(&usage(60, 20)).advice;
        let of_budget = advice(limits(Some(64), None));
        assert_eq!(
            of_budget,
            "disk_budget is 64 MiB; 3 MiB of layers and 20 MiB in memory are not in the bucket yet. See that \
             s3://bucket can be reached, or raise disk_budget"
        );
        let of_disk = advice(limits(None, Some(40)));
        assert!(of_disk.contains("40 MiB free") && of_disk.ends_with("or free disk"), "{of_disk}");
        let alone = advice(Limits { bucket: None, ..limits(None, Some(40)) });
        assert!(alone.contains("remote_storage"), "{alone}");
    }
}
