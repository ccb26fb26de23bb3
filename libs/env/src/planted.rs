//! Makes the next task of a name panic, in builds with debug assertions: the one that the environment variable
//! `PLANT_PANIC` names, if there is one, or that a test names.

use std::sync::{LazyLock, Mutex, PoisonError};

static NEXT: LazyLock<Mutex<Option<String>>> = LazyLock::new(|| Mutex::new(std::env::var("PLANT_PANIC").ok()));

/// The next task called `name` panics as soon as it runs.
#[cfg(test)]
pub(crate) fn panic_in(name: &str) {
    *NEXT.lock().unwrap_or_else(PoisonError::into_inner) = Some(name.to_owned());
}

/// Whether it has.
#[cfg(test)]
pub(crate) fn is_over() -> bool {
    NEXT.lock().unwrap_or_else(PoisonError::into_inner).is_none()
}

/// Panics if that is planted for a task called `name`.
pub(crate) fn panic_if_next(name: &str) {
    if cfg!(debug_assertions) {
        let taken = NEXT.lock().unwrap_or_else(PoisonError::into_inner).take_if(|next| next == name);
        assert!(taken.is_none(), "planted");
    }
}
