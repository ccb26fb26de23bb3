//! How far replicas are behind, for listings.

use std::time::Duration;

use compute::layout::Layout;
use compute::lifecycle::{self, ComputeConfig, Computes};

/// How long a compute that is listed may take to say how far it is.
const ANSWER: Duration = Duration::from_secs(2);

/// How many bytes of its primary's WAL a replica has not replayed, and what is wrong with it.
pub(super) fn of(computes: &Computes, compute: &ComputeConfig, layout: &Layout) -> (Option<u64>, Option<String>) {
    let Some(of) = &compute.replica else { return (None, None) };
    let (name, primary) = (&compute.name, &of.primary);
    let progress = match lifecycle::progress(compute, layout, ANSWER) {
        Ok(progress) => progress,
        Err(reason) => return (None, Some(format!("how far it is cannot be asked: {reason}"))),
    };
    let again = format!("pagectl compute stop {name}, then start {name}: it begins anew");
    let found = computes.layout(primary).and_then(|layout| Ok((ComputeConfig::load(&layout)?, layout)));
    let Ok((primary_compute, primary_layout)) = found else {
        return (None, Some(format!("its primary {primary} is gone: promote it, or destroy it")));
    };
    if primary_compute.id != of.primary_id {
        return (None, Some(format!("{primary} is another compute now, with another history: {again}")));
    }
    match lifecycle::wal_end(&primary_compute, &primary_layout, ANSWER) {
        Err(reason) => (None, Some(format!("its primary {primary} does not answer: {reason}"))),
        Ok(end) if progress.is_streaming => (Some(end.0.saturating_sub(progress.replayed.0)), None),
        Ok(end) => {
            let lag = end.0.saturating_sub(progress.replayed.0);
            let text = format!(
                "it receives nothing from {primary} at the moment; if its log says why that stays so \
                                (WAL that has been removed, no free slot or sender): {again}"
            );
            (Some(lag), Some(text))
        }
    }
}
