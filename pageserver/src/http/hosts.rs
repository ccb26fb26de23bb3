//! Where no token is needed, requests are refused that ask for this server by a name that is not its own.
//!
//! Whoever owns a name may point it to 127.0.0.1 once a browser has a page of theirs open; to the browser, that page
//! and this server are one site then. The name is in the header `Host`, which no page can change. An address is
//! nobody's name: a page that was loaded from it is this server's.

use std::collections::BTreeSet;
use std::net::IpAddr;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use utils::excerpt::Excerpt;

use super::error::ApiError;

/// Stands for any name.
const ANY: &str = "*";

/// The names by which a server may be asked; besides them it may be asked by any address, and as `localhost`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts(BTreeSet<String>);

impl Hosts {
    /// `names` are host names, host names with a port, or URLs; `*` stands for any.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        Self(names.into_iter().map(host_of).filter(|name| !name.is_empty()).collect())
    }

    fn has(&self, host: &str) -> bool {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let address = host.trim_start_matches('[').trim_end_matches(']');
        address.parse::<IpAddr>().is_ok()
            || host == "localhost"
            || host.ends_with(".localhost")
            || self.0.contains(ANY)
            || self.0.contains(&host)
    }

    /// Fails if a request is for another host. A client that names none is no browser.
    pub(super) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        let named = headers.get_all(header::HOST).iter().map(|value| value.to_str().unwrap_or("(not text)"));
        for name in named.chain(uri.authority().map(Authority::as_str)).filter(|name| !name.is_empty()) {
            let host = name.parse::<Authority>().map(|authority| authority.host().to_owned());
            if !host.is_ok_and(|host| self.has(&host)) {
                return Err(refused(name));
            }
        }
        Ok(())
    }
}

fn refused(name: &str) -> ApiError {
    let reason = format!(
        "the request is refused: it is for {}, which is no name of this server. Ask by its address, as localhost, or \
         have the setting allowed_hosts name it",
        Excerpt(name)
    );
    ApiError::new(StatusCode::FORBIDDEN, reason)
}

/// The host in a name, a name with a port, or a URL.
fn host_of(text: &str) -> String {
    let text = text.trim();
    let authority = text.split_once("://").map_or(text, |(_, rest)| rest);
    let authority = authority.split('/').next().unwrap_or_default();
    let host = authority.parse::<Authority>().map_or_else(|_| authority.to_owned(), |known| known.host().to_owned());
    host.trim_end_matches('.').to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(hosts: &Hosts, host: &str) -> bool {
        let headers = [(header::HOST, host.parse().unwrap())].into_iter().collect();
        hosts.check(&Uri::from_static("/v1/status"), &headers).is_ok()
    }

    #[test]
    fn other_peoples_names_are_refused() {
        let hosts = Hosts::new(["store-1", "pages.example:9898", "https://console.example/x", ""]);
        for good in [
            "127.0.0.1:9898",
            "10.1.2.3",
            "[::1]:9898",
            "[fd00::1]",
            "localhost",
            "LOCALHOST:1",
            "a.localhost:80",
            "store-1:9898",
            "Pages.Example",
            "pages.example.:1",
            "console.example",
            "",
        ] {
            assert!(check(&hosts, good), "{good}");
        }
        for bad in [
            "evil.example",
            "evil.example:9898",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "store-1.evil.example",
            "x",
            "a b",
            "127.0.0.1@evil.example",
            "1.2.3",
        ] {
            assert!(!check(&hosts, bad), "{bad}");
        }
        assert!(check(&Hosts::new(["*"]), "anything.example"));
    }

    #[test]
    fn every_name_in_a_request_counts() {
        let hosts = Hosts::default();
        assert!(hosts.check(&Uri::from_static("/"), &HeaderMap::new()).is_ok());
        assert!(hosts.check(&Uri::from_static("http://evil.example/"), &HeaderMap::new()).is_err());
        let mut headers = HeaderMap::new();
        headers.append(header::HOST, "127.0.0.1".parse().unwrap());
        headers.append(header::HOST, "evil.example".parse().unwrap());
        assert!(hosts.check(&Uri::from_static("/"), &headers).is_err());
    }
}
