//! All servers on one bucket: what this one says of itself there, and what they look like together (decision 0035).
//!
//! A server that has standbys, or is one, writes a card into the bucket now and then: where its console is, what it is
//! to which tenant, how far it is. A card is for people. Who owns a tenant is up to its generations, which are asked
//! anew.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use pageserver_api::shard::TenantShardId;
use tokio_util::sync::CancellationToken;
use utils::lsn::Lsn;

use super::app::App;
use super::models::fleet::{
    FleetAnswer, FleetLease, FleetRole, FleetServer, FleetTenant, Role, ServerCard, TenantRole, TimelinePosition,
};
use crate::walreceiver::stored::name_of;
use engine::lease::Verdict;
use engine::tenant::manager::{FleetLook, StandbyInfo};
use engine::tenant::timeline::Timeline;

/// A card is written every so many intervals of a lease, and when roles have changed.
const CARD_INTERVALS: u32 = 5;
/// Timelines of a tenant in a card.
const TIMELINES_MAX: usize = 50;
/// Of a server that owns nothing and has been silent for so long nobody wants to know.
const FORGOTTEN_AFTER: u64 = 24 * 3600;

/// Keeps this server's card until `cancel`.
pub(super) async fn keep_card(app: App, cancel: CancellationToken) {
    let conf = app.manager.conf();
    let pause = conf.lease.interval;
    if pause.is_zero() || conf.remote_storage.is_none() || conf.server.id.is_empty() || app.sources.is_scratch() {
        return;
    }
    let mut said: Option<(Vec<(TenantShardId, Role)>, u32)> = None;
    loop {
        let is_one_of_several = conf.resources.lease.is_bound() || !app.manager.standbys().is_empty();
        if is_one_of_several {
            let card = card(&app);
            let roles = card.tenants.iter().map(|tenant| (tenant.tenant, tenant.role)).collect();
            let is_due = said.as_ref().is_none_or(|(known, age)| *known != roles || *age + 1 >= CARD_INTERVALS);
            let age = said.as_ref().map_or(0, |(_, age)| age + 1);
            said = Some((roles, if is_due { 0 } else { age }));
            if is_due {
                write(&app, &card).await;
            }
        } else if said.take().is_some() {
            // It stays, and says how old it is.
            let _ = app.manager.say_nothing_of_this_server().await;
        }
        tokio::select! {
            () = env::clock::sleep(pause) => {}
            () = cancel.cancelled() => return,
        }
    }
}

/// Writes it; what could not be written is written the next time.
async fn write(app: &App, card: &ServerCard) {
    let Ok(bytes) = serde_json::to_vec(card) else { return };
    if let Err(error) = app.manager.say_of_this_server(Bytes::from(bytes)).await {
        tracing::debug!("what this server is to others is not in the bucket: {error}");
    }
}

/// What this server says of itself.
fn card(app: &App) -> ServerCard {
    let conf = app.manager.conf();
    let owned = app.manager.tenants().into_iter().filter_map(|id| owned(app, id));
    let followed = app.manager.standbys().into_iter().map(|(id, standby)| followed(app, id, standby));
    ServerCard {
        server: conf.server.id.clone(),
        host: conf.server.host.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        url: app.public_url.clone(),
        tenants: owned.chain(followed).collect(),
    }
}

/// A tenant that this server has; one that is deleted concurrently is left out.
fn owned(app: &App, id: TenantShardId) -> Option<TenantRole> {
    let timelines = app.manager.timelines(id).ok()?;
    let remote = app.manager.remote_of(id);
    let fenced = remote.as_ref().and_then(|remote| remote.fenced());
    let unleased = remote.as_ref().and_then(|remote| remote.check_lease().err()).map(|error| error.to_string());
    let role = if fenced.is_some() { Role::Former } else { Role::Owner };
    let error = app.manager.unattached(id).or(fenced).or(unleased);
    let positions = timelines.iter().filter_map(|timeline| position(app, timeline)).collect();
    let resident_bytes = Some(timelines.iter().map(|timeline| timeline.info().resident_bytes).sum());
    let role = role_of(id, role, remote.map(|remote| remote.generation()), error, positions);
    Some(TenantRole { resident_bytes, ..role })
}

fn position(app: &App, timeline: &Timeline) -> Option<TimelinePosition> {
    let receiver = app.sources.receiver(timeline)?;
    let lsn = timeline.last_record_lsn();
    Some(TimelinePosition {
        timeline_id: timeline.timeline_id(),
        name: name_of(timeline).ok().flatten(),
        lsn,
        bucket_lsn: timeline.remote_consistent_lsn(),
        end_lsn: receiver.server_end_lsn,
        lag_bytes: receiver.server_end_lsn.map(|Lsn(end)| end.saturating_sub(lsn.0)),
        error: receiver.last_error.clone().filter(|_| !receiver.is_following()),
    })
}

/// A tenant of which this server is a standby.
fn followed(app: &App, id: TenantShardId, standby: StandbyInfo) -> TenantRole {
    let overdue = matches!(standby.lease, Some(Verdict::Overdue)).then(|| "the owner's lease is overdue".to_owned());
    let positions = app.sources.as_standby(id).into_iter().map(|status| TimelinePosition {
        timeline_id: status.timeline_id,
        name: None,
        lsn: status.journaled_lsn,
        bucket_lsn: Some(status.bucket_lsn),
        end_lsn: status.server_end_lsn,
        lag_bytes: status.lag_bytes,
        error: status.error,
    });
    role_of(id, Role::Standby, standby.generation, standby.error.or(overdue), positions.collect())
}

fn role_of(
    tenant: TenantShardId,
    role: Role,
    generation: Option<u32>,
    error: Option<String>,
    mut timelines: Vec<TimelinePosition>,
) -> TenantRole {
    timelines.sort_by_key(|one| (one.error.is_none(), std::cmp::Reverse(one.lag_bytes), one.timeline_id));
    let timelines_left_out = timelines.len().saturating_sub(TIMELINES_MAX);
    timelines.truncate(TIMELINES_MAX);
    TenantRole { tenant, role, generation, error, timelines, timelines_left_out, resident_bytes: None }
}

/// All servers together, as seen at `now` in seconds since 1970. Of this one it is what it says now.
pub(super) fn together(app: &App, look: Option<&FleetLook>, now: u64) -> FleetAnswer {
    let own = card(app);
    let ids = app.manager.conf().server.clone();
    assemble(own, |id| ids.is(id), look, now)
}

/// A card, and how many seconds ago it was written.
type Said = BTreeMap<String, (ServerCard, u64)>;

fn assemble(own: ServerCard, is_own: impl Fn(&str) -> bool, look: Option<&FleetLook>, now: u64) -> FleetAnswer {
    let age = |modified: i64| now.saturating_sub(u64::try_from(modified).unwrap_or(0));
    let this = own.server.clone();
    let called = |server: &str| if is_own(server) { this.clone() } else { server.to_owned() };
    let mut said = Said::new();
    for one in look.iter().flat_map(|look| &look.said).filter(|one| !is_own(&one.server)) {
        // What is no card, or that of another server, is not told of.
        let card = serde_json::from_slice::<ServerCard>(&one.card).ok();
        if let Some(card) = card.filter(|card| card.server == one.server) {
            said.insert(one.server.clone(), (card, age(one.modified)));
        }
    }
    said.insert(this.clone(), (own, 0));
    let mut servers = BTreeMap::<String, FleetServer>::new();
    for (id, (card, age)) in &said {
        let server = entry(&mut servers, id, &card.host);
        (server.said_seconds_ago, server.version) = (Some(*age), Some(card.version.clone()));
        server.url = card.url.clone().filter(|url| is_web(url));
        server.standby_of = card.tenants.iter().filter(|tenant| tenant.role == Role::Standby).count();
    }
    for lease in look.iter().flat_map(|look| &look.leases) {
        let renewed_seconds_ago = age(lease.modified);
        let is_overdue = Duration::from_secs(renewed_seconds_ago) > lease.takeover_after;
        let takeover_after_ms = u64::try_from(lease.takeover_after.as_millis()).unwrap_or(u64::MAX);
        let lease_of = entry(&mut servers, &called(&lease.server), &lease.host);
        lease_of.lease = Some(FleetLease { renewed_seconds_ago, takeover_after_ms, is_overdue });
    }
    let mut tenants = Vec::new();
    for owner in look.iter().flat_map(|look| &look.tenants) {
        let server = called(&owner.server);
        entry(&mut servers, &server, &owner.host).owns += 1;
        tenants.push(FleetTenant {
            id: owner.id,
            generation: Some(owner.generation),
            roles: roles(&said, owner.id, Some(&server)),
        });
    }
    if look.is_none() {
        let own = said.get(&this).map(|(card, _)| card.tenants.clone()).unwrap_or_default();
        entry(&mut servers, &this, "").owns = own.len();
        tenants = own.into_iter().map(|one| lone(&this, one)).collect();
    }
    for server in servers.values_mut() {
        server.is_this = server.id == this;
        let is_named = |drained: &String| called(drained) == server.id;
        server.drained = look.is_some_and(|look| look.drained.iter().any(is_named));
    }
    let mut servers: Vec<FleetServer> = servers.into_values().filter(is_of_interest).collect();
    servers.sort_by_key(|server| (!server.is_this, server.host.clone(), server.id.clone()));
    FleetAnswer { servers, tenants, tenants_left_out: look.map_or(0, |look| look.tenants_left_out) }
}

/// A link that leads somewhere else than to a page.
fn is_web(url: &str) -> bool {
    ["http://", "https://"].iter().any(|scheme| url.starts_with(scheme)) && !url.contains(char::is_whitespace)
}

fn entry<'a>(servers: &'a mut BTreeMap<String, FleetServer>, id: &str, host: &str) -> &'a mut FleetServer {
    servers.entry(id.to_owned()).or_insert_with(|| FleetServer {
        id: id.to_owned(),
        host: host.to_owned(),
        is_this: false,
        version: None,
        url: None,
        said_seconds_ago: None,
        lease: None,
        owns: 0,
        standby_of: 0,
        drained: false,
    })
}

fn is_of_interest(server: &FleetServer) -> bool {
    server.is_this || server.owns > 0 || server.said_seconds_ago.is_some_and(|age| age < FORGOTTEN_AFTER)
}

/// A tenant of a server without a bucket.
fn lone(server: &str, tenant: TenantRole) -> FleetTenant {
    let (id, generation, role) = (tenant.tenant, tenant.generation, tenant.role);
    let roles = vec![FleetRole { server: server.to_owned(), role, said: Some(tenant) }];
    FleetTenant { id, generation, roles }
}

/// Who has something to do with a tenant, the owner first. A server that says it owns it, and does not, did.
fn roles(said: &Said, tenant: TenantShardId, owner: Option<&str>) -> Vec<FleetRole> {
    let mut roles = Vec::new();
    for (server, (card, _)) in said {
        let Some(one) = card.tenants.iter().find(|one| one.tenant == tenant) else { continue };
        let role = match (owner == Some(server), one.role) {
            (true, _) => Role::Owner,
            (false, Role::Owner | Role::Former) => Role::Former,
            (false, Role::Standby) => Role::Standby,
        };
        roles.push(FleetRole { server: server.clone(), role, said: Some(one.clone()) });
    }
    if let Some(owner) = owner.filter(|owner| !roles.iter().any(|role| role.server == **owner)) {
        roles.push(FleetRole { server: owner.to_owned(), role: Role::Owner, said: None });
    }
    roles.sort_by_key(|role| match role.role {
        Role::Owner => 0,
        Role::Standby => 1,
        Role::Former => 2,
    });
    roles
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::tenant::manager::{LeaseSeen, ServerSaid, TenantOwner};

    const NOW: u64 = 1_800_000_000;

    fn tenant(number: u8) -> TenantShardId {
        format!("{number:032x}").parse().unwrap()
    }

    fn card_of(server: &str, url: &str, tenants: &[(u8, Role)]) -> ServerCard {
        let tenants = tenants.iter().map(|(number, role)| role_of(tenant(*number), *role, Some(2), None, Vec::new()));
        ServerCard {
            server: server.to_owned(),
            host: format!("host-{server}"),
            version: "1".to_owned(),
            url: Some(url.to_owned()),
            tenants: tenants.collect(),
        }
    }

    fn said_of(card: &ServerCard, ago: u64) -> ServerSaid {
        let modified = i64::try_from(NOW - ago).unwrap();
        ServerSaid { server: card.server.clone(), card: serde_json::to_vec(card).unwrap().into(), modified }
    }

    fn owner(number: u8, server: &str) -> TenantOwner {
        TenantOwner { id: tenant(number), generation: 3, server: server.to_owned(), host: format!("host-{server}") }
    }

    #[test]
    fn generations_count_whatever_servers_say() {
        // `b` has taken 1 over from `a`, which has not noticed. `gone` has 2, and says nothing. `old` owns nothing.
        let (a, b) = (card_of("a", "http://a", &[(1, Role::Owner)]), card_of("b", "http://b", &[(1, Role::Standby)]));
        let old = card_of("old", "javascript:alert(1)", &[]);
        let modified = i64::try_from(NOW - 30).unwrap();
        let lease =
            LeaseSeen { server: "a".into(), host: String::new(), takeover_after: Duration::from_secs(10), modified };
        let look = FleetLook {
            tenants: vec![owner(1, "b"), owner(2, "gone")],
            tenants_left_out: 0,
            leases: vec![lease],
            said: vec![said_of(&a, 9), said_of(&old, FORGOTTEN_AFTER + 1)],
            drained: std::collections::BTreeSet::from(["a".to_owned()]),
        };
        let found = assemble(b, |id| id == "b", Some(&look), NOW);
        let names: Vec<&str> = found.servers.iter().map(|server| server.id.as_str()).collect();
        assert_eq!(names, ["b", "a", "gone"]);
        let a = &found.servers[1];
        assert_eq!((a.said_seconds_ago, a.owns, a.url.as_deref()), (Some(9), 0, Some("http://a")));
        assert!(a.lease.as_ref().is_some_and(|lease| lease.is_overdue && lease.renewed_seconds_ago == 30));
        assert_eq!((found.servers[0].owns, found.servers[2].owns), (1, 1));
        assert!(a.drained && !found.servers[0].drained);
        let roles: Vec<_> = found.tenants[0].roles.iter().map(|role| (role.server.as_str(), role.role)).collect();
        assert_eq!(roles, [("b", Role::Owner), ("a", Role::Former)]);
        assert_eq!((found.tenants[1].roles[0].said.clone(), found.tenants[1].roles.len()), (None, 1));
    }

    #[test]
    fn no_script_comes_from_the_bucket() {
        for (url, good) in [("https://a:1/", true), ("javascript:x", false), ("http://a b", false), ("//a", false)] {
            assert_eq!(is_web(url), good, "{url}");
        }
        let odd = ServerSaid { server: "x".into(), card: Bytes::from_static(b"{\"server\": \"y\"}"), modified: 0 };
        let look = FleetLook { said: vec![odd], ..FleetLook::default() };
        let found = assemble(card_of("me", "http://me", &[]), |id| id == "me", Some(&look), NOW);
        assert_eq!(found.servers.len(), 1);
    }

    #[test]
    fn without_a_bucket_there_is_one_server() {
        let found = assemble(card_of("", "http://me", &[(1, Role::Owner)]), |_| false, None, NOW);
        assert_eq!((found.servers.len(), found.servers[0].owns, found.tenants[0].roles.len()), (1, 1, 1));
        assert!(found.servers[0].is_this);
    }
}
