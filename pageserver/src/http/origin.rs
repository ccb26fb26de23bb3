//! Requests that a browser sends on behalf of pages of somebody else are refused: such a page could otherwise change
//! things here with the permissions of whoever looks at it, where no token is needed.
//!
//! Browsers say where a request comes from: by `Sec-Fetch-Site`, and by `Origin` for all that may change something.
//! Other clients send neither, and are not concerned.

use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, header};

use super::error::ApiError;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// What a proxy was asked for. No page can make a browser send it to another origin unasked.
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Refuses a request that comes from a page of another origin.
pub(super) fn check(method: &Method, headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |name: &HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("(not text)"));
    if text(&FETCH_SITE).is_some_and(|site| ["cross-site", "same-site"].contains(&site)) {
        return Err(refused("it comes from a page of another site"));
    }
    let Some(origin) = text(&header::ORIGIN).filter(|_| !method.is_safe()) else { return Ok(()) };
    let hosts = [text(&header::HOST), text(&FORWARDED_HOST)];
    if hosts.into_iter().flatten().any(|host| is_of(origin, host)) {
        return Ok(());
    }
    let reason = "its Origin is not this server; a proxy in between must pass on the Host that it was asked for";
    Err(refused(reason))
}

fn refused(reason: &str) -> ApiError {
    ApiError::new(StatusCode::FORBIDDEN, format!("the request is refused: {reason}"))
}

/// Whether `origin` is that of pages that `host` serves.
fn is_of(origin: &str, host: &str) -> bool {
    let Some((scheme, origin)) = origin.split_once("://") else { return false };
    let usual = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return false,
    };
    let parse = |text: &str| text.parse::<Authority>().ok();
    let (Some(origin), Some(host)) = (parse(origin), parse(host)) else { return false };
    let port = |authority: &Authority| authority.port_u16().unwrap_or(usual);
    origin.host().eq_ignore_ascii_case(host.host()) && port(&origin) == port(&host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(method: Method, headers: &[(HeaderName, &str)]) -> bool {
        let headers = headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect();
        check(&method, &headers).is_ok()
    }

    #[test]
    fn only_pages_of_this_server_change_anything() {
        let from = |origin, host| verdict(Method::POST, &[(header::ORIGIN, origin), (header::HOST, host)]);
        for (origin, host) in [
            ("http://127.0.0.1:9898", "127.0.0.1:9898"),
            ("http://[::1]:9898", "[::1]:9898"),
            ("https://Store.example", "store.example:443"),
            ("http://store.example:80", "store.example"),
        ] {
            assert!(from(origin, host), "{origin} at {host}");
        }
        for (origin, host) in [
            ("http://127.0.0.1:9899", "127.0.0.1:9898"),
            ("http://evil.example", "127.0.0.1:9898"),
            ("http://127.0.0.1:9898.evil.example", "127.0.0.1:9898"),
            ("https://store.example", "store.example:80"),
            ("null", "127.0.0.1:9898"),
            ("", "127.0.0.1:9898"),
            ("file://", ""),
        ] {
            assert!(!from(origin, host), "{origin} at {host}");
        }
        let proxied = [(header::ORIGIN, "https://a.b"), (header::HOST, "inner:1"), (FORWARDED_HOST, "a.b")];
        assert!(verdict(Method::PUT, &proxied));
    }

    #[test]
    fn other_clients_are_not_concerned() {
        assert!(verdict(Method::POST, &[(header::HOST, "x")]));
        assert!(verdict(Method::GET, &[(header::HOST, "x"), (header::ORIGIN, "http://evil.example")]));
        for (site, good) in [("same-origin", true), ("none", true), ("same-site", false), ("cross-site", false)] {
            assert_eq!(verdict(Method::GET, &[(FETCH_SITE, site)]), good, "{site}");
        }
    }
}
