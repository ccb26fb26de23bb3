//! The computes of this machine, as a gateway uses them.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use compute::layout::Layout;
use compute::lifecycle::{self, ComputeConfig, Computes, State};
use gateway::{Address, Fleet, Place, Refused};
use serde_json::Value;
use traces::Parent;
use utils::lsn::Lsn;

use crate::args::Common;
use crate::remote::client::{Client, Refusal};
use crate::remote::compute::control::{Opening, Registry};
use crate::remote::compute::init::{self, Here, Wish};
use crate::remote::compute::set::Told;
use crate::remote::compute::start::{self, By};
use crate::remote::compute::stop::stopped;
use crate::remote::compute::wanted::{HostArgs, Wanted};
use crate::remote::connection::Remote;
use crate::remote::init_state::{self, name_of};
use crate::remote::{branches, moment};
use crate::table::text;

/// Time limit for a compute to stop.
const STOP: Duration = Duration::from_secs(60);
/// Time limit for a compute to say who is connected.
const ANSWER: Duration = Duration::from_secs(5);
/// Time limit for the pageserver to say whether a branch is still there.
const LOOK: Duration = Duration::from_secs(2);
/// How long a client waits for SQL that somebody else runs on its branch.
const PATIENCE: Duration = Duration::from_secs(45);
/// Where computes listen for the gateway.
const LOOPBACK: &str = "127.0.0.1";
/// Beginning of the names of computes that are made for moments.
const MOMENT: &str = "moment-";
/// Branches named to who asks for one that does not exist.
const NAMED: usize = 10;

/// The computes in a directory.
pub(super) struct LocalFleet {
    client: Client,
    common: Common,
    token: Option<String>,
    computes: Computes,
    host: HostArgs,
    /// Clients get in without a password.
    trust: bool,
    /// The computes of places that have been woken.
    names: Mutex<HashMap<Place, Woken>>,
}

/// The compute of a place.
#[derive(Clone)]
struct Woken {
    name: String,
    tenant: String,
    timeline: String,
}

impl LocalFleet {
    pub(super) fn new(remote: &Remote<'_>, computes: Computes, host: HostArgs, trust: bool) -> Self {
        let (client, common, token) = (remote.client.clone(), remote.common.clone(), remote.token.clone());
        Self { client, common, token, computes, host, trust, names: Mutex::default() }
    }

    fn remote(&self) -> Remote<'_> {
        Remote { client: self.client.clone(), common: &self.common, token: self.token.clone() }
    }

    /// The same, on behalf of a session.
    fn remote_for(&self, caller: Option<Parent>) -> Remote<'_> {
        Remote { client: self.client.on_behalf_of(caller), ..self.remote() }
    }

    fn branch(&self, wanted: &str) -> Result<Value, Refused> {
        let all = self.remote().branches().map_err(unavailable)?;
        let is_wanted = |branch: &&Value| text(branch, "name") == wanted || text(branch, "timeline_id") == wanted;
        if let Some(found) = all.iter().find(is_wanted) {
            return check_alive(found).map(|()| found.clone());
        }
        let mut names: Vec<String> = all.iter().map(name_of).collect();
        names.sort();
        let more = names.len().saturating_sub(NAMED);
        names.truncate(NAMED);
        let mut hint = format!("There are {}", names.join(", "));
        if more > 0 {
            hint += &format!(", and {more} more");
        }
        let hint = if names.is_empty() { "There is none as yet".to_owned() } else { hint };
        Err(Refused::Missing { message: format!("branch {wanted:?} does not exist"), hint: format!("{hint}.") })
    }

    /// Where a running compute listens for the gateway.
    fn address(&self, compute: &ComputeConfig, layout: &Layout) -> Result<Address, Refused> {
        if self.trust {
            return Ok(Address::Unix(lifecycle::socket(compute, layout)));
        }
        if !listens(&compute.options.listen) {
            return Err(Refused::Unavailable {
                message: format!("the compute {} does not listen on {LOOPBACK}", compute.name),
                hint: Some(format!("pagectl compute set {} --listen {LOOPBACK}, then stop it.", compute.name)),
            });
        }
        Ok(Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, compute.port))))
    }

    /// The compute that serves a place, if there is one already.
    fn existing(&self, place: &Place, branch: &Value) -> Result<Option<ComputeConfig>, Refused> {
        let all = self.computes.list().map_err(|error| unavailable(error.into()))?;
        let id = text(branch, "timeline_id");
        let name = place.lsn.map(|lsn| moment_name(&id, lsn));
        let serves = |compute: &ComputeConfig| match &name {
            Some(name) => compute.name == *name,
            None => !compute.read_only && compute.timeline.to_string() == id && compute.name != init::compute_name(&id),
        };
        // One whose place another one took may be there still.
        let writer = branch["walreceiver"]["writer"]["id"].as_str();
        let last =
            |compute: &ComputeConfig| (writer == Some(&compute.id), compute.released_lsn.unwrap_or(compute.boot_lsn));
        Ok(all.into_iter().filter_map(|(_, compute)| compute.ok()).filter(serves).max_by_key(last))
    }

    fn start(
        &self,
        place: &Place,
        branch: &Value,
        existing: Option<&ComputeConfig>,
        caller: Option<Parent>,
    ) -> anyhow::Result<String> {
        let named = match place.lsn {
            Some(lsn) => moment_name(&text(branch, "timeline_id"), lsn),
            None => self.new_name(branch),
        };
        let name = existing.map_or(named, |compute| compute.name.clone());
        let listen = existing.map(|compute| compute.options.listen.clone()).unwrap_or_default();
        let listen = if self.trust || listens(&listen) { None } else { Some(joined(&listen)) };
        let told = Told::to_sleep(listen);
        let mut wanted = Wanted { name: Some(name.clone()), told, ..Wanted::default() };
        // Somebody may have taken its port while the compute slept, and nobody but a gateway needs to know it.
        if existing.is_none_or(|compute| !lifecycle::is_free(compute.port)) {
            wanted.port = Some(lifecycle::free_port(&self.computes)?);
        }
        if existing.is_none() {
            wanted.branch = Some(text(branch, "timeline_id"));
            wanted.at = place.lsn.map(|lsn| lsn.to_string());
            wanted.read_only = place.lsn.is_some();
        }
        let by = By { opening: Opening::Use, prepare: &|branch| Ok(branch.clone()) };
        let started = start::start(&self.remote_for(caller), &self.computes, &wanted, &self.host, &by)?;
        tracing::info!("{place} is awake after {} ms", text(&started, "ready_ms"));
        Ok(name)
    }

    /// The name of a new compute of a branch: that of the branch, unless the compute of another one has it.
    fn new_name(&self, branch: &Value) -> String {
        let name = name_of(branch);
        match self.computes.layout(&name) {
            Ok(layout) if !layout.config().exists() => name,
            _ => format!("branch-{}", short(&text(branch, "timeline_id"))),
        }
    }

    /// The branch of a place once anybody may use it: its SQL is run if it has not been.
    fn opened(&self, place: &Place) -> Result<Value, Refused> {
        let branch = self.branch(&place.branch)?;
        if let Some(lsn) = place.lsn {
            let hint = init_state::closed(&branch).map(|_| format!("{}.", init_state::hint(&branch)));
            let refused = |message| Refused::Unavailable { message, hint };
            return init_state::check_moment(&branch, lsn).map_err(refused).map(|()| branch);
        }
        let remote = self.remote();
        let here = Here { remote: &remote, computes: &self.computes, host: &self.host };
        let wish = Wish { patience: Some(PATIENCE), ..Wish::default() };
        init::ready(here, &branch, &wish).map_err(|error| self.why_closed(place, &error))
    }

    /// Why a branch is closed, as the server tells it: what has gone wrong here may have values of rows.
    fn why_closed(&self, place: &Place, error: &anyhow::Error) -> Refused {
        tracing::warn!("{place} is closed: {error:#}");
        let now = match self.branch(&place.branch) {
            Ok(now) => now,
            Err(refused) => return refused,
        };
        let (message, hint) = match init_state::closed(&now) {
            Some(closed) => (closed, Some(format!("{}.", init_state::hint(&now)))),
            None => (format!("{place} was not ready: try again"), None),
        };
        Refused::Unavailable { message, hint }
    }

    fn know(&self, place: &Place, compute: &ComputeConfig) {
        let (tenant, timeline) = (compute.tenant.to_string(), compute.timeline.to_string());
        let woken = Woken { name: compute.name.clone(), tenant, timeline };
        self.names.lock().unwrap_or_else(PoisonError::into_inner).insert(place.clone(), woken);
    }

    fn woken(&self, place: &Place) -> Option<Woken> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).get(place).cloned()
    }

    fn destroy(&self, layout: &Layout) -> anyhow::Result<()> {
        Ok(lifecycle::destroy(layout, false, &Registry::of(&self.remote()))?)
    }

    fn put_to_sleep(&self, place: &Place) -> anyhow::Result<bool> {
        let Some(Woken { name, .. }) = self.woken(place) else { return Ok(true) };
        let layout = self.computes.layout(&name)?;
        let compute = ComputeConfig::load(&layout)?;
        if !compute.options.sleeps {
            return Ok(false);
        }
        if matches!(State::of(&compute, &layout), State::Running(_)) {
            if lifecycle::guests(&layout, ANSWER)? > 0 {
                return Ok(false);
            }
            stopped(&self.remote(), &self.computes, &name, STOP)?;
        }
        if name.starts_with(MOMENT) {
            self.destroy(&layout)?;
        }
        Ok(true)
    }
}

impl Fleet for LocalFleet {
    fn lsn(&self, branch: &str, moment: &str) -> Result<Lsn, Refused> {
        let found = self.branch(branch)?;
        let text = moment.strip_prefix('-').map_or_else(|| moment.to_owned(), |ago| format!("{ago} ago"));
        moment::lsn_at(&self.remote(), &found, Some(&text)).map_err(|error| Refused::Missing {
            message: format!("{branch} has no moment {moment:?}: {error:#}"),
            hint: "Say BRANCH@-10min, BRANCH@2026-01-31T12:30:00Z or BRANCH@0/16B3748.".to_owned(),
        })
    }

    fn wake(&self, place: &Place, caller: Option<Parent>) -> Result<Address, Refused> {
        let branch = self.opened(place)?;
        let existing = self.existing(place, &branch)?;
        if let Some(compute) = &existing {
            let layout = self.computes.layout(&compute.name).map_err(|error| unavailable(error.into()))?;
            if matches!(State::of(compute, &layout), State::Running(_)) {
                self.know(place, compute);
                return self.address(compute, &layout);
            }
        }
        if let Some(writer) =
            branches::writer(&branch).filter(|writer| place.lsn.is_none() && !is_own(writer, &existing))
        {
            return Err(Refused::Unavailable {
                message: format!("{writer} writes the branch {:?}", name_of(&branch)),
                hint: Some(format!("To read it as it is now, say {}@-0s.", name_of(&branch))),
            });
        }
        let name = self.start(place, &branch, existing.as_ref(), caller).map_err(unavailable)?;
        let layout = self.computes.layout(&name).map_err(|error| unavailable(error.into()))?;
        let compute = ComputeConfig::load(&layout).map_err(|error| unavailable(error.into()))?;
        self.know(place, &compute);
        self.address(&compute, &layout)
    }

    fn is_current(&self, place: &Place) -> Result<bool, Refused> {
        let Some(Woken { tenant, timeline, .. }) = self.woken(place) else { return Ok(false) };
        let client = self.client.within(LOOK);
        let is_it = |branch: &Value| name_of(branch) == place.branch || timeline == place.branch;
        match client.get(&format!("/v1/tenant/{tenant}/timeline/{timeline}")) {
            Ok(branch) if is_it(&branch) => check_alive(&branch).map(|()| init_state::closed(&branch).is_none()),
            // The name is that of another timeline by now, or of none.
            Ok(_) => Ok(false),
            Err(error) => match error.downcast_ref::<Refusal>() {
                Some(Refusal { status: 404, .. }) => Ok(false),
                // A compute that runs serves what it has while nobody knows more.
                _ => Ok(true),
            },
        }
    }

    fn sleep(&self, place: &Place) -> Result<bool, String> {
        self.put_to_sleep(place).map_err(|error| format!("{error:#}"))
    }

    fn awake(&self) -> Vec<(Place, Address)> {
        let all = self.computes.list().unwrap_or_default().into_iter().filter_map(|(_, compute)| compute.ok());
        let mut awake = Vec::new();
        for compute in all.filter(|compute| compute.options.sleeps) {
            let Ok(layout) = self.computes.layout(&compute.name) else { continue };
            let is_moment = compute.name.starts_with(MOMENT);
            if !matches!(State::of(&compute, &layout), State::Running(_)) {
                if is_moment && let Err(error) = self.destroy(&layout) {
                    tracing::warn!("{} is left: {error:#}", compute.name);
                }
                continue;
            }
            let branch = compute.branch.clone().unwrap_or_else(|| compute.timeline.to_string());
            let place = Place { branch, lsn: is_moment.then_some(compute.boot_lsn) };
            if let Ok(address) = self.address(&compute, &layout) {
                self.know(&place, &compute);
                awake.push((place, address));
            }
        }
        awake
    }
}

/// Refuses a branch that has expired.
fn check_alive(branch: &Value) -> Result<(), Refused> {
    if branch["expired"].is_null() {
        return Ok(());
    }
    let name = name_of(branch);
    Err(Refused::Missing {
        message: format!("branch {name:?} has expired"),
        hint: format!("As long as it is there, pagectl branch set {name} --ttl 1d lets it live on."),
    })
}

fn unavailable(error: anyhow::Error) -> Refused {
    Refused::Unavailable { message: format!("{error:#}"), hint: None }
}

fn moment_name(timeline: &str, lsn: Lsn) -> String {
    format!("{MOMENT}{}-{}", short(timeline), lsn.to_string().replace('/', "-"))
}

/// Enough of an id to tell it from others.
fn short(id: &str) -> &str {
    id.get(..12).unwrap_or(id)
}

fn is_own(writer: &str, existing: &Option<ComputeConfig>) -> bool {
    existing.as_ref().is_some_and(|compute| writer == format!("compute {}", compute.name))
}

/// Whether these addresses include the one that the gateway connects to.
fn listens(addresses: &str) -> bool {
    addresses.split(',').any(|address| ["*", "0.0.0.0", LOOPBACK, "localhost"].contains(&address.trim()))
}

fn joined(addresses: &str) -> String {
    if addresses.trim().is_empty() { LOOPBACK.to_owned() } else { format!("{addresses},{LOOPBACK}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computes_listen_for_the_gateway_too() {
        for enough in ["*", "localhost", "10.0.0.1, 127.0.0.1", "0.0.0.0"] {
            assert!(listens(enough), "{enough}");
        }
        assert!(!listens("") && !listens("10.0.0.1"));
        assert_eq!((joined(""), joined("10.0.0.1")), ("127.0.0.1".to_owned(), "10.0.0.1,127.0.0.1".to_owned()));
    }

    #[test]
    fn moments_have_names_that_computes_may_have() {
        let name = moment_name("0123456789abcdef0123456789abcdef", Lsn(0x1_0000_0028));
        assert_eq!(name, "moment-0123456789ab-1-28");
        assert!(Computes::new("x").layout(&name).is_ok());
    }
}
