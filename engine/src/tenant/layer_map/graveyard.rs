//! Layers that no longer belong to the timeline but may still be read: reads keep the snapshot of layers with which
//! they began, and open layers late. Their files go once nobody else holds them.

use std::sync::Arc;

use parking_lot::Mutex;

use super::Layer;
use crate::disk_budget::{DiskBudget, Hold};
use errors::StorageError;

/// See the module's documentation.
#[derive(Debug)]
pub struct Graveyard {
    buried: Mutex<Vec<Arc<Layer>>>,
    /// Their bytes on this disk.
    hold: Hold,
}

impl Graveyard {
    /// An empty one. The disk space of buried layers counts in `budget`.
    pub fn new(budget: &DiskBudget) -> Self {
        Self { buried: Mutex::default(), hold: budget.hold() }
    }

    /// Takes in layers that no snapshot to come will have: they are the timeline's no longer.
    pub(crate) fn bury(&self, layers: &[Arc<Layer>]) {
        self.hold.take_over(layers.iter().map(|layer| layer.local_bytes()).sum());
        self.buried.lock().extend(layers.iter().cloned());
    }

    /// Number of layers whose files have not been removed yet.
    pub fn len(&self) -> usize {
        self.buried.lock().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the files of these layers.
    pub fn bytes(&self) -> u64 {
        self.buried.lock().iter().map(|layer| layer.desc().file_size).sum()
    }

    /// Whether the layer with this file name is here: its object must stay.
    pub(crate) fn has(&self, file_name: &str) -> bool {
        self.buried.lock().iter().any(|layer| layer.path().file_name() == Some(file_name))
    }

    /// All layers.
    pub(crate) fn layers(&self) -> Vec<Arc<Layer>> {
        self.buried.lock().clone()
    }

    /// Removes the files of layers that nobody else holds. Returns the number of such layers.
    ///
    /// # Errors
    /// That of the first file that could not be removed; it will be tried again.
    pub(crate) async fn sweep(&self) -> Result<usize, StorageError> {
        let early = fault::planted(fault::Bug::UnlinkBeforeLastReader);
        let unused: Vec<Arc<Layer>> = {
            let mut buried = self.buried.lock();
            buried.extract_if(.., |layer| early || Arc::strong_count(layer) == 1).collect()
        };
        let mut removed = 0;
        let mut failed = Ok(());
        for layer in unused {
            let bytes = layer.local_bytes();
            match layer.remove().await {
                Ok(()) => {
                    self.hold.release(bytes);
                    removed += 1;
                }
                Err(error) => {
                    self.buried.lock().push(layer);
                    failed = Err(error);
                }
            }
        }
        failed.map(|()| removed)
    }
}
