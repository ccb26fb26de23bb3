//! Traces of requests to the page service.

use pageserver_api::pagestream::{Query, Request};
use pq_proto::frontend::StartupParameters;
use traces::{Kind, Parent, Trace};

use super::pages::Reader;
use errors::StorageError;

/// What a client's requests are part of, if it says so when it connects: in a parameter of that name, or as libpq does
/// with `options=-ctraceparent=...`. That is for a client that does one thing; those of others begin traces of their
/// own.
pub(super) fn caller(startup: &StartupParameters) -> Option<Parent> {
    let option = |options: &str| {
        let mut words = options.split_whitespace().map(|word| word.strip_prefix("-c").unwrap_or(word));
        words.find_map(|word| word.strip_prefix("traceparent=")).map(str::to_owned)
    };
    let said = startup.get("traceparent").map(str::to_owned).or_else(|| startup.get("options").and_then(option));
    said.and_then(|said| Parent::parse(&said))
}

/// A request has been answered, with others of a batch. Nothing is made for a trace that there is not.
pub(super) fn end(
    trace: Option<Trace>,
    reader: &Reader<'_>,
    first: &Request,
    count: usize,
    error: Option<&StorageError>,
) {
    let Some(trace) = trace else { return };
    let timeline = reader.timeline();
    let mut about = vec![
        ("tenant", timeline.tenant_shard_id().to_string().into()),
        ("timeline", timeline.timeline_id().to_string().into()),
        ("requests", count.into()),
        ("reqid", first.header.reqid.into()),
    ];
    let name = match first.query {
        Query::GetPage(rel, block) => {
            about.push(("relation", rel.to_string().into()));
            about.push(("block", u64::from(block).into()));
            "page service: getpage"
        }
        Query::Exists(_) => "page service: exists",
        Query::Nblocks(_) => "page service: nblocks",
        Query::DbSize { .. } => "page service: dbsize",
        Query::GetSlruSegment { .. } => "page service: slru segment",
    };
    trace.end(name, Kind::Server, about, error.map(ToString::to_string));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_may_say_what_it_is_part_of() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let with = |name: &str, value: String| {
            let parameters = vec![("user".to_owned(), "u".to_owned()), (name.to_owned(), value)];
            caller(&StartupParameters { minor: 0, parameters })
        };
        let parent = Parent::parse(good);
        assert!(parent.is_some());
        assert_eq!(with("traceparent", good.to_owned()), parent);
        assert_eq!(with("options", format!("-cx=y -ctraceparent={good}")), parent);
        assert_eq!(with("options", format!("-c traceparent={good}")), parent);
        for odd in ["", "-ctraceparent=", "-ctraceparent=1-2", "traceparent"] {
            assert_eq!(with("options", odd.to_owned()), None, "{odd}");
        }
    }
}
