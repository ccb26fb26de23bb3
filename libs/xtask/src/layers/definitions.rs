//! Resolves a path as written to the module that it leads into, and further to the one that defines the name.

use std::collections::{BTreeSet, HashMap};

use crate::source::Module;
use crate::source::paths::PathRef;

/// All modules, and their re-exports of others.
pub(crate) struct Definitions<'a> {
    modules: BTreeSet<&'a [String]>,
    handed_on: HashMap<(&'a [String], &'a str), &'a PathRef>,
}

impl<'a> Definitions<'a> {
    pub(crate) fn new(modules: &'a [Module]) -> Self {
        let handed_on = modules.iter().flat_map(|module| {
            let named = |path: &'a PathRef| Some(((module.path.as_slice(), path.handed_on.as_deref()?), path));
            module.paths.iter().filter_map(named)
        });
        Self { modules: modules.iter().map(|module| module.path.as_slice()).collect(), handed_on: handed_on.collect() }
    }

    /// The module that a path in module `from` leads into as written, and how many of its segments lead there.
    pub(crate) fn written(&self, from: &[String], path: &PathRef) -> Option<(Vec<String>, usize)> {
        resolve(from, path, |path| self.modules.contains(path))
    }

    pub(crate) fn has(&self, module: &[String]) -> bool {
        self.modules.contains(module)
    }

    /// The module that defines the name of a path in module `from`; none if it is in another crate.
    pub(crate) fn find(&self, from: &[String], path: &PathRef) -> Option<Vec<String>> {
        let (mut from, mut path) = (from.to_vec(), path.clone());
        // A cycle of re-exports does not compile, but this loop must terminate.
        for _ in 0..self.modules.len() {
            let (target, used) = self.written(&from, &path)?;
            let next = path.segments.get(used).and_then(|name| self.handed_on.get(&(target.as_slice(), name.as_str())));
            let Some(next) = next else { return Some(target) };
            let mut segments = next.segments.clone();
            segments.extend_from_slice(path.segments.get(used + 1..).unwrap_or_default());
            path = PathRef { segments, ..(*next).clone() };
            from = target;
        }
        None
    }
}

/// The module that a path in module `from` leads into, and how many of its segments lead there; none if it leaves the
/// crate.
fn resolve(from: &[String], path: &PathRef, exists: impl Fn(&[String]) -> bool) -> Option<(Vec<String>, usize)> {
    if path.leading_colon {
        return None;
    }
    let segments = path.segments.as_slice();
    let mut at = from.to_vec();
    let mut used = 0;
    match segments.first()?.as_str() {
        "crate" => {
            at.clear();
            used = 1;
        }
        "self" => used = 1,
        "super" => {
            while segments.get(used).is_some_and(|name| name == "super") {
                at.pop();
                used += 1;
            }
        }
        first => {
            // A bare name can only refer to a child module here; anything else is a crate or an import.
            at.push(first.to_owned());
            if !exists(&at) {
                return None;
            }
            used = 1;
        }
    }
    while let Some(name) = segments.get(used) {
        at.push(name.clone());
        if !exists(&at) {
            at.pop();
            break;
        }
        used += 1;
    }
    Some((at, used))
}
