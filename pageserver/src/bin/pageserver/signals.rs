//! Signals: to shut down, to terminate at once, to reload keys and certificate.

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The handled signals, from the creation of this struct on.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

/// The request that a signal stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Shut down, requested by the signal of this name.
    Stop(&'static str),
    /// Reload keys and certificate.
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

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) -> Request {
        tokio::select! {
            _ = self.terminate.recv() => Request::Stop("SIGTERM"),
            _ = self.interrupt.recv() => Request::Stop("SIGINT"),
            _ = self.hangup.recv() => Request::Reload,
        }
    }

    /// Waits for a signal that requests to shut down.
    pub(crate) async fn next_stop(&mut self) -> &'static str {
        loop {
            if let Request::Stop(name) = self.next().await {
                return name;
            }
        }
    }
}
