//! Random records against a model that has only sizes and the last mark of every page, batched in any way.

use std::collections::BTreeMap;

use postgres_formats::record::RelFile;
use postgres_formats::rmgr::RmgrId;
use proptest::prelude::*;

use super::records::{block_record, block_record_with, commit, copy_database, create, drop_database, truncate};
use super::{Cluster, REL, tag};
use crate::listing::Listing;

#[derive(Clone, Debug)]
enum Step {
    Write { db: u32, rel: u32, blkno: u32, mark: u8 },
    Create { db: u32, rel: u32 },
    Truncate { db: u32, rel: u32, blocks: u32 },
    Drop { db: u32, rel: u32 },
    Copy,
    DropCopy,
    Commit,
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = || (prop::sample::select(vec![5u32, 77]), 1u32..4);
    let step = prop_oneof![
        8 => (place(), 0u32..6, 1u8..=255).prop_map(|((db, rel), blkno, mark)| Step::Write { db, rel, blkno, mark }),
        2 => place().prop_map(|(db, rel)| Step::Create { db, rel }),
        2 => (place(), 0u32..6).prop_map(|((db, rel), blocks)| Step::Truncate { db, rel, blocks }),
        2 => place().prop_map(|(db, rel)| Step::Drop { db, rel }),
        1 => Just(Step::Copy),
        1 => Just(Step::DropCopy),
        2 => Just(Step::Commit),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..40)
}

/// Marks of pages by database and relation; 0 for a page of zeros.
type Model = BTreeMap<(u32, u32), Vec<u8>>;

fn apply_to_model(model: &mut Model, step: &Step) {
    match *step {
        Step::Write { db, rel, blkno, mark } => {
            let pages = model.entry((db, rel)).or_default();
            pages.resize(pages.len().max(blkno as usize + 1), 0);
            pages[blkno as usize] = mark;
        }
        Step::Create { db, rel } => drop(model.entry((db, rel)).or_default()),
        Step::Truncate { db, rel, blocks } => model.entry((db, rel)).or_default().truncate(blocks as usize),
        Step::Drop { db, rel } => drop(model.remove(&(db, rel))),
        Step::Copy => {
            model.retain(|(db, _), _| *db != 77);
            let copies: Model = model.iter().map(|((_, rel), pages)| ((77, *rel), pages.clone())).collect();
            model.extend(copies);
        }
        Step::DropCopy => model.retain(|(db, _), _| *db != 77),
        Step::Commit | Step::Restart => {}
    }
}

fn rel_file(db: u32, rel: u32) -> RelFile {
    RelFile { db, rel, ..REL }
}

async fn apply(cluster: &mut Cluster, step: &Step) {
    let bytes = match *step {
        Step::Write { db, rel, blkno, mark } => block_record(RmgrId::BTREE, rel_file(db, rel), 0, blkno, true, mark),
        Step::Create { db, rel } => create(rel_file(db, rel), 0),
        Step::Truncate { db, rel, blocks } => truncate(rel_file(db, rel), blocks, 7),
        Step::Drop { db, rel } => commit(701, &[], &[rel_file(db, rel)], None),
        Step::Copy => copy_database((77, 1663), (5, 1663)),
        Step::DropCopy => drop_database(77, &[1663]),
        Step::Commit => return cluster.ingest.commit().await.unwrap(),
        Step::Restart => {
            // Only what was committed remains; in a real restart, later records would be received again.
            cluster.ingest.commit().await.unwrap();
            let last = cluster.store.last();
            cluster.ingest = super::WalIngest::load(cluster.store.clone(), last, last - 8).await.unwrap();
            return;
        }
    };
    cluster.apply(bytes).await;
}

async fn compare(cluster: &Cluster, lsn: utils::lsn::Lsn, model: &Model) {
    let listing = Listing::new(&cluster.store, lsn);
    let dbs = listing.databases().await.unwrap();
    let mut found = Model::new();
    for (spcnode, dbnode) in dbs.into_keys() {
        for (rel, size) in listing.relations(spcnode, dbnode).await.unwrap() {
            let keys = pageserver_api::key::rel_block_key(rel, 0)..pageserver_api::key::rel_block_key(rel, size);
            let pages = listing.dense(keys).await.unwrap();
            found.insert((dbnode, rel.relnode), pages.values().map(|page| page[100]).collect());
            assert_eq!(listing.rel_size(tag(rel_file(dbnode, rel.relnode), 0)).await.unwrap(), Some(size));
        }
    }
    assert_eq!(&found, model, "as of {lsn}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn sizes_and_pages_follow_the_model(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut cluster = Cluster::new().await;
            let mut model = Model::new();
            let mut history = Vec::new();
            for step in &steps {
                apply(&mut cluster, step).await;
                apply_to_model(&mut model, step);
                history.push((cluster.at, model.clone()));
            }
            cluster.ingest.commit().await.unwrap();
            for (lsn, model) in &history {
                compare(&cluster, *lsn, model).await;
            }
        });
    }

    #[test]
    fn batches_do_not_matter(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (mut one, mut other) = (Cluster::new().await, Cluster::new().await);
            for step in &steps {
                apply(&mut one, step).await;
                if !matches!(step, Step::Commit | Step::Restart) {
                    apply(&mut other, step).await;
                    apply(&mut other, &Step::Restart).await;
                }
            }
            one.ingest.commit().await.unwrap();
            assert_eq!(one.store.all(), other.store.all());
        });
    }

    #[test]
    fn any_record_is_ingested_or_refused(
        records in prop::collection::vec((0u8..22, any::<u8>(), prop::collection::vec(0u8..6, 0..120)), 1..12)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut cluster = Cluster::new().await;
            for (rmid, info, main) in records {
                let bytes = block_record_with(RmgrId(rmid), info, REL, 0, 1, true, &main);
                let alone = super::records::main_record(RmgrId(rmid), info, &main);
                for bytes in [bytes, alone] {
                    if cluster.try_apply(bytes).await.is_err() {
                        let last = cluster.store.last();
                        cluster.at = last;
                        let prev = utils::lsn::Lsn(last.0 - 8);
                        cluster.ingest = super::WalIngest::load(cluster.store.clone(), last, prev).await.unwrap();
                    }
                }
            }
            cluster.ingest.commit().await.unwrap();
        });
    }
}
