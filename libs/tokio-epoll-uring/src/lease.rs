//! Keeps a ring open.

use std::sync::Arc;

use crate::ring::Ring;
use crate::setup::Support;

/// Held by every handle and every future; the last one closes the ring.
pub(crate) struct Lease {
    pub(crate) ring: Arc<Ring>,
    pub(crate) support: Support,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.ring.close();
    }
}
