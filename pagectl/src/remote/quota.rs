//! `pagectl tenant quota`: how much a tenant may have.

use anyhow::{Context, bail};
use clap::Args;
use pageserver_api::shard::TenantShardId;
use serde_json::{Map, Value, json};

use super::connection::Remote;
use super::limits::parse_size;
use crate::output;
use crate::table::{bytes, table, text};

/// Whose limits, and which.
#[derive(Debug, Args)]
pub(crate) struct QuotaArgs {
    /// The tenant; defaults to that of --tenant, or the only one.
    id: Option<TenantShardId>,
    /// It may have so many branches; none for no limit.
    #[arg(long, value_name = "COUNT")]
    branches: Option<String>,
    /// So many computes may run on it; none for no limit.
    #[arg(long, value_name = "COUNT")]
    computes: Option<String>,
    /// Its layers may have so many bytes, such as 100GiB, before no more branches are made; none for no limit. What is
    /// there goes on to take in WAL.
    #[arg(long, value_name = "SIZE")]
    bytes: Option<String>,
}

/// Shows the limits of a tenant, or changes them.
pub(super) fn run(remote: &Remote<'_>, args: &QuotaArgs) -> anyhow::Result<()> {
    let tenant = match args.id {
        Some(id) => id.to_string(),
        None => match remote.branches()?.first() {
            Some(branch) => text(branch, "tenant_id"),
            None => bail!("the server has no tenant with a timeline"),
        },
    };
    let (path, body) = (format!("/v1/tenant/{tenant}/quota"), changes(args)?);
    let answer = match body.is_empty() {
        true => remote.client.get(&path)?,
        false => remote.client.call("PUT", &path, Some(&Value::Object(body)))?,
    };
    output::finish(remote.common.json, &answer, shown(&answer));
    Ok(())
}

fn changes(args: &QuotaArgs) -> anyhow::Result<Map<String, Value>> {
    let mut body = Map::new();
    for (name, given) in [("branches", &args.branches), ("computes", &args.computes), ("bytes", &args.bytes)] {
        let value = match given.as_deref() {
            None => continue,
            Some("none") => Value::Null,
            Some(size) if name == "bytes" => json!(parse_size(size).with_context(|| format!("--{name}"))?),
            Some(count) => {
                json!(count.parse::<u64>().with_context(|| format!("--{name} {count:?}: a number, or none"))?)
            }
        };
        body.insert(name.to_owned(), value);
    }
    Ok(body)
}

fn shown(answer: &Value) -> String {
    let row = |name: &str| {
        let used = if name == "bytes" { bytes(&answer["used"], name) } else { text(&answer["used"], name) };
        let limit = match (answer[name].as_u64(), name) {
            (None, _) => "no limit".to_owned(),
            (Some(_), "bytes") => bytes(answer, name),
            (Some(limit), _) => limit.to_string(),
        };
        let is_over =
            answer[name].as_u64().zip(answer["used"][name].as_u64()).is_some_and(|(limit, used)| used > limit);
        vec![name.to_owned(), used, limit, if is_over { "exceeded" } else { "" }.to_owned()]
    };
    let rows: Vec<Vec<String>> = ["branches", "computes", "bytes"].into_iter().map(row).collect();
    table(&["", "HAS", "MAY HAVE", ""], &rows)
}

/// Refuses to start one more compute that only reads, of which the server does not know: `running` are those of this
/// machine.
pub(super) fn check_readers(remote: &Remote<'_>, tenant: &str, running: u64) -> anyhow::Result<()> {
    let answer = remote.client.get(&format!("/v1/tenant/{tenant}/quota"))?;
    let Some(most) = answer["computes"].as_u64() else { return Ok(()) };
    let writing = answer["used"]["computes"].as_u64().unwrap_or(0);
    if writing + running >= most {
        bail!(
            "tenant {tenant} has {writing} computes that write, and {running} that only read run here; its quota is \
             {most}: stop one, or pagectl tenant quota {tenant} --computes"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_is_changed() {
        let args = |branches: Option<&str>, bytes: Option<&str>| QuotaArgs {
            id: None,
            branches: branches.map(str::to_owned),
            computes: None,
            bytes: bytes.map(str::to_owned),
        };
        assert!(changes(&args(None, None)).unwrap().is_empty());
        let body = Value::Object(changes(&args(Some("none"), Some("2GiB"))).unwrap());
        assert_eq!(body, json!({ "branches": null, "bytes": 2_u64 << 30 }));
        assert!(changes(&args(Some("few"), None)).is_err() && changes(&args(None, Some("much"))).is_err());
    }

    #[test]
    fn what_is_exceeded_is_said() {
        let answer = json!({ "branches": 2, "computes": null, "bytes": 1024,
            "used": { "branches": 2, "computes": 7, "bytes": 2048 } });
        let lines: Vec<String> = shown(&answer).lines().map(str::to_owned).collect();
        assert!(!lines[1].contains("exceeded") && lines[2].contains("no limit") && lines[3].contains("exceeded"));
    }
}
