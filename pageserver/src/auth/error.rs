//! Refusals.

/// Why a caller is refused. The texts tell nothing about tokens or keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// A token is required, and none was given.
    #[error("authentication required: give a bearer token")]
    Missing,
    /// The token is not good: not a token, signed by nobody we know, expired, or for another service.
    #[error("JWT authentication error")]
    Invalid,
    /// The token was good when the connection or the request began.
    #[error("the token is good no more: it has expired, or its key was withdrawn")]
    Ended,
    /// The token is good, but not for this.
    #[error("forbidden: the token's scope does not allow this")]
    Forbidden,
}
