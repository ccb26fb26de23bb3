//! Connection strings of branches, through a gateway.

use clap::Args;
use serde_json::{Value, json};

use crate::output;
use crate::remote::client::encoded_segment;
use crate::remote::connection::Remote;
use crate::table::text;

/// What to print of a new branch.
#[derive(Debug, Args)]
pub(crate) struct UrlArgs {
    /// Print only its connection string, through a gateway.
    #[arg(long)]
    pub(super) print_url: bool,
    #[command(flatten)]
    pub(super) gateway: GatewayAt,
}

/// A gateway, and who connects to what there.
#[derive(Debug, Args)]
pub(crate) struct GatewayAt {
    /// Host and port of the gateway.
    #[arg(long, env = "PAGECTL_GATEWAY", default_value = "127.0.0.1:6432", value_name = "ADDRESS")]
    gateway: String,
    /// The role; its password is not part of what is printed.
    #[arg(long, default_value = "postgres")]
    role: String,
    /// The database.
    #[arg(long, default_value = "postgres")]
    dbname: String,
}

impl GatewayAt {
    /// Prints the URL of a branch.
    pub(super) fn print(&self, remote: &Remote<'_>, branch: &Value) -> anyhow::Result<()> {
        let name = branch["name"].as_str().map_or_else(|| text(branch, "timeline_id"), str::to_owned);
        let url = self.url(&name);
        output::finish(remote.common.json, &json!({ "url": url, "branch": branch }), &url);
        Ok(())
    }

    fn url(&self, branch: &str) -> String {
        let branch = escaped(branch);
        let [role, dbname, branch] = [&self.role, &self.dbname, &branch].map(|text| encoded_segment(text));
        format!("postgresql://{role}@{}/{dbname}?options=-cbranch%3D{branch}", self.gateway)
    }
}

/// In options a blank ends a word unless a backslash precedes it.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace(' ', "\\ ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_encoded() {
        let at =
            GatewayAt { gateway: "db.example:6432".to_owned(), role: "a@b".to_owned(), dbname: "my/db".to_owned() };
        let url = at.url("pr 1&2");
        assert_eq!(url, "postgresql://a%40b@db.example:6432/my%2Fdb?options=-cbranch%3Dpr%5C%201%262");
    }
}
