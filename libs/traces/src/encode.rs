//! Spans as the bytes of OTLP, the protocol of OpenTelemetry.

use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{self as otlp, ResourceSpans, ScopeSpans, Status, span::SpanKind, status};
use prost::Message;

use crate::trace::{Kind, Span, Value};

/// The request that gives `spans` to a collector, as from a process of which `about` is known.
pub(crate) fn request(about: &[(&'static str, Value)], spans: Vec<Span>) -> Vec<u8> {
    let scope = InstrumentationScope { name: "pageserver".to_owned(), ..InstrumentationScope::default() };
    let spans = spans.into_iter().map(span).collect();
    let resource = Resource { attributes: attributes(about.to_vec()), ..Resource::default() };
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() }];
    let of_all = ResourceSpans { resource: Some(resource), scope_spans, ..ResourceSpans::default() };
    ExportTraceServiceRequest { resource_spans: vec![of_all] }.encode_to_vec()
}

fn span(span: Span) -> otlp::Span {
    let kind = match span.kind {
        Kind::Internal => SpanKind::Internal,
        Kind::Server => SpanKind::Server,
    };
    let failed = |message| Status { message, code: status::StatusCode::Error.into() };
    otlp::Span {
        trace_id: span.trace_id.to_be_bytes().to_vec(),
        span_id: span.span_id.to_be_bytes().to_vec(),
        parent_span_id: span.parent_id.map(|id| id.to_be_bytes().to_vec()).unwrap_or_default(),
        name: span.name,
        kind: kind.into(),
        start_time_unix_nano: nanos(span.start),
        end_time_unix_nano: nanos(span.start + span.took),
        attributes: attributes(span.attributes),
        status: span.error.map(failed),
        ..otlp::Span::default()
    }
}

fn nanos(time: SystemTime) -> u64 {
    u64::try_from(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
}

fn attributes(known: Vec<(&'static str, Value)>) -> Vec<KeyValue> {
    let any = |value| match value {
        Value::Text(text) => Any::StringValue(text),
        Value::Number(number) => Any::IntValue(number),
    };
    let attribute = |(name, value): (&'static str, Value)| KeyValue {
        key: name.to_owned(),
        value: Some(AnyValue { value: Some(any(value)) }),
        ..KeyValue::default()
    };
    known.into_iter().map(attribute).collect()
}
