//! What a server knows of orders about where tenants are to be.

use std::collections::HashSet;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::receivers::Receiving;
use crate::placement::{Order, Word};

/// What a server has to do with orders.
#[derive(Debug, Default)]
pub(super) struct Placing {
    pub(super) receivers: OnceLock<Receiving>,
    /// This server is to own nothing more, as it was seen the last time.
    pub(super) is_drained: AtomicBool,
    /// There may be a new order.
    pub(super) look: Notify,
    /// Nonces of the orders that are being followed, and of those that were.
    pub(super) begun: Mutex<HashSet<String>>,
    pub(super) over: Mutex<HashSet<String>>,
}

/// How a tenant's newest order stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderStatus {
    /// The order.
    pub order: Order,
    /// The newest generation, and the server that holds it.
    pub generation: u32,
    /// See above.
    pub owner: String,
    /// What the server has said that is to have the tenant.
    pub target: Option<Word>,
    /// What the owner has said.
    pub giver: Option<Word>,
}
