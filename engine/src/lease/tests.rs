use super::objects::Renewal;
use super::*;

const T: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);

fn renewal(life: &str, renewal: u64, takeover_after: Duration) -> Renewal {
    let (server, host) = ("a".to_owned(), "h".to_owned());
    let takeover_after_ms = takeover_after.as_millis() as u64;
    Renewal { server, host, life: life.to_owned(), renewal, takeover_after_ms }
}

#[test]
fn a_term_counts_from_the_question_and_ends_a_fifth_early() {
    let start = env::clock::now();
    let mut term = Term::new(T);
    assert_eq!((term.left(start), term.ended_for(start)), (None, None), "it was never renewed");
    term.renewed(start);
    assert_eq!(term.left(start), Some(SECOND * 8));
    assert_eq!(term.left(start + SECOND * 7), Some(SECOND));
    assert_eq!(term.left(start + SECOND * 8), None);
    assert_eq!(term.ended_for(start + SECOND * 9), Some(SECOND));
    // An earlier question, answered later, does not shorten it.
    term.renewed(start + SECOND * 2);
    term.renewed(start + SECOND);
    assert_eq!(term.left(start + SECOND * 9), Some(SECOND));
}

#[test]
fn a_lease_is_overdue_when_the_same_renewal_was_seen_for_too_long() {
    let (start, mut watch) = (env::clock::now(), Watch::default());
    let mut at = |seconds: u32, found: Option<Renewal>| watch.answered(found, start + SECOND * seconds, T);
    assert_eq!(at(0, Some(renewal("x", 1, T))), Verdict::Believed(T), "however old it is, this one has just seen it");
    assert_eq!(at(9, Some(renewal("x", 1, T))), Verdict::Believed(SECOND));
    assert_eq!(at(9, Some(renewal("x", 2, T))), Verdict::Believed(T));
    assert_eq!(at(15, Some(renewal("y", 2, T))), Verdict::Believed(T), "another life");
    assert_eq!(at(25, Some(renewal("y", 2, T))), Verdict::Overdue);
    assert_eq!(at(26, None), Verdict::None);
    assert_eq!(at(27, Some(renewal("y", 2, T))), Verdict::Believed(T), "it was away meanwhile");
    assert_eq!(at(37, Some(renewal("y", 2, T * 2))), Verdict::Believed(T), "the owner's word counts");
    assert_eq!(at(47, Some(renewal("y", 2, T * 2))), Verdict::Overdue);
}

#[test]
fn while_the_bucket_is_away_nothing_becomes_overdue() {
    let (start, mut watch) = (env::clock::now(), Watch::default());
    let same = || Some(renewal("x", 1, T));
    assert_eq!(watch.answered(same(), start, T), Verdict::Believed(T));
    assert_eq!(watch.answered(same(), start + SECOND * 2, T), Verdict::Believed(SECOND * 8));
    watch.failed();
    watch.failed();
    let back = start + SECOND * 100;
    assert_eq!(watch.answered(same(), back, T), Verdict::Believed(SECOND * 8), "the owner has time to renew it");
    assert_eq!(watch.answered(same(), back + SECOND * 7, T), Verdict::Believed(SECOND));
    assert_eq!(watch.answered(same(), back + SECOND * 8, T), Verdict::Overdue);
    watch.failed();
    let renewed = Some(renewal("x", 2, T));
    assert_eq!(watch.answered(renewed, back + SECOND * 30, T), Verdict::Believed(T));
}

#[test]
fn a_server_with_a_lease_owns_only_while_it_holds_and_nothing_that_it_lost() {
    env::clock::freeze_thread();
    let (lease, tenant) = (Lease::default(), TenantShardId::unsharded(utils::id::TenantId::generate()));
    assert!(lease.check((tenant, 3)).is_ok() && lease.state() == LeaseState::None);
    lease.bind(T);
    let error = lease.check((tenant, 3)).unwrap_err().to_string();
    assert!(error.contains("not renewed yet"), "{error}");
    lease.renewed(env::clock::now());
    assert!(lease.check((tenant, 3)).is_ok());
    env::clock::advance_thread(SECOND * 9);
    lease.failed("no route".to_owned());
    let error = lease.check((tenant, 3)).unwrap_err().to_string();
    assert!(error.contains("ended 1.0s ago") && error.contains("no route") && error.contains("not the owner"));
    lease.renewed(env::clock::now());
    lease.lose((tenant, 3));
    assert!(lease.check((tenant, 3)).is_err() && lease.check((tenant, 4)).is_ok());
    lease.forget(tenant);
    assert!(lease.check((tenant, 3)).is_ok());
    env::clock::advance_thread(SECOND * 9);
    lease.release();
    assert!(lease.check((tenant, 3)).is_ok());
    env::clock::thaw_thread();
}

#[test]
fn a_server_that_gives_a_tenant_away_says_to_whom_and_owns_it_no_more() {
    env::clock::freeze_thread();
    let (lease, tenant) = (Lease::default(), TenantShardId::unsharded(utils::id::TenantId::generate()));
    lease.bind(T);
    lease.renewed(env::clock::now());
    lease.give((tenant, 3), "other");
    let error = lease.check((tenant, 3)).unwrap_err().to_string();
    assert!(error.contains("handed over to server other") && error.contains("not the owner"), "{error}");
    assert!(lease.has_lost((tenant, 3)) && lease.has_given((tenant, 3)) && !lease.has_given((tenant, 4)));
    assert!(lease.check((tenant, 4)).is_ok(), "it has taken the next generation itself");
    lease.lose((tenant, 4));
    assert!(lease.has_lost((tenant, 4)) && !lease.has_given((tenant, 4)));
    lease.forget(tenant);
    assert!(lease.check((tenant, 3)).is_ok());
    env::clock::thaw_thread();
}
