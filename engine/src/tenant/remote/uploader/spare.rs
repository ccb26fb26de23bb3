//! Objects beside the index part, from which a lost one could be rebuilt: the list of layers, and the origin.

use super::{Published, Shared};
use crate::tenant::remote::LayerList;
use crate::tenant::timeline::manifest::Kept;
use errors::StorageError;
use remote_storage::RemotePath;

impl Published {
    /// Writes what a lost index part could be rebuilt from. Before anything is removed that it was rebuilt from so far.
    pub(super) async fn write_spare(&mut self, shared: &Shared) -> Result<(), StorageError> {
        self.write_origin(shared).await?;
        let Some(manifest) = &self.manifest else { return Ok(()) };
        let Some(list) = LayerList::of(manifest) else { return Ok(()) };
        let written = (list, Kept { arrived: Vec::new(), ..manifest.kept.clone() });
        if self.list.as_ref() == Some(&written) {
            return Ok(());
        }
        let path = |list: LayerList| list.path(&shared.remote.tenant, &shared.timeline);
        shared.replace(&path(list), manifest.encode()?.into()).await?;
        let before = self.list.replace(written).map(|(before, _)| before).filter(|before| *before != list);
        let older = std::mem::take(&mut self.older_lists).into_iter().chain(before.map(path));
        self.garbage.extend(older.filter(|older| *older != path(list)));
        Ok(())
    }

    /// Notes whether the index part, of which there is a list by now, says that the timeline was detached.
    pub(super) fn note_detached(&self, shared: &Shared) {
        if self.manifest.as_ref().is_some_and(|manifest| manifest.detached) {
            shared.detached.send_replace(true);
        }
    }

    /// Writes the timeline's immutable origin, once. It never exists before the first index part: if it is found
    /// without one, an index part was lost, and can be rebuilt from the origin and the layers.
    async fn write_origin(&mut self, shared: &Shared) -> Result<(), StorageError> {
        let Some(manifest) = self.manifest.as_ref().filter(|_| !self.has_origin) else { return Ok(()) };
        let path = RemotePath::origin(&shared.remote.tenant, &shared.timeline, shared.remote.generation);
        shared.replace(&path, manifest.without_history().encode()?.into()).await?;
        self.has_origin = true;
        Ok(())
    }
}
