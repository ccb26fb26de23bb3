//! Counts what reads cost, for each page that was read.
//!
//! How deep the search for each key went is known; what was read from the disk and the bucket was read for all pages
//! together, and is divided among them.

use pageserver_api::key::Key;

use super::collect::counts_as_read;
use crate::context::RequestContext;
use crate::tenant::storage_layer::{KeyHistory, ReconstructState, Searched};
use metrics::METRICS;

/// Whether the key is that of a page, and not of what the server keeps about relations.
fn is_page(key: &Key) -> bool {
    key.to_rel_block().is_some() || key.to_slru_block().is_some()
}

/// Counts a read that has found what `found` tells.
pub(super) fn note(found: &ReconstructState, ctx: &RequestContext) {
    if !counts_as_read(ctx) {
        return;
    }
    let pages = || found.histories().filter(|(key, _)| is_page(key));
    let count = pages().count() as u64;
    if count == 0 {
        return;
    }
    match found.searched_by_key() {
        Some(by_key) => {
            let of = |which: fn(Searched) -> u32| pages().map(move |(key, _)| u64::from(which(by_key.of(key))));
            METRICS.layers_per_read_global.observe_each(of(|searched| searched.layers));
            METRICS.filters_per_page_read.observe_each(of(|searched| searched.filters));
        }
        // One page, or very many.
        None => {
            METRICS.layers_per_read_global.observe_shares(u64::from(found.layers_searched), count);
            METRICS.filters_per_page_read.observe_shares(u64::from(found.costs.filters), count);
        }
    }
    // Of pages that are rebuilt in pieces it is not known yet.
    let at_once = pages().filter(|(_, history)| history.rest.is_none());
    METRICS.deltas_per_read_global.observe_each(at_once.map(|(_, history)| records(history)));
    METRICS.layer_bytes_per_page_read.observe_shares(found.costs.local_bytes, count);
    METRICS.bucket_requests_per_page_read.observe_shares(found.costs.requests, count);
    METRICS.bucket_bytes_per_page_read.observe_shares(found.costs.fetched_bytes, count);
}

fn records(history: &KeyHistory) -> u64 {
    history.records.len() as u64
}

/// Counts the records of a page that was rebuilt in pieces.
pub(super) fn note_pieces(key: &Key, records: usize, ctx: &RequestContext) {
    if counts_as_read(ctx) && is_page(key) {
        METRICS.deltas_per_read_global.observe(records as u64);
    }
}
