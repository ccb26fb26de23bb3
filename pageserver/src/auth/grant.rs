//! What a caller was allowed, for as long as his token is good.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::jwt::Verified;
use super::keys::KeyRing;
use super::permission::Permission;

/// How often the clock is looked at: it may be set while somebody waits for a token's end.
const CLOCK_PERIOD: Duration = Duration::from_secs(10);

/// What a caller may do, until his token expires or the key that has signed it is withdrawn. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Grant {
    permission: Permission,
    /// By which token; `None` if nobody asked for one.
    token: Option<(Verified, Arc<KeyRing>)>,
}

impl Grant {
    /// To everybody, for ever.
    pub(super) fn trusted() -> Self {
        Self { permission: Permission::All, token: None }
    }

    pub(super) fn by_token(token: Verified, keys: Arc<KeyRing>) -> Self {
        Self { permission: token.permission, token: Some((token, keys)) }
    }

    /// What may be done.
    pub fn permission(&self) -> Permission {
        self.permission
    }

    /// Ends when it does.
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

/// How much time is left; `None` if none.
fn left(until: Option<SystemTime>) -> Option<Duration> {
    let Some(until) = until else { return Some(Duration::MAX) };
    until.duration_since(env::clock::system_now()).ok().filter(|left| !left.is_zero())
}
