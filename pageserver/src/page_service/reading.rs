//! What a client reads: a timeline that this server owns, or one of which it is a standby, if the client asks for that.

use pq_proto::frontend::StartupParameters;
use utils::id::TimelineId;
use utils::shard::TenantShardId;

use super::errors::CommandError;
use super::session::Session;
use crate::walreceiver::{StandbyRead, may_be_removed};
use engine::tenant::manager::ManageError;
use engine::tenant::timeline::Timeline;
use errors::StorageError;
use metrics::METRICS;

/// The setting in a client's `options` by which it reads from standbys.
const SETTING: &str = "pageserver.standby_reads=on";

/// Whether a client asks for reads from standbys: `options=-c pageserver.standby_reads=on`.
pub(super) fn reads_standbys(startup: &StartupParameters) -> bool {
    let options = startup.get("options").unwrap_or_default();
    let words = options.split_ascii_whitespace();
    words.map(|word| word.trim_start_matches("-c").trim_start_matches("--")).any(|word| word == SETTING)
}

/// A timeline to read.
pub(super) enum Read {
    Owned(Timeline),
    AtStandby(StandbyRead),
}

impl Read {
    pub(super) fn timeline(&self) -> &Timeline {
        match self {
            Self::Owned(timeline) => timeline,
            Self::AtStandby(read) => &read.timeline,
        }
    }

    /// Among the errors of answers, one that may be due to what was removed since this was opened.
    pub(super) fn removed<'a>(&self, errors: impl IntoIterator<Item = &'a StorageError>) -> Option<String> {
        match self {
            Self::Owned(_) => None,
            Self::AtStandby(_) => errors.into_iter().find(|error| may_be_removed(error)).map(ToString::to_string),
        }
    }

    /// Whether the client has to come again, as what it reads from is opened anew after that error.
    pub(super) async fn has_ended(&self, removed: Option<String>) -> bool {
        match (self, removed) {
            (Self::AtStandby(read), Some(error)) => read.has_ended(error).await,
            _ => false,
        }
    }
}

impl Session<'_> {
    /// Fails unless the client may use a tenant.
    pub(super) fn check_tenant(&self, tenant: TenantShardId) -> Result<(), CommandError> {
        self.grant.permission().check_tenant(tenant.tenant_id).map_err(|refused| {
            METRICS.auth_refused.inc();
            refused.into()
        })
    }

    /// Looks up a timeline that the client may read.
    pub(super) async fn to_read(&self, tenant: TenantShardId, timeline: TimelineId) -> Result<Read, CommandError> {
        self.check_tenant(tenant)?;
        match (self.shared.manager.get(tenant, timeline), self.shared.standby_reads.get()) {
            (Err(ManageError::Elsewhere(_)), Some(reads)) if self.reads_standbys => {
                Ok(Read::AtStandby(reads.read(tenant, timeline).await?))
            }
            (found, _) => Ok(Read::Owned(found?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_ask_for_reads_from_standbys() {
        let asks = |options: &str| {
            let parameters = vec![("options".to_owned(), options.to_owned())];
            reads_standbys(&StartupParameters { minor: 0, parameters })
        };
        assert!(asks("-c pageserver.standby_reads=on"));
        assert!(asks("-c statement_timeout=0 -cpageserver.standby_reads=on"));
        assert!(asks("--pageserver.standby_reads=on"));
        assert!(!asks("-c pageserver.standby_reads=off") && !asks("") && !asks("-c x=pageserver.standby_reads=on"));
    }
}
