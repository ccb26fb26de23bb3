//! What the operating system calls random, from the run's seed.
//!
//! Some chance does not go through [`env::random`]: the order in which the standard library's maps iterate, and what
//! the runtime draws when it wakes one of many or polls the branches of a `select!`. All of it begins with `getrandom`,
//! which the linker finds here before the C library's. So it is drawn from the seed like everything else, and differs
//! from seed to seed: every thread that runs a plan asks anew.

/// As `getrandom(2)`.
///
/// # Safety
/// `into` must be valid for writes of `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(into: *mut libc::c_void, len: libc::size_t, flags: libc::c_uint) -> libc::ssize_t {
    if !env::random::is_seeded() {
        // SAFETY: the caller vouches for `into` and `len`, which are passed on as they are.
        let got = unsafe { libc::syscall(libc::SYS_getrandom, into, len, flags) };
        return got as libc::ssize_t;
    }
    // SAFETY: the caller vouches for `into` and `len`; nothing else refers to those bytes during the call.
    let bytes = unsafe { std::slice::from_raw_parts_mut(into.cast::<u8>(), len) };
    bytes.iter_mut().for_each(|byte| *byte = env::random::bytes::<1>()[0]);
    len as libc::ssize_t
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher, RandomState};

    fn hash_of_a_seed(seed: Option<u64>) -> u64 {
        let hash = std::thread::spawn(move || {
            env::random::seed_thread(seed);
            RandomState::new().hash_one("key")
        });
        hash.join().unwrap()
    }

    #[test]
    fn maps_are_hashed_by_the_seed() {
        assert_eq!(hash_of_a_seed(Some(7)), hash_of_a_seed(Some(7)));
        assert_ne!(hash_of_a_seed(Some(7)), hash_of_a_seed(Some(8)));
        assert_ne!(hash_of_a_seed(None), hash_of_a_seed(None));
    }
}
