//! What the gateway needs of the computes.

use traces::Parent;
use utils::lsn::Lsn;

use crate::address::Address;

/// A branch, or a moment of it, that one compute serves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The branch, by name or id.
    pub branch: String,
    /// As of which LSN it is read; `None` is its end, which may be written too.
    pub lsn: Option<Lsn>,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.lsn {
            Some(lsn) => write!(f, "{}@{lsn}", self.branch),
            None => f.write_str(&self.branch),
        }
    }
}

/// Why a client cannot have what it wants, in words for that client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no such branch or moment.
    Missing {
        /// What is missing.
        message: String,
        /// What there is instead.
        hint: String,
    },
    /// It is there, and no compute can serve it now.
    Unavailable {
        /// Why.
        message: String,
        /// What to do about it, if that is known.
        hint: Option<String>,
    },
}

/// The computes behind a gateway. All calls may block.
pub trait Fleet: Send + Sync + 'static {
    /// The LSN of a moment of a branch: an LSN, a time, or how long ago (`-10min`). Whoever means the same moment gets
    /// the same LSN.
    ///
    /// # Errors
    /// There is no such branch or moment.
    fn lsn(&self, branch: &str, moment: &str) -> Result<Lsn, Refused>;

    /// Starts the compute of a place unless it runs, and says where it listens. A moment's is made for it. `caller` is
    /// the session for which that is done, where it has a trace.
    ///
    /// # Errors
    /// If it does not run then.
    fn wake(&self, place: &Place, caller: Option<Parent>) -> Result<Address, Refused>;

    /// Whether the compute that was woken for a place is still the one that serves it: its branch may be another one of
    /// the same name by now. True where that cannot be found out.
    ///
    /// # Errors
    /// Nobody may have the branch any more.
    fn is_current(&self, place: &Place) -> Result<bool, Refused>;

    /// Stops the compute of a place; that of a moment goes. False if somebody is connected to it in another way, or if
    /// it may not sleep.
    ///
    /// # Errors
    /// It may still run.
    fn sleep(&self, place: &Place) -> Result<bool, String>;

    /// Places whose computes run and may sleep, as an earlier gateway has left them, and where they listen.
    fn awake(&self) -> Vec<(Place, Address)>;
}
