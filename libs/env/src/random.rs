//! Randomness, seeded in tests so that a run can be repeated.

use std::cell::RefCell;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

thread_local! {
    static SEEDED: RefCell<Option<StdRng>> = const { RefCell::new(None) };
}

/// Makes this thread's randomness repeatable from `seed`; `None` returns to the operating system's.
pub fn seed_thread(seed: Option<u64>) {
    SEEDED.with_borrow_mut(|rng| *rng = seed.map(StdRng::seed_from_u64));
}

/// Whether this thread's randomness is repeatable.
pub fn is_seeded() -> bool {
    SEEDED.with_borrow(Option::is_some)
}

/// `N` random bytes.
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut out = [0; N];
    SEEDED.with_borrow_mut(|seeded| match seeded {
        Some(rng) => rng.fill_bytes(&mut out),
        None => rand::rng().fill_bytes(&mut out),
    });
    out
}

/// A random 64-bit number.
pub fn u64() -> u64 {
    u64::from_le_bytes(bytes())
}

/// How to hash: differently each time, so that nobody can foresee it, but as before on a thread with the same seed.
pub type Hashing = foldhash::quality::FixedState;

/// A hash function. Caches take it, whose choice of what goes depends on hashes.
pub fn hashing() -> Hashing {
    Hashing::with_seed(u64())
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher;

    use super::*;

    #[test]
    fn seeded_threads_repeat() {
        seed_thread(Some(7));
        let (first, hash): ([u8; 16], u64) = (bytes(), hashing().hash_one("key"));
        seed_thread(Some(7));
        assert_eq!((first, hash), (bytes(), hashing().hash_one("key")));
        seed_thread(None);
        assert_ne!((first, hash), (bytes(), hashing().hash_one("key")));
    }
}
