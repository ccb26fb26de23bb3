//! What a compute was told to do at its starts. It holds until the compute is told otherwise.

use serde::{Deserialize, Serialize};

use super::Result;
use super::wishes::{self, refused};

/// What a compute does at its starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Options {
    /// Addresses to listen on besides the socket; empty for none.
    pub listen: String,
    /// Users of the system who are let in by the socket besides the owner and root: `user`, or `user=role`.
    pub listen_users: Vec<String>,
    /// Commits wait until the page server has what they wrote.
    pub wait_for_pageserver: bool,
    /// Settings of Postgres: `name=value`.
    pub settings: Vec<String>,
    /// How the page server reaches the compute; by its socket if not given.
    pub connstr: Option<String>,
}

/// What is to be otherwise from now on.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// See [`Options::listen`].
    pub listen: Option<String>,
    /// All of [`Options::listen_users`].
    pub listen_users: Option<Vec<String>>,
    /// See [`Options::wait_for_pageserver`].
    pub wait_for_pageserver: Option<bool>,
    /// These of [`Options::settings`]; the others stay.
    pub settings: Vec<String>,
    /// Names of [`Options::settings`] that are as Postgres has them again.
    pub unset: Vec<String>,
    /// See [`Options::connstr`]; empty for none.
    pub connstr: Option<String>,
    /// Another page server.
    pub page_server: Option<PageServerAt>,
}

/// Where a page server is.
#[derive(Clone, Debug)]
pub struct PageServerAt {
    /// Its page service, as libpq takes it.
    pub page_service: String,
    /// Token for it; that of before if not given.
    pub token: Option<String>,
}

impl Options {
    /// Takes the changes in. If one makes no sense, nothing changes.
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
