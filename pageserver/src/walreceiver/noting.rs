//! Changes of what is noted of a branch.

use super::WalReceivers;
use super::card::BranchCard;
use super::stored::Stored;
use engine::tenant::timeline::Timeline;
use errors::StorageError;

impl WalReceivers {
    /// Changes the name and the card of a timeline, durably. Nothing is stored if that changes nothing.
    pub(crate) async fn change_card<E: From<StorageError>>(
        &self,
        timeline: &Timeline,
        change: impl FnOnce(&mut Option<String>, &mut BranchCard) -> Result<(), E>,
    ) -> Result<(), E> {
        // What comes and goes with a writer is stored in the same place.
        let _changing = self.inner.writers.lock().await;
        let before = Stored::of(timeline)?;
        let mut after = before.clone();
        change(&mut after.name, &mut after.card)?;
        if after != before {
            timeline.tell(after.told()?).await?;
        }
        Ok(())
    }

    /// Whether another server follows what is stored, so that this one changes nothing by itself.
    pub(crate) fn is_scratch(&self) -> bool {
        self.inner.is_scratch
    }
}
