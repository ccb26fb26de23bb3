//! Options that a compute was given at its starts. They persist until they are changed.

use serde::{Deserialize, Serialize};

use super::Result;
use super::wishes::{self, refused};

/// The name under which the owner of a branch follows its compute.
pub const OWNER_NAME: &str = "pageserver";

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
    /// The names under which pageservers follow it: the owner's first, then that of each server as a standby. Empty if
    /// only the owner counts.
    pub followers: Vec<String>,
    /// How many of them have to have what a commit has written.
    pub quorum: Option<u32>,
    /// Postgres settings: `name=value`.
    pub settings: Vec<String>,
    /// How the pageserver reaches the compute; by default over its socket.
    pub connstr: Option<String>,
    /// A gateway may stop it when nobody is connected.
    pub sleeps: bool,
    /// How many MiB of a table are fetched ahead of a scan; by default what the file system thinks right.
    pub ahead_mib: Option<u32>,
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
    /// See [`Options::followers`].
    pub followers: Option<Vec<String>>,
    /// See [`Options::quorum`]; 0: only the owner counts.
    pub quorum: Option<u32>,
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
    /// See [`Options::ahead_mib`].
    pub ahead_mib: Option<u32>,
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
        if let Some(followers) = changes.followers {
            new.followers = followers;
        }
        if let Some(quorum) = changes.quorum {
            new.quorum = Some(quorum);
        }
        new.check_quorum()?;
        if let Some(sleeps) = changes.sleeps {
            new.sleeps = sleeps;
        }
        new.ahead_mib = changes.ahead_mib.or(new.ahead_mib);
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

    /// Each server has the owner's name or one of a standby, never both.
    fn check_quorum(&self) -> Result<()> {
        let servers = self.followers.len().saturating_sub(1);
        match self.quorum {
            Some(quorum) if quorum as usize > servers => Err(refused(format!(
                "a quorum of {quorum} of {servers} page servers with a journal: give all of them with --server and \
                 --page-service, or a smaller one"
            ))),
            _ => Ok(()),
        }
    }

    /// What commits wait for: `synchronous_standby_names` of Postgres.
    pub(super) fn synchronous_names(&self) -> String {
        let quorum = if self.followers.len() > 1 { self.quorum.unwrap_or(1) } else { 0 };
        match quorum {
            0 => OWNER_NAME.to_owned(),
            quorum => format!("ANY {quorum} ({})", self.followers.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_wait_for_as_many_servers_as_was_told() {
        let mut options = Options::default();
        assert_eq!(options.synchronous_names(), "pageserver");
        let quorum = |quorum| Changes { quorum: Some(quorum), ..Changes::default() };
        assert!(options.change(quorum(1)).is_err(), "there is only one server");
        let followers = Some(["pageserver", "pageserver_a", "pageserver_b"].map(str::to_owned).to_vec());
        options.change(Changes { followers, ..Changes::default() }).unwrap();
        assert_eq!(options.synchronous_names(), "ANY 1 (pageserver, pageserver_a, pageserver_b)");
        options.change(quorum(2)).unwrap();
        assert_eq!(options.synchronous_names(), "ANY 2 (pageserver, pageserver_a, pageserver_b)");
        assert!(options.change(quorum(3)).is_err(), "there are two servers");
        options.change(quorum(0)).unwrap();
        assert_eq!(options.synchronous_names(), "pageserver");
    }

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
