//! The source of a timeline's WAL.

use pq_proto::client::Config;
use tokio_postgres::config::Host;

use super::writer::Writer;
use errors::StorageError;

/// What the name of the second slot adds to that of the first.
const KEPT: &str = "_kept";

/// See [`WalSource::kept_slot`].
pub(super) fn kept_slot(slot: &str) -> String {
    format!("{slot}{KEPT}")
}

/// The name under which owners follow servers, unless the connection string has one.
pub const OWNER_NAME: &str = "pageserver";

/// Postgres cuts names off behind so many bytes.
const NAME_MAX: usize = 63;

/// The name under which server `id` follows a server as a standby, where the owner is called `owner`:
/// `synchronous_standby_names` may have it.
pub fn standby_name(owner: &str, id: &str) -> String {
    let plain = |byte: u8| if byte.is_ascii_alphanumeric() { char::from(byte.to_ascii_lowercase()) } else { '_' };
    let own: Vec<char> = id.bytes().map(plain).collect();
    let room = NAME_MAX.saturating_sub(owner.len() + 1);
    // Names of machines differ at their ends.
    let own: String = own[own.len().saturating_sub(room)..].iter().collect();
    format!("{owner}_{own}")
}

/// A server to stream WAL from. The connection string may contain a password: it is stored in the bucket, and locally
/// where only the owner may read it, and is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct WalSource {
    pub(super) connstr: String,
    /// The physical replication slot.
    pub(super) slot: String,
    /// The compute that the server is, if it is the timeline's writer.
    pub(super) writer: Option<Writer>,
}

impl WalSource {
    /// A server given by its connection string (`postgres://...` or `key=value`), and the slot to use there.
    ///
    /// # Errors
    /// [`StorageError::Invalid`] if the string or the slot's name is invalid.
    pub fn new(connstr: &str, slot: &str) -> Result<Self, StorageError> {
        let source = Self { connstr: connstr.to_owned(), slot: slot.to_owned(), writer: None };
        source.config()?;
        let valid = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
        if slot.is_empty() || slot.len() + KEPT.len() > 63 || !slot.bytes().all(valid) {
            let reason = format!("{slot:?} is no name for a slot: 1 to 58 of a-z, 0-9 and _ are");
            return Err(StorageError::Invalid(reason));
        }
        Ok(source)
    }

    /// Connection parameters.
    pub(crate) fn config(&self) -> Result<Config, StorageError> {
        let parsed = self.connstr.parse::<Config>();
        let mut config = parsed.map_err(|error| StorageError::Invalid(error.to_string()))?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(StorageError::Invalid("the connection string names no host".to_owned()));
        }
        if config.get_application_name().is_none() {
            config.application_name(OWNER_NAME);
        }
        Ok(config)
    }

    /// The name under which server `id` follows it as a standby.
    pub(super) fn standby_name(&self, id: &str) -> Result<String, StorageError> {
        Ok(standby_name(self.config()?.get_application_name().unwrap_or(OWNER_NAME), id))
    }

    /// Who writes what comes from it: WAL of another writer is another history. The same writer may be reached in
    /// another way.
    pub(super) fn writer_mark(&self) -> String {
        match &self.writer {
            Some(Writer { id, start_lsn, .. }) => format!("compute {id} from {start_lsn}"),
            None => format!("server of slot {}", self.slot),
        }
    }

    /// Whether a mark is that of the compute `writer`, from wherever it began.
    pub(super) fn is_mark_of(mark: &str, writer: &str) -> bool {
        mark.strip_prefix("compute ")
            .and_then(|mark| mark.strip_prefix(writer))
            .is_some_and(|it| it.starts_with(" from "))
    }

    /// The slot's name.
    pub fn slot(&self) -> &str {
        &self.slot
    }

    /// The slot that keeps the WAL which is only in the journal here: what the other one is told, it lets go of.
    pub(crate) fn kept_slot(&self) -> String {
        kept_slot(&self.slot)
    }

    /// The compute that the server is, if it is the timeline's writer.
    pub fn writer(&self) -> Option<&Writer> {
        self.writer.as_ref()
    }

    /// Hosts and ports, for display.
    pub fn host(&self) -> String {
        let Ok(config) = self.config() else { return String::new() };
        let port = |at: usize| config.get_ports().get(at).or(config.get_ports().first()).copied().unwrap_or(5432);
        let names = config.get_hosts().iter().map(|host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.display().to_string(),
        });
        let names: Vec<String> = match config.get_hosts() {
            [] => config.get_hostaddrs().iter().map(ToString::to_string).collect(),
            _ => names.collect(),
        };
        let all = names.iter().enumerate().map(|(at, name)| format!("{name}:{}", port(at)));
        all.collect::<Vec<_>>().join(",")
    }

    /// The role to connect as.
    pub fn user(&self) -> String {
        self.config().ok().and_then(|config| config.get_user().map(str::to_owned)).unwrap_or_default()
    }
}

impl std::fmt::Debug for WalSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WalSource").field("host", &self.host()).field("slot", &self.slot).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_never_shown() {
        let source = WalSource::new("postgres://me:s3cret@db.example:5433/postgres", "pageserver_1").unwrap();
        assert_eq!(source.host(), "db.example:5433");
        assert!(!format!("{source:?}").contains("s3cret"));
    }

    #[test]
    fn standbys_have_names_of_their_own() {
        assert_eq!(standby_name("pageserver", "ps-1.Example"), "pageserver_ps_1_example");
        let long = standby_name("pageserver", &format!("{}-7", "x".repeat(62)));
        assert!(long.len() == 63 && long.ends_with("x_7"), "{long}");
        let source = WalSource::new("host=a application_name=mine", "s").unwrap();
        assert_eq!(source.standby_name("b").unwrap(), "mine_b");
    }

    #[test]
    fn what_cannot_be_a_source_is_refused() {
        for (connstr, slot) in [
            ("host=a passwrd=s3cret", "s"),
            ("s3cret", "s"),
            ("user=x", "s"),
            ("host=a", ""),
            ("host=a", "Slot"),
            ("host=a", "a-b"),
        ] {
            let error = WalSource::new(connstr, slot).unwrap_err().to_string();
            assert!(!error.contains("s3cret"), "{error}");
        }
        assert_eq!(WalSource::new("host=/tmp,b port=1,2", "s").unwrap().host(), "/tmp:1,b:2");
    }
}
