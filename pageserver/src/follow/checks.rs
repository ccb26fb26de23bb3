//! Whether a server can be followed.

use postgres_formats::version::PgVersion;
use pq_proto::client::ClientError;
use pq_proto::replication::ReplicationClient;

use super::error::FollowError;

/// Parameters fixed when a server is built, and their required values.
const BUILD: [(&str, &str); 3] = [("block_size", "8192"), ("wal_block_size", "8192"), ("segment_size", "1GB")];

/// Checks version, build and settings.
pub(super) async fn check_server(client: &mut ReplicationClient) -> Result<(), FollowError> {
    let major = client.server_major();
    if PgVersion::from_major(major).is_none() {
        return refused(format!("the server is PostgreSQL {major}: versions 14 to 18 are supported"));
    }
    for (name, expected) in BUILD {
        let found = client.show(name).await?;
        if found != expected {
            return refused(format!("the server was built with {name} {found}, only {expected} is supported"));
        }
    }
    if client.show("wal_level").await? == "minimal" {
        let reason = "the server's wal_level is minimal: set it to replica or logical and restart the server";
        return refused(reason.to_owned());
    }
    if client.show("full_page_writes").await? == "off" {
        tracing::info!("full_page_writes is off: the server switches it on for as long as the copy takes");
    }
    Ok(())
}

fn refused(reason: String) -> Result<(), FollowError> {
    Err(FollowError::Refused(reason))
}

/// Explains to the user why the slot could not be created.
pub(super) fn slot_error(slot: &str, error: ClientError) -> FollowError {
    use pq_proto::sqlstate::SqlState;
    match error.sqlstate() {
        Some(SqlState::DUPLICATE_OBJECT) => FollowError::Refused(format!(
            "the replication slot {slot} exists already on the server: give another name, or drop it \
             (pg_drop_replication_slot) if nothing uses it"
        )),
        Some(SqlState::OBJECT_IN_USE) => {
            FollowError::Refused(format!("the replication slot {slot} is in use on the server: {error}"))
        }
        _ => FollowError::Refused(format!("cannot make the replication slot {slot}: {error}")),
    }
}
