//! Settings of Postgres that a compute needs, and those that somebody wants, as arguments of the server: the files of
//! the data directory stay as the branch has them.

use std::path::Path;

use super::config::ComputeConfig;
use super::{LifecycleError, Result};

/// Without these as they are, the compute could not be found.
const OURS: [&str; 3] = ["port", "listen_addresses", "unix_socket_directories"];

/// Settings that a start decides.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted<'a> {
    pub(super) listen: &'a str,
    /// Commits wait until the page server has what they wrote.
    pub(super) wait: bool,
    /// `name=value`.
    pub(super) overrides: &'a [String],
}

/// All of them, as `name=value`. The last one of a name counts.
pub(super) fn all(compute: &ComputeConfig, upper: &Path, sockets: &Path, wanted: &Wanted<'_>) -> Result<Vec<String>> {
    let mut all = vec![
        format!("port={}", compute.port),
        format!("listen_addresses={}", wanted.listen),
        format!("unix_socket_directories={}", sockets.display()),
        format!("cluster_name={}", compute.name),
        "recovery_init_sync_method=fsync".to_owned(),
    ];
    if has_tablespaces(upper) {
        all.push("allow_in_place_tablespaces=on".to_owned());
    }
    if wanted.wait && !compute.read_only {
        all.push("synchronous_standby_names=pageserver".to_owned());
        all.push("synchronous_commit=remote_write".to_owned());
    }
    for setting in wanted.overrides {
        let (name, value) = parse(setting)?;
        if OURS.contains(&name) {
            return Err(LifecycleError::Refused(format!("{name} is set by options of their own")));
        }
        all.push(format!("{name}={value}"));
    }
    Ok(all)
}

fn parse(setting: &str) -> Result<(&str, &str)> {
    let parts = setting.split_once('=').map(|(name, value)| (name.trim(), value.trim()));
    let valid =
        |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.".contains(&byte));
    parts.filter(|(name, value)| valid(name) && !value.contains('\0')).ok_or_else(|| {
        LifecycleError::Refused(format!("{setting:?} is no setting: expected name=value, such as work_mem=64MB"))
    })
}

fn has_tablespaces(upper: &Path) -> bool {
    std::fs::read_dir(upper.join("pg_tblspc")).is_ok_and(|mut entries| entries.next().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_a_name_and_a_value() {
        assert_eq!(parse(" work_mem = 64MB").unwrap(), ("work_mem", "64MB"));
        assert_eq!(parse("a.b=").unwrap(), ("a.b", ""));
        assert_eq!(parse("x=a b=c").unwrap(), ("x", "a b=c"));
        for bad in ["", "x", "=1", "a b=1", "a=1\0", "a'=1"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
