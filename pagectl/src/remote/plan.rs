//! Which tenants are to move where, so that a server owns nothing, or all about equally much.

use std::collections::BTreeMap;

use anyhow::bail;
use clap::ValueEnum;
use serde_json::{Value, json};

/// A server that said something within so many seconds is believed to be there.
const HEARD: u64 = 60;

/// What servers are to have equally much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum By {
    /// Tenants.
    Tenants,
    /// Bytes on their disks, of what they own.
    Bytes,
}

/// A server.
#[derive(Clone, Debug, Default)]
struct Server {
    host: String,
    url: String,
    is_this: bool,
    is_there: bool,
    is_drained: bool,
}

/// A tenant.
#[derive(Clone, Debug, Default)]
struct Tenant {
    id: String,
    owner: String,
    standbys: Vec<String>,
    bytes: u64,
}

/// All servers on a bucket, as one of them tells.
#[derive(Clone, Debug, Default)]
pub(super) struct Fleet {
    servers: BTreeMap<String, Server>,
    tenants: Vec<Tenant>,
}

/// One order to be given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) tenant: String,
    pub(super) to: String,
    /// Only as a standby.
    pub(super) is_standby: bool,
}

impl Step {
    pub(super) fn json(&self) -> Value {
        json!({ "tenant": self.tenant, "to": self.to, "standby": self.is_standby })
    }
}

fn all(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn string(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

impl Fleet {
    /// The columns of [`Fleet::row`].
    pub(super) const HEAD: [&str; 4] = ["TENANT", "FROM", "TO", "AS"];

    /// Reads an answer of `/v1/fleet`.
    pub(super) fn parse(answer: &Value) -> Self {
        let server = |one: &Value| {
            let lease = &one["lease"];
            let is_this = one["is_this"] == true;
            let is_heard = one["said_seconds_ago"].as_u64().is_some_and(|ago| ago < HEARD);
            let is_overdue = lease["is_overdue"] == true;
            let is_there = is_this || is_heard && !is_overdue;
            let (host, url) = (string(&one["host"]), string(&one["url"]));
            (string(&one["id"]), Server { host, url, is_this, is_there, is_drained: one["drained"] == true })
        };
        let tenant = |one: &Value| {
            let mut tenant = Tenant { id: string(&one["id"]), ..Tenant::default() };
            for role in all(&one["roles"]) {
                match role["role"].as_str() {
                    Some("owner") => {
                        tenant.owner = string(&role["server"]);
                        tenant.bytes = role["said"]["resident_bytes"].as_u64().unwrap_or(0);
                    }
                    Some("standby") => tenant.standbys.push(string(&role["server"])),
                    _ => {}
                }
            }
            tenant
        };
        let servers = all(&answer["servers"]).map(server).collect();
        Self { servers, tenants: all(&answer["tenants"]).map(tenant).collect() }
    }

    /// Adds the server that has answered, if it is a new one. Of others it may have seen what was so some seconds ago.
    pub(super) fn add_this(&mut self, other: &Self) {
        for (id, server) in other.servers.iter().filter(|(_, server)| server.is_this) {
            self.servers.entry(id.clone()).or_insert_with(|| server.clone());
        }
    }

    /// The id of the server that somebody calls so.
    pub(super) fn find(&self, name: &str) -> anyhow::Result<String> {
        if self.servers.contains_key(name) {
            return Ok(name.to_owned());
        }
        let url = |url: &str| url.trim_end_matches('/').to_owned();
        let is_called = |id: &str, server: &Server| {
            id.starts_with(name) || server.host == name || !server.url.is_empty() && url(&server.url) == url(name)
        };
        let found: Vec<&String> =
            self.servers.iter().filter(|(id, server)| is_called(id, server)).map(|(id, _)| id).collect();
        let known = || self.servers.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        match found[..] {
            [one] => Ok(one.clone()),
            [] => bail!(
                "no server is called {name:?}. These are known: {}. A new one has to be named with --server",
                known()
            ),
            _ => bail!("several servers are called {name:?}: say which one by its id, among {}", known()),
        }
    }

    /// A step in a table.
    pub(super) fn row(&self, step: &Step) -> Vec<String> {
        let owner = self.tenants.iter().find(|tenant| tenant.id == step.tenant).map(|tenant| tenant.owner.clone());
        let role = if step.is_standby { "standby" } else { "owner" };
        vec![step.tenant.clone(), owner.unwrap_or_default(), step.to.clone(), role.to_owned()]
    }

    /// What each server owns that may own something.
    fn loads(&self, weight: impl Fn(&Tenant) -> u64) -> BTreeMap<String, u64> {
        let may = self.servers.iter().filter(|(_, server)| server.is_there && !server.is_drained);
        let mut loads: BTreeMap<String, u64> = may.map(|(id, _)| (id.clone(), 0)).collect();
        for tenant in &self.tenants {
            if let Some(load) = loads.get_mut(&tenant.owner) {
                *load += weight(tenant);
            }
        }
        loads
    }

    /// Where all goes that a server owns, standbys first; and what goes nowhere.
    pub(super) fn drain(&self, server: &str) -> (Vec<Step>, Vec<String>) {
        let mut loads = self.loads(|_| 1);
        loads.remove(server);
        let (mut steps, mut stuck) = (Vec::new(), Vec::new());
        for tenant in self.tenants.iter().filter(|tenant| tenant.owner == server) {
            let order = |(id, load): &(&String, &mut u64)| (!tenant.standbys.contains(id), **load, (*id).clone());
            let Some((to, load)) = loads.iter_mut().min_by_key(order) else {
                stuck.push(tenant.id.clone());
                continue;
            };
            *load += 1;
            steps.push(Step { tenant: tenant.id.clone(), to: to.clone(), is_standby: false });
        }
        (steps, stuck)
    }

    /// What is to move so that all own about equally much.
    pub(super) fn rebalance(&self, by: By) -> Vec<Step> {
        self.even_out(by, None)
    }

    /// What is to move to a server so that it has its share.
    pub(super) fn fill(&self, server: &str) -> Vec<Step> {
        self.even_out(By::Tenants, Some(server))
    }

    fn even_out(&self, by: By, only_to: Option<&str>) -> Vec<Step> {
        let weight = |tenant: &Tenant| if by == By::Bytes { tenant.bytes.max(1) } else { 1 };
        let (mut loads, mut tenants) = (self.loads(weight), self.tenants.clone());
        let mut steps = Vec::<Step>::new();
        while steps.len() < self.tenants.len() {
            let lowest = loads.iter().min_by_key(|(_, load)| **load).map(|(id, _)| id.as_str());
            let Some(to) = only_to.or(lowest).map(str::to_owned) else { break };
            let Some(least) = loads.get(&to).copied() else { break };
            // The move that leaves the least difference, to a standby if there is a choice. None moves twice.
            let may_move = tenants.iter().enumerate().filter_map(|(at, tenant)| {
                let is_moved = steps.iter().any(|step| step.tenant == tenant.id);
                let (from, weight) = (*loads.get(&tenant.owner)?, weight(tenant));
                let is_better = tenant.owner != to && !is_moved && least + weight < from;
                let left = from.saturating_sub(weight).max(least + weight);
                is_better.then(|| ((std::cmp::Reverse(from), left, !tenant.standbys.contains(&to)), at, weight))
            });
            let Some((_, at, weight)) = may_move.min() else { break };
            let Some(tenant) = tenants.get_mut(at) else { break };
            let from = std::mem::replace(&mut tenant.owner, to.clone());
            loads.entry(from).and_modify(|load| *load -= weight);
            loads.entry(to.clone()).and_modify(|load| *load += weight);
            steps.push(Step { tenant: tenant.id.clone(), to, is_standby: false });
        }
        steps
    }

    /// What will be when these steps were done: a former owner is a standby then.
    pub(super) fn after(&self, steps: &[Step]) -> Self {
        let mut fleet = self.clone();
        for tenant in &mut fleet.tenants {
            for step in steps.iter().filter(|step| step.tenant == tenant.id) {
                tenant.standbys.retain(|id| *id != step.to);
                let standby = match step.is_standby {
                    true => step.to.clone(),
                    false => std::mem::replace(&mut tenant.owner, step.to.clone()),
                };
                tenant.standbys.push(standby);
            }
        }
        fleet
    }

    /// Who is to become a standby so that each tenant has so many.
    pub(super) fn standbys(&self, count: usize) -> Vec<Step> {
        let mut follow: BTreeMap<&String, usize> = BTreeMap::new();
        for (id, server) in &self.servers {
            if server.is_there && !server.is_drained {
                let of = self.tenants.iter().filter(|tenant| tenant.standbys.contains(id)).count();
                follow.insert(id, of);
            }
        }
        let mut steps = Vec::new();
        for tenant in &self.tenants {
            let there = tenant.standbys.iter().filter(|id| self.servers.get(*id).is_some_and(|one| one.is_there));
            for _ in there.count()..count {
                let is_free = |id: &String| {
                    let is_chosen = steps.iter().any(|step: &Step| step.tenant == tenant.id && step.to == *id);
                    *id != tenant.owner && !tenant.standbys.contains(id) && !is_chosen
                };
                let free = follow.iter_mut().filter(|(id, _)| is_free(id));
                let Some((id, of)) = free.min_by_key(|(id, of)| (**of, (**id).clone())) else { break };
                *of += 1;
                steps.push(Step { tenant: tenant.id.clone(), to: (*id).clone(), is_standby: true });
            }
        }
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fleet(servers: &[(&str, bool)], tenants: &[(&str, &str, &[&str], u64)]) -> Fleet {
        let server = |(id, drained): &(&str, bool)| {
            json!({"id": id, "host": format!("host-{id}"), "url": format!("http://{id}/"), "is_this": *id == "a",
                   "said_seconds_ago": 2, "lease": {"is_overdue": *id == "dead"}, "drained": drained})
        };
        let tenant = |(id, owner, standbys, bytes): &(&str, &str, &[&str], u64)| {
            let mut roles = vec![json!({"server": owner, "role": "owner", "said": {"resident_bytes": bytes}})];
            roles.extend(standbys.iter().map(|id| json!({"server": id, "role": "standby", "said": null})));
            json!({"id": id, "roles": roles})
        };
        let servers: Vec<_> = servers.iter().map(server).collect();
        Fleet::parse(&json!({"servers": servers, "tenants": tenants.iter().map(tenant).collect::<Vec<_>>()}))
    }

    fn moves(steps: &[Step]) -> Vec<(&str, &str)> {
        steps.iter().map(|step| (step.tenant.as_str(), step.to.as_str())).collect()
    }

    #[test]
    fn a_drained_server_gives_to_standbys_first_and_nothing_to_those_who_are_not_there() {
        let all = [("a", false), ("b", false), ("c", false), ("dead", false)];
        let some =
            fleet(&all, &[("1", "a", &["b"], 0), ("2", "a", &[], 0), ("3", "a", &["dead"], 0), ("4", "b", &[], 0)]);
        let (steps, stuck) = some.drain("a");
        assert_eq!((moves(&steps), stuck.len()), (vec![("1", "b"), ("2", "c"), ("3", "c")], 0));
        let alone = fleet(&[("a", false), ("b", true), ("dead", false)], &[("1", "a", &["b"], 0)]);
        assert_eq!(alone.drain("a"), (Vec::new(), vec!["1".to_owned()]));
    }

    #[test]
    fn all_own_about_equally_many_afterwards_and_no_more_moves_than_that_needs() {
        let all = [("a", false), ("b", false), ("c", false), ("dead", false), ("off", true)];
        let some =
            fleet(&all, &[("1", "a", &["c"], 0), ("2", "a", &["b"], 0), ("3", "a", &["b"], 0), ("4", "a", &[], 0)]);
        let steps = some.rebalance(By::Tenants);
        assert_eq!(moves(&steps), [("2", "b"), ("1", "c")]);
        let even = fleet(&all, &[("1", "a", &[], 0), ("2", "b", &[], 0), ("3", "a", &[], 0)]);
        assert_eq!(moves(&even.rebalance(By::Tenants)), [("1", "c")]);
        assert!(fleet(&[("a", false)], &[("1", "a", &[], 0)]).rebalance(By::Tenants).is_empty());
        assert!(fleet(&[], &[("1", "x", &[], 0)]).rebalance(By::Bytes).is_empty());
    }

    #[test]
    fn by_bytes_one_large_tenant_is_as_much_as_many_small_ones() {
        let all = [("a", false), ("b", false)];
        let some = fleet(&all, &[("1", "a", &[], 100), ("2", "a", &[], 40), ("3", "a", &[], 50), ("4", "b", &[], 10)]);
        // 190 and 10, 90 and 110, 100 and 100.
        assert_eq!(moves(&some.rebalance(By::Bytes)), [("1", "b"), ("4", "a")]);
        let good = fleet(&all, &[("1", "a", &[], 100), ("2", "b", &[], 60), ("3", "b", &[], 30)]);
        assert!(good.rebalance(By::Bytes).is_empty());
    }

    #[test]
    fn who_follows_whom_is_planned_for_when_all_has_moved() {
        let all = [("a", false), ("b", false)];
        let some = fleet(&all, &[("1", "a", &[], 0), ("2", "a", &[], 0), ("3", "a", &["b"], 0), ("4", "a", &["b"], 0)]);
        let steps = some.rebalance(By::Tenants);
        assert_eq!(moves(&steps), [("3", "b"), ("4", "b")]);
        // Both that move have their former owner for a standby.
        assert_eq!(moves(&some.after(&steps).standbys(1)), [("1", "b"), ("2", "b")]);
        assert!(some.after(&steps).rebalance(By::Tenants).is_empty());
    }

    #[test]
    fn a_server_that_is_back_gets_its_share_and_only_that() {
        let some = fleet(
            &[("a", false), ("b", false), ("c", false)],
            &[("1", "a", &[], 0), ("2", "a", &["c"], 0), ("3", "a", &[], 0), ("4", "b", &["c"], 0)],
        );
        assert_eq!(moves(&some.fill("c")), [("2", "c")]);
        assert!(some.fill("nobody").is_empty());
        // A new server is added; what is known already counts.
        let (mut one, other) = (fleet(&[("b", false)], &[]), fleet(&[("a", true)], &[]));
        one.add_this(&other);
        one.add_this(&fleet(&[("a", false)], &[]));
        assert!(one.servers.len() == 2 && one.servers["a"].is_drained);
    }

    #[test]
    fn standbys_are_made_until_there_are_enough() {
        let some = fleet(
            &[("a", false), ("b", false), ("c", false), ("dead", false)],
            &[("1", "a", &["dead"], 0), ("2", "b", &["a"], 0)],
        );
        assert_eq!(moves(&some.standbys(1)), [("1", "b")]);
        assert_eq!(some.standbys(2).len(), 3, "no more than there are servers");
        assert!(some.standbys(9).iter().all(|step| step.is_standby));
    }

    #[test]
    fn a_server_is_found_by_what_people_call_it() {
        let some = fleet(&[("a", false), ("b1", false), ("b2", false)], &[]);
        for (name, id) in [("a", "a"), ("host-b1", "b1"), ("http://b2", "b2"), ("b2", "b2")] {
            assert_eq!(some.find(name).unwrap(), id);
        }
        assert!(some.find("b").unwrap_err().to_string().contains("several"));
        assert!(some.find("x").unwrap_err().to_string().contains("--server"));
    }
}
