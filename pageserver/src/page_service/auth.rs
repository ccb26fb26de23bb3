//! Who is let in: the password is a token.

use pq_proto::backend::ErrorFields;
use pq_proto::server::Authenticator;
use pq_proto::sqlstate::SqlState;

use crate::auth::{Auth, Permission};

impl Authenticator for Auth {
    type Identity = Permission;

    fn wants_password(&self) -> bool {
        self.is_required()
    }

    fn authenticate(&self, password: Option<&str>) -> Result<Permission, ErrorFields> {
        self.check(password).map_err(|error| ErrorFields::new(SqlState::INTERNAL_ERROR, error.to_string()))
    }
}
