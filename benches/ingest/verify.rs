//! Reads values back after an ingest that is not timed: each must be the one that was put under its key and LSN.

use std::sync::Arc;

use std::ops::Range;

use engine::context::RequestContext;
use engine::tenant::storage_layer::{DeltaLayer, ReconstructState};
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use pageserver_api::value::Value;
use utils::lsn::Lsn;

use crate::Ingested;
use crate::artifact::{Unit, Validity};
use crate::case::{Case, START, stamped};

/// Values that are read back in each case.
const READ_BACK: u32 = 1000;

/// Reads values from all over the layer, from the file if there is one.
pub async fn read_back(ingested: &Ingested, case: &Case, ctx: &RequestContext) -> anyhow::Result<Validity> {
    let delta = match &ingested.delta {
        Some((desc, path)) => Some(DeltaLayer::open(path, desc, &Arc::default(), ctx).await?),
        None => None,
    };
    let mut validity = Validity::of(Unit::Values);
    for number in 0..READ_BACK {
        let i = (u64::from(number) * u64::from(case.count() - 1) / u64::from(READ_BACK - 1)) as u32;
        let (key, lsn) = case.place(i);
        let (keyspace, lsns) = (KeySpace::single(key..key.next()), START..lsn + 1);
        let mut state = ReconstructState::new();
        match &delta {
            Some(delta) => delta.get_values_reconstruct_data(&keyspace, lsns, &mut state, ctx).await?,
            None => ingested.layer.get_values_reconstruct_data(&keyspace, lsns, &mut state, ctx).await?,
        }
        match newest(state, key) {
            Some(found) => validity.compare(found == (lsn, stamped(case, i))),
            None => validity.missing(),
        }
    }
    Ok(validity)
}

/// The newest version of a key that a read has found.
fn newest(state: ReconstructState, key: Key) -> Option<(Lsn, Value)> {
    let history = state.into_histories().remove(&key)?;
    match history.records.into_iter().next() {
        Some((lsn, record)) => Some((lsn, Value::WalRecord(record))),
        None => history.image.map(|(lsn, image)| (lsn, Value::Image(image))),
    }
}

/// All LSNs of a case.
pub fn lsns(case: &Case) -> Range<Lsn> {
    START..case.place(case.count() - 1).1 + 1
}
