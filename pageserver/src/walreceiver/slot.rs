//! The replication slot, which one receiver uses at a time: created if it is missing, and taken over from the
//! tenant's previous server.
//!
//! An ordinary connection with the same credentials finds out who holds it. The holder is terminated only if the
//! bucket confirms, immediately before, that this server owns the tenant, and if the holder is a receiver with the
//! same user and application name as ours: whatever that has received, it could no longer report as safe. In all
//! other cases the conflict is reported, and retried.

use pq_proto::client::{Client, ClientError};
use pq_proto::replication::ReplicationClient;
use pq_proto::sqlstate::SqlState;

use super::failure::{Failure, in_time};
use super::source::WalSource;
use engine::tenant::timeline::Timeline;
use errors::{ErrorKind, StorageError};

/// `READ_REPLICATION_SLOT` exists from this version on.
const CAN_READ_SLOT: u32 = 15;

/// Whether there is such a slot, as far as the server tells.
pub(super) async fn exists(client: &mut ReplicationClient, slot: &str) -> Result<bool, ClientError> {
    Ok(client.server_major() >= CAN_READ_SLOT && client.read_slot(slot).await?.is_some())
}

/// Creates the slot if it is known to be missing. Returns whether it was created.
pub(super) async fn make_if_missing(client: &mut ReplicationClient, slot: &str) -> Result<bool, ClientError> {
    // Trying to create an existing slot would log an error on the server at each connection.
    if client.server_major() < CAN_READ_SLOT || client.read_slot(slot).await?.is_some() {
        return Ok(false);
    }
    make(client, slot).await
}

/// Creates the slot. False if someone else was faster.
pub(super) async fn make(client: &mut ReplicationClient, slot: &str) -> Result<bool, ClientError> {
    match client.create_physical_slot(slot, true).await {
        Ok(()) => Ok(true),
        Err(error) if error.sqlstate() == Some(SqlState::DUPLICATE_OBJECT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The holder of a slot.
#[derive(Debug)]
struct Holder {
    pid: String,
    /// Its application name, if visible.
    name: Option<String>,
    is_same_user: bool,
}

/// Handles a slot of `timeline` that is in use: terminates its holder if that is permitted, so that the caller can
/// retry.
///
/// # Errors
/// If it is not permitted, with advice on what to do.
pub(super) async fn free(timeline: &Timeline, source: &WalSource) -> Result<(), Failure> {
    let taken = |what: String| {
        let (slot, host) = (source.slot(), source.host());
        Failure::Transient(format!("the replication slot {slot} on {host} is in use: {what}"))
    };
    let mut client = connect(source).await.map_err(|error| {
        taken(format!("by whom cannot be asked ({error}). {}", advice("the active_pid of pg_replication_slots")))
    })?;
    let asked = in_time("asking who uses the slot", holder(&mut client, source.slot())).await?;
    let Some(holder) = asked else { return Ok(()) };
    let Holder { pid, name, is_same_user } = &holder;
    let what = format!("by process {pid} ({})", name.as_deref().unwrap_or("of another user"));
    if *name != own_name(source)? || !is_same_user {
        return Err(taken(format!("{what}, which is none of ours. {}", advice(pid))));
    }
    if let Err(reason) = may_take(timeline).await? {
        return Err(taken(format!("{what}. {reason}. {}", advice(pid))));
    }
    let end = format!("SELECT pg_terminate_backend({pid})");
    let ended = in_time("ending who uses the slot", client.simple_query(&end)).await;
    client.close().await;
    ended.map_err(|error| taken(format!("{what}, and this server may not end that: {error}. {}", advice(pid))))?;
    tracing::info!(
        timeline = %timeline.timeline_id(),
        "the replication slot {} was in use {what}; that was ended, since this server owns the tenant now",
        source.slot()
    );
    Ok(())
}

fn advice(pid: &str) -> String {
    format!(
        "It is tried again until it is free. A pageserver that had the tenant before lets go of it once it reaches \
         the bucket; to free it at once, stop whatever uses it, or on the server: SELECT pg_terminate_backend({pid})"
    )
}

fn own_name(source: &WalSource) -> Result<Option<String>, Failure> {
    Ok(source.config()?.get_application_name().map(str::to_owned))
}

/// Whether this server owns the tenant according to the bucket; the inner error says why that is unknown.
async fn may_take(timeline: &Timeline) -> Result<Result<(), String>, Failure> {
    let Some(remote) = timeline.remote() else {
        return Ok(Err("Without a bucket nobody knows which of two servers should have it".to_owned()));
    };
    match remote.check().await {
        Ok(()) => Ok(Ok(())),
        Err(error) if error.kind() == ErrorKind::Fenced => Err(error.into()),
        Err(error) => Ok(Err(format!("Whether this server still owns the tenant is not known: {error}"))),
    }
}

/// Opens an ordinary connection.
pub(super) async fn connect(source: &WalSource) -> Result<Client, ClientError> {
    let config = source.config().map_err(|error: StorageError| ClientError::Config(error.to_string()))?;
    let mut config = config.clone();
    if config.get_dbname().is_none() {
        config.dbname("postgres");
    }
    Client::connect(&config, &[]).await
}

/// How long whoever is ended may take, in milliseconds.
const END_MS: u32 = 5000;

/// Ends connections that an earlier process of this server has left behind under `name`, and that count as somebody who
/// has what they had told: a server must count once. They are none that live.
pub(super) async fn end_namesakes(client: &mut Client, name: &str) -> Result<(), Failure> {
    let ended = format!(
        "SELECT pg_terminate_backend(pid, {END_MS}) FROM pg_catalog.pg_stat_replication \
         WHERE application_name = '{name}' AND usename = current_user"
    );
    let sets = in_time("ending what an earlier process has left", client.simple_query(&ended)).await?;
    let mut rows = sets.into_iter().flat_map(|set| set.rows);
    match rows.all(|row| row.first().is_some_and(|field| field.as_deref() == Some(b"t"))) {
        true => Ok(()),
        false => Err(Failure::Transient(format!("a former connection of {name} does not end"))),
    }
}

async fn holder(client: &mut Client, slot: &str) -> Result<Option<Holder>, ClientError> {
    let sets = client
        .simple_query(&format!(
            "SELECT s.active_pid, r.application_name, coalesce(r.usename = current_user, false) \
             FROM pg_catalog.pg_replication_slots s \
             LEFT JOIN pg_catalog.pg_stat_replication r ON r.pid = s.active_pid \
             WHERE s.slot_name = '{slot}' AND s.slot_type = 'physical' AND s.active_pid IS NOT NULL"
        ))
        .await?;
    let Some(row) = sets.into_iter().flat_map(|set| set.rows).next() else { return Ok(None) };
    let mut fields = row.into_iter().map(|field| field.map(|text| String::from_utf8_lossy(&text).into_owned()));
    let (pid, name) = (fields.next().flatten(), fields.next().flatten());
    let is_same_user = fields.next().flatten().as_deref() == Some("t");
    Ok(pid.map(|pid| Holder { pid, name, is_same_user }))
}
