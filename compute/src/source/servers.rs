//! The pageservers that may be the owner of a timeline, and which of them is asked.

use std::sync::Arc;

use pageserver_client::{ClientError, PageServer};

/// What a connection string begins with. Where one of these follows a comma, another one begins: elsewhere a comma is
/// part of the string.
const BEGINNINGS: [&str; 4] = ["host=", "hostaddr=", "postgres://", "postgresql://"];

/// What a server says that is not the owner of a tenant, or may not be.
const NOT_OWNER: [&str; 2] = ["not the owner", "another server has taken the tenant over"];

/// What a connection string has in its `options` whose server may be asked as a standby.
const STANDBY_READS: &str = "pageserver.standby_reads=on";

/// Several pageservers, of which one is asked. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Servers {
    all: Arc<[PageServer]>,
    /// Which of them are asked whether or not they are the owner.
    standbys: Arc<[bool]>,
    at: usize,
}

impl Servers {
    /// One or several connection strings, separated by commas. `token` is for all of them.
    ///
    /// # Errors
    /// If one is malformed. The error does not repeat it.
    pub fn parse(text: &str, token: Option<&str>) -> Result<Self, ClientError> {
        let all: Result<Vec<_>, _> = split(text).map(|connstr| PageServer::new(connstr, token)).collect();
        let standbys = split(text).map(|connstr| connstr.contains(STANDBY_READS)).collect();
        Ok(Self { all: all?.into(), standbys, at: 0 })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// The number of the one that is asked.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// The one that is asked. There is always one.
    pub(crate) fn current(&self) -> Option<&PageServer> {
        self.all.get(self.at)
    }

    /// Whether the one that is asked need not be the owner.
    pub(crate) fn is_at_standby(&self) -> bool {
        self.standbys.get(self.at).copied().unwrap_or_default()
    }

    /// All of them with their numbers, beginning with the one that is asked.
    pub(crate) fn in_turn(&self) -> impl Iterator<Item = (usize, &PageServer)> {
        (0..self.count()).map(|more| (self.at + more) % self.count()).filter_map(|at| Some((at, self.all.get(at)?)))
    }

    /// From now on number `to` is asked. False if it was already, or if it is not number `from` that is asked.
    pub(crate) fn go_over(&mut self, from: usize, to: usize) -> bool {
        let goes = self.at == from && from != to && to < self.count();
        if goes {
            self.at = to;
        }
        goes
    }

    /// From now on the one after number `from` is asked, if that still was.
    pub(crate) fn go_on_from(&mut self, from: usize) -> bool {
        self.go_over(from, (from + 1) % self.count())
    }
}

impl From<PageServer> for Servers {
    fn from(server: PageServer) -> Self {
        Self { all: Arc::new([server]), standbys: Arc::new([false]), at: 0 }
    }
}

/// Whether a server says that it is not the owner.
pub(crate) fn is_not_owner(said: &str) -> bool {
    NOT_OWNER.iter().any(|words| said.contains(words))
}

fn split(text: &str) -> impl Iterator<Item = &str> {
    let begins = |at: usize| {
        let rest = text.get(at + 1..).unwrap_or_default().trim_start();
        BEGINNINGS.iter().any(|beginning| rest.starts_with(beginning))
    };
    let commas = text.match_indices(',').map(|(at, _)| at).filter(move |at| begins(*at));
    let mut from = 0;
    commas.chain(std::iter::once(text.len())).map(move |to| {
        let part = text.get(from..to).unwrap_or_default().trim();
        from = to + 1;
        part
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_comma_before_another_beginning_separates() {
        let parts = |text| split(text).collect::<Vec<_>>();
        assert_eq!(parts("host=a port=1 user=x"), ["host=a port=1 user=x"]);
        assert_eq!(parts("host=a,b port=1,2"), ["host=a,b port=1,2"], "one server with two addresses");
        assert_eq!(parts("host=a password='x,y', host=b port=2"), ["host=a password='x,y'", "host=b port=2"]);
        assert_eq!(parts("postgres://a:1,postgresql://b"), ["postgres://a:1", "postgresql://b"]);
    }

    #[test]
    fn some_may_be_asked_as_standbys() {
        let text = "host=a options='-c pageserver.standby_reads=on',host=b";
        let mut servers = Servers::parse(text, None).unwrap();
        assert!(servers.is_at_standby() && servers.go_over(0, 1) && !servers.is_at_standby());
    }

    #[test]
    fn one_after_the_other_is_asked() {
        let mut servers = Servers::parse("host=a,host=b,host=c", None).unwrap();
        assert!(servers.go_on_from(0) && !servers.go_on_from(0), "that has been done");
        assert_eq!(servers.in_turn().map(|(at, _)| at).collect::<Vec<_>>(), [1, 2, 0]);
        assert!(servers.go_over(1, 0) && servers.at() == 0 && !servers.go_over(0, 0) && !servers.go_over(0, 3));
        let mut one = Servers::parse("host=a", None).unwrap();
        assert!(!one.go_on_from(0));
        assert!(Servers::parse("host=a,host=b prt=1", None).is_err());
    }
}
