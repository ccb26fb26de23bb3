//! Chooses which layers to evict from the local disk: a pure function of what is known about them.
//!
//! Only layers that the bucket has may be evicted. Partially cached layers go first, by recency, as far as they
//! exceed their own budget. Then the least recently read layers go, whichever tenant owns them; but each tenant has a
//! reserve, its most recently read layers up to the size of its largest one, which is touched only when nothing else
//! is left. Layers of archived timelines go before all others, and are in no reserve.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use pageserver_api::shard::TenantShardId;

/// A layer that takes room on the local disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The tenant that owns it.
    pub tenant: TenantShardId,
    /// When it was last read, by any clock that all candidates share.
    pub last_access: u64,
    /// Bytes that it takes on the local disk.
    pub bytes: u64,
    /// Whether only some of its blocks are cached.
    pub partial: bool,
    /// Whether the bucket has it.
    pub uploaded: bool,
    /// Whether its timeline is archived.
    pub archived: bool,
}

/// What an eviction should achieve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Want {
    /// Bytes to free.
    pub bytes: u64,
    /// Maximum bytes of all partially cached layers together.
    pub partial_max: u64,
}

/// Returns the indices of the candidates to evict, in the order of eviction.
pub fn choose(candidates: &[Candidate], want: Want) -> Vec<usize> {
    let reserved = reserve(candidates);
    let partial: u64 = candidates.iter().filter(|it| it.partial).map(|it| it.bytes).sum();
    let mut too_many = partial.saturating_sub(want.partial_max);
    let mut evictable: Vec<(usize, &Candidate)> =
        candidates.iter().enumerate().filter(|(_, it)| it.uploaded && it.bytes > 0).collect();
    let order =
        |number: usize, it: &Candidate| (reserved[number], !it.archived, it.last_access, Reverse(it.bytes), number);
    evictable.sort_by_key(|(number, it)| order(*number, it));

    let (mut chosen, mut freed) = (Vec::new(), 0_u64);
    let mut by_age = evictable.clone();
    by_age.sort_by_key(|(number, it)| (!it.archived, it.last_access, *number));
    for (number, candidate) in by_age.into_iter().filter(|(_, it)| it.partial) {
        if too_many > 0 {
            chosen.push(number);
            too_many = too_many.saturating_sub(candidate.bytes);
            freed = freed.saturating_add(candidate.bytes);
        }
    }
    let gone: HashSet<usize> = chosen.iter().copied().collect();
    for (number, candidate) in evictable {
        if freed >= want.bytes {
            break;
        }
        if !gone.contains(&number) {
            chosen.push(number);
            freed = freed.saturating_add(candidate.bytes);
        }
    }
    chosen
}

/// For each candidate, whether it belongs to its tenant's reserve.
fn reserve(candidates: &[Candidate]) -> Vec<bool> {
    let mut left: HashMap<TenantShardId, u64> = HashMap::new();
    for candidate in candidates.iter().filter(|it| !it.archived) {
        let largest = left.entry(candidate.tenant).or_default();
        *largest = candidate.bytes.max(*largest);
    }
    let mut newest_first: Vec<usize> = (0..candidates.len()).filter(|number| !candidates[*number].archived).collect();
    newest_first.sort_by_key(|number| (Reverse(candidates[*number].last_access), *number));
    let mut reserved = vec![false; candidates.len()];
    for number in newest_first {
        let candidate = &candidates[number];
        if let Some(left) = left.get_mut(&candidate.tenant) {
            match left.checked_sub(candidate.bytes) {
                Some(rest) => (*left, reserved[number]) = (rest, true),
                // Layers read earlier must not be kept longer than this one.
                None => *left = 0,
            }
        }
    }
    reserved
}

#[cfg(test)]
mod tests;
