//! Whether a pageserver answers, and whether it reaches whom it follows: for `pagectl doctor`.

use std::time::Duration;

use serde_json::Value;

use super::ServerArgs;
use super::connection::Remote;
use crate::args::Common;
use crate::checkup::Finding;
use crate::table::text;

/// How long the server may take.
const ANSWER: Duration = Duration::from_secs(5);

/// The server, and each server that it follows.
pub(crate) fn look(common: &Common, server: &ServerArgs) -> Vec<Finding> {
    match asked(common, server) {
        Ok(findings) => findings,
        Err(error) => {
            let advice = "start it, or say with --server (and PAGECTL_TOKEN, --ca-file) where it is";
            vec![Finding::warning("pageserver", format!("{error:#}"), advice)]
        }
    }
}

fn asked(common: &Common, server: &ServerArgs) -> anyhow::Result<Vec<Finding>> {
    let mut remote = Remote::new(common, server)?;
    remote.client = remote.client.within(ANSWER);
    let status = remote.client.get("/v1/status")?;
    let timelines = remote.timelines()?;
    let mut findings =
        vec![Finding::good("pageserver", format!("{}, {} timelines", text(&status, "version"), timelines.len()))];
    findings.extend(timelines.iter().filter_map(origin));
    Ok(findings)
}

/// Whether WAL of the server that a timeline follows arrives; `None` if it follows none.
fn origin(timeline: &Value) -> Option<Finding> {
    const CHECK: &str = "origin";
    let receiver = timeline["walreceiver"].as_object()?;
    let of = |name: &str| receiver.get(name).and_then(Value::as_str).unwrap_or("-");
    let who = format!("{} of timeline {}", of("host"), text(timeline, "timeline_id"));
    match of("state") {
        "streaming" | "catching_up" => {
            Some(Finding::good(CHECK, format!("{who} is {}", of("state").replace('_', " "))))
        }
        state => {
            let advice = "see that the server runs, lets this user replicate, and is the one that was followed";
            Some(Finding::warning(CHECK, format!("{who} is {state}: {}", of("last_error")), advice))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkup::State;
    use serde_json::json;

    #[test]
    fn who_does_not_answer_is_told_with_the_reason() {
        let of = |receiver: Value| origin(&json!({ "timeline_id": "ab", "walreceiver": receiver }));
        assert_eq!(of(Value::Null), None);
        let well = of(json!({ "state": "streaming", "host": "db:5432" })).expect("one");
        assert_eq!((well.state, well.found.as_str()), (State::Good, "db:5432 of timeline ab is streaming"));
        let ill = of(json!({ "state": "retrying", "host": "db:5432", "last_error": "refused" })).expect("one");
        assert!(ill.state == State::Warning && ill.found.ends_with("retrying: refused"), "{ill:?}");
    }
}
