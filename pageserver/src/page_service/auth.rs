//! Authentication: the password is a token, and there must be room for the client.

use pq_proto::backend::ErrorFields;
use pq_proto::server::Authenticator;
use pq_proto::sqlstate::SqlState;

use super::shared::Shared;
use crate::auth::Grant;
use crate::places::{Place, Work, Working};
use metrics::METRICS;

/// Authenticates a client that already has a place.
pub(super) struct Gate<'a> {
    pub(super) shared: &'a Shared,
    pub(super) place: &'a Place,
}

impl<'a> Authenticator for Gate<'a> {
    type Identity = (Grant, Working<'a>);

    fn wants_password(&self) -> bool {
        self.shared.auth.is_required()
    }

    fn authenticate(&self, password: Option<&str>) -> Result<Self::Identity, ErrorFields> {
        let grant = self.shared.auth.check(password);
        let grant = grant.map_err(|error| {
            METRICS.auth_refused.inc();
            ErrorFields::new(SqlState::INTERNAL_ERROR, error.to_string())
        })?;
        let limit = self.shared.settings.max_connections;
        let full = || {
            tracing::warn!("too many clients of the page service: the limit is {limit}");
            let message = format!("too many connections: the limit is {limit}");
            ErrorFields::new(SqlState::TOO_MANY_CONNECTIONS, message)
        };
        Ok((grant, self.place.try_begin(Work::Usual).ok_or_else(full)?))
    }
}
