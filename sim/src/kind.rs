//! The kinds of worlds that there are.

use clap::ValueEnum;

use crate::plan::Plan;
use crate::run::{self, Outcome};
use crate::story::Telling;
use crate::{quorum, succession};

/// What lives in a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Two servers with tenants, those who use them, and every fault of disks and bucket.
    #[default]
    Tenants,
    /// An owner and two standbys, one of which takes over.
    Succession,
    /// The same, and the tenant is handed over as well.
    SuccessionMoves,
    /// An owner and a standby with journals, and a Postgres that waits for both; one server is lost with the Postgres.
    Quorum,
    /// The same, and the tenant is handed over as well.
    QuorumMoves,
    /// The same, and what is left has a slow disk.
    QuorumSlowDisk,
    /// The same, and the server that is lost has just taken over.
    QuorumTakeover,
    /// The same, and all disks are lost: what the bucket has of the journal's tail is left.
    QuorumTail,
}

impl Kind {
    /// What happens in the world of a seed. Only [`Kind::Tenants`] has steps that can be left out.
    pub fn plan(self, seed: u64) -> Plan {
        let plan = Plan::draw(seed);
        if self == Self::Tenants { plan } else { plan.only(&[]) }
    }

    /// Runs a plan.
    pub fn run(self, plan: &Plan, telling: Telling) -> Outcome {
        let seed = plan.seed;
        match self {
            Self::Tenants => run::run(plan, telling),
            Self::Succession => succession::run(seed, telling),
            Self::SuccessionMoves => succession::run_with_moves(seed, telling),
            Self::Quorum => quorum::run(seed, telling),
            Self::QuorumMoves => quorum::run_with_moves(seed, telling),
            Self::QuorumSlowDisk => quorum::run_on_a_slow_disk(seed, telling),
            Self::QuorumTakeover => quorum::run_after_a_takeover(seed, telling),
            Self::QuorumTail => quorum::run_to_the_tail(seed, telling),
        }
    }

    /// As it is written on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}
