//! How well a timeline is compacted, in words: what is owed, why nothing is done about it, and what keeps space.

use serde_json::Value;

use crate::table::{bytes, table, text};

/// Members of a timeline's description that say how well its layers are compacted.
pub(super) const STATE: [&str; 6] =
    ["height", "l0_layer_count", "replaced_layer_count", "replaced_bytes", "compaction_error", "condition"];

/// Kinds of jobs, in the order in which they come.
pub(super) const KINDS: [&str; 5] = ["sort", "merge", "image", "fold", "trim"];

/// Bytes that jobs would read that are due.
pub(super) fn debt(info: &Value) -> u64 {
    KINDS.iter().filter_map(|kind| info["condition"]["debt_bytes"][*kind].as_u64()).sum()
}

/// How well the layers of a timeline are compacted, from its description, on one line.
pub(super) fn summary(info: &Value) -> String {
    let (height, l0) = (text(info, "height"), text(info, "l0_layer_count"));
    let mut summary = format!("height {height}, {l0} L0 layers, {} to rewrite", size(debt(info)));
    if info["replaced_layer_count"].as_u64().is_some_and(|count| count > 0) {
        let (count, size) = (text(info, "replaced_layer_count"), bytes(info, "replaced_bytes"));
        summary.push_str(&format!(", {count} replaced layers ({size}) wait to be removed"));
    }
    let condition = &info["condition"];
    let (state, reason) = (text(condition, "state"), text(condition, "reason"));
    let again = condition["again_in_seconds"].as_u64();
    let again = again.map(|seconds| format!(", and is tried again in {seconds} s")).unwrap_or_default();
    summary.push_str(&format!("; compaction {state}{again}: {reason}"));
    summary
}

/// Figures of what was written and is stored, and what keeps history.
pub(super) fn details(info: &Value) -> String {
    let condition = &info["condition"];
    let owed = KINDS.map(|kind| format!("{kind} {}", bytes(&condition["debt_bytes"], kind)));
    let written = &condition["write_amplification"];
    let by = ["flush", "sort", "merge", "image"].map(|kind| format!("{kind} {}", text(written, kind)));
    let waiting = &condition["waiting_bytes"];
    let ran = KINDS.map(|kind| format!("{kind} {}", ago(&condition["seconds_since"][kind])));
    let mut lines = vec![
        format!("to rewrite:            {}", owed.join(", ")),
        format!("written for each byte: {} ({})", text(written, "total"), by.join(", ")),
        format!("stored for each byte:  {} (of the newest images)", text(condition, "space_ratio")),
        format!("last ran:              {}", ran.join(", ")),
        format!(
            "waiting to be freed:   {} still read, {} until the bucket confirms, {} of history",
            bytes(waiting, "read"),
            bytes(waiting, "unconfirmed"),
            bytes(waiting, "history")
        ),
        format!("history removed:       {}", ago(&condition["seconds_since_removal"])),
    ];
    lines.extend(kept(&condition["history"]));
    lines.join("\n")
}

/// What keeps history, as it was found last.
fn kept(history: &Value) -> Option<String> {
    let points = history["points"].as_array()?;
    let (cutoff, bound) = (text(history, "cutoff"), text(history, "bound_by"));
    let row = |point: &Value| vec![text(point, "lsn"), text(point, "why"), bytes(point, "bytes")];
    let rows: Vec<Vec<String>> = points.iter().map(row).collect();
    let looked = ago(&history["seconds_ago"]);
    let head = format!("history kept:          from LSN {cutoff} on, bound by {bound}; looked {looked}");
    Some(format!("{head}\n\n{}", table(&["LSN", "KEPT FOR", "BYTES FOR IT ALONE"], &rows)))
}

/// How long ago something happened, in words.
fn ago(seconds: &Value) -> String {
    match seconds.as_u64() {
        None => "not since the start".to_owned(),
        Some(seconds) if seconds < 600 => format!("{seconds} s ago"),
        Some(seconds) if seconds < 36_000 => format!("{} min ago", seconds / 60),
        Some(seconds) => format!("{} h ago", seconds / 3600),
    }
}

fn size(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn info() -> Value {
        json!({ "height": 3, "l0_layer_count": 1, "condition": {
            "state": "idle", "reason": "nothing is due", "again_in_seconds": null,
            "debt_bytes": { "sort": 1024, "merge": 0, "image": 1024 },
            "seconds_since": { "sort": 7, "merge": 7200, "image": null },
            "write_amplification": { "flush": 1.0, "sort": 0.9, "merge": 0.0, "image": 0.5, "total": 2.4 },
            "space_ratio": null, "waiting_bytes": { "read": 0, "unconfirmed": 2048, "history": 0 },
            "seconds_since_removal": 90_000, "history": null } })
    }

    #[test]
    fn the_summary_says_why_nothing_is_done() {
        let mut info = info();
        assert_eq!(summary(&info), "height 3, 1 L0 layers, 2.00 KiB to rewrite; compaction idle: nothing is due");
        info["replaced_layer_count"] = json!(2);
        info["replaced_bytes"] = json!(2048);
        info["condition"]["state"] = json!("failed");
        info["condition"]["reason"] = json!("a layer is damaged");
        info["condition"]["again_in_seconds"] = json!(20);
        let said = summary(&info);
        assert!(said.contains("2 replaced layers (2.00 KiB) wait"), "{said}");
        assert!(said.ends_with("; compaction failed, and is tried again in 20 s: a layer is damaged"), "{said}");
    }

    #[test]
    fn the_details_have_every_figure_and_what_pins_history() {
        let mut info = info();
        let said = details(&info);
        for part in [
            "sort 1.00 KiB, merge 0 B, image 1.00 KiB",
            "2.4 (flush 1.0, sort 0.9, merge 0.0, image 0.5)",
            "stored for each byte:  - (",
            "sort 7 s ago, merge 120 min ago, image not since the start",
            "0 B still read, 2.00 KiB until the bucket confirms, 0 B of history",
            "removed:       25 h ago",
        ] {
            assert!(said.contains(part), "{part} is not in\n{said}");
        }
        assert!(!said.contains("KEPT FOR"), "it was never looked\n{said}");
        let point = json!({ "lsn": "0/10", "why": "hold \"x\"", "layers": 1, "bytes": 4096 });
        info["condition"]["history"] =
            json!({ "seconds_ago": 3, "cutoff": "0/20", "bound_by": "gc_horizon", "points": [point] });
        let said = details(&info);
        assert!(said.contains("from LSN 0/20 on, bound by gc_horizon; looked 3 s ago"), "{said}");
        assert!(said.ends_with("0/10  hold \"x\"  4.00 KiB"), "{said}");
    }
}
