//! Loading of settings from all their sources, and validation.

use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use toml::Value;

use super::identity::defect;
use super::keys::{KEYS, Key, Settings};
use super::{ENV_PREFIX, FILE_NAME};
use engine::config::RetentionPolicy;
use remote_storage::RemoteUrl;
use traces::Destination;

/// Why the process cannot start with these settings. Each error names the place to fix.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}. `pageserver init --workdir DIR` makes a new one")]
    Read {
        /// The file.
        path: Utf8PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{path} is not valid TOML: {source}")]
    Syntax {
        /// The file.
        path: Utf8PathBuf,
        /// Position and reason.
        source: Box<toml::de::Error>,
    },
    /// The key is unknown.
    #[error("{place}: unknown key {key:?}{}", nearest_hint(key))]
    Unknown {
        /// File and line, or flag.
        place: String,
        /// The key.
        key: String,
    },
    /// The value has the wrong type, or is out of range.
    #[error("{place}: {key}: {reason}")]
    Invalid {
        /// File and line, environment variable, or flag.
        place: String,
        /// The key.
        key: String,
        /// What is expected.
        reason: String,
    },
}

/// Settings given in addition to the file.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// Environment variables; those without our prefix are ignored.
    pub env: Vec<(String, String)>,
    /// Flags, `key=value`.
    pub flags: Vec<String>,
}

impl Overrides {
    /// The process's environment, and no flags.
    pub fn from_environment() -> Self {
        let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        Self { env: std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect(), flags: Vec::new() }
    }
}

fn nearest_hint(key: &str) -> String {
    let distances = KEYS.iter().map(|known| (strsim::damerau_levenshtein(key, known.name), known.name));
    match distances.min() {
        Some((distance, name)) if distance <= key.len().max(name.len()) / 2 => format!(", did you mean {name:?}?"),
        _ => String::new(),
    }
}

fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

impl Settings {
    /// Loads the settings of the process with this working directory. Also returns remarks about them for the log.
    ///
    /// # Errors
    /// If the file is missing or invalid, or an override is invalid.
    pub fn load(workdir: &Utf8Path, overrides: &Overrides) -> Result<(Self, Vec<String>), SettingsError> {
        let path = workdir.join(FILE_NAME);
        let text =
            std::fs::read_to_string(&path).map_err(|source| SettingsError::Read { path: path.clone(), source })?;
        Self::of(&path, &text, overrides)
    }

    /// The defaults, with `overrides`.
    ///
    /// # Errors
    /// If an override is invalid.
    pub fn of_flags(overrides: &Overrides) -> Result<Self, SettingsError> {
        Self::of(Utf8Path::new(FILE_NAME), "", overrides).map(|(settings, _)| settings)
    }

    pub(super) fn of(path: &Utf8Path, text: &str, overrides: &Overrides) -> Result<(Self, Vec<String>), SettingsError> {
        let mut loader = Loader { settings: Settings::default(), places: Vec::new(), remarks: Vec::new() };
        loader.file(path, text)?;
        loader.env(&overrides.env)?;
        loader.flags(&overrides.flags)?;
        loader.fit_defaults();
        loader.check()?;
        Ok((loader.settings, loader.remarks))
    }
}

struct Loader {
    settings: Settings,
    /// Where each key was last given.
    places: Vec<(&'static str, String)>,
    remarks: Vec<String>,
}

impl Loader {
    fn file(&mut self, path: &Utf8Path, text: &str) -> Result<(), SettingsError> {
        let syntax = |error| SettingsError::Syntax { path: path.to_owned(), source: Box::new(error) };
        let table: toml::Table = text.parse().map_err(syntax)?;
        for (name, value) in &table {
            let place = format!("{path}{}", line_of(text, name));
            let unknown = || SettingsError::Unknown { place: place.clone(), key: name.clone() };
            self.set(find(name).ok_or_else(unknown)?, value, place.clone())?;
        }
        Ok(())
    }

    fn env(&mut self, variables: &[(String, String)]) -> Result<(), SettingsError> {
        for (variable, text) in variables {
            let Some(name) = variable.strip_prefix(ENV_PREFIX).map(str::to_ascii_lowercase) else { continue };
            match find(&name) {
                Some(key) => self.set_text(key, text, format!("environment variable {variable}"))?,
                // Container platforms set variables of their own for each service, named after it.
                None => self.remarks.push(format!("environment variable {variable} names no key: ignored")),
            }
        }
        Ok(())
    }

    fn flags(&mut self, flags: &[String]) -> Result<(), SettingsError> {
        for flag in flags {
            let place = || format!("flag -c {flag}");
            let (name, text) = flag.split_once('=').ok_or_else(|| SettingsError::Invalid {
                place: place(),
                key: flag.clone(),
                reason: "expected key=value".to_owned(),
            })?;
            let unknown = || SettingsError::Unknown { place: place(), key: name.to_owned() };
            self.set_text(find(name.trim()).ok_or_else(unknown)?, text.trim(), place())?;
        }
        Ok(())
    }

    /// Sets a key from text that is not TOML; the type of the default determines how it is parsed.
    fn set_text(&mut self, key: &'static Key, text: &str, place: String) -> Result<(), SettingsError> {
        let value = match key.default_value() {
            Value::Integer(_) => text.replace('_', "").parse().map_or_else(|_| Value::from(text), Value::Integer),
            Value::Boolean(_) => text.parse().map_or_else(|_| Value::from(text), Value::Boolean),
            _ => Value::from(text),
        };
        self.set(key, &value, place)
    }

    fn set(&mut self, key: &'static Key, value: &Value, place: String) -> Result<(), SettingsError> {
        self.places.push((key.name, place));
        self.settings.set(key.name, value).map_err(|reason| self.invalid(key.name, reason))
    }

    fn invalid(&self, name: &'static str, reason: String) -> SettingsError {
        let place = self.places.iter().rev().find(|(key, _)| *key == name).map(|(_, place)| place.clone());
        SettingsError::Invalid { place: place.unwrap_or_else(|| "default".to_owned()), key: name.to_owned(), reason }
    }

    /// Lowers a default that exceeds what another key permits.
    fn fit_defaults(&mut self) {
        let is_set = self.places.iter().any(|(key, _)| *key == "page_service_max_batch_size");
        let settings = &mut self.settings;
        if !is_set && settings.page_service_max_batch_size > settings.max_get_vectored_keys {
            settings.page_service_max_batch_size = settings.max_get_vectored_keys;
        }
    }

    /// Checks what concerns several keys, or needs more than a key's type.
    fn check(&self) -> Result<(), SettingsError> {
        let settings = &self.settings;
        if settings.page_service_max_batch_size > settings.max_get_vectored_keys {
            let reason =
                format!("must not be above max_get_vectored_keys, which is {}", settings.max_get_vectored_keys);
            return Err(self.invalid("page_service_max_batch_size", reason));
        }
        if settings.checkpoint_distance < 1 << 20 {
            return Err(self.invalid("checkpoint_distance", "must be at least 1048576 (1 MiB)".to_owned()));
        }
        self.check_compaction()?;
        self.check_history()?;
        if let Some((name, reason)) = settings.lease().defect() {
            return Err(self.invalid(name, reason));
        }
        if let Err(reason) = RemoteUrl::parse(&settings.remote_storage) {
            return Err(self.invalid("remote_storage", reason));
        }
        if let Err(reason) = settings.journal() {
            return Err(self.invalid("durability", reason));
        }
        if let Some(reason) = defect(&settings.server_id) {
            return Err(self.invalid("server_id", reason));
        }
        if !settings.traces_to.is_empty()
            && let Err(reason) = Destination::parse(&settings.traces_to)
        {
            return Err(self.invalid("traces_to", reason));
        }
        for name in ["listen_pg_addr", "listen_http_addr"] {
            let value = settings.get(name).unwrap_or(Value::Boolean(false));
            let port = value.as_str().and_then(|addr| addr.rsplit_once(':')).map(|(_, port)| port.parse::<u16>());
            if !matches!(port, Some(Ok(_))) {
                return Err(self.invalid(name, format!("expected host:port, not {value}")));
            }
        }
        Ok(())
    }
}

impl Loader {
    fn check_compaction(&self) -> Result<(), SettingsError> {
        let settings = &self.settings;
        let (threshold, slow, wait) =
            (settings.compaction_threshold, settings.compaction_l0_slow, settings.compaction_l0_wait);
        if threshold == 1 {
            return Err(self.invalid("compaction_threshold", "must be 0 or at least 2".to_owned()));
        }
        if settings.compaction_target_size < 64 << 10 {
            return Err(self.invalid("compaction_target_size", "must be at least 65536 (64 KiB)".to_owned()));
        }
        if settings.compaction_memory < 1 << 20 {
            return Err(self.invalid("compaction_memory", "must be at least 1048576 (1 MiB)".to_owned()));
        }
        if settings.compaction_height < 2 {
            return Err(self.invalid("compaction_height", "must be at least 2".to_owned()));
        }
        if slow > 0 && slow < threshold {
            let reason = format!("must not be below compaction_threshold, which is {threshold}");
            return Err(self.invalid("compaction_l0_slow", reason));
        }
        if slow > 0 && wait <= slow {
            let reason = format!("must be above compaction_l0_slow, which is {slow}");
            return Err(self.invalid("compaction_l0_wait", reason));
        }
        Ok(())
    }
}

impl Loader {
    fn check_history(&self) -> Result<(), SettingsError> {
        let settings = &self.settings;
        if let Some((name, reason)) = settings.retention().defect() {
            return Err(self.invalid(name, reason));
        }
        if settings.gc_period < Duration::from_secs(1) {
            return Err(self.invalid("gc_period", "must be at least 1s".to_owned()));
        }
        for (name, length) in [
            ("gc_period", settings.gc_period),
            ("gc_pause_after_attach", settings.gc_pause_after_attach),
            ("lsn_lease_length", settings.lsn_lease_length),
        ] {
            if length > RetentionPolicy::LONGEST {
                return Err(self.invalid(name, "must not be above 36500days".to_owned()));
            }
        }
        Ok(())
    }
}

/// " line N" for the line that sets the key `name`, if it can be found.
fn line_of(text: &str, name: &str) -> String {
    let gives = |line: &str| {
        let line = line.trim_start();
        line.strip_prefix(name).is_some_and(|rest| rest.trim_start().starts_with('=')) || line == format!("[{name}]")
    };
    text.lines().position(gives).map_or_else(String::new, |at| format!(" line {}", at + 1))
}
