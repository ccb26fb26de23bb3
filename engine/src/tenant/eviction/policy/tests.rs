//! Properties of the choice, and a few hand-written cases.

use std::collections::BTreeSet;

use proptest::prelude::*;
use utils::id::TenantId;

use super::*;

fn tenant(number: u8) -> TenantShardId {
    TenantShardId::unsharded(TenantId::from([number; 16]))
}

fn candidate() -> impl Strategy<Value = Candidate> {
    let archived = prop::bool::weighted(0.2);
    (0_u8..3, 0_u64..50, 0_u64..100, any::<bool>(), prop::bool::weighted(0.8), archived).prop_map(
        |(owner, last_access, bytes, partial, uploaded, archived)| Candidate {
            tenant: tenant(owner),
            last_access,
            bytes,
            partial,
            uploaded,
            archived,
        },
    )
}

fn sum<'a>(candidates: impl IntoIterator<Item = &'a Candidate>) -> u64 {
    candidates.into_iter().map(|it| it.bytes).sum()
}

proptest! {
    #[test]
    fn what_is_chosen_may_go_and_is_enough(all in prop::collection::vec(candidate(), 0..40), bytes in 0_u64..2000,
        partial_max in 0_u64..500) {
        let chosen = choose(&all, Want { bytes, partial_max });
        let set: BTreeSet<usize> = chosen.iter().copied().collect();
        prop_assert_eq!(set.len(), chosen.len());
        prop_assert!(chosen.iter().all(|number| all[*number].uploaded && all[*number].bytes > 0));
        // Enough, or everything that may be evicted.
        let evictable = sum(all.iter().filter(|it| it.uploaded));
        let freed = sum(chosen.iter().map(|number| &all[*number]));
        prop_assert!(freed >= bytes.min(evictable));
        // Partial layers are within their budget, or none of them can be evicted any more.
        let kept = || all.iter().enumerate().filter(|(number, _)| !set.contains(number)).map(|(_, it)| it);
        let partial = sum(kept().filter(|it| it.partial));
        prop_assert!(partial <= partial_max || kept().all(|it| !it.partial || !it.uploaded || it.bytes == 0));
    }

    #[test]
    fn nothing_goes_without_need(all in prop::collection::vec(candidate(), 0..40), bytes in 0_u64..2000) {
        let chosen = choose(&all, Want { bytes, partial_max: u64::MAX });
        if let Some((_, but_last)) = chosen.split_last() {
            prop_assert!(sum(but_last.iter().map(|number| &all[*number])) < bytes);
        }
        let none = choose(&all, Want { bytes: 0, partial_max: u64::MAX });
        prop_assert!(none.is_empty());
    }

    #[test]
    fn the_oldest_go_first_and_reserves_last(all in prop::collection::vec(candidate(), 0..40), bytes in 0_u64..2000) {
        let chosen = choose(&all, Want { bytes, partial_max: u64::MAX });
        let reserved = reserve(&all);
        let order = |number: &usize| (reserved[*number], !all[*number].archived, all[*number].last_access);
        prop_assert!(chosen.is_sorted_by_key(order));
        let may_go = |number: &usize| all[*number].uploaded && all[*number].bytes > 0;
        let kept = (0..all.len()).filter(|number| !chosen.contains(number) && may_go(number));
        if let Some(last) = chosen.last() {
            prop_assert!(kept.into_iter().all(|number| order(&number) >= order(last)));
        }
    }

    #[test]
    fn a_reserve_is_no_larger_than_the_largest_layer(all in prop::collection::vec(candidate(), 0..40)) {
        let reserved = reserve(&all);
        for owner in (0..3).map(tenant) {
            let own = || all.iter().zip(&reserved).filter(|(it, _)| it.tenant == owner);
            let largest = own().map(|(it, _)| it.bytes).max().unwrap_or(0);
            prop_assert!(sum(own().filter(|(_, kept)| **kept).map(|(it, _)| it)) <= largest);
            prop_assert!(own().all(|(it, kept)| !(it.archived && *kept)), "what is archived has no reserve");
            // It contains the layer that was read last.
            prop_assert!(own().all(|(it, _)| it.archived) || own().any(|(_, kept)| *kept));
        }
    }
}

#[test]
fn one_tenant_cannot_drive_out_another() {
    let layer = |owner, last_access, bytes| Candidate {
        tenant: tenant(owner),
        last_access,
        bytes,
        partial: false,
        uploaded: true,
        archived: false,
    };
    // The quiet tenant's layers are older than all of the busy one's.
    let all = [layer(1, 1, 10), layer(1, 2, 10), layer(2, 50, 10), layer(2, 51, 10), layer(2, 52, 10)];
    let choose = |bytes| choose(&all, Want { bytes, partial_max: u64::MAX });
    assert_eq!(choose(10), [0]);
    assert_eq!(choose(30), [0, 2, 3], "each keeps the one that it read last");
    assert_eq!(choose(31), [0, 2, 3, 1], "until nothing else is left");
    assert_eq!(choose(1000), [0, 2, 3, 1, 4]);
}

#[test]
fn what_is_archived_goes_first() {
    let layer = |owner, last_access, archived| Candidate {
        tenant: tenant(owner),
        last_access,
        bytes: 10,
        partial: false,
        uploaded: true,
        archived,
    };
    let all = [layer(1, 1, false), layer(1, 60, true), layer(2, 50, false), layer(2, 2, true)];
    let choose = |bytes| choose(&all, Want { bytes, partial_max: u64::MAX });
    assert_eq!(choose(10), [3]);
    assert_eq!(choose(20), [3, 1], "even if it was read last");
    assert_eq!(choose(1000), [3, 1, 0, 2]);
    let waits = [Candidate { uploaded: false, ..all[1] }, all[0]];
    let chosen = super::choose(&waits, Want { bytes: 20, partial_max: u64::MAX });
    assert_eq!(chosen, [1], "only what the bucket has");
}
