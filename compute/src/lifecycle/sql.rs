//! SQL that runs on a compute, as its superuser and in one transaction.

use pq_proto::backend::{BackendMessage, ErrorFields};
use pq_proto::client::{Client, ClientError, ResultSet};
use pq_proto::sqlstate::SqlState;
use tokio::runtime::Runtime;

use super::config::ComputeConfig;
use super::{LifecycleError, Result, server};
use crate::layout::Layout;

/// Why SQL did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqlError {
    /// What Postgres says.
    pub error: ErrorFields,
    /// How many commands had succeeded before.
    pub succeeded: usize,
}

/// Runs all of `sql` in a database of a compute that runs. It is one transaction unless it has commands that end one.
/// Rows that it returns are thrown away.
///
/// # Errors
/// The compute does not answer, or breaks off: whether anything has succeeded is not known.
pub fn run_sql(layout: &Layout, database: &str, sql: &str) -> Result<std::result::Result<(), SqlError>> {
    let compute = ComputeConfig::load(layout)?;
    let broken = |error: ClientError| LifecycleError::Server(format!("{}: {error}", compute.name));
    let mut config = server::config_of(&compute, layout)?;
    config.dbname(database).application_name("pageserver_init");
    server::runtime()?.block_on(async {
        let mut client = match Client::connect(&config, &[]).await {
            Ok(client) => client,
            Err(ClientError::Server(error)) if error.code == SqlState::INVALID_CATALOG_NAME => {
                return Ok(Err(SqlError { error, succeeded: 0 }));
            }
            Err(error) => return Err(broken(error)),
        };
        let mut ran = run(&mut client, sql).await;
        if matches!(ran, Ok(Ok(()))) {
            // A transaction that it has begun and not ended would be undone.
            ran = run(&mut client, "COMMIT").await;
        }
        client.close().await;
        ran.map_err(broken)
    })
}

async fn run(client: &mut Client, sql: &str) -> std::result::Result<std::result::Result<(), SqlError>, ClientError> {
    client.send_query(sql).await?;
    let mut succeeded = 0;
    loop {
        match client.receive().await? {
            BackendMessage::CommandComplete(_) => succeeded += 1,
            BackendMessage::ReadyForQuery => return Ok(Ok(())),
            BackendMessage::ErrorResponse(error) => match client.finish_failed(error).await {
                // The server ends, or this session does: the SQL may be fine.
                ClientError::Server(error) if error.severity == "ERROR" && !is_of_surroundings(&error) => {
                    return Ok(Err(SqlError { error, succeeded }));
                }
                other => return Err(other),
            },
            BackendMessage::CopyInResponse => {
                let message = "COPY FROM STDIN has nothing to read here: use INSERT, or COPY from a file";
                let error = ErrorFields::new(SqlState::FEATURE_NOT_SUPPORTED, message);
                return Ok(Err(SqlError { error, succeeded }));
            }
            // What it shows nobody sees.
            _ => {}
        }
    }
}

/// Whether an error says nothing of the SQL: want of resources, intervention of an operator, a failure of the system.
fn is_of_surroundings(error: &ErrorFields) -> bool {
    let code = error.code.to_string();
    // What it has let time out is its own.
    code != "57014" && ["53", "57", "58"].iter().any(|class| code.starts_with(class))
}

/// A session with a compute that runs, for questions one after the other.
pub struct Session {
    runtime: Runtime,
    client: Client,
}

impl Session {
    /// Opens one, in a database.
    ///
    /// # Errors
    /// The compute does not answer, or has no such database.
    pub fn open(layout: &Layout, database: &str) -> Result<Self> {
        let compute = ComputeConfig::load(layout)?;
        let mut config = server::config_of(&compute, layout)?;
        config.dbname(database);
        let runtime = server::runtime()?;
        let connected = runtime.block_on(Client::connect(&config, &[]));
        let failed = |error| LifecycleError::Server(format!("{}: {error}", compute.name));
        Ok(Self { client: connected.map_err(failed)?, runtime })
    }

    /// Runs commands, and returns all rows.
    ///
    /// # Errors
    /// Postgres refuses them.
    pub fn query(&mut self, sql: &str) -> Result<Vec<ResultSet>> {
        let answer = self.runtime.block_on(self.client.simple_query(sql));
        answer.map_err(|error| LifecycleError::Server(error.to_string()))
    }
}
