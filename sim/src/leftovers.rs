//! In the end there is nothing that nobody needs, neither on the disks nor in the bucket.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use engine::tenant::scrub::{Kind, Options, Progress, Report, Subject, scrub};
use engine::tenant::storage_layer::LayerFileName;
use errors::StorageError;
use remote_storage::{INDEX_PART_PREFIX, LAYER_LIST_PREFIX, ORIGIN_PREFIX};
use virtual_file::fs::TEMP_SUFFIX;

use crate::server::PATIENCE;
use crate::story::{tell, violation};
use crate::world::World;

/// Digits of a key, with which names of layers begin.
const KEY_DIGITS: usize = 36;
/// Objects of a timeline of which only the newest one counts.
const REPLACED: [&str; 2] = [INDEX_PART_PREFIX, LAYER_LIST_PREFIX];

fn is_layer(name: &str) -> bool {
    name.parse::<LayerFileName>().is_ok()
}

impl World {
    /// Once all jobs have ended, no owner's disk has anything of a tenant that nobody needs.
    pub async fn wait_for_leftovers_to_go(&mut self) {
        let began = env::clock::now();
        while let Some((owner, left)) = (0..self.tenants.len()).find_map(|tenant| self.leftover(tenant)) {
            if env::clock::now().saturating_duration_since(began) > PATIENCE {
                violation!(self.story, "nothing needs {left}, which is on the disk of {owner}");
                return;
            }
            env::clock::sleep(Duration::from_secs(1)).await;
        }
    }

    /// A file of a tenant on the disk of its owner, who is named, that nothing needs.
    fn leftover(&self, tenant: usize) -> Option<(&'static str, Utf8PathBuf)> {
        let (id, owner) = (self.tenants[tenant].id, self.owner_of(tenant));
        let timelines = self.known.keys().filter_map(|timeline| owner.timeline(id, *timeline));
        let layers: Vec<_> = timelines.flat_map(|timeline| timeline.layer_files()).collect();
        let is_unneeded_layer = |path: &Utf8PathBuf| {
            path.file_name().is_some_and(is_layer) && layers.iter().all(|layer| layer.path() != path)
        };
        // Files with fixed names are replaced when they are written next.
        let is_unfinished_layer = |path: &Utf8PathBuf| {
            let name = path.file_name().and_then(|name| name.strip_suffix(TEMP_SUFFIX));
            name.is_some_and(|name| {
                name.get(..KEY_DIGITS).is_some_and(|key| key.bytes().all(|it| it.is_ascii_hexdigit()))
            })
        };
        let dir = owner.dir_of(id);
        let mut files = owner.disk.platter().files().into_iter().filter(|path| path.starts_with(&dir));
        Some((owner.name, files.find(|path| is_unfinished_layer(path) || is_unneeded_layer(path))?))
    }

    /// A day and a start after everything was quiet, the bucket has nothing that nobody needs, and a scrub finds
    /// nothing wrong in it.
    pub async fn check_bucket(&mut self) {
        let began = env::clock::now();
        loop {
            let left = self.unneeded_objects().await;
            if left.is_empty() {
                break;
            }
            if env::clock::now().saturating_duration_since(began) > PATIENCE {
                violation!(self.story, "nothing needs these objects, which do not go: {left:?}");
                return;
            }
            env::clock::sleep(Duration::from_secs(1)).await;
        }
        tell!(self.story, "the bucket has only what is needed");
        for tenant in 0..self.tenants.len() {
            self.scrub(tenant).await;
        }
    }

    /// An operator has a tenant scrubbed, and nothing is damaged or missing. What a job has just replaced, and somebody
    /// still reads, is there although nothing names it: another scrub does not find it any more.
    async fn scrub(&self, tenant: usize) {
        let began = env::clock::now();
        loop {
            let report = match self.scrub_once(tenant).await {
                Some(Ok(report)) if report.findings.is_empty() && report.lost.is_empty() => return,
                Some(Ok(report)) => report,
                other => return violation!(self.story, "tenant {tenant} cannot be scrubbed: {other:?}"),
            };
            let may_go = report.lost.is_empty() && report.findings.iter().all(|finding| finding.kind == Kind::Orphan);
            if !may_go || env::clock::now().saturating_duration_since(began) > PATIENCE {
                let (findings, lost) = (report.findings, report.lost);
                return violation!(self.story, "a scrub of tenant {tenant} finds {findings:?}, and lost is {lost:?}");
            }
            env::clock::sleep(Duration::from_secs(10)).await;
        }
    }

    async fn scrub_once(&self, tenant: usize) -> Option<Result<Report, StorageError>> {
        let (id, owner) = (self.tenants[tenant].id, self.owner_of(tenant));
        let manager = owner.manager()?;
        let scrubbed = owner.run("scrub", PATIENCE, async move {
            let generation = manager.remote_of(id).map(|remote| remote.generation());
            let open = manager.timelines(id).unwrap_or_default();
            let subject = Subject { conf: manager.conf(), tenant: id, open, generation, exclusive: false };
            scrub(&subject, Options::default(), &Arc::new(Progress::default())).await
        });
        scrubbed.await
    }

    /// Objects of timelines that neither an index part nor whoever opens the timeline needs. Generations stay for ever,
    /// so that none is given out twice; so do origins until their timeline goes: where lists lagged there are several.
    async fn unneeded_objects(&self) -> Vec<String> {
        let paths = self.bucket.paths().await;
        let mut newest = BTreeMap::new();
        let replaced = |path: &str| {
            let (dir, name) = path.rsplit_once('/')?;
            Some((dir.to_owned(), REPLACED.into_iter().find(|prefix| name.starts_with(prefix))?))
        };
        for path in &paths {
            if let Some(key) = replaced(path) {
                newest.insert(key, path.clone());
            }
        }
        let is_needed = |path: &String| {
            let parts: Vec<&str> = path.split('/').collect();
            let ["tenants", tenant, "timelines", timeline, name] = parts[..] else { return true };
            let home = self.tenants.iter().find(|it| it.id.to_string() == tenant);
            let timeline = home
                .zip(timeline.parse().ok())
                .and_then(|(tenant, timeline)| self.servers[tenant.owner].timeline(tenant.id, timeline));
            let Some(timeline) = timeline else { return false };
            match replaced(path) {
                None if name.starts_with(ORIGIN_PREFIX) => true,
                Some(key) => newest.get(&key) == Some(path),
                None => timeline.layer_files().iter().any(|layer| layer.path().file_name() == Some(name)),
            }
        };
        paths.into_iter().filter(|path| !is_needed(path)).collect()
    }
}
