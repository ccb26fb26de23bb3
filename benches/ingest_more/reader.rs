//! Reads the last keys that were written, over and over, while more are being written.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use engine::context::{DownloadBehavior, RequestContext};
use engine::task_mgr::TaskKind;
use engine::tenant::storage_layer::{InMemoryLayer, ReconstructState};
use hdrhistogram::Histogram;
use serde_json::json;

use crate::artifact::{Unit, Validity};
use crate::sample::Sample;
use crate::values::Values;

/// Keys of one read.
const KEYS: u32 = 32;

/// How far the writer is.
#[derive(Default)]
pub struct Progress {
    /// Number of values that reads must find.
    pub written: AtomicU32,
    /// Nothing is timed any more.
    pub ended: AtomicBool,
}

/// What the reads took, in nanoseconds.
pub struct Reads {
    times: Histogram<u64>,
    pub validity: Validity,
}

impl Reads {
    /// Adds them to what was measured while they ran.
    pub fn add_to(&self, sample: Sample) -> Sample {
        let us = |quantile| self.times.value_at_quantile(quantile) as f64 / 1e3;
        let per_s = self.times.len() as f64 / sample.seconds;
        let figures = json!({ "per_s": per_s, "p50_us": us(0.5), "p99_us": us(0.99), "max_us": us(1.0) });
        sample.with("read", figures)
    }
}

/// Reads until the writer has ended. Every value is compared.
pub async fn read(layer: Arc<InMemoryLayer>, values: Arc<Values>, progress: Arc<Progress>) -> anyhow::Result<Reads> {
    let ctx = RequestContext::new(TaskKind::DebugTool, DownloadBehavior::Error);
    let mut reads = Reads { times: Histogram::new(3)?, validity: Validity::of(Unit::Values) };
    while !progress.ended.load(Ordering::Acquire) {
        let end = progress.written.load(Ordering::Acquire);
        if end > 0 {
            let numbers = end.saturating_sub(KEYS)..end;
            let began = Instant::now();
            let mut state = ReconstructState::new();
            layer.get_values_reconstruct_data(&values.keys(&numbers), values.lsns(&numbers), &mut state, &ctx).await?;
            reads.times.record(began.elapsed().as_nanos() as u64)?;
            values.compare(numbers, state, &mut reads.validity);
        }
        // A read of what is in memory never waits, but it must not keep its thread from anybody else.
        tokio::task::yield_now().await;
    }
    Ok(reads)
}
