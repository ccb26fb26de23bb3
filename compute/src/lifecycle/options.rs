//! Options that a compute was given at its starts. They persist until they are changed.

use serde::{Deserialize, Serialize};

use super::Result;
use super::wishes::{self, refused};

/// Options of a compute that apply to each start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Options {
    /// Addresses to listen on besides the socket; empty for none.
    pub listen: String,
    /// System users admitted over the socket besides the owner and root: `user`, or `user=role`.
    pub listen_users: Vec<String>,
    /// Commits wait until the pageserver has their WAL.
    pub wait_for_pageserver: bool,
    /// They wait until it is durable there: the pageserver has a journal.
    pub until_durable: bool,
    /// Postgres settings: `name=value`.
    pub settings: Vec<String>,
    /// How the pageserver reaches the compute; by default over its socket.
    pub connstr: Option<String>,
    /// A gateway may stop it when nobody is connected.
    pub sleeps: bool,
}

/// Changes that apply from now on.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// See [`Options::listen`].
    pub listen: Option<String>,
    /// Replaces all of [`Options::listen_users`].
    pub listen_users: Option<Vec<String>>,
    /// See [`Options::wait_for_pageserver`].
    pub wait_for_pageserver: Option<bool>,
    /// See [`Options::until_durable`].
    pub until_durable: Option<bool>,
    /// Replaces these of [`Options::settings`]; the others stay.
    pub settings: Vec<String>,
    /// Names of [`Options::settings`] to reset to Postgres's default.
    pub unset: Vec<String>,
    /// See [`Options::connstr`]; empty for none.
    pub connstr: Option<String>,
    /// See [`Options::sleeps`].
    pub sleeps: Option<bool>,
    /// Listen on another port.
    pub port: Option<u16>,
    /// Switch to another pageserver.
    pub page_server: Option<PageServerAt>,
}

/// Address of a pageserver.
#[derive(Clone, Debug)]
pub struct PageServerAt {
    /// Its page service, as a libpq connection string.
    pub page_service: String,
    /// Token for it; by default the previous one.
    pub token: Option<String>,
}

impl Options {
    /// Applies the changes. If one is invalid, nothing changes.
    pub fn change(&mut self, changes: Changes) -> Result<()> {
        let mut new = self.clone();
        if let Some(listen) = changes.listen {
            new.listen = listen;
        }
        if let Some(users) = changes.listen_users {
            new.listen_users = users.into_iter().filter(|user| !user.is_empty()).collect();
        }
        if let Some(wait) = changes.wait_for_pageserver {
            new.wait_for_pageserver = wait;
        }
        if let Some(until) = changes.until_durable {
            new.until_durable = until;
        }
        if let Some(sleeps) = changes.sleeps {
            new.sleeps = sleeps;
        }
        if let Some(connstr) = changes.connstr {
            new.connstr = Some(connstr).filter(|connstr| !connstr.is_empty());
        }
        for name in changes.unset {
            if !new.settings.iter().any(|old| wishes::is_of(old, name.trim())) {
                return Err(refused(format!("{name} is not set: list tells what is")));
            }
            new.settings.retain(|old| !wishes::is_of(old, name.trim()));
        }
        for setting in changes.settings {
            let (name, value) = wishes::setting(&setting)?;
            new.settings.retain(|old| !wishes::is_of(old, name));
            new.settings.push(format!("{name}={value}"));
        }
        new.listen_users.iter().try_for_each(|user| wishes::user(user).map(drop))?;
        *self = new;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_holds_until_told_otherwise() {
        let mut options = Options::default();
        let first = Changes {
            wait_for_pageserver: Some(true),
            settings: vec!["work_mem=1MB".to_owned(), "jit = off".to_owned()],
            connstr: Some("host=a".to_owned()),
            ..Changes::default()
        };
        options.change(first).unwrap();
        options.change(Changes::default()).unwrap();
        assert_eq!(options.settings, ["work_mem=1MB", "jit=off"]);
        assert!(options.wait_for_pageserver);
        let second = Changes {
            wait_for_pageserver: Some(false),
            settings: vec!["Work_Mem=2MB".to_owned()],
            connstr: Some(String::new()),
            listen_users: Some(vec!["app".to_owned()]),
            ..Changes::default()
        };
        options.change(second).unwrap();
        assert_eq!(options.settings, ["jit=off", "Work_Mem=2MB"]);
        assert_eq!((options.wait_for_pageserver, options.connstr.as_deref()), (false, None));
        let unset = |name: &str| Changes { unset: vec![name.to_owned()], ..Changes::default() };
        options.change(unset("JIT")).unwrap();
        assert_eq!(options.settings, ["Work_Mem=2MB"]);
        assert!(options.change(unset("jit")).is_err(), "it is not set any more");
        let before = options.clone();
        for bad in ["nonsense", "port=1"] {
            let changes =
                Changes { settings: vec![bad.to_owned()], listen: Some("*".to_owned()), ..Changes::default() };
            assert!(options.change(changes).is_err(), "{bad}");
            assert_eq!(options, before);
        }
    }
}
