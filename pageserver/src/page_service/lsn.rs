//! The LSN at which a request is answered.
//!
//! A client requests a version, and guarantees that nothing it asks for has changed between `not_modified_since` and
//! that version. So any LSN between the two gives the same result, and it is enough to wait for WAL up to
//! `not_modified_since`.

use std::time::{Duration, Instant};

use pageserver_api::pagestream::RequestHeader;
use utils::lsn::Lsn;

use engine::tenant::timeline::Timeline;
use errors::StorageError;
use metrics::{METRICS, seconds_since};

/// Validates the header; the error is the message for the client.
pub(super) fn check(header: &RequestHeader) -> Result<(), String> {
    let RequestHeader { request_lsn, not_modified_since, .. } = header;
    if request_lsn < not_modified_since {
        return Err(format!(
            "invalid request with request LSN {request_lsn} and not_modified_since {not_modified_since}"
        ));
    }
    if !request_lsn.is_valid() {
        return Err("invalid LSN(0) in request".to_owned());
    }
    Ok(())
}

/// The LSN at which a valid request is answered when everything up to `last` has arrived.
///
/// # Errors
/// The WAL that the request needs has not arrived.
pub(super) fn effective(header: &RequestHeader, last: Lsn) -> Result<Lsn, String> {
    if header.not_modified_since > last {
        return Err(format!(
            "timed out while waiting for WAL up to LSN {}: it has arrived up to {last}",
            header.not_modified_since
        ));
    }
    Ok(header.request_lsn.min(last))
}

/// Waits until history is complete up to `lsn`.
pub(super) async fn wait_for(timeline: &Timeline, lsn: Lsn, limit: Duration) -> Result<(), StorageError> {
    if timeline.last_record_lsn() >= lsn {
        return Ok(());
    }
    METRICS.wait_lsn_started.inc();
    let _waiting = Waiting(env::clock::now());
    timeline.wait_for_lsn_timeout(lsn, limit).await
}

/// Counts a wait as finished when dropped.
struct Waiting(Instant);

impl Drop for Waiting {
    fn drop(&mut self) {
        METRICS.wait_lsn_finished.inc();
        METRICS.wait_lsn_seconds.observe(seconds_since(self.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(request_lsn: u64, not_modified_since: u64) -> RequestHeader {
        RequestHeader { reqid: 0, request_lsn: Lsn(request_lsn), not_modified_since: Lsn(not_modified_since) }
    }

    #[test]
    fn senseless_requests() {
        assert!(check(&header(5, 6)).unwrap_err().contains("0/5 and not_modified_since 0/6"));
        assert_eq!(check(&header(0, 0)), Err("invalid LSN(0) in request".to_owned()));
        assert_eq!(check(&header(5, 5)), Ok(()));
        assert_eq!(check(&header(u64::MAX, 0)), Ok(()));
    }

    #[test]
    fn the_newest_that_is_promised_to_be_the_same() {
        assert_eq!(effective(&header(u64::MAX, 10), Lsn(20)), Ok(Lsn(20)));
        assert_eq!(effective(&header(15, 10), Lsn(20)), Ok(Lsn(15)));
        assert_eq!(effective(&header(30, 20), Lsn(20)), Ok(Lsn(20)));
        assert!(effective(&header(u64::MAX, 21), Lsn(20)).is_err());
    }
}
