//! What a caller may do, for as long as its token is valid.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::jwt::Verified;
use super::keys::KeyRing;
use super::permission::Permission;

/// How often the clock is checked: it may be set while someone waits for a token's end.
const CLOCK_PERIOD: Duration = Duration::from_secs(10);

/// What a caller may do, until its token expires or the key that signed it is withdrawn. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Grant {
    permission: Permission,
    /// The token, and the keys to check it against; `None` if no token was required.
    token: Option<(Verified, Arc<KeyRing>)>,
}

impl Grant {
    /// Everything, for everybody, forever.
    pub(super) fn trusted() -> Self {
        Self { permission: Permission::All, token: None }
    }

    pub(super) fn by_token(token: Verified, keys: Arc<KeyRing>) -> Self {
        Self { permission: token.permission, token: Some((token, keys)) }
    }

    /// The permission.
    pub fn permission(&self) -> Permission {
        self.permission
    }

    /// Who the token was issued to (its claim `sub`), if it says so.
    pub fn subject(&self) -> Option<&str> {
        self.token.as_ref()?.0.subject.as_deref()
    }

    /// Completes when the grant ends.
    pub async fn ended(&self) {
        let Some((token, keys)) = &self.token else { return std::future::pending().await };
        let mut keys = keys.watch();
        loop {
            if !keys.borrow_and_update().contains(&token.key) {
                return;
            }
            let Some(left) = left(token.until) else { return };
            tokio::select! {
                () = env::clock::sleep(left.min(CLOCK_PERIOD)) => {}
                // Never an error: the ring is held here.
                _ = keys.changed() => {}
            }
        }
    }
}

/// The time left; `None` if none.
fn left(until: Option<SystemTime>) -> Option<Duration> {
    let Some(until) = until else { return Some(Duration::MAX) };
    until.duration_since(env::clock::system_now()).ok().filter(|left| !left.is_zero())
}
