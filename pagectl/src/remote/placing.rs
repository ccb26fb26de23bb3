//! `pagectl tenant move`, `pagectl fleet drain`, `fill` and `rebalance`: orders to servers, through the bucket, and how
//! far they are.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use pageserver_api::shard::TenantShardId;
use serde_json::{Value, json};

use super::connection::Remote;
use super::plan::{By, Fleet, Step};
use crate::output;
use crate::table::table;

/// How often it is looked how far an order is.
const LOOK: Duration = Duration::from_millis(100);
/// How often each server is asked, which has it look for orders.
const NUDGE: Duration = Duration::from_secs(1);
/// Whoever waits gives up so long after the servers should have.
const MORE: Duration = Duration::from_secs(30);
/// How long a server may take to answer a look.
const LOOK_LIMIT: Duration = Duration::from_secs(20);

/// Limits of handovers.
#[derive(Debug, Args)]
pub(crate) struct Pace {
    /// A handover that takes longer is given up, and the owner goes on.
    #[arg(long, default_value = "60s", value_name = "TIME")]
    timeout: humantime::Duration,
    /// Hand over so many tenants at a time.
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    at_once: u64,
}

#[derive(Debug, Args)]
pub(crate) struct MoveArgs {
    /// The tenant.
    id: TenantShardId,
    /// The server that is to own it: its id, the beginning of that, its host, or the address of its console.
    #[arg(long, value_name = "SERVER")]
    to: String,
    /// A handover that takes longer is given up, and the owner goes on.
    #[arg(long, default_value = "60s", value_name = "TIME")]
    timeout: humantime::Duration,
}

#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
    /// The server: its id, the beginning of that, its host, or the address of its console.
    #[arg(value_name = "SERVER")]
    which: String,
    #[command(flatten)]
    pace: Pace,
    /// Take it back: the same as `fleet fill --stay`.
    #[arg(long)]
    undo: bool,
}

#[derive(Debug, Args)]
pub(crate) struct FillArgs {
    /// The server: its id, the beginning of that, its host, or the address of its console.
    #[arg(value_name = "SERVER")]
    which: String,
    #[command(flatten)]
    pace: Pace,
    /// Move nothing to it: only let it own tenants again.
    #[arg(long)]
    stay: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RebalanceArgs {
    /// What servers are to have equally much of.
    #[arg(long, value_enum, default_value_t = By::Tenants)]
    by: By,
    /// Have each tenant followed by so many standbys, too.
    #[arg(long, value_name = "N")]
    standbys: Option<usize>,
    /// Only print the plan.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    pace: Pace,
}

fn look(remote: &Remote<'_>) -> anyhow::Result<Fleet> {
    let mut fleet = Fleet::parse(&remote.client.get("/v1/fleet")?);
    // One that has nothing to do with others yet is known to itself only.
    for client in remote.client.each() {
        if let Ok(found) = client.within(LOOK_LIMIT).get("/v1/fleet") {
            fleet.add_this(&Fleet::parse(&found));
        }
    }
    Ok(fleet)
}

/// Hands a tenant over.
pub(super) fn move_tenant(remote: &Remote<'_>, args: &MoveArgs) -> anyhow::Result<()> {
    let to = look(remote)?.find(&args.to)?;
    let step = Step { tenant: args.id.to_string(), to, is_standby: false };
    let begun = env::clock::now();
    let ended = follow(remote, vec![step], args.timeout.into(), 1)?;
    let Some(Done { step, answer, error }) = ended.into_iter().next() else { bail!("nothing was ordered") };
    if let Some(error) = error {
        bail!("tenant {} was not handed over: {error}", step.tenant);
    }
    let took = env::clock::now() - begun;
    let summary = format!("tenant {} is server {}'s, after {took:.1?}", step.tenant, step.to);
    output::finish(remote.common.json, &answer, summary);
    Ok(())
}

/// Moves all that a server owns elsewhere, and has it own nothing until that is taken back.
pub(super) fn drain(remote: &Remote<'_>, args: &DrainArgs) -> anyhow::Result<()> {
    if args.undo {
        let server = look(remote)?.find(&args.which)?;
        return take_back(remote, &server);
    }
    let server = look(remote)?.find(&args.which)?;
    remote.client.call("PUT", &format!("/v1/fleet/server/{server}/drained"), None)?;
    // What it owned when it was told so is what is left: nothing is added from then on.
    let (steps, stuck) = look(remote)?.drain(&server);
    let moved = steps.len();
    let ended = follow(remote, steps, args.pace.timeout.into(), args.pace.at_once)?;
    let failed = failures(&ended);
    let value = json!({ "server": server, "moved": moved - failed.len(), "failed": failed, "stuck": stuck });
    if !failed.is_empty() || !stuck.is_empty() {
        if remote.common.json {
            output::line(&value);
        }
        let nowhere = stuck.iter().map(|tenant| format!("tenant {tenant}: no other server is there that may own it"));
        let all: Vec<String> = failed.into_iter().chain(nowhere).collect();
        bail!("server {server} is drained, and still owns {}: {}. Try again", all.len(), all.join("; "));
    }
    output::finish(remote.common.json, &value, format!("server {server} is drained, {moved} tenants were moved"));
    Ok(())
}

fn take_back(remote: &Remote<'_>, server: &str) -> anyhow::Result<()> {
    let answer = remote.client.call("DELETE", &format!("/v1/fleet/server/{server}/drained"), None)?;
    output::finish(remote.common.json, &answer, format!("server {server} may own tenants again"));
    Ok(())
}

/// Lets a server own tenants again, and moves its share to it.
pub(super) fn fill(remote: &Remote<'_>, args: &FillArgs) -> anyhow::Result<()> {
    let server = look(remote)?.find(&args.which)?;
    if args.stay {
        return take_back(remote, &server);
    }
    remote.client.call("DELETE", &format!("/v1/fleet/server/{server}/drained"), None)?;
    let steps = look(remote)?.fill(&server);
    let summary = format!("server {server} may own tenants again, and has got {} of them", steps.len());
    carry_out(remote, steps, &args.pace, &summary)
}

/// Has servers own about equally much.
pub(super) fn rebalance(remote: &Remote<'_>, args: &RebalanceArgs) -> anyhow::Result<()> {
    let fleet = look(remote)?;
    let mut steps = fleet.rebalance(args.by);
    let moved = fleet.after(&steps);
    steps.extend(args.standbys.into_iter().flat_map(|count| moved.standbys(count)));
    let rows: Vec<_> = steps.iter().map(|step| fleet.row(step)).collect();
    let shown = if rows.is_empty() { "nothing is to be moved".to_owned() } else { table(&Fleet::HEAD, &rows) };
    if args.dry_run {
        let plan: Vec<Value> = steps.iter().map(Step::json).collect();
        output::finish(remote.common.json, &json!({ "plan": plan }), shown);
        return Ok(());
    }
    if !remote.common.json {
        output::progress(shown);
    }
    let summary = format!("{} orders were carried out", steps.len());
    carry_out(remote, steps, &args.pace, &summary)
}

fn carry_out(remote: &Remote<'_>, steps: Vec<Step>, pace: &Pace, summary: &str) -> anyhow::Result<()> {
    let plan: Vec<Value> = steps.iter().map(Step::json).collect();
    let failed = failures(&follow(remote, steps, pace.timeout.into(), pace.at_once)?);
    let value = json!({ "plan": plan, "failed": failed });
    if !failed.is_empty() {
        if remote.common.json {
            output::line(&value);
        }
        bail!("{} of {} orders were not carried out: {}", failed.len(), plan.len(), failed.join("; "));
    }
    output::finish(remote.common.json, &value, summary);
    Ok(())
}

/// How an order has ended.
struct Done {
    step: Step,
    answer: Value,
    error: Option<String>,
}

fn failures(ended: &[Done]) -> Vec<String> {
    let failed = ended.iter().filter_map(|done| Some((done, done.error.as_ref()?)));
    failed.map(|(done, error)| format!("tenant {}: {error}", done.step.tenant)).collect()
}

/// An order that was given.
struct Going {
    step: Step,
    order: String,
    state: String,
    until: Instant,
}

/// Gives orders, so many at a time, and waits for their ends.
fn follow(remote: &Remote<'_>, steps: Vec<Step>, timeout: Duration, at_once: u64) -> anyhow::Result<Vec<Done>> {
    let (mut waiting, mut going, mut ended) = (VecDeque::from(steps), Vec::<Going>::new(), Vec::new());
    let mut nudged = None::<Instant>;
    while !waiting.is_empty() || !going.is_empty() {
        while (going.len() as u64) < at_once
            && let Some(step) = next_of(&mut waiting, |tenant| going.iter().any(|one| one.step.tenant == tenant))
        {
            match give(remote, &step, timeout) {
                Ok(order) => {
                    tell(remote, &step, "ordered");
                    let until = env::clock::now() + timeout + MORE;
                    going.push(Going { step, order, state: "ordered".to_owned(), until });
                    nudged = None;
                }
                Err(error) => ended.push(Done { step, answer: Value::Null, error: Some(format!("{error:#}")) }),
            }
        }
        let is_due = nudged.is_none_or(|at| env::clock::now() - at >= NUDGE);
        nudged = if is_due { Some(env::clock::now()) } else { nudged };
        let mut left = Vec::new();
        for one in going {
            match look_at(remote, one, is_due) {
                Ok(one) => left.push(one),
                Err(done) => ended.push(*done),
            }
        }
        going = left;
        env::clock::pause(LOOK);
    }
    Ok(ended)
}

/// The next step for a tenant that is not busy: a later order would take the place of one that is on its way.
fn next_of(waiting: &mut VecDeque<Step>, is_busy: impl Fn(&str) -> bool) -> Option<Step> {
    let at = waiting.iter().position(|step| !is_busy(&step.tenant))?;
    waiting.remove(at)
}

fn path(step: &Step) -> String {
    format!("/v1/tenant/{}/move", step.tenant)
}

fn give(remote: &Remote<'_>, step: &Step, timeout: Duration) -> anyhow::Result<String> {
    let timeout = format!("{}s", timeout.as_secs().max(1));
    let body = json!({ "to": step.to, "standby": step.is_standby, "timeout": timeout });
    let answer = remote.client.call("PUT", &path(step), Some(&body))?;
    answer["order"].as_str().map(str::to_owned).context("the server does not say which order it is")
}

fn tell(remote: &Remote<'_>, step: &Step, state: &str) {
    if !remote.common.json {
        output::progress(format!("tenant {} to server {}: {state}", step.tenant, step.to));
    }
}

/// Looks how far an order is. `is_due`: each server is asked, so that it looks for orders.
fn look_at(remote: &Remote<'_>, mut one: Going, is_due: bool) -> Result<Going, Box<Done>> {
    let mut answer = Value::Null;
    for client in remote.client.each() {
        // One of them may be about to start again.
        let found = client.within(LOOK_LIMIT).get(&path(&one.step));
        answer = found.ok().filter(|found| found["order"] == one.order.as_str()).unwrap_or(answer);
        if !answer.is_null() && !is_due {
            break;
        }
    }
    let state = answer["state"].as_str().unwrap_or(&one.state).to_owned();
    if state != one.state {
        tell(remote, &one.step, &state);
        one.state.clone_from(&state);
    }
    let error = match state.as_str() {
        "done" => {
            // Each of them is to know, whichever is asked next.
            remote.client.each().iter().for_each(|client| drop(client.within(LOOK_LIMIT).get(&path(&one.step))));
            None
        }
        "failed" => Some(answer["error"].as_str().unwrap_or("no reason is known").to_owned()),
        _ if env::clock::now() < one.until => return Ok(one),
        _ => Some(format!("it is not known how it ended, the last that was seen is: {state}")),
    };
    Err(Box::new(Done { step: one.step, answer, error }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_one_order_at_a_time() {
        let step = |tenant: &str, to: &str| Step { tenant: tenant.to_owned(), to: to.to_owned(), is_standby: false };
        let mut waiting = VecDeque::from([step("a", "1"), step("a", "2"), step("b", "3")]);
        let mut next = |busy: &str| next_of(&mut waiting, |tenant| tenant == busy).map(|step| step.to);
        assert_eq!(next("a").as_deref(), Some("3"));
        assert_eq!(next("a"), None);
        assert_eq!(next("").as_deref(), Some("1"));
        assert_eq!(next("").as_deref(), Some("2"));
    }
}
