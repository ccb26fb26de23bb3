//! Removal of objects that nobody needs: those that the last index part no longer names, those of uploads that failed
//! and may have had an effect all the same, and those that earlier owners left behind, such as the outputs of a job
//! that a crash ended.

use std::time::{Duration, Instant};

use super::{Published, Shared};
use crate::tenant::remote::{LayerList, plan};
use crate::tenant::storage_layer::LayerFileName;
use crate::tenant::timeline::manifest::Manifest;
use errors::StorageError;
use remote_storage::{RemotePath, RequestClass};

/// When a removal that failed is tried again, and after which time an upload that failed has no effect any more.
const LATE: Duration = Duration::from_secs(30);

impl Published {
    /// Asserts that the objects about to be removed are neither the current index part nor named by it.
    fn assert_not_needed(&self, shared: &Shared) {
        let remote = &shared.remote;
        let own = self.manifest.as_ref().filter(|manifest| manifest.generation == remote.generation);
        assert!(
            own.is_some() || self.garbage.is_empty(),
            "objects are to be removed before an index part of our own says what is needed"
        );
        let named = own.map(plan::layer_names).unwrap_or_default();
        let index_part = remote.index_part_path(shared.timeline, remote.generation);
        let list = own.and_then(LayerList::of).map(|list| list.path(&remote.tenant, &shared.timeline));
        let is_named = |path: &RemotePath| path.file_name().parse().is_ok_and(|name| named.contains(&name));
        let lost =
            self.garbage.iter().find(|path| **path == index_part || list.as_ref() == Some(path) || is_named(path));
        assert!(lost.is_none(), "{lost:?} is needed and was about to be removed");
    }

    /// A planted mistake: removes what `next` does not name before the bucket has it.
    #[cold]
    pub(super) async fn remove_early(&self, shared: &Shared, next: &Manifest) {
        let unnamed = self.manifest.iter().flat_map(|before| plan::unnamed(before, next));
        let paths: Vec<_> = unnamed.map(|name| shared.remote.layer_path(shared.timeline, &name.to_string())).collect();
        let _ = shared.remote.storage.delete(&paths).await;
    }

    /// Removes objects that nobody needs. The generation has just been checked. Failed removals are retried: see
    /// [`Published::due`].
    pub(super) async fn collect_garbage(&mut self, shared: &Shared) -> Result<(), StorageError> {
        if self.garbage.is_empty() {
            return Ok(());
        }
        self.assert_not_needed(shared);
        let is_read = |path: &RemotePath| {
            shared.graveyard.has(path.file_name()) && !fault::planted(fault::Bug::DeleteBeforeLastReader)
        };
        let (later, now): (Vec<_>, Vec<_>) = std::mem::take(&mut self.garbage).into_iter().partition(is_read);
        self.garbage = later;
        if now.is_empty() {
            return Ok(());
        }
        if let Err(error) = shared.remote.storage.delete(&now).await {
            tracing::info!(timeline = %shared.timeline, "not removed, will be tried again: {error}");
            self.garbage.extend(now);
            self.is_left = true;
        }
        Ok(())
    }

    /// When to look again at what could not be removed, though nothing is submitted.
    pub(super) fn due(&self, shared: &Shared) -> Option<Instant> {
        let given_up = shared.given_up().into_iter().map(|(_, begun)| begun + LATE);
        given_up.chain(self.is_left.then(|| env::clock::now() + LATE)).min()
    }

    /// Adds the objects of uploads that failed, of layers that were replaced since. Such an upload may have succeeded:
    /// only its answer was lost, or came too late.
    fn find_given_up(&mut self, shared: &Shared) {
        let now = env::clock::now();
        for (name, _) in shared.given_up().into_iter().filter(|(_, begun)| *begun + LATE <= now) {
            shared.attempts.lock().remove(&name);
            self.garbage.push(shared.remote.layer_path(shared.timeline, &name));
        }
    }

    /// Whether there are objects that could be removed now.
    pub(super) fn has_garbage(&self, shared: &Shared) -> bool {
        self.garbage.iter().any(|path| !shared.graveyard.has(path.file_name()))
    }

    /// Looks for objects that nobody needs, beyond those that a publication leaves.
    pub(super) async fn find_garbage(&mut self, shared: &Shared) {
        self.is_left = false;
        self.find_given_up(shared);
        self.find_orphans(shared).await;
    }

    /// Once, after the first index part of our own: adds the layers of earlier generations that it does not name. Every
    /// later owner begins with this index part or one of ours that follows it, so nobody will ever name them.
    async fn find_orphans(&mut self, shared: &Shared) {
        let remote = &shared.remote;
        let own = self.manifest.as_ref().filter(|manifest| manifest.generation == remote.generation);
        let Some(own) = own.filter(|_| !self.has_looked) else { return };
        let prefix = RemotePath::timeline(&remote.tenant, &shared.timeline);
        let listed = match remote.storage.list(RequestClass::Delete, &prefix).await {
            Ok(listed) => listed,
            Err(error) => {
                tracing::info!(timeline = %shared.timeline, "not looked for objects left behind: {error}");
                self.is_left = true;
                return;
            }
        };
        self.has_looked = true;
        let named = plan::layer_names(own);
        let is_orphan = |path: &RemotePath| {
            let name = path.file_name().parse::<LayerFileName>();
            name.is_ok_and(|name| name.generation < remote.generation && !named.contains(&name))
        };
        let orphans: Vec<RemotePath> =
            listed.into_iter().map(|object| object.path).filter(|path| is_orphan(path)).collect();
        if !orphans.is_empty() {
            tracing::info!(timeline = %shared.timeline, "{} objects that were left behind go", orphans.len());
        }
        self.garbage.extend(orphans);
        self.garbage.sort();
        self.garbage.dedup();
    }
}

impl Shared {
    /// The attempts to upload layers that no state needs any more, and when they began.
    fn given_up(&self) -> Vec<(String, Instant)> {
        let attempts = self.attempts.lock();
        if attempts.is_empty() {
            return Vec::new();
        }
        let wanted = self.wanted.borrow();
        let wanted = wanted.as_ref().map(|wanted| plan::layer_names(&wanted.manifest)).unwrap_or_default();
        let is_wanted = |name: &str| name.parse().is_ok_and(|name| wanted.contains(&name));
        let given_up = attempts.iter().filter(|(name, _)| !is_wanted(name));
        given_up.map(|(name, begun)| (name.clone(), *begun)).collect()
    }
}
