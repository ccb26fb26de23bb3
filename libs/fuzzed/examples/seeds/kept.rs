//! Selects which of the possible seeds are written.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::PathBuf;

use postgres_formats::version::PgVersion;

/// Seeds of each kind and version; enough for different shapes, few enough that a fuzzer is soon through.
const OF_EACH: u32 = 6;
/// Maximum total bytes of a target's seeds with `--few`, smallest first.
const FEW: usize = 32 << 10;

pub struct Kept {
    out: PathBuf,
    few: bool,
    written: HashMap<(&'static str, String, Option<PgVersion>), u32>,
    /// The smallest of each kind, by target.
    smallest: BTreeMap<&'static str, BTreeMap<String, Vec<u8>>>,
}

impl Kept {
    pub fn new(out: PathBuf, few: bool) -> Self {
        Self { out, few, written: HashMap::new(), smallest: BTreeMap::new() }
    }

    pub fn add(&mut self, target: &'static str, kind: &str, version: Option<PgVersion>, bytes: Vec<u8>) {
        let kind = kind.replace('/', "-");
        if self.few {
            let kept = self.smallest.entry(target).or_default().entry(kind).or_insert_with(|| bytes.clone());
            if bytes.len() < kept.len() {
                *kept = bytes;
            }
            return;
        }
        let name = version.map_or_else(|| kind.clone(), |version| format!("{kind}-{version:?}"));
        let count = self.written.entry((target, kind, version)).or_insert(0);
        *count += 1;
        if *count <= OF_EACH {
            let name = format!("{name}-{count}");
            self.write(target, &name, &bytes);
        }
    }

    /// Writes the smallest seed of each kind, up to the limit, if they were held back. Returns a summary.
    pub fn finish(self) -> String {
        let (mut files, mut bytes) = (0, 0);
        for (target, kinds) in &self.smallest {
            let mut kinds: Vec<_> = kinds.iter().collect();
            kinds.sort_by_key(|(kind, seed)| (seed.len(), *kind));
            let mut left = FEW;
            for (kind, seed) in kinds {
                let Some(rest) = left.checked_sub(seed.len()) else { break };
                left = rest;
                self.write(target, kind, seed);
                (files, bytes) = (files + 1, bytes + seed.len());
            }
        }
        if self.few { format!("{files} seeds of {bytes} bytes") } else { format!("{} kinds", self.written.len()) }
    }

    fn write(&self, target: &str, name: &str, bytes: &[u8]) {
        let dir = self.out.join(target);
        fs::create_dir_all(&dir).expect("the directory of seeds can be made");
        fs::write(dir.join(name), bytes).expect("a seed can be written");
    }
}
