//! Detects what is wrong with a running compute, for listings.

use std::time::Duration;

use super::config::ComputeConfig;
use super::reader;
use super::server::{self, State};
use crate::layout::Layout;
use crate::supervisor::health::Health;

/// How long a server may take to say whether its WAL is received.
const ANSWER: Duration = Duration::from_secs(2);

/// A problem of a compute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A problem of its files or its server.
    Here(String),
    /// No pageserver is receiving its WAL; the WAL is kept here meanwhile.
    NotFollowed,
}

impl Trouble {
    /// The problem of a compute, if any. Waits up to a few seconds for a server that does not answer.
    pub fn of(compute: &ComputeConfig, layout: &Layout) -> Option<Self> {
        if let Health::Trouble(what) = Health::of(layout) {
            return Some(Self::Here(what));
        }
        if reader::is_promoted(compute, layout) {
            return Some(Self::Here(reader::PROMOTED.to_owned()));
        }
        if compute.read_only || !matches!(State::of(compute, layout), State::Running(_)) {
            return None;
        }
        match server::wal(compute, layout, ANSWER) {
            Ok(wal) if wal.is_followed => None,
            Ok(_) => Some(Self::NotFollowed),
            Err(reason) => Some(Self::Here(format!("whether its WAL is taken cannot be asked: {reason}"))),
        }
    }
}
