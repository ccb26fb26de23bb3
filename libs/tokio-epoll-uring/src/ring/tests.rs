//! Rings without a runtime.

use std::os::fd::{FromRawFd, OwnedFd};

use io_uring::opcode;

use super::*;
use crate::setup::make_ring;

fn ring(entries: u32) -> Arc<Ring> {
    Arc::new(Ring::new(make_ring(entries).expect("a ring").0, crate::poller::spawn))
}

fn start_nop(ring: &Ring) -> SlotId {
    // SAFETY: a no-op refers to nothing.
    unsafe { ring.start(opcode::Nop::new().build(), false) }
}

#[test]
fn a_ring_that_the_kernel_refuses_fails_its_operations() {
    let ring = ring(2);
    // Replaces the ring's descriptor with a file that accepts no operations.
    let null = std::fs::File::open("/dev/null").expect("open");
    // SAFETY: plain descriptors.
    let saved = unsafe { libc::dup(ring.raw_fd()) };
    // SAFETY: as above; the ring's mappings do not depend on the descriptor.
    assert_eq!(unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&null), ring.raw_fd()) }, ring.raw_fd());
    let slots: Vec<_> = (0..5).map(|_| start_nop(&ring)).collect();
    for slot in slots {
        assert_eq!(ring.poll(slot, Waker::noop()), Poll::Ready(-libc::EOPNOTSUPP));
    }
    assert_eq!(ring.load(), (0, 0, 2));
    // SAFETY: `dup` created it for us.
    drop(unsafe { OwnedFd::from_raw_fd(saved) });
}

#[test]
fn without_a_runtime_polling_blocks_until_the_result() {
    let ring = ring(2);
    let slots: Vec<_> = (0..7).map(|_| start_nop(&ring)).collect();
    for slot in slots.into_iter().rev() {
        assert_eq!(ring.poll(slot, Waker::noop()), Poll::Ready(0));
    }
}

#[test]
fn slots_are_reused() {
    let ring = ring(2);
    for _ in 0..100 {
        let slot = start_nop(&ring);
        assert_eq!(slot, SlotId(0));
        assert_eq!(ring.poll(slot, Waker::noop()), Poll::Ready(0));
    }
}
