//! Values into in-memory layers and delta layers, as in `bench_ingest`: of several timelines at once, or with a reader.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use engine::config::PageServerConf;
use engine::context::{DownloadBehavior, RequestContext};
use engine::l0_flush::{L0FlushConfig, L0FlushGlobalState};
use engine::task_mgr::TaskKind;
use engine::tenant::storage_layer::{DeltaLayer, InMemoryLayer, PersistentLayerDesc, ReconstructState};
use futures_util::future::try_join_all;
use pageserver_api::models::virtual_file::IoMode;
use pageserver_api::shard::TenantShardId;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use utils::id::{TenantId, TimelineId};
use utils::sync::gate::Gate;

use crate::artifact::{Unit, Validity};
use crate::case::{Case, KeyLayout, START, WriteDelta};
use crate::reader::{self, Progress};
use crate::sample::{Checked, Clock};
use crate::values::Values;

/// Layers written at a time; the server's default.
const FLUSHES: NonZeroUsize = NonZeroUsize::MIN.saturating_add(1);
/// Reads of the finished layer, spread over it, and how many values each of them takes.
const CHECKS: u32 = 64;
const CHECKED_TOGETHER: u32 = 32;

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    case: Case,
    timelines: usize,
    /// The last keys are read while more are written.
    reads: bool,
}

impl Write {
    /// One, two and five timelines, and one with a reader, of each of four cases.
    pub fn all() -> Vec<Self> {
        let with = |(value_bytes, write_delta)| {
            let (io_mode, key_layout) = (IoMode::DirectRw, KeyLayout::Sequential);
            let case = Case { io_mode, value_bytes, key_layout, write_delta };
            [(1, false), (1, true), (2, false), (5, false)].map(|(timelines, reads)| Self { case, timelines, reads })
        };
        [(100, WriteDelta::Yes), (100, WriteDelta::No), (8192, WriteDelta::Yes), (8192, WriteDelta::No)]
            .into_iter()
            .flat_map(with)
            .collect()
    }

    pub fn describe(&self) -> Value {
        let Self { case, timelines, reads } = self;
        let delta = format!("{:?}", case.write_delta);
        json!({ "kind": "write", "bytes": case.value_bytes, "delta": delta, "timelines": timelines, "reads": reads })
    }

    pub async fn run(&self, conf: &'static PageServerConf, volume_mib: usize) -> anyhow::Result<Checked> {
        let values = Arc::new(Values::new(self.case, volume_mib)?);
        let tenant = TenantShardId::unsharded(TenantId::generate());
        let flushes = L0FlushGlobalState::new(L0FlushConfig::Direct { max_concurrency: FLUSHES });
        let one = || Writer {
            conf,
            tenant,
            values: Arc::clone(&values),
            flushes: flushes.clone(),
            progress: Arc::default(),
            is_read: self.reads,
            write_delta: self.case.write_delta == WriteDelta::Yes,
        };
        let clock = Clock::start();
        let tasks: Vec<_> = (0..self.timelines).map(|_| tokio::spawn(one().run())).collect();
        let mut written = Vec::new();
        for task in try_join_all(tasks).await? {
            written.push(task?);
        }
        let mut sample = clock.stop(values.bytes() * self.timelines as u64);
        let mut validity = Validity::of(Unit::Values);
        for one in &mut written {
            validity.add(one.check(&values).await?);
            if let Some(task) = one.reader.take() {
                let found = task.await??;
                sample = found.add_to(sample);
                validity.add(found.validity);
            }
        }
        sample.seconds += remove(written)?.as_secs_f64();
        Ok((sample, validity))
    }
}

/// Layers and files go as in `bench_ingest`, which counts that as well.
fn remove(written: Vec<Written>) -> anyhow::Result<Duration> {
    let began = Instant::now();
    for Written { layer, delta, .. } in written {
        drop(layer);
        delta.map_or(Ok(()), |(_, path)| std::fs::remove_file(path))?;
    }
    Ok(began.elapsed())
}

/// One timeline.
struct Writer {
    conf: &'static PageServerConf,
    tenant: TenantShardId,
    values: Arc<Values>,
    flushes: L0FlushGlobalState,
    progress: Arc<Progress>,
    is_read: bool,
    write_delta: bool,
}

struct Written {
    layer: Arc<InMemoryLayer>,
    delta: Option<(PersistentLayerDesc, Utf8PathBuf)>,
    reader: Option<tokio::task::JoinHandle<anyhow::Result<reader::Reads>>>,
}

impl Writer {
    async fn run(self) -> anyhow::Result<Written> {
        let written = self.write().await;
        // Else the reader would go on after an error, too.
        self.progress.ended.store(true, Ordering::Release);
        written
    }

    async fn write(&self) -> anyhow::Result<Written> {
        let Self { conf, tenant, values, flushes, progress, is_read, write_delta } = self;
        let (timeline, ctx) = (TimelineId::generate(), context());
        std::fs::create_dir_all(conf.timeline_path(tenant, &timeline))?;
        let (gate, cancel) = (Gate::default(), CancellationToken::new());
        let layer = InMemoryLayer::create(conf, timeline, *tenant, START, &gate, &cancel, &ctx).await?;
        let layer = Arc::new(layer);
        let read = || tokio::spawn(reader::read(Arc::clone(&layer), Arc::clone(values), Arc::clone(progress)));
        let reader = is_read.then(read);
        for (batch, end) in values.batches() {
            layer.put_batch(batch, &ctx).await?;
            progress.written.store(end, Ordering::Release);
        }
        layer.freeze(values.lsns(&(0..values.count())).end).await;
        let mut delta = None;
        if *write_delta {
            delta = layer.write_to_disk(&ctx, None, flushes.inner(), &gate, cancel).await?;
            anyhow::ensure!(delta.is_some(), "a layer with values is written");
        }
        Ok(Written { layer, delta, reader })
    }
}

impl Written {
    /// Reads values from all over the layer, from the file if there is one.
    async fn check(&self, values: &Values) -> anyhow::Result<Validity> {
        let (ctx, mut validity) = (context(), Validity::of(Unit::Values));
        let file = match &self.delta {
            Some((desc, path)) => Some(DeltaLayer::open(path, desc, &Arc::default(), &ctx).await?),
            None => None,
        };
        let last = values.count().saturating_sub(CHECKED_TOGETHER);
        for check in 0..CHECKS {
            let first = (u64::from(last) * u64::from(check) / u64::from(CHECKS - 1)) as u32;
            let numbers = first..values.count().min(first + CHECKED_TOGETHER);
            let (keys, lsns, mut state) = (values.keys(&numbers), values.lsns(&numbers), ReconstructState::new());
            match &file {
                Some(file) => file.get_values_reconstruct_data(&keys, lsns, &mut state, &ctx).await?,
                None => self.layer.get_values_reconstruct_data(&keys, lsns, &mut state, &ctx).await?,
            }
            values.compare(numbers, state, &mut validity);
        }
        Ok(validity)
    }
}

fn context() -> RequestContext {
    RequestContext::new(TaskKind::DebugTool, DownloadBehavior::Error)
}
