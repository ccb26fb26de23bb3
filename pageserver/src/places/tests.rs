use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::*;

fn peer(number: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, number])
}

fn is_out(place: &Place) -> bool {
    place.gives_way.is_cancelled()
}

/// Polls a future once.
fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}

#[test]
fn whoever_comes_gets_a_place_from_those_that_do_nothing() {
    let places = Places::new(4);
    let mut silent: Vec<Place> = (0..4 + SPARE).map(|_| places.enter(peer(1))).collect();
    assert!(!silent.iter().any(is_out), "as long as there is room nobody must go");
    let newest = places.enter(peer(1));
    assert!(is_out(&silent[0]) && !silent[1..].iter().any(is_out) && !is_out(&newest), "the oldest goes");
    drop(silent.remove(1));
    let another = places.enter(peer(1));
    assert!(!silent[1..].iter().any(is_out) && !is_out(&another), "a place that was left is free");
}

#[test]
fn the_peer_with_most_idle_connections_gives_way() {
    let places = Places::new(4);
    let modest: Vec<Place> = (0..3).map(|n| places.enter(peer(n))).collect();
    let greedy: Vec<Place> = (0..SPARE + 1).map(|_| places.enter(peer(200))).collect();
    let later: Vec<Place> = (0..SPARE - 2).map(|_| places.enter(peer(201))).collect();
    assert!(!modest.iter().any(is_out));
    let left = |of: &[Place]| of.iter().filter(|place| !is_out(place)).count();
    assert!(left(&greedy).abs_diff(left(&later)) <= 1, "{} and {}", left(&greedy), left(&later));
}

#[test]
fn an_ipv6_network_is_one_peer() {
    let addresses = ["2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:1::1", "::ffff:192.0.2.7"];
    let [a, b, c, d] = addresses.map(|text| network(text.parse().unwrap()));
    assert!(a == b && a != c);
    assert_eq!(d, peer(7));
}

#[test]
fn who_works_stays_and_who_has_worked_outlasts_who_never_did() {
    let places = Places::new(2);
    let busy = [places.enter(peer(1)), places.enter(peer(1))];
    let turns = busy.each_ref().map(|place| now(place.begin(Work::Usual)).expect("there is room"));
    let probe = places.enter(peer(1));
    let probing = now(probe.begin(Work::Probe)).expect("probes have their own places");
    let idle = places.enter(peer(1));
    drop(now(idle.begin(Work::Probe)));
    let silent: Vec<Place> = (0..5 * SPARE).map(|_| places.enter(peer(1))).collect();
    assert!(!busy.iter().any(is_out) && !is_out(&probe) && !is_out(&idle));
    assert_eq!(silent.iter().filter(|place| !is_out(place)).count(), SPARE + 2 - 4);
    drop((turns, probing));
}

#[test]
fn work_waits_for_its_turn_and_probes_do_not() {
    let places = Places::new(1);
    let [first, second, third] = [places.enter(peer(1)), places.enter(peer(1)), places.enter(peer(2))];
    let turn = now(first.begin(Work::Usual)).unwrap();
    let (mut second_turn, mut third_turn) = (pin!(second.begin(Work::Usual)), pin!(third.begin(Work::Usual)));
    assert!(now(second_turn.as_mut()).is_none() && now(third_turn.as_mut()).is_none());
    assert!(third.try_begin(Work::Usual).is_none());
    let probes: Vec<Place> = (0..PROBES + 1).map(|_| places.enter(peer(3))).collect();
    let probing: Vec<_> = probes.iter().map(|place| now(place.begin(Work::Probe))).collect();
    assert_eq!(probing.iter().flatten().count(), PROBES, "at most so many at once");
    drop(turn);
    let turn = now(second_turn.as_mut()).expect("nobody works for either peer, and it waits longer");
    assert!(now(third_turn.as_mut()).is_none());
    drop(turn);
    now(third_turn.as_mut()).expect("the next");
}

#[test]
fn the_peer_that_does_least_is_next() {
    let places = Places::new(2);
    let [a, b, c, d] = [1, 1, 1, 2].map(|number| places.enter(peer(number)));
    let (first, second) = (now(a.begin(Work::Usual)).unwrap(), now(b.begin(Work::Usual)).unwrap());
    let (mut same, mut other) = (pin!(c.begin(Work::Usual)), pin!(d.begin(Work::Usual)));
    assert!(now(same.as_mut()).is_none() && now(other.as_mut()).is_none());
    drop(first);
    assert!(now(same.as_mut()).is_none());
    let other = now(other.as_mut()).expect("its peer does nothing yet");
    drop(second);
    assert!(now(same.as_mut()).is_some());
    drop(other);
}

#[test]
fn who_gives_up_waiting_or_leaves_keeps_no_turn() {
    let places = Places::new(1);
    let [first, second, third] = [(); 3].map(|()| places.enter(peer(1)));
    let turn = now(first.begin(Work::Usual)).unwrap();
    let mut given_up = Box::pin(second.begin(Work::Usual));
    assert!(now(given_up.as_mut()).is_none());
    drop(turn);
    // Its turn came, but it was never polled again.
    drop(given_up);
    let turn = now(third.begin(Work::Usual)).expect("the turn was given back");
    assert!(now(second.begin(Work::Usual)).is_none(), "an old turn counts no more");
    drop(turn);
    drop(third);
    assert!(now(second.begin(Work::Usual)).is_some());
    let turn = first.try_begin(Work::Usual).unwrap();
    assert!(second.try_begin(Work::Usual).is_none());
    std::mem::forget(turn);
    drop(first);
    assert!(second.try_begin(Work::Usual).is_some(), "who leaves takes his turn along");
}
