//! SQL of branches, as requests and answers have it.

use serde::{Deserialize, Serialize};
use utils::lsn::Lsn;
use utoipa::ToSchema;

use crate::http::ids::LsnText;
use crate::walreceiver::init_sql::{InitState, Script};

/// SQL that runs on a branch before anybody uses it.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SqlBody {
    /// The SQL, of 524288 bytes at most. It runs in one transaction.
    pub(crate) sql: String,
    /// The database that it runs in; `postgres` if not given.
    pub(crate) database: Option<String>,
}

// It may have secrets.
impl std::fmt::Debug for SqlBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqlBody").finish_non_exhaustive()
    }
}

/// What is told of SQL.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SqlInfo {
    /// Its hash.
    sha256: String,
    /// Its length.
    bytes: u64,
    /// The database that it runs in.
    database: String,
    /// It is that of all branches of the one that this was made of.
    standing: bool,
}

impl SqlInfo {
    pub(crate) fn of(script: &Script) -> Self {
        let Script { sha256, bytes, database, standing, .. } = script.clone();
        Self { sha256, bytes, database, standing }
    }
}

/// How far the SQL of a branch is.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct InitInfo {
    /// pending, running, done, or failed. Nobody may use the branch unless it is done.
    #[schema(value_type = String)]
    pub(crate) state: InitState,
    /// Where it was done: no moment before may be used.
    #[schema(value_type = Option<LsnText>)]
    pub(crate) lsn: Option<Lsn>,
    /// Why it has failed, or was given up.
    pub(crate) error: Option<String>,
    /// What is run, in this order; nothing for a branch of one where it was done.
    pub(crate) sql: Vec<SqlInfo>,
}
