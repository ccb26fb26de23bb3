//! Cases that the layers above prevent or cannot provoke.

use io_uring::{IoUring, opcode};

use super::*;

#[test]
fn results_beyond_the_completion_queue_are_not_lost() {
    let mut uring = Uring::new(IoUring::new(2).expect("a ring"));
    // More than the completion queue holds, violating the bound of `has_room`.
    for slot in 0..64 {
        // SAFETY: a no-op refers to nothing.
        unsafe { uring.push(SlotId(slot), opcode::Nop::new().build()) };
        assert_eq!(uring.submit(), Submitted::Some);
    }
    assert_eq!(uring.in_kernel(), 64);
    let mut reported = Vec::new();
    uring.reap(|slot, result| reported.push((slot.0, result)));
    assert_eq!(reported, (0..64).map(|slot| (slot, 0)).collect::<Vec<_>>());
    assert_eq!(uring.in_flight(), 0);
}

#[test]
fn counts_follow_an_operation() {
    let mut uring = Uring::new(IoUring::new(2).expect("a ring"));
    assert_eq!(uring.submit(), Submitted::Nothing);
    for slot in 0..2 {
        assert!(uring.has_room());
        // SAFETY: a no-op refers to nothing.
        unsafe { uring.push(SlotId(slot), opcode::Nop::new().build()) };
    }
    assert!(!uring.has_room());
    assert_eq!((uring.in_kernel(), uring.in_flight()), (0, 2));
    assert_eq!(uring.submit(), Submitted::Some);
    assert_eq!((uring.in_kernel(), uring.in_flight()), (2, 2));
    uring.wait().expect("results");
    uring.reap(|_, _| ());
    assert_eq!((uring.in_kernel(), uring.in_flight()), (0, 0));
}
