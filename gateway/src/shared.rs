//! What all sessions of a gateway share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::cancel::CancelKeys;
use crate::fleet::Fleet;
use crate::places::Places;
use crate::settings::Settings;

/// What all sessions of a gateway share.
pub(crate) struct Shared<F> {
    pub(crate) settings: Settings,
    pub(crate) places: Places<F>,
    pub(crate) keys: CancelKeys,
    /// Connections of all kinds that are open.
    connections: AtomicUsize,
}

impl<F: Fleet> Shared<F> {
    pub(crate) fn new(fleet: F, settings: Settings) -> Self {
        let places = Places::new(fleet, &settings);
        Self { settings, places, keys: CancelKeys::default(), connections: AtomicUsize::new(0) }
    }

    /// Number of connections that are open.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

/// Counts a connection while it lives.
pub(crate) struct Open<F: Fleet>(Arc<Shared<F>>);

impl<F: Fleet> Open<F> {
    pub(crate) fn new(shared: &Arc<Shared<F>>) -> Self {
        shared.connections.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(shared))
    }

    pub(crate) fn shared(&self) -> &Shared<F> {
        &self.0
    }
}

impl<F: Fleet> Drop for Open<F> {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
