//! How the schemas of two moments differ: a unified diff of what pg_dump says of them.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use similar::TextDiff;

use super::sides::Side;
use crate::remote::compute::reader::Reader;

/// Lines around what differs.
const AROUND: usize = 3;
/// The databases that people use.
const DATABASES: &str = "SELECT datname FROM pg_database WHERE datallowconn AND NOT datistemplate";

/// What differs, by database.
pub(super) struct Differences(Vec<(String, String)>);

impl Differences {
    pub(super) fn is_same(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn text(&self) -> String {
        self.0.iter().map(|(_, diff)| diff.trim_end()).collect::<Vec<_>>().join("\n")
    }

    pub(super) fn json(&self) -> Value {
        let all: Vec<Value> = self.0.iter().map(|(name, diff)| json!({ "database": name, "diff": diff })).collect();
        json!({ "same": self.is_same(), "databases": all })
    }
}

/// Compares one database, or all of both sides. What only one side has differs from nothing.
pub(super) fn differences(
    (from, to): (&Reader<'_>, &Reader<'_>),
    names: (&Side, &Side),
    database: Option<&str>,
) -> anyhow::Result<Differences> {
    let (here, there) = (databases(from)?, databases(to)?);
    let all: BTreeSet<String> = match database {
        None => here.union(&there).cloned().collect(),
        Some(one) if here.contains(one) || there.contains(one) => BTreeSet::from([one.to_owned()]),
        Some(one) => bail!("there is no database {one}"),
    };
    let mut found = Vec::new();
    for name in all {
        let before = if here.contains(&name) { dump(from, &name)? } else { String::new() };
        let after = if there.contains(&name) { dump(to, &name)? } else { String::new() };
        if before != after {
            let head = (format!("{} {name}", names.0), format!("{} {name}", names.1));
            found.push((name, unified(&before, &after, (&head.0, &head.1))));
        }
    }
    Ok(Differences(found))
}

fn unified(before: &str, after: &str, head: (&str, &str)) -> String {
    TextDiff::from_lines(before, after).unified_diff().context_radius(AROUND).header(head.0, head.1).to_string()
}

fn databases(reader: &Reader<'_>) -> anyhow::Result<BTreeSet<String>> {
    let sets = reader.session("template1")?.query(DATABASES)?;
    let rows = sets.into_iter().flat_map(|set| set.rows);
    Ok(rows.flatten().flatten().map(|name| String::from_utf8_lossy(&name).into_owned()).collect())
}

/// What pg_dump says of the schema of a database.
fn dump(reader: &Reader<'_>, database: &str) -> anyhow::Result<String> {
    let (programs, connstr) = reader.programs()?;
    let own = programs.join("pg_dump");
    let program = if own.is_file() { own } else { "pg_dump".into() };
    let quoted = database.replace('\\', "\\\\").replace('\'', "\\'");
    let mut command = Command::new(&program);
    command.args(["--schema-only", "--no-password", "--dbname"]).arg(format!("{connstr} dbname='{quoted}'"));
    let done = command.output().with_context(|| {
        format!("cannot run {}, which compares schemas: install the client programs of Postgres", program.display())
    })?;
    if !done.status.success() {
        bail!("pg_dump of {database}: {}", String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(comparable(&String::from_utf8_lossy(&done.stdout)))
}

/// Without what says who has made the dump, and without the random words of newer versions.
fn comparable(dump: &str) -> String {
    let noise = ["-- Dumped ", "\\restrict ", "\\unrestrict "];
    let lines = dump.lines().filter(|line| !noise.iter().any(|noise| line.starts_with(noise)));
    lines.flat_map(|line| [line, "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_of_the_schema_is_compared() {
        let dump = |random: &str, version: &str| {
            comparable(&format!("\\restrict {random}\n-- Dumped from database version {version}\nCREATE TABLE a ();\n"))
        };
        assert_eq!(dump("x", "16.1"), dump("y", "16.2"));
        let diff = unified("a\nb\n", "a\nc\n", ("main@0/1 db", "dev@0/2 db"));
        assert_eq!(diff, "--- main@0/1 db\n+++ dev@0/2 db\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n");
    }
}
