//! Authentication errors.

/// Why a caller is refused. The texts reveal nothing about tokens or keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// A token is required, and none was given.
    #[error("authentication required: give a bearer token")]
    Missing,
    /// The token is invalid: malformed, signed by an unknown key, expired, or for another service.
    #[error("JWT authentication error")]
    Invalid,
    /// The token was valid when the connection or the request began, but no longer is.
    #[error("the token is good no more: it has expired, or its key was withdrawn")]
    Ended,
    /// The token is valid, but does not permit this.
    #[error("forbidden: the token's scope does not allow this")]
    Forbidden,
}
