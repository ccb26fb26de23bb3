//! Types of values, and their conversion to and from TOML.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::time::Duration;

use camino::Utf8PathBuf;
use pageserver_api::models::virtual_file::{IoEngineKind, IoMode};
use toml::Value;

use engine::config::AttachOnStart;

/// A value of a setting.
pub(super) trait SettingValue: Sized {
    /// Parses the form used in the file; the error describes what is expected.
    fn parse(value: &Value) -> Result<Self, String>;
    /// Converts to the form used in the file.
    fn print(&self) -> Value;
}

/// How callers of a port authenticate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthType {
    /// Not at all.
    Trust,
    /// By a token.
    Jwt,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Human,
    /// One JSON object per line.
    Json,
}

/// What is called durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// What the bucket has, or layers on the local disk without one.
    Bucket,
    /// What the journal on the local disk has.
    Journal,
}

/// Which system interface performs file I/O; `None` for the best one that works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoEngineChoice(pub Option<IoEngineKind>);

/// Address and port of something on this machine, or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostPort(pub Option<SocketAddr>);

/// Where people find something with a browser, or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebUrl(pub Option<String>);

fn text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| format!("expected a string, not {value}"))
}

/// The value that `names` assigns to the text.
fn one_of<T: Copy>(value: &Value, names: &[(&str, T)]) -> Result<T, String> {
    let text = text(value)?;
    let known = || names.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let found = names.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
    found.ok_or_else(|| format!("expected one of {}, not {value}", known()))
}

impl SettingValue for bool {
    fn parse(value: &Value) -> Result<Self, String> {
        value.as_bool().ok_or_else(|| format!("expected true or false, not {value}"))
    }
    fn print(&self) -> Value {
        Value::Boolean(*self)
    }
}

impl SettingValue for HostPort {
    fn parse(value: &Value) -> Result<Self, String> {
        let text = text(value)?;
        if text.is_empty() {
            return Ok(Self(None));
        }
        // It speaks no TLS, and tokens go there.
        let own = text.parse().ok().filter(|addr: &SocketAddr| addr.ip().is_loopback() && addr.port() != 0);
        own.map(|addr| Self(Some(addr))).ok_or_else(|| format!("expected 127.0.0.1:port or [::1]:port, not {value}"))
    }
    fn print(&self) -> Value {
        Value::String(self.0.map(|addr| addr.to_string()).unwrap_or_default())
    }
}

impl SettingValue for WebUrl {
    fn parse(value: &Value) -> Result<Self, String> {
        let text = text(value)?;
        let is_web = ["http://", "https://"].iter().any(|scheme| text.len() > scheme.len() && text.starts_with(scheme));
        match text {
            "" => Ok(Self(None)),
            url if is_web && !url.contains(char::is_whitespace) => Ok(Self(Some(url.to_owned()))),
            _ => Err(format!("expected http://host:port/ or https://host:port/, not {value}")),
        }
    }
    fn print(&self) -> Value {
        Value::String(self.0.clone().unwrap_or_default())
    }
}

impl SettingValue for u64 {
    fn parse(value: &Value) -> Result<Self, String> {
        let number = value.as_integer().and_then(|number| u64::try_from(number).ok());
        number.ok_or_else(|| format!("expected a number that is not negative, not {value}"))
    }
    fn print(&self) -> Value {
        Value::Integer(i64::try_from(*self).unwrap_or(i64::MAX))
    }
}

impl SettingValue for NonZeroUsize {
    fn parse(value: &Value) -> Result<Self, String> {
        let number = usize::try_from(u64::parse(value)?).ok().and_then(NonZeroUsize::new);
        number.ok_or_else(|| format!("expected a number of at least 1, not {value}"))
    }
    fn print(&self) -> Value {
        (self.get() as u64).print()
    }
}

impl SettingValue for Duration {
    fn parse(value: &Value) -> Result<Self, String> {
        let invalid =
            |reason: &str| format!("expected a duration such as \"10m\" or \"1h 30s\", not {value}: {reason}");
        let text = value.as_str().ok_or_else(|| invalid("no string"))?;
        let duration = humantime::parse_duration(text).map_err(|error| invalid(&error.to_string()))?;
        if duration.is_zero() { Err(invalid("it must be longer than 0")) } else { Ok(duration) }
    }
    fn print(&self) -> Value {
        Value::String(humantime::format_duration(*self).to_string())
    }
}

impl SettingValue for String {
    fn parse(value: &Value) -> Result<Self, String> {
        Ok(text(value)?.to_owned())
    }
    fn print(&self) -> Value {
        Value::String(self.clone())
    }
}

impl SettingValue for Utf8PathBuf {
    fn parse(value: &Value) -> Result<Self, String> {
        text(value).map(Utf8PathBuf::from)
    }
    fn print(&self) -> Value {
        Value::String(self.to_string())
    }
}

impl SettingValue for AuthType {
    fn parse(value: &Value) -> Result<Self, String> {
        one_of(value, &[("Trust", AuthType::Trust), ("JWT", AuthType::Jwt), ("NeonJWT", AuthType::Jwt)])
    }
    fn print(&self) -> Value {
        Value::String(if *self == AuthType::Jwt { "JWT" } else { "Trust" }.to_owned())
    }
}

impl SettingValue for LogFormat {
    fn parse(value: &Value) -> Result<Self, String> {
        one_of(value, &[("human", LogFormat::Human), ("json", LogFormat::Json)])
    }
    fn print(&self) -> Value {
        Value::String(if *self == LogFormat::Json { "json" } else { "human" }.to_owned())
    }
}

impl SettingValue for AttachOnStart {
    fn parse(value: &Value) -> Result<Self, String> {
        one_of(value, &[("own", AttachOnStart::Own), ("all", AttachOnStart::All), ("local", AttachOnStart::Local)])
    }
    fn print(&self) -> Value {
        let name = match self {
            AttachOnStart::Own => "own",
            AttachOnStart::All => "all",
            AttachOnStart::Local => "local",
        };
        Value::String(name.to_owned())
    }
}

impl SettingValue for Durability {
    fn parse(value: &Value) -> Result<Self, String> {
        one_of(value, &[("bucket", Durability::Bucket), ("journal", Durability::Journal)])
    }
    fn print(&self) -> Value {
        Value::String(if *self == Durability::Journal { "journal" } else { "bucket" }.to_owned())
    }
}

impl SettingValue for IoEngineChoice {
    fn parse(value: &Value) -> Result<Self, String> {
        match text(value)? {
            "auto" => Ok(Self(None)),
            name => name.parse().map(|kind| Self(Some(kind))).map_err(|error| format!("{error}, auto")),
        }
    }
    fn print(&self) -> Value {
        Value::String(self.0.map_or_else(|| "auto".to_owned(), |kind| kind.to_string()))
    }
}

impl SettingValue for IoMode {
    fn parse(value: &Value) -> Result<Self, String> {
        text(value)?.parse().map_err(|error| format!("{error}"))
    }
    fn print(&self) -> Value {
        Value::String(self.to_string())
    }
}
