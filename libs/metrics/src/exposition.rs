//! The two text formats for metrics: Prometheus's own (0.0.4), which every program understands, and OpenMetrics
//! (1.0.0) for those that ask for it.
//!
//! They differ in few lines. Prometheus's format declares a counter by the name of its sample, with `_total`; it has
//! no units, and no type for metrics that only carry labels. The end mark is a comment there; it is kept, because it
//! distinguishes a complete text from a truncated one.

use std::borrow::Cow;

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposition {
    /// Prometheus's text format, 0.0.4.
    Text,
    /// OpenMetrics, 1.0.0.
    OpenMetrics,
}

impl Exposition {
    /// The format for a client whose `Accept` header is `accept`. OpenMetrics is for those that name it and do not
    /// prefer the other one.
    pub fn accepted(accept: &str) -> Self {
        let (mut text, mut open) = (0.0, 0.0);
        for range in accept.split(',').map(MediaRange::parse) {
            match (range.kind.as_str(), range.version) {
                ("application/openmetrics-text", None | Some("1.0.0")) => open = range.weight.max(open),
                ("text/plain", None | Some("0.0.4")) => text = range.weight.max(text),
                _ => {}
            }
        }
        if open > 0.0 && open >= text { Exposition::OpenMetrics } else { Exposition::Text }
    }

    /// The `Content-Type` of an answer.
    pub fn content_type(self) -> &'static str {
        match self {
            Exposition::Text => "text/plain; version=0.0.4; charset=utf-8",
            Exposition::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Converts `open_metrics` to this format.
    pub(super) fn of(self, open_metrics: String) -> String {
        match self {
            Exposition::OpenMetrics => open_metrics,
            Exposition::Text => as_text(&open_metrics),
        }
    }
}

/// One of the media types that a client accepts.
struct MediaRange<'a> {
    kind: String,
    version: Option<&'a str>,
    /// From 0 (not acceptable) to 1.
    weight: f64,
}

impl<'a> MediaRange<'a> {
    fn parse(text: &'a str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let mut range = Self { kind, version: None, weight: 1.0 };
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            match name.trim().to_ascii_lowercase().as_str() {
                "q" => range.weight = value.trim().parse().unwrap_or(0.0),
                "version" => range.version = Some(value.trim().trim_matches('"')),
                _ => {}
            }
        }
        range
    }
}

fn as_text(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len() + open_metrics.len() / 8);
    let mut help = None;
    for line in open_metrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            // The metric's name depends on its type, which comes next.
            help = rest.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let (name, kind) = declared(name, kind);
            if let Some((_, help)) = help.take() {
                text.extend(["# HELP ", &name, " ", &help.replace("\\\"", "\""), "\n"]);
            }
            text.extend(["# TYPE ", &name, " ", kind, "\n"]);
        } else if !line.starts_with("# UNIT ") {
            text.extend([line, "\n"]);
        }
    }
    text
}

/// Name and type of a metric in Prometheus's text format.
fn declared<'a>(name: &'a str, kind: &'a str) -> (Cow<'a, str>, &'a str) {
    match kind {
        "counter" => (format!("{name}_total").into(), kind),
        "info" => (format!("{name}_info").into(), "gauge"),
        "unknown" => (name.into(), "untyped"),
        _ => (name.into(), kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openmetrics_is_for_those_who_ask_for_it() {
        // The headers that Prometheus sends: 2.5 to 2.48 first, then later 2.x versions, then 3.
        let newest = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                      application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,\
                      text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for open in [
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
             text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            newest,
            "application/openmetrics-text",
            "Application/OpenMetrics-Text; Version=\"1.0.0\"; Q=0.5",
        ] {
            assert_eq!(Exposition::accepted(open), Exposition::OpenMetrics, "{open}");
        }
        for text in [
            "",
            "*/*",
            "text/plain",
            "text/plain; version=0.0.4",
            "text/html,application/xhtml+xml,*/*;q=0.8",
            "application/openmetrics-text; version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=0.2, text/plain;q=0.9",
            "application/openmetrics-text;q=much",
            "application/json",
            ";;,,=;q",
        ] {
            assert_eq!(Exposition::accepted(text), Exposition::Text, "{text}");
        }
    }

    #[test]
    fn both_texts_say_the_same() {
        let open = "# HELP a_bytes So \\\"many\\\" \\\\ bytes.\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\n\
                    a_bytes_total{x=\"# HELP\"} 1\n# HELP b B.\n# TYPE b info\nb_info{v=\"1\"} 1\n\
                    # HELP c C.\n# TYPE c histogram\nc_sum 0.0\nc_count 0\nc_bucket{le=\"+Inf\"} 0\n\
                    # HELP d D.\n# TYPE d gauge\n# EOF\n";
        let text = "# HELP a_bytes_total So \"many\" \\\\ bytes.\n# TYPE a_bytes_total counter\n\
                    a_bytes_total{x=\"# HELP\"} 1\n# HELP b_info B.\n# TYPE b_info gauge\nb_info{v=\"1\"} 1\n\
                    # HELP c C.\n# TYPE c histogram\nc_sum 0.0\nc_count 0\nc_bucket{le=\"+Inf\"} 0\n\
                    # HELP d D.\n# TYPE d gauge\n# EOF\n";
        assert_eq!(Exposition::Text.of(open.to_owned()), text);
        assert_eq!(Exposition::OpenMetrics.of(open.to_owned()), open);
    }
}
