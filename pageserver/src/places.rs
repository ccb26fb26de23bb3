//! Places for the connections of a port: how many there are, whose turn it is to work, and which connection gives
//! way.
//!
//! Every new connection gets a place at once, because nobody can tell yet what it wants. If all places are taken, a
//! connection that is not working gives way, one of the peer that has most of those. So connections that never send
//! anything, however many and from wherever, take nothing away from others. Work has its own limit, against which
//! idle connections do not count; probes have a separate one, so that they are answered however busy the port is.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Maximum number of connections beyond those that work: new ones, idle ones, and those that wait for their turn.
const SPARE: usize = 64;
/// Maximum number of probes answered concurrently.
const PROBES: usize = 8;

/// Kinds of work of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// The port's actual purpose.
    Usual,
    /// A health probe.
    Probe,
}

/// All places of a port. Cheap to clone.
#[derive(Clone)]
pub struct Places(Arc<Shared>);

struct Shared {
    table: Mutex<Table>,
    /// Maximum number of connections doing usual work at once.
    limit: usize,
}

#[derive(Default)]
struct Table {
    entries: BTreeMap<u64, Entry>,
    next_number: u64,
}

struct Entry {
    peer: IpAddr,
    state: State,
    /// When it entered its state, as a sequence number.
    since: u64,
    gives_way: CancellationToken,
    /// Notified when its turn comes.
    turn: Arc<Notify>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It has done nothing yet.
    New,
    /// It has worked before, and is not working now.
    Idle,
    Waiting(Work),
    Working(Work),
}

impl Places {
    /// Places for `limit` working connections, and some more for others.
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Shared { table: Mutex::default(), limit }))
    }

    /// Gives a new connection its place.
    pub fn enter(&self, peer: IpAddr) -> Place {
        let mut table = self.0.table.lock();
        if table.entries.len() >= self.0.limit.saturating_add(SPARE) {
            table.make_room();
        }
        let number = table.number();
        let gives_way = CancellationToken::new();
        let (token, turn) = (gives_way.clone(), Arc::default());
        let entry = Entry { peer: network(peer), state: State::New, since: number, gives_way: token, turn };
        table.entries.insert(number, entry);
        Place { places: self.clone(), number, gives_way }
    }

    fn capacity(&self, work: Work) -> usize {
        match work {
            Work::Usual => self.0.limit,
            Work::Probe => PROBES,
        }
    }

    /// Grants turns as far as there is room: first to connections of the peers that work least, among those to the
    /// one that has waited longest.
    fn let_work(&self, table: &mut Table, work: Work) {
        while table.count(State::Working(work)) < self.capacity(work) {
            let mut busy: HashMap<IpAddr, usize> = HashMap::new();
            for entry in table.entries.values().filter(|entry| entry.state == State::Working(work)) {
                *busy.entry(entry.peer).or_default() += 1;
            }
            let waiting = table.entries.values_mut().filter(|entry| entry.state == State::Waiting(work));
            let by_turn = |entry: &&mut Entry| (busy.get(&entry.peer).copied().unwrap_or(0), entry.since);
            let Some(next) = waiting.min_by_key(by_turn) else { return };
            next.state = State::Working(work);
            next.turn.notify_one();
        }
    }
}

impl Table {
    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    fn change(&mut self, number: u64, state: State) {
        let since = self.number();
        if let Some(entry) = self.entries.get_mut(&number) {
            (entry.state, entry.since) = (state, since);
        }
    }

    fn count(&self, state: State) -> usize {
        self.entries.values().filter(|entry| entry.state == state).count()
    }

    /// Evicts one connection that is not working, of the peer with most of those: new connections before idle ones,
    /// and these before waiting ones; among new or idle ones the oldest, among waiting ones the newest, since it is
    /// farthest from its turn.
    fn make_room(&mut self) {
        let free = |entry: &Entry| !matches!(entry.state, State::Working(_));
        let mut by_peer: HashMap<IpAddr, usize> = HashMap::new();
        for entry in self.entries.values().filter(|entry| free(entry)) {
            *by_peer.entry(entry.peer).or_default() += 1;
        }
        let rank = |entry: &Entry| {
            let order = match entry.state {
                State::New => (2, u64::MAX - entry.since),
                State::Idle => (1, u64::MAX - entry.since),
                State::Waiting(_) | State::Working(_) => (0, entry.since),
            };
            (by_peer.get(&entry.peer).copied(), order)
        };
        let candidates = self.entries.iter().filter(|(_, entry)| free(entry));
        let Some(number) = candidates.max_by_key(|(_, entry)| rank(entry)).map(|(number, _)| *number) else { return };
        if let Some(entry) = self.entries.remove(&number) {
            entry.gives_way.cancel();
        }
    }
}

/// The unit in which peers are counted: an IPv6 client usually has a whole network and may use any address in it.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

/// A connection's place, released when dropped.
pub struct Place {
    places: Places,
    number: u64,
    gives_way: CancellationToken,
}

impl Place {
    /// Completes when the connection must give way to another one.
    pub async fn gives_way(&self) {
        self.gives_way.cancelled().await;
    }

    /// Waits for the connection's turn, which lasts until the returned guard is dropped. A connection does one thing
    /// at a time.
    pub async fn begin(&self, work: Work) -> Working<'_> {
        let turn = Arc::new(Notify::new());
        // Created before waiting, so that giving up withdraws the request for a turn.
        let working = Working { place: self, work };
        {
            let mut table = self.places.0.table.lock();
            table.change(self.number, State::Waiting(work));
            if let Some(entry) = table.entries.get_mut(&self.number) {
                entry.turn = Arc::clone(&turn);
            }
            self.places.let_work(&mut table, work);
        }
        turn.notified().await;
        working
    }

    /// Takes a turn if there is room now.
    pub fn try_begin(&self, work: Work) -> Option<Working<'_>> {
        let mut table = self.places.0.table.lock();
        let room = table.count(State::Working(work)) < self.places.capacity(work);
        if !room || !table.entries.contains_key(&self.number) {
            return None;
        }
        table.change(self.number, State::Working(work));
        Some(Working { place: self, work })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.places.0.table.lock();
        let state = table.entries.remove(&self.number).map(|entry| entry.state);
        if let Some(State::Working(work)) = state {
            self.places.let_work(&mut table, work);
        }
    }
}

/// A connection's turn, or its request for one.
pub struct Working<'a> {
    place: &'a Place,
    work: Work,
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        let places = &self.place.places;
        let mut table = places.0.table.lock();
        table.change(self.place.number, State::Idle);
        places.let_work(&mut table, self.work);
    }
}
