//! What is wrong with a compute that runs, for whoever lists computes.

use std::time::Duration;

use super::config::ComputeConfig;
use super::reader;
use super::server::{self, State};
use crate::layout::Layout;
use crate::supervisor::health::Health;

/// For a server to say whether its WAL is taken.
const ANSWER: Duration = Duration::from_secs(2);

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// With its files, or its server.
    Here(String),
    /// No page server takes its WAL just now, which is kept here meanwhile.
    NotFollowed,
}

impl Trouble {
    /// That of a compute, if there is any. Waits some seconds for a server that does not answer.
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
