//! Verifies everything stored for a tenant, on the local disk and in the bucket, and repairs whatever has a good
//! copy.
//!
//! Index parts and manifests name what should exist. Every byte that has a checksum is read. A [`Finding`] is
//! damaged, missing, or an orphan: present without being named. Nothing is changed unless requested: local damage is
//! repaired from the bucket, the bucket from a good local copy, and orphans are removed; objects only after a check
//! of the generations, so that nothing of a newer owner is touched.

mod index;
mod inventory;
mod layers;
mod local;
mod objects;
mod rebuild;
mod report;
mod subject;

use std::collections::BTreeSet;
use std::sync::Arc;

use pageserver_api::shard::TenantShardId;
use utils::id::TimelineId;

use self::objects::Bucket;
pub use self::report::{Finding, Kind, Lost, Place, Progress, Report};
pub use self::subject::{Options, Subject};
use crate::config::PageServerConf;
use errors::{ErrorKind, StorageError};
use virtual_file::fs;

/// Scrubs one tenant. Defects of what is stored are in the report.
///
/// # Errors
/// If the directory or the bucket cannot be listed at all.
pub async fn scrub(subject: &Subject, options: Options, progress: &Arc<Progress>) -> Result<Report, StorageError> {
    let mut report = Report::new(subject.tenant);
    let mut timelines = local_timelines(subject).await?;
    let bucket = match &subject.conf.remote_storage {
        Some(storage) => {
            let local = local::last_generation(subject, &timelines).await?;
            Some(Bucket::look(storage.clone(), subject, local, options, &mut report).await?)
        }
        None => None,
    };
    let options = match bucket.as_ref().is_some_and(|bucket| bucket.is_headless) {
        // Whoever owns the tenant may need anything that is there.
        true => Options { repair_bucket: false, delete_orphans: false, ..options },
        false => options,
    };
    if let Some(bucket) = &bucket {
        timelines.extend(bucket.timelines().await?);
        bucket.check_unfinished(options, &mut report).await?;
    }
    local::check_tenant_files(subject, bucket.as_ref(), options, &mut report).await?;
    for timeline in timelines {
        layers::scrub_timeline(subject, bucket.as_ref(), timeline, options, progress, &mut report).await?;
        report.timelines += 1;
    }
    report.files = progress.files();
    report.objects = progress.objects();
    report.bytes = progress.bytes();
    Ok(report)
}

async fn local_timelines(subject: &Subject) -> Result<BTreeSet<TimelineId>, StorageError> {
    let names = match fs::list_dir(&subject.conf.timelines_path(&subject.tenant)).await {
        Err(error) if error.kind() == ErrorKind::Gone => Vec::new(),
        names => names?,
    };
    Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
}

/// The tenants in a working directory and its bucket.
///
/// # Errors
/// If the directory or the bucket cannot be listed.
pub async fn tenants(conf: &PageServerConf) -> Result<Vec<TenantShardId>, StorageError> {
    let mut found = BTreeSet::new();
    match fs::list_dir(&conf.tenants_path()).await {
        Err(error) if error.kind() == ErrorKind::Gone => {}
        names => found.extend(names?),
    }
    if let Some(storage) = &conf.remote_storage {
        found.extend(objects::list_tenants(storage).await?);
    }
    Ok(found.iter().filter_map(|name| name.parse().ok()).collect())
}
