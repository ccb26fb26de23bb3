//! `pagectl scrub`: verifies everything stored, in a directory and its bucket or by a running server.

use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use camino::Utf8Path;
use clap::Args;
use engine::config::PageServerConf;
use engine::tenant::scrub::{self, Options, Progress, Subject};
use remote_storage::{RemoteOptions, RemoteStorage, RemoteUrl, StoreSettings};
use serde_json::{Value, json};

use crate::output;
use crate::store::Store;
use crate::table::{table, text};

/// Interval at which progress is shown.
const PERIOD: Duration = Duration::from_millis(200);

/// What to scrub, and what to change.
#[derive(Clone, Debug, Args)]
pub(crate) struct ScrubArgs {
    /// Ask the running pageserver (--server) to do it. Otherwise no server may be using the directory.
    #[arg(long)]
    pub(crate) running: bool,
    /// Repair local files from the bucket.
    #[arg(long)]
    pub(crate) repair: bool,
    /// Repair objects in the bucket from good local files.
    #[arg(long)]
    pub(crate) repair_bucket: bool,
    /// Remove files and objects that nothing references and that are older than --grace.
    #[arg(long)]
    pub(crate) delete_orphans: bool,
    /// Minimum age of an orphan; anything younger may be about to be referenced.
    #[arg(long, default_value_t = 3600, value_name = "SECONDS", conflicts_with = "running")]
    grace: u64,
    /// The bucket, if not the one in the directory's pageserver.toml.
    #[arg(long, value_name = "URL", conflicts_with = "running")]
    remote_storage: Option<String>,
}

/// Runs the command on a directory.
pub(crate) async fn run(store: &Store, args: &ScrubArgs) -> anyhow::Result<()> {
    let _lock = lock(&store.common.workdir)?;
    let conf = with_bucket(store.conf, args).await?;
    let tenants = match store.common.tenant {
        Some(tenant) => vec![tenant],
        None => scrub::tenants(conf).await?,
    };
    let options = Options {
        repair: args.repair,
        repair_bucket: args.repair_bucket,
        delete_orphans: args.delete_orphans,
        grace: Duration::from_secs(args.grace),
    };
    let mut reports = Vec::new();
    for tenant in tenants {
        let subject = Subject { conf, tenant, open: Vec::new(), generation: None, exclusive: true };
        let (progress, bar) = (Arc::new(Progress::default()), output::byte_bar(0));
        let scrubbing = scrub::scrub(&subject, options, &progress);
        let mut scrubbing = std::pin::pin!(scrubbing);
        let report = loop {
            tokio::select! {
                report = &mut scrubbing => break report,
                () = env::clock::sleep(PERIOD) => {
                    bar.set_length(progress.planned());
                    bar.set_position(progress.bytes());
                }
            }
        };
        bar.finish_and_clear();
        reports.push(serde_json::to_value(report.with_context(|| format!("tenant {tenant} cannot be scrubbed"))?)?);
    }
    finish(store.common.json, &reports)
}

/// Locks the directory against pageservers, as they lock it against each other.
fn lock(workdir: &Utf8Path) -> anyhow::Result<Option<File>> {
    let path = workdir.join("pageserver.pid");
    let file = match File::open(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.with_context(|| format!("cannot open {path}"))?,
    };
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => bail!("a pageserver uses {workdir}: let it do this, with --running"),
        Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("cannot lock {path}")),
    }
}

async fn with_bucket(conf: &'static PageServerConf, args: &ScrubArgs) -> anyhow::Result<&'static PageServerConf> {
    let Some(text) = &args.remote_storage else { return Ok(conf) };
    let url = RemoteUrl::parse(text).map_err(anyhow::Error::msg)?.below(&conf.workdir);
    let settings = StoreSettings {
        url,
        name: text.clone(),
        endpoint: std::env::var("AWS_ENDPOINT_URL").ok(),
        region: std::env::var("AWS_REGION").ok(),
        path_style: true,
        allow_http: true,
        sign_payload: true,
        credentials_file: None,
        scratch: None,
        options: RemoteOptions::default(),
    };
    let remote_storage = RemoteStorage::open(&settings).await.with_context(|| format!("cannot open {text}"))?;
    Ok(Box::leak(Box::new(PageServerConf { remote_storage, ..conf.clone() })))
}

/// Prints the findings, one per line, and fails if any remains unrepaired.
pub(crate) fn finish(as_json: bool, reports: &[Value]) -> anyhow::Result<()> {
    let findings: Vec<&Value> = reports.iter().filter_map(|report| report["findings"].as_array()).flatten().collect();
    let lost: Vec<&Value> = reports.iter().filter_map(|report| report["lost"].as_array()).flatten().collect();
    let remaining = findings.iter().filter(|it| it["fixed"] == false && it["kind"] != "orphan").count();
    if !as_json {
        print(&findings, &lost);
    }
    let sum = |name: &str| reports.iter().filter_map(|report| report[name].as_u64()).sum::<u64>();
    let count = |kind: &str| findings.iter().filter(|it| it["kind"] == kind).count();
    let fixed = findings.iter().filter(|it| it["fixed"] == true).count();
    let sound = remaining == 0 && lost.is_empty();
    let summary = format!(
        "{} tenants, {} timelines: {} files and {} objects read, {}; {} damaged, {} missing, {} unread, {} orphans; \
         {fixed} fixed, {} layers lost",
        reports.len(),
        sum("timelines"),
        sum("files"),
        sum("objects"),
        indicatif::HumanBytes(sum("bytes")),
        count("damaged"),
        count("missing"),
        count("unread"),
        count("orphan"),
        lost.len()
    );
    output::finish(as_json, &json!({ "sound": sound, "tenants": reports }), summary);
    if !sound {
        bail!("damage remains: {remaining} findings are not repaired, {} layers are lost", lost.len());
    }
    Ok(())
}

fn print(findings: &[&Value], lost: &[&Value]) {
    if !findings.is_empty() {
        let row = |it: &&Value| {
            let fixed = if it["fixed"] == true { "yes" } else { "no" };
            vec![text(it, "kind"), text(it, "place"), fixed.to_owned(), text(it, "name"), text(it, "reason")]
        };
        let rows: Vec<Vec<String>> = findings.iter().map(row).collect();
        output::line(table(&["KIND", "PLACE", "FIXED", "NAME", "REASON"], &rows));
    }
    for layer in lost {
        output::line(format_args!(
            "LOST: timeline {} from LSN {} on, for no copy of layer {} is good",
            text(layer, "timeline_id"),
            text(layer, "from_lsn"),
            text(layer, "layer")
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_that_remains_is_a_failure() {
        let report = |kind: &str, fixed: bool| {
            let finding = json!({"kind": kind, "place": "local", "name": "x", "reason": "y", "fixed": fixed});
            json!({"timelines": 1, "files": 2, "objects": 3, "bytes": 4, "findings": [finding], "lost": []})
        };
        finish(false, &[]).unwrap();
        finish(false, &[report("damaged", true), report("orphan", false)]).unwrap();
        finish(true, &[report("damaged", false)]).unwrap_err();
        finish(false, &[report("missing", false)]).unwrap_err();
        let mut lost = report("damaged", true);
        lost["lost"] = json!([{"timeline_id": "t", "from_lsn": "0/10", "layer": "l"}]);
        assert!(finish(false, &[lost]).unwrap_err().to_string().contains("1 layers are lost"));
    }
}
