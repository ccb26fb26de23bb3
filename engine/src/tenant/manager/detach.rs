//! Detaches branches from their ancestors.

use pageserver_api::shard::TenantShardId;
use utils::id::TimelineId;

use super::{ManageError, TenantManager};
use errors::{ErrorKind, StorageError};

/// How often the first step is repeated: while it ran, history of the branch may have been removed, and images with it.
const ATTEMPTS: usize = 5;

impl TenantManager {
    /// Makes a branch a timeline of its own: it takes over what it has inherited, and its history begins where it
    /// branched off. The ancestor may then be deleted. Doing so again is not an error.
    ///
    /// # Errors
    /// [`ManageError::Precondition`] if it is not a branch, or somebody needs what is before the branch point.
    pub async fn detach_timeline(&self, id: TenantShardId, timeline_id: TimelineId) -> Result<(), ManageError> {
        for _ in 0..ATTEMPTS {
            let timeline = self.get(id, timeline_id)?;
            if timeline.origin().ancestor.is_none() {
                let reason = format!("timeline {timeline_id} is not a branch: there is nothing to detach it from");
                return Err(ManageError::Precondition(reason));
            }
            timeline.check_detach(&self.timelines(id)?).map_err(refused)?;
            timeline.prepare_detach().await.map_err(refused)?;
            let changing = self.change(id).await?;
            // What a branch that is not open needs is not known.
            self.check_branches_known(id)?;
            let timeline = self.get(id, timeline_id)?;
            let is_decided = timeline.decide_detach(&self.timelines(id)?).await.map_err(refused)?;
            drop(changing);
            if is_decided {
                return Ok(timeline.complete_detach().await?);
            }
        }
        Err(ManageError::Busy(format!("timeline {timeline_id} changes all the time: try again later")))
    }
}

fn refused(error: StorageError) -> ManageError {
    match error.kind() {
        ErrorKind::Invalid => ManageError::Precondition(error.to_string()),
        // The request itself has not taken too long.
        _ if matches!(error, StorageError::LsnTimeout { .. }) => ManageError::Busy(error.to_string()),
        _ => ManageError::Storage(error),
    }
}
