//! The server that commands talk to.

use camino::Utf8PathBuf;
use clap::Args;

use super::client::Client;
use crate::args::Common;

/// The server and the caller's credentials.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServerArgs {
    /// Management interface of the pageserver; several, separated by commas, if some are standbys of others.
    #[arg(long, global = true, env = "PAGECTL_SERVER", default_value = "http://127.0.0.1:9898", value_name = "URL")]
    server: String,
    /// Bearer token. Prefer the environment variable: arguments are visible to other users of this machine.
    #[arg(long, global = true, env = "PAGECTL_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// CA certificates to trust for https, in PEM format.
    #[arg(long, global = true, env = "PAGECTL_CA_FILE", value_name = "FILE")]
    ca_file: Option<Utf8PathBuf>,
}

/// A server, and the arguments that say what to ask it about.
pub(super) struct Remote<'a> {
    pub(super) client: Client,
    pub(super) common: &'a Common,
    /// For connections to the page service.
    pub(super) token: Option<String>,
}

impl<'a> Remote<'a> {
    pub(super) fn new(common: &'a Common, server: &ServerArgs) -> anyhow::Result<Self> {
        let client = Client::new(&server.server, server.token.clone(), server.ca_file.as_deref())?;
        client.find_owner();
        Ok(Self { client, common, token: server.token.clone() })
    }
}
