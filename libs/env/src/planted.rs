//! In builds with debug assertions, makes the next task with a given name panic: the name comes from the environment
//! variable `PLANT_PANIC` or from a test.

use std::sync::{LazyLock, Mutex, PoisonError};

static NEXT: LazyLock<Mutex<Option<String>>> = LazyLock::new(|| Mutex::new(std::env::var("PLANT_PANIC").ok()));

/// Makes the next task called `name` panic as soon as it runs.
#[cfg(test)]
pub(crate) fn panic_in(name: &str) {
    *NEXT.lock().unwrap_or_else(PoisonError::into_inner) = Some(name.to_owned());
}

/// Whether the planted panic has happened.
#[cfg(test)]
pub(crate) fn is_over() -> bool {
    NEXT.lock().unwrap_or_else(PoisonError::into_inner).is_none()
}

/// Panics if a panic is planted for a task called `name`.
pub(crate) fn panic_if_next(name: &str) {
    if cfg!(debug_assertions) {
        let taken = NEXT.lock().unwrap_or_else(PoisonError::into_inner).take_if(|next| next == name);
        assert!(taken.is_none(), "planted");
    }
}
