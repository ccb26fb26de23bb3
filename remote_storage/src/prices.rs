//! The approximate cost of requests: list prices of a large cloud's standard class, in dollars. Transfer within the
//! region and deletions are free there. A directory costs nothing.

/// $0.005 per thousand.
const WRITE_OR_LIST: f64 = 5e-6;
/// $0.0004 per thousand.
const READ: f64 = 4e-7;

/// Whether a bucket charges for requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prices {
    /// It does not.
    Free,
    /// It does.
    Cloud,
}

impl Prices {
    /// The price of one attempt.
    pub(super) fn of(self, operation: &str) -> f64 {
        match (self, operation) {
            (Self::Free, _) | (_, "delete") => 0.0,
            (_, "get" | "head") => READ,
            _ => WRITE_OR_LIST,
        }
    }
}
