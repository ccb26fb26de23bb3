//! Which settings are tried, and in which order.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

const MIB: u64 = 1 << 20;

/// The settings: two of the pageserver, one of Postgres on computes.
pub(super) const NAMES: [&str; 3] = ["read_ahead_max", "prefetch_whole_after", "effective_io_concurrency"];
/// Those of the pageserver come first.
const OF_SERVER: usize = 2;
/// What is tried of each.
const VALUES: [&[u64]; 3] = [&[0, MIB, 4 * MIB, 16 * MIB], &[10, 50, 101], &[0, 1, 16]];

/// A value for each setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Choice([u64; 3]);

impl Choice {
    pub(super) fn new(values: [u64; 3]) -> Self {
        Self(values)
    }

    pub(super) fn values(self) -> [u64; 3] {
        self.0
    }

    /// Whether it says what the setting of this name is.
    pub(super) fn has(self, name: &str) -> bool {
        NAMES.contains(&name)
    }

    fn pairs(self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMES.into_iter().zip(self.0)
    }

    /// Lines of the pageserver's configuration.
    pub(super) fn server_lines(self) -> String {
        self.pairs().take(OF_SERVER).map(|(name, value)| format!("{name} = {value}\n")).collect()
    }

    /// Arguments of `pagectl compute`.
    pub(super) fn compute_words(self) -> String {
        let words: Vec<String> =
            self.pairs().skip(OF_SERVER).map(|(name, value)| format!("--set {name}={value}")).collect();
        words.join(" ")
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.pairs().map(|(name, value)| format!("{name} {value}")).collect();
        f.write_str(&parts.join(", "))
    }
}

impl Serialize for Choice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(NAMES.len()))?;
        for (name, value) in self.pairs() {
            map.serialize_entry(name, &value)?;
        }
        map.end()
    }
}

/// Looks for the choice with the smallest result of `measure`: from `start`, one setting after the other, until a whole
/// round has found nothing better. None is measured twice, and none that is not `allowed`.
///
/// # Errors
/// Those of `measure`.
pub(super) fn best(
    start: Choice,
    allowed: impl Fn(Choice) -> bool,
    mut measure: impl FnMut(Choice) -> anyhow::Result<f64>,
) -> anyhow::Result<Choice> {
    let mut known = BTreeMap::new();
    let mut cost = move |choice: Choice| -> anyhow::Result<f64> {
        if let Some(cost) = known.get(&choice) {
            return Ok(*cost);
        }
        let cost = measure(choice)?;
        known.insert(choice, cost);
        Ok(cost)
    };
    let mut best = (cost(start)?, start);
    loop {
        let before = best.1;
        for (at, values) in VALUES.into_iter().enumerate() {
            for value in values {
                let mut other = best.1;
                if let Some(setting) = other.0.get_mut(at) {
                    *setting = *value;
                }
                if !allowed(other) {
                    continue;
                }
                let cost = cost(other)?;
                if cost < best.0 {
                    best = (cost, other);
                }
            }
        }
        if best.1 == before {
            return Ok(best.1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_found_one_setting_after_the_other() {
        let wanted = [4 * MIB, 10, 16];
        let mut tried = Vec::new();
        let found = best(
            Choice([8 * MIB, 50, 1]),
            |choice| choice.0[0] < 16 * MIB,
            |choice| {
                assert_ne!(choice.0[0], 16 * MIB);
                assert!(!tried.contains(&choice), "{choice} is measured twice");
                tried.push(choice);
                Ok(choice.0.iter().zip(wanted).map(|(one, other)| one.abs_diff(other) as f64).sum())
            },
        );
        assert_eq!(found.unwrap(), Choice(wanted));
        assert!(tried.len() < 20, "{} of all were tried", tried.len());
        assert_eq!(tried[0], Choice([8 * MIB, 50, 1]), "what is in use comes first");
    }

    #[test]
    fn what_is_best_already_stays() {
        let start = Choice([MIB, 50, 1]);
        assert_eq!(best(start, |_| true, |choice| Ok(f64::from(u8::from(choice != start)))).unwrap(), start);
        assert!(best(start, |_| true, |_| anyhow::bail!("no")).is_err());
    }

    #[test]
    fn choices_are_told_as_they_are_pasted() {
        let choice = Choice([MIB, 50, 16]);
        assert_eq!(choice.server_lines(), "read_ahead_max = 1048576\nprefetch_whole_after = 50\n");
        assert_eq!(choice.compute_words(), "--set effective_io_concurrency=16");
        let json =
            serde_json::json!({"read_ahead_max": MIB, "prefetch_whole_after": 50, "effective_io_concurrency": 16});
        assert_eq!(serde_json::to_value(choice).unwrap(), json);
    }
}
