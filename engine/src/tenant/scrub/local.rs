//! Scrubs a tenant's local files other than layers, and finds files that nothing names.

use std::collections::BTreeSet;

use camino::{Utf8Path, Utf8PathBuf};
use utils::id::TimelineId;

use super::objects::{Bucket, Objects};
use super::report::{Finding, Kind, Place, Report};
use super::subject::{Options, Subject};
use crate::tenant::storage_layer::{EPHEMERAL_PREFIX, LayerFileName, PARTIAL_SUFFIX};
use crate::tenant::timeline::{DirLock, MANIFEST_NAME, Manifest, Timeline};
use crate::tenant::warm::{self, HotList};
use errors::{ErrorKind, StorageError};
use remote_storage::{RemotePath, RequestClass};
use virtual_file::fs::{self, TEMP_SUFFIX};

/// A timeline's directory.
pub(super) struct Local {
    pub(super) dir: Utf8PathBuf,
    /// Names of its files.
    pub(super) names: BTreeSet<String>,
    pub(super) manifest: Option<Manifest>,
    /// Locks out other processes, unless this process has the timeline open.
    _lock: Option<DirLock>,
}

/// The latest generation that wrote a manifest on this disk, among timelines that the bucket has.
pub(super) async fn last_generation(
    subject: &Subject,
    timelines: &BTreeSet<TimelineId>,
) -> Result<Option<u32>, StorageError> {
    let mut last = None;
    for timeline in timelines {
        let dir = subject.conf.timeline_path(&subject.tenant, timeline);
        match Manifest::load(&dir, subject.tenant, *timeline).await {
            Ok(manifest) => last = last.max(Some(manifest.generation).filter(|_| manifest.in_bucket)),
            // Reported later.
            Err(error) if matches!(error.kind(), ErrorKind::Gone | ErrorKind::Corrupt) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(last)
}

/// Examines a timeline's directory. A missing directory counts as empty.
///
/// # Errors
/// [`StorageError::Invalid`] if another process is using it.
pub(super) async fn look(
    subject: &Subject,
    timeline: TimelineId,
    open: Option<&Timeline>,
    objects: &Objects,
    options: Options,
    report: &mut Report,
) -> Result<Local, StorageError> {
    let dir = subject.conf.timeline_path(&subject.tenant, &timeline);
    let names: BTreeSet<String> = match fs::list_dir(&dir).await {
        Err(error) if error.kind() == ErrorKind::Gone => BTreeSet::new(),
        names => names?.into_iter().collect(),
    };
    let lock = match open {
        None if !names.is_empty() => Some(DirLock::take(&dir)?),
        _ => None,
    };
    let manifest = match names.contains(MANIFEST_NAME) {
        true => check_manifest(subject, &dir, timeline, open, objects, options, report).await?,
        false => None,
    };
    Ok(Local { dir, names, manifest, _lock: lock })
}

async fn check_manifest(
    subject: &Subject,
    dir: &Utf8PathBuf,
    timeline: TimelineId,
    open: Option<&Timeline>,
    objects: &Objects,
    options: Options,
    report: &mut Report,
) -> Result<Option<Manifest>, StorageError> {
    let error = match Manifest::load(dir, subject.tenant, timeline).await {
        Err(error) if error.kind() == ErrorKind::Corrupt => error,
        manifest => return manifest.map(Some),
    };
    let mut found = Finding {
        place: Place::Local,
        kind: Kind::Damaged,
        name: Manifest::path(dir).into_string(),
        reason: error.to_string(),
        bytes: 0,
        fixed: false,
    };
    let repaired = match (open, &objects.index) {
        _ if !options.repair => None,
        // The open timeline has the current state.
        (Some(timeline), _) => {
            timeline.rewrite_manifest().await?;
            Some(Manifest::load(dir, subject.tenant, timeline.timeline_id()).await?)
        }
        // Postgres sends everything after this again, since it was not reported as safe.
        (None, Some((_, index))) if !index.deleted => {
            let manifest = Manifest { in_bucket: true, ..index.clone() };
            manifest.store(dir).await?;
            Some(manifest)
        }
        (None, _) => None,
    };
    found.fixed = repaired.is_some();
    report.add(found);
    Ok(repaired)
}

/// Finds this server's files that nothing names. Only valid while the directory is not in use: files being written
/// are not named yet.
pub(super) async fn check_orphans(
    local: &Local,
    named: &BTreeSet<String>,
    options: Options,
    report: &mut Report,
) -> Result<(), StorageError> {
    for name in &local.names {
        let layer = name.strip_suffix(PARTIAL_SUFFIX).unwrap_or(name);
        let is_ours =
            name.ends_with(TEMP_SUFFIX) || name.starts_with(EPHEMERAL_PREFIX) || layer.parse::<LayerFileName>().is_ok();
        if !is_ours || named.contains(layer) {
            continue;
        }
        let path = local.dir.join(name);
        if options.delete_orphans {
            fs::unlink(&path).await?;
        }
        report.add(Finding {
            place: Place::Local,
            kind: Kind::Orphan,
            name: path.into_string(),
            reason: "nothing names it".to_owned(),
            bytes: 0,
            fixed: options.delete_orphans,
        });
    }
    Ok(())
}

/// Checks the hot list, here and in the bucket. It is only a hint: a damaged one is removed, and later recreated.
pub(super) async fn check_tenant_files(
    subject: &Subject,
    bucket: Option<&Bucket>,
    options: Options,
    report: &mut Report,
) -> Result<(), StorageError> {
    let path = warm::path(subject.conf, subject.tenant);
    if let Some(error) = damage(&path, virtual_file::read_file(&path).await)? {
        if options.repair {
            fs::unlink(&path).await?;
        }
        report.add(no_list(Place::Local, path.into_string(), &error, options.repair));
    }
    let Some(bucket) = bucket else { return Ok(()) };
    let object = RemotePath::hot_layers(&subject.tenant);
    let name = bucket.name(&object);
    let bytes = bucket.storage.get(RequestClass::Scrub, &object, u64::MAX).await;
    if let Some(error) = damage(Utf8Path::new(&name), bytes.map(Vec::from))? {
        if options.repair_bucket {
            bucket.check_owner().await?;
            bucket.storage.delete(&[object]).await?;
        }
        report.add(no_list(Place::Bucket, name, &error, options.repair_bucket));
    }
    Ok(())
}

/// The defect of a hot list that was read, if any. A missing list is not a defect.
fn damage(path: &Utf8Path, bytes: Result<Vec<u8>, StorageError>) -> Result<Option<StorageError>, StorageError> {
    match bytes.and_then(|bytes| HotList::decode(path, &bytes)) {
        Ok(_) => Ok(None),
        Err(error) if error.kind() == ErrorKind::Gone => Ok(None),
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(Some(error)),
        Err(error) => Err(error),
    }
}

fn no_list(place: Place, name: String, error: &StorageError, fixed: bool) -> Finding {
    Finding { place, kind: Kind::Damaged, name, reason: error.to_string(), bytes: 0, fixed }
}
