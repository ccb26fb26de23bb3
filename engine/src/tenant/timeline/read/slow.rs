//! Tells what slow reads took their time for.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pageserver_api::key::Key;
use utils::lsn::Lsn;

use crate::context::RequestContext;
use crate::slow_reads::SlowRead;
use crate::tenant::storage_layer::{ReadCosts, ReconstructState};
use crate::tenant::timeline::state::{Branching, TimelineState};
use metrics::METRICS;
use traces::{Trace, Value};

/// Layers named in one line.
const NAMED: usize = 8;

/// A read that may turn out to be slow.
pub(super) struct Stopwatch {
    began: Instant,
    /// How long its request had waited before.
    waited: Duration,
    searched: Option<(Duration, Found)>,
    /// Where the parts of the read are noted; nowhere, unless traces are on.
    trace: Option<Trace>,
}

/// What a read has found.
struct Found {
    layers: u32,
    records: usize,
    costs: ReadCosts,
    files: Vec<u64>,
}

/// Where the time of a read went.
#[derive(Debug, PartialEq, Eq)]
struct Stages {
    /// Waits for WAL, for a turn, for memory.
    wait: Duration,
    /// The search of indexes.
    plan: Duration,
    /// Reads of the disk and requests to the bucket.
    fetch: Duration,
    /// Rebuilding pages from what was found.
    redo: Duration,
}

impl Stages {
    /// Of a read whose search took `search`, at the `costs` given, and that took `whole` in all, after its request had
    /// `waited`.
    fn of(waited: Duration, search: Duration, whole: Duration, costs: &ReadCosts) -> Self {
        Self {
            wait: waited + costs.waiting,
            plan: search.saturating_sub(costs.waiting + costs.fetching),
            fetch: costs.fetching,
            redo: whole.saturating_sub(search),
        }
    }
}

impl Display for Stages {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { wait, plan, fetch, redo } = self;
        write!(f, "wait {wait:.1?}, plan {plan:.1?}, fetch {fetch:.1?}, redo {redo:.1?}")
    }
}

impl Display for Found {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { layers, records, costs, .. } = self;
        let ReadCosts { filters, local_bytes, requests, fetched_bytes, .. } = costs;
        write!(
            f,
            "{layers} layers searched, {filters} filters asked, {records} records, {local_bytes} bytes read here, \
             {fetched_bytes} fetched by {requests} requests"
        )
    }
}

impl Stopwatch {
    pub(super) fn start(ctx: &RequestContext) -> Self {
        Self { began: env::clock::now(), waited: ctx.waited(), searched: None, trace: ctx.trace().cloned() }
    }

    /// The layers were searched; what is left is redo.
    pub(super) fn note_searched(&mut self, state: &TimelineState, found: &ReconstructState) {
        let took = self.took();
        // What is only needed for the line costs fast reads nothing.
        let threshold = state.conf.slow_read_threshold;
        let is_slow = !threshold.is_zero() && self.waited + took >= threshold / 2;
        let (files, records) = match is_slow {
            true => (found.visited_files().to_vec(), found.histories().map(|(_, one)| one.records.len()).sum()),
            false => (Vec::new(), 0),
        };
        self.searched = Some((took, Found { layers: found.layers_searched, records, costs: found.costs, files }));
    }

    fn took(&self) -> Duration {
        env::clock::now().saturating_duration_since(self.began)
    }

    /// The read of `count` keys from `first` on has ended.
    pub(super) fn end(self, state: &TimelineState, first: Option<Key>, count: usize, lsn: Lsn) {
        let (threshold, whole) = (state.conf.slow_read_threshold, self.took());
        let took = self.waited + whole;
        if let Some(trace) = &self.trace {
            self.note_parts(trace, state, whole, count, lsn);
        }
        if threshold.is_zero() || took < threshold {
            return;
        }
        METRICS.slow_reads.inc();
        let (Some((search, found)), Some(key)) = (self.searched, first) else { return };
        let Some(untold) = state.conf.resources.slow_reads.may_tell() else { return };
        let more = if untold > 0 { format!("; {untold} more since the last such line") } else { String::new() };
        let (stages, visited) = (Stages::of(self.waited, search, whole, &found.costs), names(state, &found.files));
        tracing::info!(
            timeline = %state.timeline_id,
            "slow read: {took:.1?} for {count} keys from {key} on as of LSN {lsn}: {stages}; {found}; \
             visited {visited}{more}",
        );
        let Stages { wait, plan, fetch, redo } = stages;
        let Found { layers, records, costs, .. } = found;
        state.conf.resources.slow_reads.keep(SlowRead {
            tenant_shard_id: state.tenant_shard_id,
            timeline_id: state.timeline_id,
            ended: env::clock::system_now(),
            took,
            wait,
            plan,
            fetch,
            redo,
            first_key: key,
            keys: count,
            lsn,
            layers,
            filters: costs.filters,
            records,
            local_bytes: costs.local_bytes,
            requests: costs.requests,
            fetched_bytes: costs.fetched_bytes,
            visited,
            untold,
        });
    }
}

impl Stopwatch {
    /// Notes the read of `count` keys, which took `whole`, and what it consists of.
    fn note_parts(&self, trace: &Trace, state: &TimelineState, whole: Duration, count: usize, lsn: Lsn) {
        let id = state.timeline_id.to_string();
        let about = vec![("timeline", id.into()), ("keys", count.into()), ("lsn", lsn.to_string().into())];
        let read = trace.part(None, "layers: read", self.began, whole, about);
        let Some((search, found)) = &self.searched else { return };
        let Found { layers, costs, .. } = found;
        let micros = |took: Duration| Value::from(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        let about = vec![
            ("layers", u64::from(*layers).into()),
            ("filters", u64::from(costs.filters).into()),
            ("local_bytes", costs.local_bytes.into()),
            ("bucket_requests", costs.requests.into()),
            ("bucket_bytes", costs.fetched_bytes.into()),
            ("wait_micros", micros(costs.waiting)),
            ("fetch_micros", micros(costs.fetching)),
        ];
        trace.part(Some(read), "layers: search", self.began, *search, about);
        trace.part(Some(read), "layers: redo", self.began + *search, whole.saturating_sub(*search), Vec::new());
    }
}

/// The names of layers of the timeline and its ancestors.
fn names(state: &TimelineState, files: &[u64]) -> String {
    let (mut names, mut inherited) = (Vec::new(), None::<Arc<Branching>>);
    loop {
        let state = inherited.as_ref().map_or(state, |branching| &branching.state);
        let layers = state.layers();
        let visited = layers.map.iter().filter(|layer| files.contains(&layer.identity().file_id));
        names.extend(visited.filter_map(|layer| layer.path().file_name().map(str::to_owned)));
        let Some(ancestor) = state.ancestor() else { break };
        inherited = Some(ancestor);
    }
    let more = names.len().saturating_sub(NAMED);
    names.truncate(NAMED);
    match (names.is_empty(), more) {
        (true, _) => "only layers in memory".to_owned(),
        (false, 0) => names.join(", "),
        (false, more) => format!("{}, and {more} more", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stages_of_a_read_add_up_to_its_time() {
        let ms = Duration::from_millis;
        let costs = ReadCosts { waiting: ms(5), fetching: ms(70), ..ReadCosts::default() };
        let stages = Stages::of(ms(100), ms(80), ms(95), &costs);
        assert_eq!(stages, Stages { wait: ms(105), plan: ms(5), fetch: ms(70), redo: ms(15) });
        assert_eq!(stages.wait + stages.plan + stages.fetch + stages.redo, ms(100) + ms(95));
        assert_eq!(stages.to_string(), "wait 105.0ms, plan 5.0ms, fetch 70.0ms, redo 15.0ms");
        let late = Stages::of(ms(0), ms(80), ms(80), &ReadCosts { fetching: ms(81), ..costs });
        assert_eq!((late.plan, late.redo), (ms(0), ms(0)));
    }
}
