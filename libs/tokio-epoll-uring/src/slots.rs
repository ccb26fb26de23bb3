//! The table of operations that the ring knows: one slot each, from submission until the result is taken.

use std::task::Waker;

/// Index of a slot; the `user_data` of the operation in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotId(pub(crate) usize);

/// The resources of an operation whose future was dropped.
pub(crate) trait Discard: Send {
    /// Frees them after the kernel has answered `result`.
    fn discard(self: Box<Self>, result: i32);
}

enum Slot {
    Vacant,
    /// Not yet in the submission queue.
    Queued(Option<Waker>),
    /// Queued, but its future was dropped: to be skipped.
    Cancelled,
    /// In the submission queue or in the kernel.
    InFlight(Option<Waker>),
    /// In flight, but its future was dropped.
    Abandoned(Box<dyn Discard>),
    /// Complete; the future has not taken the result yet.
    Done(i32),
}

/// What remains to be done for a completed operation. Runs foreign code, hence not under the ring's lock.
pub(crate) enum Completion {
    Wake(Waker),
    Discard(Box<dyn Discard>, i32),
    Nothing,
}

/// The outcome of dropping an operation's future.
pub(crate) enum Abandoned {
    /// The kernel has or may have it; the slot took over the resources.
    Kept,
    /// It never reached the kernel. What it owned is returned, to be freed outside the lock.
    NotStarted(Box<dyn Discard>),
    /// It is complete.
    Done(i32, Box<dyn Discard>),
}

#[derive(Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    vacant: Vec<usize>,
}

impl Slots {
    pub(crate) fn insert(&mut self) -> SlotId {
        let slot = Slot::Queued(None);
        if let Some(index) = self.vacant.pop() {
            let before = std::mem::replace(&mut self.slots[index], slot);
            assert!(matches!(before, Slot::Vacant), "a slot is given to two operations");
            return SlotId(index);
        }
        self.slots.push(slot);
        SlotId(self.slots.len() - 1)
    }

    /// A queued operation is about to be submitted. Returns false if its future was dropped: then its slot is free.
    pub(crate) fn submit(&mut self, id: SlotId) -> bool {
        match std::mem::replace(self.get_mut(id), Slot::Vacant) {
            Slot::Queued(waker) => {
                *self.get_mut(id) = Slot::InFlight(waker);
                true
            }
            Slot::Cancelled => {
                self.vacant.push(id.0);
                false
            }
            _ => unreachable!("only queued operations are submitted"),
        }
    }

    /// An operation is complete, either by the kernel or because it could not be submitted.
    pub(crate) fn complete(&mut self, id: SlotId, result: i32) -> Completion {
        match std::mem::replace(self.get_mut(id), Slot::Vacant) {
            Slot::Queued(waker) | Slot::InFlight(waker) => {
                *self.get_mut(id) = Slot::Done(result);
                waker.map_or(Completion::Nothing, Completion::Wake)
            }
            Slot::Abandoned(resources) => {
                self.vacant.push(id.0);
                Completion::Discard(resources, result)
            }
            Slot::Cancelled => {
                self.vacant.push(id.0);
                Completion::Nothing
            }
            Slot::Vacant | Slot::Done(_) => unreachable!("an operation completes once"),
        }
    }

    /// The result, if there is one. Frees the slot.
    pub(crate) fn take_result(&mut self, id: SlotId) -> Option<i32> {
        let Slot::Done(result) = *self.get_mut(id) else { return None };
        *self.get_mut(id) = Slot::Vacant;
        self.vacant.push(id.0);
        Some(result)
    }

    /// The future of the operation was dropped. The slot keeps `resources` if it must.
    pub(crate) fn abandon(&mut self, id: SlotId, resources: Box<dyn Discard>) -> Abandoned {
        if let Some(result) = self.take_result(id) {
            return Abandoned::Done(result, resources);
        }
        let slot = self.get_mut(id);
        match slot {
            Slot::Queued(_) => {
                *slot = Slot::Cancelled;
                Abandoned::NotStarted(resources)
            }
            Slot::InFlight(_) => {
                *slot = Slot::Abandoned(resources);
                Abandoned::Kept
            }
            _ => unreachable!("a future is dropped once"),
        }
    }

    /// Sets the waker to call when the operation is complete. Returns the previous one.
    pub(crate) fn set_waker(&mut self, id: SlotId, waker: Option<Waker>) -> Option<Waker> {
        match self.get_mut(id) {
            Slot::Queued(current) | Slot::InFlight(current) => std::mem::replace(current, waker),
            _ => None,
        }
    }

    /// Takes all wakers.
    pub(crate) fn take_wakers(&mut self) -> Vec<Waker> {
        let waker_of = |slot: &mut Slot| match slot {
            Slot::Queued(waker) | Slot::InFlight(waker) => waker.take(),
            _ => None,
        };
        self.slots.iter_mut().filter_map(waker_of).collect()
    }

    fn get_mut(&mut self, id: SlotId) -> &mut Slot {
        self.slots.get_mut(id.0).expect("slot ids come from insert, and slots are never removed")
    }
}
