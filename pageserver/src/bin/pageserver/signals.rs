//! Signals: to end, to end at once, to read keys and certificates again.

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that are listened to, from its making on.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// To end, by the signal of this name.
    Stop(&'static str),
    /// To read keys and certificates again.
    Reload,
}

impl Signals {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let on = |kind| signal(kind).context("cannot listen to signals");
        Ok(Self {
            terminate: on(SignalKind::terminate())?,
            interrupt: on(SignalKind::interrupt())?,
            hangup: on(SignalKind::hangup())?,
        })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) -> Request {
        tokio::select! {
            _ = self.terminate.recv() => Request::Stop("SIGTERM"),
            _ = self.interrupt.recv() => Request::Stop("SIGINT"),
            _ = self.hangup.recv() => Request::Reload,
        }
    }

    /// Waits for one that asks to end.
    pub(crate) async fn next_stop(&mut self) -> &'static str {
        loop {
            if let Request::Stop(name) = self.next().await {
                return name;
            }
        }
    }
}
