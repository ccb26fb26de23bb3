//! Who may connect to a compute: over the socket anybody who may enter its directory, over the network anybody with a
//! password.
//!
//! By default only root and the user that runs Postgres may enter the directory. If others are admitted, everybody
//! can enter it, and Postgres asks the system who is connecting.

use std::fmt::Write;
use std::path::PathBuf;

use super::config::ComputeConfig;
use super::wishes::{self, refused};
use super::{Result, io_error};
use crate::layout::Layout;
use crate::private::Trust;

/// From this version on, a user can be mapped to any role without naming it.
const ANY_ROLE: u32 = 16;

/// Access over the network with a password: `--listen` sets the addresses.
const NETWORK: &str = "host all all all scram-sha-256\nhost replication all all scram-sha-256\n";

/// `pg_hba.conf` of a new compute's data directory.
pub(super) fn hba() -> String {
    format!(
        "# The directory of the socket lets in the user that runs this compute, and root, and nobody else. Where\n\
         # --listen-users lets others in, the file of this name above this directory is used instead.\n\
         local all all trust\nlocal replication all trust\n{NETWORK}"
    )
}

/// Files that Postgres uses if others are admitted over the socket: access rules, and the mapping of users to roles.
struct Rules {
    hba: String,
    ident: String,
}

fn rules(compute: &ComputeConfig, owner: &str) -> Result<Rules> {
    const LOCAL: &str =
        "# Made at each start.\nlocal all all peer map=compute\nlocal replication all peer map=compute\n";
    let everybody = if compute.pg_version >= ANY_ROLE { "all".to_owned() } else { quoted(&compute.superuser) };
    let mut ident = "# Made at each start.\n".to_owned();
    for own in [owner, "root"] {
        let _ = writeln!(ident, "compute {} {everybody}", quoted(own));
    }
    for user in &compute.options.listen_users {
        let (name, role) = wishes::user(user)?;
        let _ = writeln!(ident, "compute {} {}", quoted(name), quoted(role));
    }
    Ok(Rules { hba: format!("{LOCAL}{NETWORK}"), ident })
}

fn quoted(name: &str) -> String {
    format!("\"{name}\"")
}

/// Writes the access files that are needed, and returns the settings that refer to them.
pub(super) fn settings(compute: &ComputeConfig, layout: &Layout) -> Result<Vec<String>> {
    if compute.options.listen_users.is_empty() {
        return Ok(vec!["unix_socket_permissions=0700".to_owned()]);
    }
    let owner = match &compute.owner {
        Some(owner) => owner.name.clone(),
        None => own_name().ok_or_else(|| refused("/etc/passwd does not name you: nobody can be let in".to_owned()))?,
    };
    let Rules { hba, ident } = rules(compute, &owner)?;
    let place = |name: &str| layout.root().join(name);
    let write = |path: PathBuf, text: String| {
        let give = |file: &std::fs::File| compute.owner.as_ref().map_or(Ok(()), |owner| owner.give_file(file));
        Trust::me().replace(&path, text.as_bytes(), give).map_err(io_error(&path))
    };
    write(place("pg_hba.conf"), hba)?;
    write(place("pg_ident.conf"), ident)?;
    Ok(vec![
        "unix_socket_permissions=0777".to_owned(),
        format!("hba_file={}", place("pg_hba.conf").display()),
        format!("ident_file={}", place("pg_ident.conf").display()),
    ])
}

fn own_name() -> Option<String> {
    let passwd = std::fs::read_to_string("/etc/passwd").ok()?;
    name_of(&passwd, rustix::process::geteuid().as_raw())
}

fn name_of(passwd: &str, uid: u32) -> Option<String> {
    let mut users = passwd.lines().map(|line| line.split(':'));
    users.find_map(|mut fields| {
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

/// Closes the compute's directory to others, and that of its socket if it is elsewhere.
pub(super) fn close(compute: &ComputeConfig, layout: &Layout) -> Result<()> {
    let (root, enter) = (layout.root(), !compute.options.listen_users.is_empty());
    let closed = Trust::of(root).and_then(|trust| crate::private::close(root, trust, enter));
    closed.map_err(io_error(root))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_users() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\nbroken:x\nme:x:1000:1000::/home/me:/bin/sh\n";
        assert_eq!(name_of(passwd, 1000).as_deref(), Some("me"));
        assert_eq!(name_of(passwd, 7), None);
    }
}
