//! Parses what users request of a compute: Postgres settings, and who is admitted.

use super::{LifecycleError, Result};

/// If these were changed, the compute could not be found, or users could connect who were not admitted.
const OURS: [&str; 5] =
    ["port", "listen_addresses", "unix_socket_directories", "unix_socket_permissions", "unix_socket_group"];

/// Name and value of a setting that may be changed.
pub(super) fn setting(setting: &str) -> Result<(&str, &str)> {
    let parts = setting.split_once('=').map(|(name, value)| (name.trim(), value.trim()));
    let valid =
        |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.".contains(&byte));
    let parts = parts.filter(|(name, value)| valid(name) && !value.contains('\0'));
    let (name, value) = parts
        .ok_or_else(|| refused(format!("{setting:?} is no setting: expected name=value, such as work_mem=64MB")))?;
    match OURS.iter().any(|ours| name.eq_ignore_ascii_case(ours)) {
        true => Err(refused(format!("{name} is set by options of their own"))),
        false => Ok((name, value)),
    }
}

/// Whether a setting has this name, ignoring case.
pub(super) fn is_of(setting: &str, name: &str) -> bool {
    setting.split_once('=').is_some_and(|(own, _)| own.trim().eq_ignore_ascii_case(name))
}

/// The system user, and the role that it may take: by default that of its own name.
pub(super) fn user(user: &str) -> Result<(&str, &str)> {
    let (name, role) = user.split_once('=').unwrap_or((user, user));
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-$".contains(&byte);
    let is_user = name.bytes().all(plain) && name.bytes().next().is_some_and(|byte| byte != b'-');
    let is_role = !role.is_empty() && !role.starts_with(['/', '+', '\\']) && !role.contains(['"', '\n', '\r', '\0']);
    if is_user && is_role {
        return Ok((name, role));
    }
    Err(refused(format!("{user:?} is nobody to let in: expected USER, or USER=ROLE")))
}

/// A refusal with this message.
pub(super) fn refused(text: String) -> LifecycleError {
    LifecycleError::Refused(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_a_name_and_a_value() {
        assert_eq!(setting(" work_mem = 64MB").unwrap(), ("work_mem", "64MB"));
        assert_eq!(setting("a.b=").unwrap(), ("a.b", ""));
        assert_eq!(setting("x=a b=c").unwrap(), ("x", "a b=c"));
        for bad in ["", "x", "=1", "a b=1", "a=1\0", "a'=1", "PORT=1"] {
            assert!(setting(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn users_are_let_in_by_name() {
        assert_eq!(user("app").unwrap(), ("app", "app"));
        assert_eq!(user("www-data=Web User").unwrap(), ("www-data", "Web User"));
        for bad in ["", "=", "a=", "=b", "/.*", "a b", "a=/x", "a=+x", "a=x\"y", "a\n=b", "-a", "a=x\ny", "a=\\1"] {
            assert!(user(bad).is_err(), "{bad:?}");
        }
    }
}
