//! Archives timelines, and takes them back into service.
//!
//! A timeline that is not archived branches off none that is: whoever archives one must have archived its branches, and
//! whoever takes one back its ancestor.

use pageserver_api::shard::TenantShardId;
use utils::id::TimelineId;

use super::{ManageError, TenantManager};

impl TenantManager {
    /// Archives a timeline: from now on it takes in nothing, and only its end is kept. Who sends it WAL must have
    /// stopped.
    ///
    /// # Errors
    /// [`ManageError::Precondition`] if branches of it are not archived.
    pub async fn archive(&self, id: TenantShardId, timeline_id: TimelineId) -> Result<(), ManageError> {
        // No history is removed meanwhile, and no branch made.
        let _changing = self.change(id).await?;
        let timeline = self.get(id, timeline_id)?;
        if timeline.is_archived() {
            return Ok(());
        }
        let children = self.children(id, timeline_id);
        let in_use = children.into_iter().filter(|child| self.get(id, *child).is_ok_and(|child| !child.is_archived()));
        let in_use: Vec<String> = in_use.map(|child| child.to_string()).collect();
        if !in_use.is_empty() {
            return Err(ManageError::Precondition(format!(
                "branches of timeline {timeline_id} are not archived: archive or delete them first: {}",
                in_use.join(", ")
            )));
        }
        Ok(timeline.archive().await?)
    }

    /// Takes an archived timeline back into service, with the history that is left.
    ///
    /// # Errors
    /// [`ManageError::Precondition`] if the timeline that it branches off is archived.
    pub async fn unarchive(&self, id: TenantShardId, timeline_id: TimelineId) -> Result<(), ManageError> {
        let _changing = self.change(id).await?;
        let timeline = self.get(id, timeline_id)?;
        if !timeline.is_archived() {
            return Ok(());
        }
        let ancestor = timeline.info().ancestor_timeline_id;
        if let Some(ancestor) = ancestor.filter(|ancestor| self.get(id, *ancestor).is_ok_and(|it| it.is_archived())) {
            return Err(ManageError::Precondition(format!(
                "timeline {ancestor}, which timeline {timeline_id} branches off, is archived: unarchive it first"
            )));
        }
        Ok(timeline.unarchive().await?)
    }
}
