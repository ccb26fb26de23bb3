//! Arguments.

use camino::Utf8PathBuf;
use clap::{Args as ClapArgs, Parser, Subcommand};
use pageserver::settings::Overrides;

/// Stores the history of Postgres clusters, and serves pages as of any LSN.
///
/// Make a working directory once with `pageserver init --workdir DIR`, then run `pageserver --workdir DIR`. SIGTERM or
/// SIGINT ends it in order, a second one at once; SIGHUP reads public keys and certificate again. Addresses in use are
/// in DIR/pageserver.addr.
#[derive(Debug, Parser)]
#[command(name = "pageserver", version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    /// There unless there is a sub-command, which has its own.
    #[command(flatten)]
    pub(crate) place: Option<Place>,
    /// Print all settings as they hold, as a file that could be used, and exit.
    #[arg(long)]
    pub(crate) print_config: bool,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make the working directory, and in it pageserver.toml with every setting explained.
    Init {
        #[command(flatten)]
        place: Place,
    },
}

/// Where and how.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Place {
    /// The working directory: it holds the settings and everything stored locally.
    #[arg(short = 'D', long, value_name = "DIR")]
    pub(crate) workdir: Utf8PathBuf,
    /// A setting, over file and environment (PAGESERVER_<KEY>). May be given several times.
    #[arg(short = 'c', long = "config-override", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
}

impl Place {
    pub(crate) fn overrides(&self) -> Overrides {
        Overrides { flags: self.overrides.clone(), ..Overrides::from_environment() }
    }
}
