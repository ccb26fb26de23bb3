//! Runs the SQL of a branch that is to run before anybody uses it, on a compute that is there for nothing else.

mod told;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use compute::lifecycle::{self, Computes};
use serde_json::{Value, json};
use utils::id::TimelineId;
use utils::lsn::Lsn;

use super::control::{Opening, Registry};
use super::start::{self, By};
use super::stop::stopped;
use super::wanted::{HostArgs, Wanted};
use crate::remote::client::{Client, Refusal};
use crate::remote::connection::Remote;
use crate::remote::init_state::{closed, hint, name_of};
use crate::table::text;

/// How often it is looked whether somebody else who runs it is done, and how often the turn is asked for meanwhile.
const LOOK: Duration = Duration::from_millis(200);
const ASK: Duration = Duration::from_secs(3);
/// How often the server is told that it is still being run, and in which steps it is noticed that it is not.
const BEAT: Duration = Duration::from_secs(2);
const STEP: Duration = Duration::from_millis(50);
/// Time limit for telling that, and for the compute to stop.
const TELL: Duration = Duration::from_secs(5);
const STOP: Duration = Duration::from_secs(300);
/// For how long the server is told again how it ended, if it cannot be reached.
const END: Duration = Duration::from_secs(30);

/// The computes on which it is run.
#[derive(Clone, Copy)]
pub(crate) struct Here<'a> {
    pub(crate) remote: &'a Remote<'a>,
    pub(crate) computes: &'a Computes,
    pub(crate) host: &'a HostArgs,
}

/// What is wanted of a branch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wish {
    /// Also if it has failed.
    pub(crate) retry: bool,
    /// In place of its own SQL so far.
    pub(crate) sql: Option<Value>,
    /// How long to wait for somebody else who runs it; without limit if not given.
    pub(crate) patience: Option<Duration>,
}

/// The name of the compute that runs the SQL of a timeline.
pub(super) fn compute_name(timeline: &str) -> String {
    format!("init-{}", timeline.get(..12).unwrap_or(timeline))
}

/// Has the SQL of a branch run, here or by somebody else who is at it. Returns the branch, which anybody may use then,
/// and which may be another timeline by now.
pub(crate) fn ready(here: Here<'_>, branch: &Value, wish: &Wish) -> anyhow::Result<Value> {
    let asks = wish.retry || wish.sql.is_some();
    if closed(branch).is_none() && !asks {
        return Ok(branch.clone());
    }
    let run = format!("{:016x}", env::random::u64());
    let (begun, client) = (env::clock::now(), &here.remote.client);
    let mut branch = branch.clone();
    let mut body = json!({ "run": run, "retry": wish.retry, "new_timeline_id": TimelineId::generate() });
    if let Some(sql) = &wish.sql {
        body["init_sql"] = sql.clone();
    }
    loop {
        let before = text(&branch, "timeline_id");
        let answer = match client.call("POST", &format!("{}/init", path(&branch)), Some(&body)) {
            Ok(answer) => answer,
            // Somebody else has let it begin anew.
            Err(error) if is_gone(&error) && branch["name"].is_string() => {
                branch = here.remote.branch_or_root(branch["name"].as_str())?;
                match closed(&branch) {
                    None => return Ok(branch),
                    Some(_) if text(&branch, "timeline_id") == before => return Err(error),
                    Some(_) => continue,
                }
            }
            Err(error) => return Err(error),
        };
        branch = answer["branch"].clone();
        if answer["granted"] == true {
            return in_turn(here, &run, &answer, &before);
        }
        match answer["init"]["state"].as_str() {
            None | Some("done") => return Ok(branch),
            Some("failed") => bail!("{}", closed(&branch).unwrap_or_default()),
            _ => {}
        }
        let asked = env::clock::now();
        while env::clock::now().saturating_duration_since(asked) < ASK && is_running(client, &branch) {
            let waited = env::clock::now().saturating_duration_since(begun);
            if wish.patience.is_some_and(|patience| waited >= patience) {
                bail!("the SQL of the branch {} is still being run, by another process: try again", name_of(&branch));
            }
            env::clock::pause(LOOK);
        }
    }
}

fn path(branch: &Value) -> String {
    format!("/v1/tenant/{}/timeline/{}", text(branch, "tenant_id"), text(branch, "timeline_id"))
}

fn is_gone(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Refusal>().is_some_and(|refusal| refusal.status == 404)
}

fn is_running(client: &Client, branch: &Value) -> bool {
    let answer = client.get(&format!("{}/init", path(branch)));
    answer.is_ok_and(|answer| answer["init"]["state"] == "running")
}

/// Why it did not succeed.
enum Failed {
    /// By the SQL: for others, and for whoever runs it.
    Sql { told: String, full: String },
    /// By something else.
    Otherwise(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self::Otherwise(error.into())
    }
}

/// Runs it, and tells the server how that ended.
fn in_turn(here: Here<'_>, run: &str, answer: &Value, before: &str) -> anyhow::Result<Value> {
    let branch = &answer["branch"];
    let id = text(branch, "timeline_id");
    let turn = Turn::keep(here.remote.client.within(TELL), format!("{}/init?run={run}", path(branch)))?;
    for left in [before, &id] {
        // What an earlier run has left: its branch is gone, or was never written.
        remove(here, left, run);
    }
    let done = attempt(here, run, answer, &id);
    if done.is_err() {
        remove(here, &id, run);
    }
    let (outcome, error) = match done {
        Ok(lsn) => (json!({ "run": run, "lsn": lsn }), None),
        Err(Failed::Sql { told, full }) => (json!({ "run": run, "failed": told }), Some(anyhow::anyhow!(full))),
        Err(Failed::Otherwise(error)) => (json!({ "run": run, "gave_up": format!("{error:#}") }), Some(error)),
    };
    let ended = end(&here.remote.client, &format!("{}/init_end", path(branch)), &outcome);
    drop(turn);
    let name = name_of(branch);
    if let Some(error) = error {
        let ended = ended.as_ref().ok().map_or(branch, |ended| &ended["branch"]);
        let again = hint(ended);
        bail!("the SQL of the branch {name} did not succeed, and it stays closed: {error:#}. To run it again: {again}");
    }
    let ended = ended.with_context(|| format!("the SQL of the branch {name} has run, but it stays closed"))?;
    Ok(ended["branch"].clone())
}

fn attempt(here: Here<'_>, run: &str, answer: &Value, id: &str) -> Result<Lsn, Failed> {
    let name = compute_name(id);
    let wanted = Wanted { name: Some(name.clone()), branch: Some(id.to_owned()), ..Wanted::default() };
    let by = By { opening: Opening::Run(run.to_owned()), prepare: &|branch| Ok(branch.clone()) };
    start::start(here.remote, here.computes, &wanted, here.host, &by)?;
    let layout = here.computes.layout(&name)?;
    for script in answer["sql"].as_array().into_iter().flatten() {
        let (sql, database) = (text(script, "sql"), text(script, "database"));
        if let Err(failed) = lifecycle::run_sql(&layout, &database, &sql)? {
            let whose = if script["standing"] == true { "of all branches of this one's parent" } else { "of its own" };
            let told = format!("SQL {whose}, {}", told::without_values(&sql, &failed));
            return Err(Failed::Sql { told, full: told::in_full(&sql, &failed) });
        }
    }
    let end = stopped(here.remote, here.computes, &name, STOP)?;
    let end = end.with_context(|| format!("where {name} has ended is not known"))?;
    lifecycle::destroy(&layout, false, &Registry::of(here.remote))?;
    Ok(end)
}

/// Removes the compute that ran the SQL of a timeline, if there is one here.
fn remove(here: Here<'_>, timeline: &str, run: &str) {
    let Ok(layout) = here.computes.layout(&compute_name(timeline)) else { return };
    if !layout.config().exists() {
        return;
    }
    let registry = Registry::of(here.remote).opening(Opening::Run(run.to_owned()));
    if let Err(left) = lifecycle::destroy(&layout, true, &registry) {
        tracing::warn!("{} is left: {left}", layout.root().display());
    }
}

/// Tells the server, again if it does not answer.
fn end(client: &Client, path: &str, outcome: &Value) -> anyhow::Result<Value> {
    let begun = env::clock::now();
    loop {
        let told = client.call("POST", path, Some(outcome));
        let is_late = env::clock::now().saturating_duration_since(begun) >= END;
        match told {
            Err(error) if error.downcast_ref::<Refusal>().is_none_or(|it| it.status == 503) && !is_late => {
                tracing::warn!("{error:#}");
                env::clock::pause(LOOK);
            }
            told => return told,
        }
    }
}

/// As long as this lives, the server is told that the SQL is being run.
struct Turn(Arc<AtomicBool>);

impl Turn {
    fn keep(client: Client, path: String) -> anyhow::Result<Self> {
        let ended = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&ended);
        env::spawn::thread("the turn of a run", move || {
            let mut told = env::clock::now();
            while !is_over.load(Ordering::Relaxed) {
                if env::clock::now().saturating_duration_since(told) >= BEAT {
                    // If that fails, the next one may not.
                    let _ = client.get(&path);
                    told = env::clock::now();
                }
                env::clock::pause(STEP);
            }
        })
        .context("no thread")?;
        Ok(Self(ended))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
