//! One run of a case: how long it took, and what was checked.

use std::time::Instant;

use serde_json::{Map, Value, json};

use crate::artifact::Validity;
use crate::processor::Ticks;

/// Measures time, and processor time.
pub struct Clock {
    began: Instant,
    before: Ticks,
}

impl Clock {
    pub fn start() -> Self {
        Self { before: Ticks::now(), began: Instant::now() }
    }

    /// The rate at which `bytes` were moved since.
    pub fn stop(self, bytes: u64) -> Sample {
        let seconds = self.began.elapsed().as_secs_f64();
        let processor = self.before.spent(bytes, seconds);
        Sample { bytes, seconds, processor, more: Map::new() }
    }
}

/// See the module's documentation.
pub struct Sample {
    bytes: u64,
    /// Until the clock was stopped, and after it what else counts.
    pub seconds: f64,
    processor: Value,
    more: Map<String, Value>,
}

impl Sample {
    /// Adds a figure.
    pub fn with(mut self, name: &str, figure: impl Into<Value>) -> Self {
        self.more.insert(name.to_owned(), figure.into());
        self
    }

    /// For the artifact, with what the disk gave just before.
    pub fn figures(self, device: Map<String, Value>) -> Value {
        let rate = self.bytes as f64 / (1 << 20) as f64 / self.seconds;
        let mut figures = json!({ "mib_per_s": rate, "device": device, "processor": self.processor });
        figures.as_object_mut().expect("an object, see above").extend(self.more);
        figures
    }
}

/// A run, and what was checked of what it left.
pub type Checked = (Sample, Validity);
