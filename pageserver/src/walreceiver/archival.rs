//! Archived timelines receive no WAL: their receivers are stopped, and stay so until they are unarchived.

use super::WalReceivers;
use super::source::WalSource;
use super::writer::Writer;
use engine::tenant::manager::ManageError;
use engine::tenant::timeline::Timeline;

impl WalReceivers {
    /// Archives a timeline after its receiver was stopped. Returns the source that it had, which goes on to keep WAL.
    ///
    /// # Errors
    /// [`ManageError::Conflict`] if a compute writes it: what that would write would be lost. Those of the archival,
    /// after which the timeline is followed as before.
    pub async fn archive(&self, timeline: &Timeline) -> Result<Option<WalSource>, ManageError> {
        let _changing = self.inner.writers.lock().await;
        let (tenant, id) = (timeline.tenant_shard_id(), timeline.timeline_id());
        // What says where its WAL comes from may be damaged: it receives none then.
        let source = WalSource::of(timeline).ok().flatten();
        if let Some(Writer { name, .. }) = source.as_ref().and_then(|source| source.writer.as_ref())
            && !timeline.is_archived()
        {
            return Err(ManageError::Conflict(format!(
                "compute {name} writes timeline {id}: stop it before the timeline is archived"
            )));
        }
        // Everything received is visible then.
        self.halt((tenant, id)).await;
        if let Err(error) = self.inner.manager.archive(tenant, id).await {
            if let Some(source) = source {
                self.start(timeline.clone(), source).await;
            }
            return Err(error);
        }
        self.inner.unfit.lock().remove(&(tenant, id));
        Ok(source)
    }

    /// Takes an archived timeline back into service: if it has a source, its WAL is received again.
    pub async fn unarchive(&self, timeline: &Timeline) -> Result<(), ManageError> {
        let (tenant, id) = (timeline.tenant_shard_id(), timeline.timeline_id());
        self.inner.manager.unarchive(tenant, id).await?;
        self.inner.halted.lock().remove(&(tenant, id));
        self.start_missing(&[tenant]).await;
        Ok(())
    }
}
