//! The user that runs Postgres: Postgres refuses to run as root, so root must choose another user.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::{LifecycleError, Result};

/// A system user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Its name.
    pub name: String,
    uid: u32,
    gid: u32,
}

impl Owner {
    /// Chooses the user to run Postgres: `None` for the caller. `wanted` matters only for root.
    pub(super) fn choose(wanted: &str) -> Result<Option<Self>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let passwd = std::fs::read_to_string("/etc/passwd").map_err(super::io_error(Path::new("/etc/passwd")))?;
        match find(&passwd, wanted) {
            Some(owner) if owner.uid == 0 => {
                Err(LifecycleError::Refused("Postgres refuses to run as root: give another user".to_owned()))
            }
            // A process cannot switch to a user that its user namespace does not map.
            Some(owner) if !std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| has(&map, owner.uid)) => {
                Err(LifecycleError::Refused(format!(
                    "this user namespace has no {wanted}, and Postgres refuses to run as root, as whom you are here: \
                     enter one as yourself, by unshare --user --map-current-user --keep-caps --mount"
                )))
            }
            Some(owner) => Ok(Some(owner)),
            None => Err(LifecycleError::Refused(format!(
                "there is no user {wanted} to run Postgres, which refuses to run as root: give another user"
            ))),
        }
    }

    /// Makes it the owner of a file or directory.
    pub(super) fn give(&self, path: &Path) -> io::Result<()> {
        std::os::unix::fs::lchown(path, Some(self.uid), Some(self.gid))
    }

    /// Makes it the owner of an open file.
    pub(super) fn give_file(&self, file: &File) -> io::Result<()> {
        std::os::unix::fs::fchown(file, Some(self.uid), Some(self.gid))
    }

    /// Makes it the owner of a directory and everything in it but `but`.
    pub(super) fn give_all(&self, dir: &Path, but: &Path) -> io::Result<()> {
        self.give(dir)?;
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                self.give_all(&path, but)?;
            } else if path != but {
                self.give(&path)?;
            }
        }
        Ok(())
    }
}

/// A command that runs as `owner`, or as the caller. It does not inherit the caller's tokens.
pub(super) fn command(owner: Option<&Owner>, program: &Path) -> Command {
    let mut command = crate::supervisor::program::command(program, owner.is_some());
    if let Some(owner) = owner {
        command.uid(owner.uid).gid(owner.gid).env("HOME", "/").env("USER", &owner.name);
    }
    command
}

/// Whether a user namespace map (lines of first id inside, first id outside, count) covers `uid`.
fn has(map: &str, uid: u32) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(|number| number.parse::<u64>().unwrap_or(0));
        let (first, count) = (numbers.next().unwrap_or(0), numbers.nth(1).unwrap_or(0));
        (first..first + count).contains(&uid.into())
    })
}

fn find(passwd: &str, wanted: &str) -> Option<Owner> {
    let mut users = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let user = users.find(|fields| fields.first() == Some(&wanted))?;
    Some(Owner { name: wanted.to_owned(), uid: user.get(2)?.parse().ok()?, gid: user.get(3)?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_have_some_users() {
        assert!(has("         0          0 4294967295\n", 101));
        assert!(has("0 1000 1\n100 100000 2\n", 101) && !has("0 1000 1\n100 100000 2\n", 102));
        assert!(!has("0 101 1\n", 101) && !has("", 0) && !has("x", 7));
    }

    #[test]
    fn users_are_found() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\npg:x:101:104::/home:/bin/sh\nbroken:x\n";
        assert_eq!(find(passwd, "pg"), Some(Owner { name: "pg".to_owned(), uid: 101, gid: 104 }));
        assert_eq!((find(passwd, "p"), find(passwd, "broken")), (None, None));
    }
}
