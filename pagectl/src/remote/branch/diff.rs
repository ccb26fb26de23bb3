//! `pagectl branch diff`: by blocks, by schema, or by rows.

mod blocks;
mod cursor;
mod rows;
mod schema;
mod sides;

use clap::Args;

use crate::output::{self, Ended};
use crate::remote::compute::reader::Reader;
use crate::remote::compute::{Directory, HostArgs};
use crate::remote::connection::Remote;
use sides::{Side, WantedSides, sides};

/// What to compare, and how.
#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    #[command(flatten)]
    wanted: WantedSides,
    /// Show how tables, types, indexes, constraints, views, functions and the like differ, as a unified diff of what
    /// pg_dump says: from the first branch to the second one, or from where a single one branched off to it. Exits
    /// with 0 if nothing differs, 1 if something does, 2 if that cannot be said.
    #[arg(long, conflicts_with = "rows")]
    schema: bool,
    /// Show which rows of a table were inserted, deleted and changed, by its primary key; from and to as with --schema,
    /// with the same exit codes.
    #[arg(long, value_name = "TABLE")]
    rows: Option<String>,
    /// The columns that tell rows from each other, if the table has no primary key.
    #[arg(long, value_name = "COLUMNS", requires = "rows", value_delimiter = ',')]
    key: Vec<String>,
    /// The database; with --schema by default all, with --rows postgres.
    #[arg(long, value_name = "NAME")]
    db: Option<String>,
    /// End after so many rows that differ.
    #[arg(long, value_name = "COUNT", requires = "rows")]
    limit: Option<u64>,
    #[command(flatten)]
    directory: Directory,
    #[command(flatten)]
    host: HostArgs,
}

/// Compares two branches, or one branch at two LSNs.
pub(super) fn run(remote: &Remote<'_>, args: &DiffArgs) -> anyhow::Result<()> {
    let is_by_blocks = !args.schema && args.rows.is_none();
    if is_by_blocks {
        let (here, there) = sides(remote, &args.wanted)?;
        return blocks::run(remote, &here, &there);
    }
    match by_contents(remote, args) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Ended::with(1, None)),
        Err(error) => Err(Ended::with(2, Some(error))),
    }
}

/// Whether nothing differs.
fn by_contents(remote: &Remote<'_>, args: &DiffArgs) -> anyhow::Result<bool> {
    let (here, there) = sides(remote, &args.wanted)?;
    // Of two that are named, the second is what has become of the first; one is what has become of its ancestor.
    let (from, to) = if args.wanted.other.is_some() { (here, there) } else { (there, here) };
    let computes = args.directory.computes();
    let reader = |side: &Side| Reader::start(remote, &computes, &args.host, &side.branch, side.lsn);
    let readers = (reader(&from)?, reader(&to)?);
    let json = remote.common.json;
    match &args.rows {
        None => {
            let found = schema::differences((&readers.0, &readers.1), (&from, &to), args.db.as_deref())?;
            let shown = if found.is_same() { "nothing differs".to_owned() } else { found.text() };
            output::finish(json, &found.json(), shown);
            Ok(found.is_same())
        }
        Some(table) => {
            let wanted = rows::Wanted {
                table,
                database: args.db.as_deref().unwrap_or("postgres"),
                key: &args.key,
                limit: args.limit,
                json,
            };
            rows::run((&readers.0, &readers.1), (&from, &to), &wanted)
        }
    }
}
