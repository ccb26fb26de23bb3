//! `docs/layers.toml` as data.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use serde::Deserialize;

/// The whole table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Table {
    /// Rank of each crate of the workspace; a higher one may use a lower one.
    pub(crate) crates: BTreeMap<String, u32>,
    /// Pairs of crates of equal rank of which the first may use the second.
    #[serde(default)]
    pub(crate) sibling: Vec<Sibling>,
    /// Ranks of the modules of each library.
    #[serde(default)]
    pub(crate) inner: BTreeMap<String, Inner>,
    /// Ranks of the modules of each program.
    #[serde(default)]
    pub(crate) programs: BTreeMap<String, Inner>,
    /// Number of modules in the largest cycle of a crate that still has one. Entries only shrink.
    #[serde(default)]
    pub(crate) cycles: BTreeMap<String, usize>,
}

/// Ranks inside one crate.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Inner {
    /// Modules that must not be ranked as a whole: each of their children needs its own rank.
    #[serde(default)]
    pub(crate) split: Vec<String>,
    /// Rank of each module, ordered as text: `a` is lowest. Deeper modules have the rank of their nearest listed
    /// parent.
    #[serde(default)]
    ranks: BTreeMap<String, String>,
    /// Shorthand for `ranks`: rows of names from the lowest rank, `a`, to the highest.
    #[serde(default)]
    order: Vec<String>,
    /// Pairs of modules of equal rank of which the first may use the second.
    #[serde(default)]
    pub(crate) sibling: Vec<Sibling>,
}

impl Inner {
    /// The rank of each listed module, in whichever form it is written.
    pub(crate) fn ranks(&self) -> Result<BTreeMap<String, String>> {
        ensure!(self.ranks.is_empty() || self.order.is_empty(), "give either ranks or an order, not both");
        ensure!(self.order.len() <= 26, "an order has at most 26 rows: one for each letter");
        let mut ranks = self.ranks.clone();
        for (row, letter) in self.order.iter().zip('a'..='z') {
            for name in row.split_whitespace() {
                ensure!(ranks.insert(name.to_owned(), letter.to_string()).is_none(), "{name} is listed twice");
            }
        }
        Ok(ranks)
    }
}

/// An allowed use between two of equal rank.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sibling {
    pub(crate) from: String,
    pub(crate) to: String,
    /// The reason; an empty one is refused.
    pub(crate) why: String,
}

/// The verdict on a use between two ranks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Down,
    ListedSibling(usize),
    Sideways,
    Up,
}

/// Judges a use of `to` by `from`.
pub(crate) fn judge<R: Ord>(from: (&str, &R), to: (&str, &R), siblings: &[Sibling]) -> Verdict {
    match to.1.cmp(from.1) {
        std::cmp::Ordering::Less => Verdict::Down,
        std::cmp::Ordering::Greater => Verdict::Up,
        std::cmp::Ordering::Equal => siblings
            .iter()
            .position(|pair| pair.from == from.0 && pair.to == to.0)
            .map_or(Verdict::Sideways, Verdict::ListedSibling),
    }
}

/// Findings about the list of siblings itself: a missing reason, or a pair that nothing uses anymore.
pub(crate) fn check_siblings(siblings: &[Sibling], used: &[bool], findings: &mut Vec<String>) {
    for (pair, used) in siblings.iter().zip(used) {
        if pair.why.trim().is_empty() {
            findings.push(format!("docs/layers.toml: sibling {} -> {} gives no reason", pair.from, pair.to));
        }
        if !used {
            findings.push(format!("docs/layers.toml: sibling {} -> {} is not needed: remove it", pair.from, pair.to));
        }
        if siblings.iter().any(|other| other.from == pair.to && other.to == pair.from) && pair.from < pair.to {
            findings.push(format!("docs/layers.toml: {} and {} use each other: a cycle", pair.from, pair.to));
        }
    }
}
