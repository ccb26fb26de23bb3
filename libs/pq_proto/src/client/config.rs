//! Connection strings: those of `tokio_postgres`, and whose certificate a server must have, which that leaves out
//! (`sslmode=verify-ca`, `verify-full` and `sslrootcert`, as libpq has them).

mod settings;

use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::str::FromStr;

use super::error::ClientError;

/// A parsed connection string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    postgres: tokio_postgres::Config,
    pub(super) trust: Trust,
}

/// Whose certificate a server must have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Trust {
    /// Anybody's: that protects from eavesdroppers, not from impostors.
    #[default]
    Anybody,
    /// One that an authority has signed whose certificate is in the file.
    Authority { file: PathBuf, is_named: Naming },
}

/// Whether a certificate must be for the host's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Naming {
    /// `verify-full`
    Host,
    /// `verify-ca`
    Any,
}

impl Deref for Config {
    type Target = tokio_postgres::Config;

    fn deref(&self) -> &Self::Target {
        &self.postgres
    }
}

impl DerefMut for Config {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.postgres
    }
}

impl FromStr for Config {
    type Err = ClientError;

    /// Errors repeat nothing of the text, which may contain a password.
    fn from_str(text: &str) -> Result<Self, ClientError> {
        let (rest, mode, root) = settings::take(text);
        let trust = trust(mode.as_deref(), root)?;
        let postgres = rest.parse::<tokio_postgres::Config>().map_err(|_| refused("malformed connection string"))?;
        Ok(Self { postgres, trust })
    }
}

fn refused(reason: &str) -> ClientError {
    ClientError::Config(reason.to_owned())
}

/// As in libpq, a file with certificates makes `require` check them.
fn trust(mode: Option<&str>, root: Option<String>) -> Result<Trust, ClientError> {
    let is_named = match mode {
        Some("verify-full") => Naming::Host,
        Some("verify-ca") => Naming::Any,
        Some("require") if root.is_some() => Naming::Any,
        _ => return Ok(Trust::Anybody),
    };
    match root.filter(|root| !root.is_empty()) {
        None => Err(refused("sslmode=verify-ca and verify-full need sslrootcert, a file with certificates to trust")),
        Some(root) if root == "system" => {
            Err(refused("sslrootcert=system is not supported: name a file with certificates to trust"))
        }
        Some(root) => Ok(Trust::Authority { file: root.into(), is_named }),
    }
}

#[cfg(test)]
mod tests {
    use tokio_postgres::config::SslMode;

    use super::*;

    fn parsed(text: &str) -> Config {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn authority(file: &str, is_named: Naming) -> Trust {
        Trust::Authority { file: file.into(), is_named }
    }

    #[test]
    fn certificates_are_checked_as_sslmode_says() {
        let full = authority("/a b/root.crt", Naming::Host);
        for text in [
            "host=h sslmode=verify-full sslrootcert='/a b/root.crt' user=u",
            "host=h sslrootcert = /a\\ b/root.crt sslmode='verify-full' user=u",
            "postgresql://u@h?sslmode=verify-full&sslrootcert=/a%20b/root.crt",
        ] {
            let config = parsed(text);
            assert_eq!((&config.trust, config.get_ssl_mode()), (&full, SslMode::Require), "{text}");
            assert_eq!((config.get_user(), config.get_hosts().len()), (Some("u"), 1), "{text}");
        }
        let by_authority = authority("r", Naming::Any);
        assert_eq!(parsed("host=h sslmode=verify-ca sslrootcert=r").trust, by_authority);
        assert_eq!(parsed("host=h sslmode=require sslrootcert=r").trust, by_authority);
        for text in
            ["host=h", "host=h sslmode=require", "host=h sslmode=prefer sslrootcert=r", "host=h sslmode=disable"]
        {
            assert_eq!(parsed(text).trust, Trust::Anybody, "{text}");
        }
    }

    #[test]
    fn what_cannot_be_checked_is_refused() {
        for (text, reason) in [
            ("host=h sslmode=verify-full", "need sslrootcert"),
            ("host=h sslmode=verify-ca sslrootcert=''", "need sslrootcert"),
            ("host=h sslmode=verify-full sslrootcert=system", "not supported"),
            ("host=h sslmode=verify", "malformed"),
            ("host=h password='secret", "malformed"),
        ] {
            let error = text.parse::<Config>().unwrap_err().to_string();
            assert!(error.contains(reason) && !error.contains("secret"), "{text}: {error}");
        }
    }
}
