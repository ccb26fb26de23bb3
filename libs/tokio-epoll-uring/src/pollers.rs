//! Which runtimes wait for a ring, and which tasks to wake there.

use std::task::Waker;

use tokio::runtime;

/// State of a runtime's poller for a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// It has no poller yet.
    Absent,
    /// It has one.
    Alive,
    /// It had one, or cannot have one: the runtime is shut down or has no I/O driver.
    Dead,
}

struct Poller {
    runtime: runtime::Id,
    alive: bool,
    waker: Option<Waker>,
}

/// The pollers of a ring: usually one, that of the runtime it was made in. More are added by futures that are awaited
/// in other runtimes, because the ring's own runtime may be idle (`current_thread`) or gone by then.
#[derive(Default)]
pub(crate) struct Pollers(Vec<Poller>);

impl Pollers {
    pub(crate) fn presence(&self, runtime: runtime::Id) -> Presence {
        match self.0.iter().find(|poller| poller.runtime == runtime) {
            None => Presence::Absent,
            Some(poller) if poller.alive => Presence::Alive,
            Some(_) => Presence::Dead,
        }
    }

    /// Records that `runtime` is about to get a poller.
    pub(crate) fn insert(&mut self, runtime: runtime::Id) {
        self.0.push(Poller { runtime, alive: true, waker: None });
    }

    pub(crate) fn set_waker(&mut self, runtime: runtime::Id, waker: &Waker) {
        if let Some(poller) = self.get_mut(runtime) {
            match &mut poller.waker {
                Some(current) => current.clone_from(waker),
                None => poller.waker = Some(waker.clone()),
            }
        }
    }

    pub(crate) fn mark_dead(&mut self, runtime: runtime::Id) {
        if let Some(poller) = self.get_mut(runtime) {
            poller.alive = false;
            poller.waker = None;
        }
    }

    pub(crate) fn take_wakers(&mut self) -> Vec<Waker> {
        self.0.iter_mut().filter_map(|poller| poller.waker.take()).collect()
    }

    fn get_mut(&mut self, runtime: runtime::Id) -> Option<&mut Poller> {
        self.0.iter_mut().find(|poller| poller.runtime == runtime)
    }
}
