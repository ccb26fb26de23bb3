//! What the allocator says of itself.

use std::ffi::{CStr, c_void};
use std::ptr;

use tikv_jemalloc_sys::mallctl;

/// Bytes by state: what the program has asked for and not given back; the pages with some of that; all pages in memory,
/// those included that the allocator keeps for what is asked for next; and what is mapped (jemalloc(3), `stats.*`).
pub(crate) fn bytes_by_state() -> Vec<(&'static str, u64)> {
    let states = [
        ("allocated", c"stats.allocated"),
        ("active", c"stats.active"),
        ("resident", c"stats.resident"),
        ("mapped", c"stats.mapped"),
    ];
    refresh();
    states.into_iter().filter_map(|(state, name)| Some((state, read(name)? as u64))).collect()
}

/// Has the allocator bring its figures up to date, which are otherwise those of the last time.
#[allow(unsafe_code)]
fn refresh() {
    let mut epoch = 1_u64;
    // SAFETY: `epoch` takes a `uint64_t` that is only read, of which pointer and size are given; nothing is asked back.
    unsafe {
        mallctl(c"epoch".as_ptr(), ptr::null_mut(), ptr::null_mut(), ptr::from_mut(&mut epoch).cast::<c_void>(), 8);
    }
}

/// A figure whose type is `size_t`; `None` if the allocator does not have it.
#[allow(unsafe_code)]
fn read(name: &CStr) -> Option<usize> {
    let (mut value, mut size) = (0_usize, size_of::<usize>());
    // SAFETY: the figure is written to `value`, whose size is given, and nothing is passed in.
    let failed =
        unsafe { mallctl(name.as_ptr(), ptr::from_mut(&mut value).cast::<c_void>(), &mut size, ptr::null_mut(), 0) };
    (failed == 0 && size == size_of::<usize>()).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_asked_for_is_allocated_and_resident() {
        let of = |name: &str| bytes_by_state().into_iter().find(|(state, _)| *state == name).unwrap().1;
        let before = (of("allocated"), of("resident"));
        let much = vec![1_u8; 64 << 20];
        assert!(of("allocated") >= before.0 + (60 << 20), "{before:?}, then {:?}", bytes_by_state());
        assert!(of("resident") >= before.1 + (30 << 20), "{before:?}, then {:?}", bytes_by_state());
        assert!(of("allocated") <= of("active") && of("active") <= of("mapped"), "{:?}", bytes_by_state());
        drop(much);
        assert!(of("allocated") < before.0 + (30 << 20));
        assert_eq!(read(c"stats.no_such_figure"), None);
    }
}
