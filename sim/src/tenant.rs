//! A tenant of the world, and which server is to have it.

use std::sync::Arc;

use pageserver_api::shard::TenantShardId;
use parking_lot::Mutex;
use utils::id::{TenantId, TimelineId};

/// See the module's documentation.
pub struct Tenant {
    /// Its name.
    pub id: TenantShardId,
    /// Its first timeline.
    pub root: TimelineId,
    /// The one of the servers that is to have it.
    pub owner: usize,
    /// Whether an operator has yet to tell that server so.
    pub is_to_attach: bool,
    /// That server's name, for readers.
    pub owner_name: Arc<Mutex<&'static str>>,
}

impl Tenant {
    /// A tenant that is yet to be made, by the server of this number and name.
    pub fn new(owner: usize, name: &'static str) -> Self {
        Self {
            id: TenantShardId::unsharded(TenantId::generate()),
            root: TimelineId::generate(),
            owner,
            is_to_attach: false,
            owner_name: Arc::new(Mutex::new(name)),
        }
    }
}
