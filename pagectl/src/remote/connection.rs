//! The server that commands are for.

use camino::Utf8PathBuf;
use clap::Args;

use super::client::Client;
use crate::args::Common;

/// Which server, and who asks.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServerArgs {
    /// Management interface of the pageserver.
    #[arg(long, global = true, env = "PAGECTL_SERVER", default_value = "http://127.0.0.1:9898", value_name = "URL")]
    server: String,
    /// Bearer token. Others on this machine can see arguments: the environment is the better place.
    #[arg(long, global = true, env = "PAGECTL_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Certificates to trust for https, PEM.
    #[arg(long, global = true, env = "PAGECTL_CA_FILE", value_name = "FILE")]
    ca_file: Option<Utf8PathBuf>,
}

/// A server, and what to ask it about.
pub(super) struct Remote<'a> {
    pub(super) client: Client,
    pub(super) common: &'a Common,
    /// For those who ask the page service.
    pub(super) token: Option<String>,
}

impl<'a> Remote<'a> {
    pub(super) fn new(common: &'a Common, server: &ServerArgs) -> anyhow::Result<Self> {
        let client = Client::new(&server.server, server.token.clone(), server.ca_file.as_deref())?;
        Ok(Self { client, common, token: server.token.clone() })
    }
}
