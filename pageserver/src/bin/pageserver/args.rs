//! Command-line arguments.

use camino::Utf8PathBuf;
use clap::{Args as ClapArgs, Parser, Subcommand};
use pageserver::settings::Overrides;

/// Stores the history of Postgres clusters and serves pages as of any LSN.
///
/// Create a working directory once with `pageserver init --workdir DIR`, then run `pageserver --workdir DIR`. SIGTERM
/// or SIGINT shuts it down cleanly, a second one terminates it at once; SIGHUP reloads public keys and certificate.
/// The addresses in use are in DIR/pageserver.addr.
#[derive(Debug, Parser)]
#[command(name = "pageserver", version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    /// Present unless there is a subcommand, which has its own.
    #[command(flatten)]
    pub(crate) place: Option<Place>,
    /// Print all settings in effect, in the format of the settings file, and exit.
    #[arg(long)]
    pub(crate) print_config: bool,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create the working directory, with a pageserver.toml that explains every setting.
    Init {
        #[command(flatten)]
        place: Place,
    },
    /// Write man pages, of this command and of those below it.
    Man {
        /// An existing directory, such as /usr/local/share/man/man1.
        dir: Utf8PathBuf,
    },
}

/// The working directory and its settings.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Place {
    /// The working directory, which holds the settings and everything stored locally.
    #[arg(short = 'D', long, value_name = "DIR")]
    pub(crate) workdir: Utf8PathBuf,
    /// A setting that overrides file and environment (PAGESERVER_<KEY>). May be repeated.
    #[arg(short = 'c', long = "config-override", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
}

impl Place {
    pub(crate) fn overrides(&self) -> Overrides {
        Overrides { flags: self.overrides.clone(), ..Overrides::from_environment() }
    }
}
