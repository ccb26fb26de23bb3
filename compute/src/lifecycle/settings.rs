//! Postgres settings that a compute needs, and those that the user requests, as arguments of the server: the files of
//! the data directory stay as the branch has them.

use std::path::Path;

use super::Result;
use super::config::ComputeConfig;
use super::wishes;

/// The first version in which no trigger file promotes a server.
const NO_TRIGGER_FILE: u32 = 16;

/// All settings, as `name=value`. The last one of a name wins.
pub(super) fn all(compute: &ComputeConfig, upper: &Path, sockets: &Path) -> Result<Vec<String>> {
    let options = &compute.options;
    let mut all = vec![
        format!("port={}", compute.port),
        format!("listen_addresses={}", options.listen),
        format!("unix_socket_directories={}", sockets.display()),
        format!("cluster_name={}", compute.name),
        "recovery_init_sync_method=fsync".to_owned(),
    ];
    if compute.read_only && compute.pg_version < NO_TRIGGER_FILE {
        // Disables the other way to promote.
        all.push("promote_trigger_file=".to_owned());
    }
    if let Some(replica) = &compute.replica {
        all.extend(replica.settings(&compute.name));
    }
    if has_tablespaces(upper) {
        all.push("allow_in_place_tablespaces=on".to_owned());
    }
    if options.wait_for_pageserver && !compute.read_only {
        all.push(format!("synchronous_standby_names={}", options.synchronous_names()));
        let until = if options.until_durable { "on" } else { "remote_write" };
        all.push(format!("synchronous_commit={until}"));
    }
    for setting in &options.settings {
        let (name, value) = wishes::setting(setting)?;
        all.push(format!("{name}={value}"));
    }
    Ok(all)
}

fn has_tablespaces(upper: &Path) -> bool {
    std::fs::read_dir(upper.join("pg_tblspc")).is_ok_and(|mut entries| entries.next().is_some())
}
