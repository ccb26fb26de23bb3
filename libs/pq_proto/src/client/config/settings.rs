//! Takes `sslmode` and `sslrootcert` out of a connection string, which is pairs of `name=value`, or a URL
//! ("Connection Strings" in Postgres' documentation of libpq).

use std::ops::Range;

const MODE: &str = "sslmode";
const ROOT: &str = "sslrootcert";
const URLS: [&str; 2] = ["postgres://", "postgresql://"];

/// The string without what `tokio_postgres` does not know, and the values of `sslmode` and `sslrootcert`, the last ones
/// if there are several. One that is malformed stays as it is.
pub(super) fn take(text: &str) -> (String, Option<String>, Option<String>) {
    let query = text.find('?').filter(|_| URLS.iter().any(|url| text.starts_with(url)));
    match query.and_then(|at| text.split_at_checked(at + 1)) {
        Some((url, query)) => take_of_url(url, query),
        None => take_of_pairs(text),
    }
}

/// What is said instead, as far as something is.
fn instead(name: &str, value: &str) -> Option<&'static str> {
    match name {
        MODE if matches!(value, "verify-ca" | "verify-full") => Some("sslmode=require"),
        ROOT => Some(""),
        _ => None,
    }
}

/// `url` ends with the question mark.
fn take_of_url(url: &str, query: &str) -> (String, Option<String>, Option<String>) {
    let (mut mode, mut root, mut rest) = (None, None, Vec::new());
    for parameter in query.split('&') {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let value = percent_encoding::percent_decode_str(value).decode_utf8_lossy().into_owned();
        match instead(name, &value) {
            Some("") => {}
            Some(other) => rest.push(other),
            None => rest.push(parameter),
        }
        match name {
            MODE => mode = Some(value),
            ROOT => root = Some(value),
            _ => {}
        }
    }
    (format!("{url}{}", rest.join("&")), mode, root)
}

fn take_of_pairs(text: &str) -> (String, Option<String>, Option<String>) {
    let found = pairs(text).unwrap_or_default();
    let last = |name: &str| found.iter().rev().find(|pair| pair.name == name).map(|pair| pair.value.clone());
    let mut rest = text.to_owned();
    for Pair { name, value, place } in found.iter().rev() {
        if let Some(instead) = instead(name, value) {
            rest.replace_range(place.clone(), instead);
        }
    }
    (rest, last(MODE), last(ROOT))
}

#[derive(Debug)]
struct Pair<'a> {
    name: &'a str,
    value: String,
    /// Where both are.
    place: Range<usize>,
}

/// Pairs of name and value; `None` if that is not what the text is.
fn pairs(text: &str) -> Option<Vec<Pair<'_>>> {
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    let at = |rest: &str| text.len() - rest.len();
    while !rest.is_empty() {
        let begin = at(rest);
        let end = rest.find(|c: char| c == '=' || c.is_whitespace())?;
        let (name, behind) = rest.split_at_checked(end)?;
        let (value, behind) = value(behind.trim_start().strip_prefix('=')?.trim_start())?;
        found.push(Pair { name, value, place: begin..at(behind) });
        rest = behind.trim_start();
    }
    Some(found)
}

/// The value that the text begins with, and what is behind it. A backslash stands before what is meant as it is.
fn value(text: &str) -> Option<(String, &str)> {
    let (text, is_quoted) = text.strip_prefix('\'').map_or((text, false), |text| (text, true));
    let (mut value, mut chars) = (String::new(), text.chars());
    loop {
        let before = chars.as_str();
        match chars.next() {
            Some('\'') if is_quoted => return Some((value, chars.as_str())),
            None if is_quoted => return None,
            None => return Some((value, before)),
            Some(c) if !is_quoted && c.is_whitespace() => return Some((value, before)),
            Some('\\') => value.push(chars.next()?),
            Some(c) => value.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_taken_leaves_the_rest_as_it_was() {
        let (rest, mode, root) = take("host=h sslmode=verify-ca password='it''s' sslrootcert=r");
        assert_eq!(
            (rest.as_str(), mode, root),
            ("host=h sslmode=verify-ca password='it''s' sslrootcert=r", None, None)
        );
        let (rest, mode, root) = take("host=h sslmode = verify-ca password='a\\'b' sslrootcert=r user=u");
        assert_eq!(rest, "host=h sslmode=require password='a\\'b'  user=u");
        assert_eq!((mode.as_deref(), root.as_deref()), (Some("verify-ca"), Some("r")));
        let (rest, mode, _) = take("postgres://u:p%3F@h/d?sslrootcert=r&sslmode=verify-full&application_name=a");
        assert_eq!(rest, "postgres://u:p%3F@h/d?sslmode=require&application_name=a");
        assert_eq!(mode.as_deref(), Some("verify-full"));
    }

    proptest! {
        #[test]
        fn any_value_comes_back(value in "[ -~]{0,20}", more in "[a-z]{1,8}") {
            let quoted = value.replace('\\', "\\\\").replace('\'', "\\'");
            let (rest, mode, root) = take(&format!("user={more} sslrootcert='{quoted}' sslmode=verify-full"));
            prop_assert_eq!(root, Some(value));
            prop_assert_eq!(mode.as_deref(), Some("verify-full"));
            prop_assert_eq!(rest, format!("user={more}  sslmode=require"));
        }

        #[test]
        fn whatever_it_is_nothing_breaks(text in ".{0,60}") {
            let _ = take(&text);
            let _ = take(&format!("postgres://{text}"));
        }
    }
}
