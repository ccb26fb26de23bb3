//! How files are read and written.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// When files bypass the kernel's page cache (`O_DIRECT`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum IoMode {
    /// Never.
    Buffered = 0,
    /// Reads of layer files bypass it; writes do not.
    #[cfg(target_os = "linux")]
    Direct = 1,
    /// Reads and writes bypass it.
    #[cfg(target_os = "linux")]
    #[default]
    DirectRw = 2,
}

/// Which system interface performs file I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum IoEngineKind {
    /// Blocking calls on a thread pool.
    StdFs = 1,
    /// io_uring, with completions through tokio's epoll.
    #[cfg(target_os = "linux")]
    TokioEpollUring = 2,
}

/// The text is not the name of a known mode or engine.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown {what} {text:?}: expected one of {known}")]
pub struct UnknownName {
    what: &'static str,
    text: String,
    known: &'static str,
}

impl IoMode {
    /// The mode with number `number`, as given by `as u8`.
    pub fn from_number(number: u8) -> Option<Self> {
        [IoMode::Buffered, IoMode::Direct, IoMode::DirectRw].into_iter().find(|mode| *mode as u8 == number)
    }

    fn name(self) -> &'static str {
        match self {
            IoMode::Buffered => "buffered",
            IoMode::Direct => "direct",
            IoMode::DirectRw => "direct-rw",
        }
    }
}

impl fmt::Display for IoMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for IoMode {
    type Err = UnknownName;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [IoMode::Buffered, IoMode::Direct, IoMode::DirectRw].into_iter().find(|mode| mode.name() == text).ok_or_else(
            || UnknownName { what: "I/O mode", text: text.to_owned(), known: "buffered, direct, direct-rw" },
        )
    }
}

impl IoEngineKind {
    fn name(self) -> &'static str {
        match self {
            IoEngineKind::StdFs => "std-fs",
            IoEngineKind::TokioEpollUring => "tokio-epoll-uring",
        }
    }
}

impl fmt::Display for IoEngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for IoEngineKind {
    type Err = UnknownName;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [IoEngineKind::StdFs, IoEngineKind::TokioEpollUring].into_iter().find(|kind| kind.name() == text).ok_or_else(
            || UnknownName { what: "I/O engine", text: text.to_owned(), known: "std-fs, tokio-epoll-uring" },
        )
    }
}
