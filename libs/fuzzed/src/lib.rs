//! Fuzz targets: for each the properties that must hold for any bytes. A panic is a finding, and so is an allocation
//! above 1 MiB. `make fuzz` runs them under libFuzzer (`fuzz/`), the tests here with the seeds of `tests/seeds` and
//! with mutations of these.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod backend;
mod case;
mod frontend;
mod image;
mod journal;
mod maps;
mod page;
mod pagestream;
mod record;
mod redo_contract;
mod startup;
mod stream;

use postgres_formats::rmgr::RmgrId;

pub use case::Case;
use redo_contract::keeps_the_contract;

/// A function that accepts any bytes.
pub struct Target {
    /// The name of its program in `fuzz/fuzz_targets`, and of the directories of its seeds and findings.
    pub name: &'static str,
    /// Panics if a property does not hold.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    // Resource managers: their records on any page.
    Target { name: "brin", run: |input| keeps_the_contract(RmgrId::BRIN, input) },
    Target { name: "btree", run: |input| keeps_the_contract(RmgrId::BTREE, input) },
    Target { name: "generic", run: |input| keeps_the_contract(RmgrId::GENERIC, input) },
    Target { name: "gin", run: |input| keeps_the_contract(RmgrId::GIN, input) },
    Target { name: "gist", run: |input| keeps_the_contract(RmgrId::GIST, input) },
    Target { name: "hash", run: |input| keeps_the_contract(RmgrId::HASH, input) },
    Target { name: "heap", run: |input| keeps_the_contract(RmgrId::HEAP, input) },
    Target { name: "heap2", run: |input| keeps_the_contract(RmgrId::HEAP2, input) },
    Target { name: "seq", run: |input| keeps_the_contract(RmgrId::SEQ, input) },
    Target { name: "spgist", run: |input| keeps_the_contract(RmgrId::SPGIST, input) },
    Target { name: "xlog", run: |input| keeps_the_contract(RmgrId::XLOG, input) },
    // Other pages, and the formats found in WAL.
    Target { name: "image", run: image::run },
    Target { name: "maps", run: maps::run },
    Target { name: "page", run: page::run },
    Target { name: "record", run: record::run },
    Target { name: "stream", run: stream::run },
    // Our own: what a crash may have left of it.
    Target { name: "journal", run: journal::run },
    // Protocols.
    Target { name: "backend", run: backend::run },
    Target { name: "frontend", run: frontend::run },
    Target { name: "pagestream", run: pagestream::run },
    Target { name: "startup", run: startup::run },
];

/// Runs a target by its name.
pub fn run(name: &str, input: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.unwrap_or_else(|| panic!("no target {name}")).run)(input);
}
