//! Decides whether the disk or the bucket has the true state of a timeline. Pure.

use crate::tenant::timeline::manifest::{Manifest, Told};

/// What to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The timeline does not exist.
    Nothing,
    /// Continue from the local state; the bucket gets what it lacks.
    Local(Manifest),
    /// Continue from the bucket's state. The disk may have some of its layers.
    Bucket(Manifest),
    /// It was deleted: its remains should be removed.
    Deleted,
    /// Neither can be trusted, and nothing may be removed.
    Refused(String),
}

/// Decides between the local manifest and the newest index part of the generations before ours.
pub(crate) fn decide(local: Option<Manifest>, index: Option<&Manifest>, bucket: &str) -> Decision {
    match (local, index) {
        (None, None) => Decision::Nothing,
        (None, Some(index)) if index.deleted => Decision::Deleted,
        (None, Some(index)) => Decision::Bucket(index.clone()),
        (Some(local), None) if local.in_bucket => Decision::Refused(format!(
            "its manifest says that {bucket} has it, but nothing of it is there: is this another bucket than before, \
             or was the timeline removed from it? Nothing is changed"
        )),
        (Some(local), None) => Decision::Local(local),
        (Some(local), Some(index)) => between(local, index, bucket),
    }
}

fn between(local: Manifest, index: &Manifest, bucket: &str) -> Decision {
    // A state that only this server has written since is not behind anybody else's changes, nor is one of before there
    // was a bucket. That a state does not know of an upload means nothing: one whose answer was lost may have been
    // taken up by another server.
    let (never_uploaded, is_later) = (!local.in_bucket, index.generation > local.generation);
    let nobody_since = !is_later || never_uploaded && local.generation == 0;
    if index.deleted {
        // The local timeline may be one of the same name that was created after the deletion.
        return if never_uploaded && !is_later { Decision::Local(local) } else { Decision::Deleted };
    }
    if (never_uploaded || nobody_since) && local.origin != index.origin {
        return Decision::Refused(format!(
            "the disk and {bucket} have different timelines of this name: {:?} here, {:?} there. Nothing is changed",
            local.origin, index.origin
        ));
    }
    let position = |manifest: &Manifest| (manifest.disk_consistent_lsn, manifest.edition);
    // The ancestor of one that was detached may be gone.
    let ahead = position(&local) >= position(index) && (local.detached || !index.detached);
    if nobody_since && ahead {
        // Earlier versions stored `wal_source` in a separate file, which may be missing or damaged.
        let is_sound = local.wal_source.as_ref().is_some_and(Told::is_sound);
        let there = index.wal_source.as_ref().filter(|_| !is_sound);
        let wal_source = there.or(local.wal_source.as_ref()).cloned();
        Decision::Local(Manifest { in_bucket: true, wal_source, ..local })
    } else {
        Decision::Bucket(index.clone())
    }
}

#[cfg(test)]
mod tests {
    use pageserver_api::shard::TenantShardId;
    use postgres_formats::version::PgVersion;
    use utils::id::{TenantId, TimelineId};
    use utils::lsn::Lsn;

    use super::*;
    use crate::tenant::timeline::manifest::{Kept, Origin};

    fn manifest(generation: u32, lsn: u64, in_bucket: bool, system_identifier: u64) -> Manifest {
        Manifest {
            tenant_shard_id: TenantShardId::unsharded(TenantId::from([1; 16])),
            timeline_id: TimelineId::from([2; 16]),
            generation,
            in_bucket,
            deleted: false,
            wal_source: None,
            origin: Origin {
                pg_version: PgVersion::V17,
                system_identifier,
                wal_segment_size: 16 << 20,
                data_checksums: true,
                wal_log_hints: false,
                import_lsn: Lsn(100),
                consistent_lsn: Lsn(100),
                ancestor: None,
            },
            wal_log_hints_changes: Vec::new(),
            disk_consistent_lsn: Lsn(lsn),
            prev_record_lsn: Lsn::INVALID,
            edition: 0,
            gc_cutoff: Lsn::INVALID,
            retained: Vec::new(),
            layers: Vec::new(),
            kept: Kept::default(),
            detached: false,
        }
    }

    fn name(decision: &Decision) -> &'static str {
        match decision {
            Decision::Nothing => "nothing",
            Decision::Local(_) => "local",
            Decision::Bucket(_) => "bucket",
            Decision::Deleted => "deleted",
            Decision::Refused(_) => "refused",
        }
    }

    #[test]
    fn the_cases_that_servers_meet() {
        let local = |generation, lsn, in_bucket| Some(manifest(generation, lsn, in_bucket, 7));
        let index = |generation, lsn| Some(manifest(generation, lsn, true, 7));
        let mark = |generation| Some(Manifest { deleted: true, ..manifest(generation, 200, true, 7) });
        let other = Some(manifest(1, 200, true, 8));
        for (case, local, index, expected) in [
            ("neither", None, None, "nothing"),
            ("an empty disk", None, index(3, 200), "bucket"),
            ("an empty disk, deleted", None, mark(3), "deleted"),
            ("a store of before there was a bucket", local(0, 200, false), None, "local"),
            ("a crash before the first publication", local(1, 200, false), None, "local"),
            ("a crash right after the first publication", local(0, 200, false), index(1, 200), "local"),
            ("the same, and flushed since", local(1, 300, false), index(1, 200), "local"),
            ("another bucket, or removed from it", local(3, 200, true), None, "refused"),
            ("an upload that was not noted, and another server's since", local(1, 200, false), index(2, 200), "bucket"),
            ("the same, and flushed here since", local(1, 300, false), index(2, 200), "bucket"),
            ("a restart", local(3, 200, true), index(3, 200), "local"),
            ("a restart before the last upload", local(3, 300, true), index(3, 200), "local"),
            ("a restart without a flush since the one before", local(3, 200, true), index(4, 200), "bucket"),
            ("another server had it", local(3, 300, true), index(4, 250), "bucket"),
            ("the disk was put back to an earlier state", local(3, 150, true), index(3, 200), "bucket"),
            ("deleted by another server", local(3, 300, true), mark(4), "deleted"),
            ("a deletion that did not end", local(3, 300, true), mark(3), "deleted"),
            ("made anew after a deletion", local(4, 300, false), mark(3), "local"),
            ("another timeline of this name", local(0, 300, false), other.clone(), "refused"),
            ("another timeline of this name, since", local(1, 300, true), other, "refused"),
        ] {
            let decision = decide(local, index.as_ref(), "s3://bucket");
            assert_eq!(name(&decision), expected, "{case}: {decision:?}");
            if let Decision::Refused(reason) = decision {
                assert!(reason.contains("s3://bucket"), "{reason}");
            }
        }
    }

    #[test]
    fn a_detached_timeline_never_needs_its_ancestor_again() {
        let detached = |manifest| Manifest { detached: true, ..manifest };
        let (local, index) = (manifest(3, 300, true, 7), manifest(3, 200, true, 7));
        let decide = |local: &Manifest, index: &Manifest| decide(Some(local.clone()), Some(index), "");
        assert_eq!(decide(&local, &detached(index.clone())), Decision::Bucket(detached(index.clone())));
        let both = (detached(local.clone()), detached(index.clone()));
        assert_eq!(decide(&both.0, &both.1), Decision::Local(both.0.clone()));
        assert_eq!(decide(&both.0, &index), Decision::Local(both.0.clone()), "a crash before the upload");
        let of_another = Manifest { generation: 4, ..index };
        assert_eq!(decide(&both.0, &of_another), Decision::Bucket(of_another.clone()), "nobody was promised anything");
    }

    #[test]
    fn nothing_in_the_bucket_is_ever_hidden_and_nothing_of_others_taken() {
        let generations = 0..4u32;
        let lsns = [100, 200, 300];
        let mut cases = 0;
        for (local_generation, index_generation) in generations.clone().flat_map(|a| (1..4u32).map(move |b| (a, b))) {
            for (local_lsn, index_lsn) in lsns.into_iter().flat_map(|a| lsns.map(move |b| (a, b))) {
                for (in_bucket, deleted) in [(false, false), (true, false), (false, true), (true, true)] {
                    cases += 1;
                    let local = manifest(local_generation, local_lsn, in_bucket, 7);
                    let index = Manifest { deleted, ..manifest(index_generation, index_lsn, true, 7) };
                    match decide(Some(local.clone()), Some(&index), "") {
                        Decision::Local(chosen) => {
                            assert_eq!(chosen.layers, local.layers);
                            // Local is never behind the bucket, and ignores nothing that another owner did since.
                            assert!(deleted || local_lsn >= index_lsn);
                            assert!(index_generation <= local_generation || !in_bucket && local_generation == 0);
                        }
                        Decision::Bucket(chosen) => {
                            assert!(!deleted && chosen == index);
                            // What only this server has had since is not discarded while it is ahead.
                            assert!(local_lsn < index_lsn || index_generation > local_generation);
                        }
                        Decision::Deleted => assert!(deleted && (in_bucket || index_generation > local_generation)),
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
        println!("{cases} cases");
    }
}
