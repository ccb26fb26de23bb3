//! How long a branch lives, whether it is protected, and whose it is: `pagectl branch set`, and the same of a new one.

use anyhow::{Context, bail};
use camino::Utf8PathBuf;
use clap::Args;
use serde_json::{Map, Value, json};

use super::init::sql_of;
use crate::output;
use crate::remote::connection::Remote;
use crate::table::text;

/// What is noted of a new branch.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct NewLife {
    /// Have the server delete it after this time, such as 3d or 12h.
    #[arg(long, value_name = "DURATION")]
    ttl: Option<String>,
    /// Refuse to delete or reset it, until `branch set --unprotect`.
    #[arg(long)]
    protect: bool,
    /// A label; may be repeated.
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// What it is for.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Whose it is; defaults to the user. Where tokens name their holder, the server takes that.
    #[arg(long, env = "PAGECTL_OWNER", value_name = "NAME")]
    owner: Option<String>,
}

/// What to change of a branch. What is not given stays as it is.
#[derive(Debug, Args)]
pub(crate) struct SetArgs {
    /// Its name or id.
    branch: String,
    /// Have the server delete it after this time from now on, such as 3d or 12h.
    #[arg(long, value_name = "DURATION", conflicts_with = "no_ttl")]
    ttl: Option<String>,
    /// It does not expire.
    #[arg(long)]
    no_ttl: bool,
    /// Refuse to delete or reset it.
    #[arg(long, conflicts_with = "unprotect")]
    protect: bool,
    /// Let it be deleted and reset again.
    #[arg(long)]
    unprotect: bool,
    /// Set a label; may be repeated.
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Remove a label; may be repeated.
    #[arg(long, value_name = "NAME")]
    unlabel: Vec<String>,
    /// What it is for; empty for nothing.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Whose it is; empty for nobody.
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,
    /// Another name.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// SQL to run on each branch that is made of this one from now on, before anybody uses that branch: in one
    /// transaction, as superuser.
    #[arg(long = "init-sql", value_name = "FILE")]
    branches_init_sql: Option<Utf8PathBuf>,
    /// The database that it runs in.
    #[arg(long = "init-db", requires = "branches_init_sql", default_value = "postgres", value_name = "NAME")]
    branches_init_db: String,
    /// No SQL runs on branches that are made of this one.
    #[arg(long, conflicts_with = "branches_init_sql")]
    no_init_sql: bool,
}

/// Parses `NAME=VALUE`.
pub(super) fn label(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').filter(|(name, _)| !name.is_empty());
    parts.map(|(name, value)| (name.to_owned(), value.to_owned())).ok_or_else(|| "expected NAME=VALUE".to_owned())
}

impl NewLife {
    /// What a branch that begins anew has of the former one; another time to live counts from now.
    pub(super) fn of_former(branch: &Value, ttl: Option<String>) -> anyhow::Result<Map<String, Value>> {
        let mut noted = Map::new();
        for name in ["labels", "owner", "reason"] {
            noted.insert(name.to_owned(), branch[name].clone());
        }
        match ttl {
            Some(ttl) => drop(noted.insert("ttl".to_owned(), json!(ttl))),
            None if !branch["expired"].is_null() => {
                bail!("{} has expired: say with --ttl how long it is to live", text(branch, "name"))
            }
            None => drop(noted.insert("expires_at".to_owned(), branch["expires_at"].clone())),
        }
        Ok(noted)
    }

    /// The members of a request for a new branch.
    pub(super) fn noted(self) -> Map<String, Value> {
        let user = || ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok());
        let owner = self.owner.or_else(user).filter(|owner| !owner.is_empty());
        let labels: Map<String, Value> = self.labels.into_iter().map(|(name, value)| (name, json!(value))).collect();
        let members = [
            ("ttl", json!(self.ttl)),
            ("protected", json!(self.protect)),
            ("labels", Value::Object(labels)),
            ("reason", json!(self.reason)),
            ("owner", json!(owner)),
        ];
        members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// Runs `pagectl branch set`.
pub(super) fn set(remote: &Remote<'_>, args: SetArgs) -> anyhow::Result<()> {
    let branch = remote.branch_or_root(Some(&args.branch))?;
    let wanted = args.branch.clone();
    let body = changes(args)?;
    let (tenant, id) = (text(&branch, "tenant_id"), text(&branch, "timeline_id"));
    let path = format!("/v1/tenant/{tenant}/timeline/{id}/branch");
    let changed = remote.client.call("PUT", &path, Some(&Value::Object(body)))?;
    let name = changed["name"].as_str().unwrap_or(&wanted);
    let summary = format!("branch {name}: {}, owner {}, {}", life(&changed), text(&changed, "owner"), about(&changed));
    output::finish(remote.common.json, &changed, summary);
    Ok(())
}

fn changes(args: SetArgs) -> anyhow::Result<Map<String, Value>> {
    let mut body = Map::new();
    let mut note = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            body.insert(name.to_owned(), value);
        }
    };
    let or_none = |text: String| if text.is_empty() { Value::Null } else { json!(text) };
    note("ttl", args.ttl.map(Value::from).or(args.no_ttl.then_some(Value::Null)));
    note("protected", (args.protect || args.unprotect).then_some(json!(args.protect)));
    let set = args.labels.into_iter().map(|(name, value)| (name, json!(value)));
    let labels: Map<String, Value> = set.chain(args.unlabel.into_iter().map(|name| (name, Value::Null))).collect();
    note("labels", (!labels.is_empty()).then_some(Value::Object(labels)));
    note("reason", args.reason.map(or_none));
    note("owner", args.owner.map(or_none));
    note("name", args.name.map(Value::from));
    let sql = args.branches_init_sql.map(|file| sql_of(&file, &args.branches_init_db)).transpose()?;
    note("branches_init_sql", sql.or(args.no_init_sql.then_some(Value::Null)));
    if body.is_empty() {
        bail!("say what to change: --ttl, --protect, --label, --reason, --owner, --name, --init-sql; see --help");
    }
    Ok(body)
}

/// In how long a branch expires, or why it does not.
pub(super) fn life(branch: &Value) -> String {
    let protected = if branch["protected"] == true { "protected, " } else { "" };
    let life = match (branch["expired"].as_str(), branch["expires_at"].as_str()) {
        (Some(why), _) => return format!("expired: {why}"),
        (None, Some(end)) => format!("expires {}", left(end).unwrap_or_else(|_| end.to_owned())),
        (None, None) if protected.is_empty() => "-".to_owned(),
        (None, None) => return "protected".to_owned(),
    };
    format!("{protected}{life}")
}

/// How long it is until a time, in its two largest units.
fn left(end: &str) -> anyhow::Result<String> {
    let end = humantime::parse_rfc3339(end).with_context(|| format!("{end:?} is no time"))?;
    let left = end.duration_since(env::clock::system_now().min(end)).unwrap_or_default();
    let whole = std::time::Duration::from_secs(left.as_secs());
    let text = humantime::format_duration(whole).to_string();
    Ok(format!("in {}", text.split(' ').take(2).collect::<Vec<_>>().join(" ")))
}

/// Its labels and what it is for.
pub(super) fn about(branch: &Value) -> String {
    let labels = branch["labels"].as_object().into_iter().flatten();
    let mut words: Vec<String> =
        labels.map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default())).collect();
    words.extend(branch["reason"].as_str().map(|reason| format!("({reason})")));
    if words.is_empty() { "-".to_owned() } else { words.join(" ") }
}

/// Whether a branch has all of these labels.
pub(super) fn has_labels(branch: &Value, wanted: &[(String, String)]) -> bool {
    wanted.iter().all(|(name, value)| branch["labels"][name].as_str() == Some(value))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    fn args() -> SetArgs {
        SetArgs {
            branch: "dev".to_owned(),
            ttl: None,
            no_ttl: false,
            protect: false,
            unprotect: false,
            labels: Vec::new(),
            unlabel: Vec::new(),
            reason: None,
            owner: None,
            name: None,
            branches_init_sql: None,
            branches_init_db: "postgres".to_owned(),
            no_init_sql: false,
        }
    }

    #[test]
    fn only_what_is_said_of_a_branch_is_changed() {
        assert!(changes(args()).is_err());
        let body = |args| Value::Object(changes(args).unwrap());
        assert_eq!(body(SetArgs { no_ttl: true, ..args() }), json!({ "ttl": null }));
        assert_eq!(body(SetArgs { unprotect: true, ..args() }), json!({ "protected": false }));
        assert_eq!(body(SetArgs { no_init_sql: true, ..args() }), json!({ "branches_init_sql": null }));
        let labels = vec![label("pr=7=8").unwrap()];
        let all = SetArgs { labels, unlabel: vec!["old".to_owned()], reason: Some(String::new()), ..args() };
        assert_eq!(body(all), json!({ "labels": { "pr": "7=8", "old": null }, "reason": null }));
        assert!(label("pr").is_err() && label("=7").is_err());
    }

    #[test]
    fn how_long_a_branch_lives_is_told() {
        let end = |seconds| {
            let end: SystemTime = env::clock::system_now() + Duration::from_secs(seconds);
            humantime::format_rfc3339_seconds(end).to_string()
        };
        let branch = json!({ "expires_at": end(200_000), "labels": { "pr": "7" }, "reason": "a try" });
        assert!(life(&branch).starts_with("expires in 2days 7h"), "{}", life(&branch));
        assert_eq!(about(&branch), "pr=7 (a try)");
        assert_eq!((life(&json!({})), about(&json!({}))), ("-".to_owned(), "-".to_owned()));
        assert_eq!(life(&json!({ "protected": true })), "protected");
        assert_eq!(life(&json!({ "expired": "it has a branch", "protected": true })), "expired: it has a branch");
        assert!(has_labels(&branch, &[label("pr=7").unwrap()]) && !has_labels(&branch, &[label("pr=8").unwrap()]));
    }
}
