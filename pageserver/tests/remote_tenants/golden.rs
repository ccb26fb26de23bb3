//! Stores in all formats that a server ever wrote and that this one promises to read; `docs/formats.md` has the
//! policy.
//!
//! Each directory below `tests/golden` is the disk and the bucket of a server as one version left them, with what can
//! be read there. They are never rewritten: a new format gets its own directory (`make golden`).

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use camino_tempfile::{Utf8TempDir, tempdir};
use engine::config::{CompactionPolicy, PageServerConf, RetentionPolicy};
use engine::tenant::manager::{NewBranch, TenantManager};
use engine::tenant::timeline::Timeline;
use object_store::local::LocalFileSystem;
use pageserver::walreceiver::{NewWriter, WalReceivers, Writer};
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use remote_storage::RemoteStorage;
use utils::id::TimelineId;
use utils::lsn::Lsn;

use crate::remote_support::fast;
use crate::stack::{context, import_with, new_timeline};
use crate::world::{UPLOAD, kill, load, put};

const SLOT: &str = "golden_slot";

fn golden() -> Utf8PathBuf {
    Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn bucket(dir: &Utf8Path) -> RemoteStorage {
    fs::create_dir_all(dir).unwrap();
    let files = LocalFileSystem::new_with_prefix(dir).unwrap();
    RemoteStorage::with_options(Arc::new(files), "golden://bucket", fast())
}

fn copy(from: &Utf8Path, to: &Utf8Path) {
    fs::create_dir_all(to).unwrap();
    for entry in from.read_dir_utf8().unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// CRC-32C of each value: lines of timeline, LSN, key, sum.
async fn sums(timeline: &Timeline, lsn: Lsn) -> Vec<String> {
    let found = timeline.get_vectored(&KeySpace::single(Key::MIN..Key::MAX), lsn, &context()).await.unwrap();
    let sum = |(key, value): (Key, Result<bytes::Bytes, _>)| {
        let value = value.unwrap_or_else(|error: errors::StorageError| panic!("{key} at {lsn}: {error}"));
        format!("{} {lsn} {key} {:08x}", timeline.timeline_id(), utils::crc32c::crc32c(&value))
    };
    found.into_iter().map(sum).collect()
}

/// Reads what the store must contain. Returns the number of values.
async fn check(manager: &TenantManager, expected: &str, what: &str) -> usize {
    let mut moments = BTreeMap::<(TimelineId, Lsn), Vec<&str>>::new();
    for line in expected.lines() {
        let mut fields = line.split(' ');
        let mut field = || fields.next().expect("four fields");
        let moment = (field().parse().unwrap(), field().parse().unwrap());
        moments.entry(moment).or_default().push(line);
    }
    let tenant = manager.tenants()[0];
    for ((timeline, lsn), lines) in moments {
        let timeline = manager.get(tenant, timeline).unwrap();
        assert_eq!(sums(&timeline, lsn).await, lines, "{what}");
    }
    expected.lines().count()
}

/// One copy of a golden store.
struct Copy {
    dir: Utf8TempDir,
    expected: String,
}

impl Copy {
    fn of(name: &str) -> Self {
        let dir = tempdir().unwrap();
        copy(&golden().join(name), dir.path());
        let expected = fs::read_to_string(dir.path().join("expected")).unwrap();
        Self { dir, expected }
    }

    fn disk(&self) -> Utf8PathBuf {
        self.dir.path().join("disk")
    }

    async fn load(&self) -> TenantManager {
        load(&self.disk(), &bucket(&self.dir.path().join("bucket"))).await
    }

    fn manifests(&self) -> Vec<Utf8PathBuf> {
        let tenant = self.disk().join("tenants").read_dir_utf8().unwrap().next().unwrap().unwrap().into_path();
        let timelines = tenant.join("timelines").read_dir_utf8().unwrap();
        timelines.map(|entry| entry.unwrap().path().join("manifest")).collect()
    }
}

fn names() -> Vec<String> {
    let entries = golden().read_dir_utf8().unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().to_owned()).collect();
    names.sort();
    assert!(!names.is_empty());
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_of_every_format_are_read_and_upgraded() {
    for name in names() {
        let store = Copy::of(&name);
        let manager = store.load().await;
        let values = check(&manager, &store.expected, "the disk").await;
        assert!(values > 90, "{values} values");
        let tenant = manager.tenants()[0];
        let timelines = manager.timelines(tenant).unwrap();
        assert!(timelines.len() == 2 && timelines.iter().any(|timeline| timeline.origin().ancestor.is_some()));
        let receivers = WalReceivers::new(manager.clone());
        receivers.start_all().await;
        let slots = timelines.iter().filter_map(|timeline| receivers.status(tenant, timeline.timeline_id()));
        assert_eq!(slots.map(|status| status.slot).collect::<Vec<_>>(), [SLOT], "{name}: the WAL source");
        receivers.shutdown().await;
        // Writes more, and reads everything again: from the disk, and from the bucket alone.
        for timeline in &timelines {
            put(timeline, &mut Default::default(), 5).await;
            timeline.flush(&context()).await.unwrap();
            assert!(timeline.wait_uploaded(UPLOAD).await);
        }
        drop(timelines);
        manager.shutdown().await;
        let manager = store.load().await;
        check(&manager, &store.expected, "the disk, upgraded").await;
        manager.shutdown().await;
        for (store, what) in [(store, "the bucket, upgraded"), (Copy::of(&name), "the bucket")] {
            fs::remove_dir_all(store.disk().join("tenants")).unwrap();
            let manager = store.load().await;
            check(&manager, &store.expected, what).await;
            kill(manager).await;
        }
    }
}

/// As a later version would write it: this version must not guess.
#[tokio::test(flavor = "multi_thread")]
async fn a_newer_format_is_refused_by_name() {
    let name = names().pop().unwrap();
    let store = Copy::of(&name);
    let manifests = store.manifests();
    for path in &manifests {
        let mut bytes = fs::read(path).unwrap();
        bytes[11] += 1;
        let end = bytes.len() - 4;
        let crc = utils::crc32c::crc32c(&bytes[..end]).to_be_bytes();
        bytes[end..].copy_from_slice(&crc);
        fs::write(path, &bytes).unwrap();
    }
    let before: Vec<_> = manifests.iter().map(|path| fs::read(path).unwrap()).collect();
    let bucket = bucket(&store.dir.path().join("bucket"));
    let manager = TenantManager::load_idle(crate::world::config(&store.disk(), &bucket)).await.unwrap();
    let broken = manager.broken();
    assert!(broken.iter().any(|(.., reason)| reason.contains("format version")), "{broken:?}");
    assert_eq!(broken.len(), 2);
    manager.shutdown().await;
    let after: Vec<_> = manifests.iter().map(|path| fs::read(path).unwrap()).collect();
    assert!(before == after, "what is not understood is left as it is");
}

/// Settings with which history is compacted and removed on request.
fn compacting(workdir: &Utf8Path, bucket: &RemoteStorage) -> &'static PageServerConf {
    let compaction =
        CompactionPolicy { l0_layers: 2, file_bytes: 20_000, height: 2, l0_slow: 0, ..CompactionPolicy::ON };
    let retention = RetentionPolicy {
        pitr_interval: Duration::ZERO,
        gc_horizon: 64,
        quiet_after_attach: Duration::ZERO,
        ..RetentionPolicy::ON_REQUEST
    };
    let conf = PageServerConf { compaction, retention, ..crate::world::config(workdir, bucket).clone() };
    Box::leak(Box::new(conf))
}

/// A timeline with layers of all kinds, a cutoff and a hold, which follows a server, and a branch of it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "writes a store of today's formats to the directory $GOLDEN"]
async fn write_one() {
    let dir = Utf8PathBuf::from(std::env::var("GOLDEN").expect("a directory"));
    let (disk, new) = (dir.join("disk"), new_timeline());
    fs::create_dir_all(&disk).unwrap();
    let manager = TenantManager::load_idle(compacting(&disk, &bucket(&dir.join("bucket")))).await.unwrap();
    manager.create_tenant(new.tenant_shard_id).await.unwrap();
    let remote = manager.remote_of(new.tenant_shard_id);
    let (timeline, mut model) = import_with(manager.conf(), new, remote).await.unwrap();
    manager.add(timeline.clone()).await.unwrap();
    let branch_id = TimelineId::generate();
    let mut held = timeline.last_record_lsn();
    for _ in 0..6 {
        put(&timeline, &mut model, 30).await;
        timeline.flush(&context()).await.unwrap();
        timeline.compact().await.unwrap();
        if timeline.holds().is_empty() {
            held = timeline.last_record_lsn();
            timeline.hold("golden", held).await.unwrap();
        }
    }
    let removed = manager.collect_garbage(new.tenant_shard_id, false).await.unwrap();
    assert!(removed[0].cutoff > held && removed[0].removed_layers > 0, "{removed:?}");
    let lsn = Some(timeline.last_record_lsn());
    let of = NewBranch { timeline_id: branch_id, ancestor_id: new.timeline_id, lsn };
    manager.branch(new.tenant_shard_id, of).await.unwrap();
    let branch = manager.get(new.tenant_shard_id, branch_id).unwrap();
    let mut expected = Vec::new();
    for timeline in [&timeline, &branch] {
        let first = timeline.last_record_lsn();
        put(timeline, &mut model.clone(), 30).await;
        timeline.flush(&context()).await.unwrap();
        let readable = |lsn: &Lsn| timeline.check_readable(*lsn).is_ok();
        for lsn in [held, first - 160, first, first + 80, timeline.last_record_lsn()].into_iter().filter(readable) {
            expected.extend(sums(timeline, lsn).await);
        }
    }
    let receivers = WalReceivers::new(manager.clone());
    let writer = Writer { id: "1".to_owned(), name: "compute".to_owned(), start_lsn: timeline.last_record_lsn() };
    let connstr = "host=/nonexistent user=postgres".to_owned();
    let new = NewWriter { writer, connstr, slot: SLOT.to_owned(), replace: false };
    receivers.register_writer(&timeline, new).await.unwrap();
    receivers.shutdown().await;
    for timeline in [timeline, branch] {
        assert!(timeline.wait_uploaded(UPLOAD).await);
    }
    manager.shutdown().await;
    fs::write(dir.join("expected"), expected.join("\n") + "\n").unwrap();
}
