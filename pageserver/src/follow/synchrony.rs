//! What commits wait for on a server that uses us as a synchronous standby: warns where that is less, or more, than
//! the administrator may expect.

use std::time::Duration;

use pq_proto::client::ClientError;
use pq_proto::replication::ReplicationClient;

/// Checks the server's settings and returns a warning if necessary. `application_name` is our name there;
/// `until_written` is the maximum time before received WAL is flushed; `None` if a
/// journal has it at once.
pub(super) async fn warning(
    client: &mut ReplicationClient,
    application_name: &str,
    until_written: Option<Duration>,
) -> Result<Option<String>, ClientError> {
    let standbys = client.show("synchronous_standby_names").await?;
    if !names_us(&standbys, application_name) {
        return Ok(None);
    }
    let level = client.show("synchronous_commit").await?;
    Ok(danger(&level, until_written).map(|danger| {
        format!(
            "the server waits for this one at each commit (synchronous_standby_names = {standbys:?}, \
             synchronous_commit \
             = {level}): {danger}"
        )
    }))
}

fn danger(level: &str, until_written: Option<Duration>) -> Option<String> {
    match level {
        "remote_write" | "remote_apply" => Some(
            "such a commit survives the loss of the server or of the pageserver, but not of both together, nor that of \
             the server once another pageserver has taken the tenant over: it waits until its WAL is in memory here, \
             not until it is stored"
                .to_owned(),
        ),
        "on" => until_written.map(|until_written| {
            format!(
                "each commit waits until its WAL is in the bucket, or on disk here without one: up to \
                 checkpoint_timeout ({}) and an upload. Set durability = \"journal\" here, lower checkpoint_timeout, \
                 or use remote_write, and mind then what that is worth",
                humantime::format_duration(until_written)
            )
        }),
        _ => None,
    }
}

/// Whether a standby of this name is among `synchronous_standby_names`: `a, b`, `FIRST 1 (a, "b")`, `ANY 1 (*)`.
fn names_us(standbys: &str, application_name: &str) -> bool {
    let list = match (standbys.find('('), standbys.rfind(')')) {
        (Some(begin), Some(end)) if begin < end => standbys.get(begin + 1..end).unwrap_or_default(),
        _ => standbys,
    };
    let mut names = split_names(list).into_iter();
    names.any(|name| name == "*" || name.eq_ignore_ascii_case(application_name))
}

/// Splits names at commas; inside quotes any character is allowed, and two quotes mean one.
fn split_names(list: &str) -> Vec<String> {
    let (mut names, mut name, mut quoted) = (Vec::new(), String::new(), false);
    let mut chars = list.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '"' if quoted && chars.peek() == Some(&'"') => name.extend(chars.next()),
            '"' => quoted = !quoted,
            ',' if !quoted => names.push(std::mem::take(&mut name)),
            _ if !quoted && char.is_whitespace() => {}
            _ => name.push(char),
        }
    }
    names.push(name);
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn we_are_found_among_the_standbys() {
        for ours in [
            "pageserver",
            "PageServer",
            "*",
            "a, pageserver",
            "FIRST 1 (pageserver)",
            "ANY 2 (a, \"pageserver\", b)",
            "2 (a, *)",
            "first 1(pageserver)",
        ] {
            assert!(names_us(ours, "pageserver"), "{ours}");
        }
        for others in ["", " ", "a", "FIRST 1 (a, b)", "pageserver2", "\"a,pageserver\"", "\"pageserver (1)\", b", ")("]
        {
            assert!(!names_us(others, "pageserver"), "{others}");
        }
        assert!(names_us("\"my \"\"standby\"\"\"", "my \"standby\""));
    }

    #[test]
    fn each_level_is_told_what_it_is_worth() {
        let ten = Some(Duration::from_secs(600));
        assert!(danger("remote_write", ten).unwrap().contains("not of both together"));
        assert!(danger("remote_apply", ten).unwrap().contains("not of both together"));
        let on = danger("on", ten).unwrap();
        assert!(on.contains("the bucket") && on.contains("(10m)"), "{on}");
        assert_eq!((danger("local", ten), danger("off", ten)), (None, None));
        assert_eq!(danger("on", None), None);
    }
}
