//! Which rows of a table differ: two cursors in the order of its key, side by side.

use std::cmp::Ordering;
use std::time::{Duration, Instant};

use anyhow::bail;
use indicatif::ProgressBar;
use serde_json::{Map, Value, json};

use super::cursor::{self, Cell, Column, Cursor, Row, compare};
use super::sides::Side;
use crate::output;
use crate::remote::compute::reader::Reader;
use crate::remote::progress::Progress;

/// Longer values are cut for people.
const SHOWN: usize = 200;
/// How often it is shown how far it is.
const LOOK: Duration = Duration::from_secs(2);

/// Which rows to compare, and how to show them.
pub(super) struct Wanted<'a> {
    pub(super) table: &'a str,
    pub(super) database: &'a str,
    /// Columns to tell rows by in place of the primary key.
    pub(super) key: &'a [String],
    pub(super) limit: Option<u64>,
    pub(super) json: bool,
}

/// The columns of both sides.
struct Shape {
    key: Vec<Column>,
    /// Those of both.
    common: Vec<Column>,
    /// Names of those of one side only.
    left_out: Vec<String>,
}

/// How many rows differ.
#[derive(Default)]
struct Counts {
    inserted: u64,
    deleted: u64,
    changed: u64,
}

impl Counts {
    fn all(&self) -> u64 {
        self.inserted + self.deleted + self.changed
    }
}

/// Shows the rows that differ. Returns whether none does.
pub(super) fn run(
    (from, to): (&Reader<'_>, &Reader<'_>),
    names: (&Side, &Side),
    wanted: &Wanted<'_>,
) -> anyhow::Result<bool> {
    let table = wanted.table;
    let (mut before, mut after) = (from.session(wanted.database)?, to.session(wanted.database)?);
    let columns = (cursor::columns(&mut before, table)?, cursor::columns(&mut after, table)?);
    let shape = shape(table, wanted.key, &columns.0, &columns.1)?;
    let total = cursor::estimate(&mut before, table)? + cursor::estimate(&mut after, table)?;
    let mut before = Cursor::open(before, table, &shape.key, &shape.common)?;
    let mut after = Cursor::open(after, table, &shape.key, &shape.common)?;
    let (mut counts, mut told) = (Counts::default(), env::clock::now());
    let mut progress = Progress::new(wanted.json, || ProgressBar::new(total));
    let mut is_cut = false;
    while let Some(row) = next(&mut before, &mut after, &shape)? {
        tell(&mut progress, &mut told, (&before, &after), total, &counts);
        let Some(difference) = row else { continue };
        if wanted.limit.is_some_and(|limit| counts.all() >= limit) {
            is_cut = true;
            break;
        }
        match &difference {
            Difference::Inserted(_) => counts.inserted += 1,
            Difference::Deleted(_) => counts.deleted += 1,
            Difference::Changed(..) => counts.changed += 1,
        }
        output::line(if wanted.json { difference.json(&shape).to_string() } else { difference.text(&shape) });
    }
    finish(names, wanted, &shape, &counts, is_cut);
    Ok(counts.all() == 0 && !is_cut && shape.left_out.is_empty())
}

fn tell(progress: &mut Progress, told: &mut Instant, at: (&Cursor, &Cursor), total: u64, counts: &Counts) {
    let now = env::clock::now();
    if now.saturating_duration_since(*told) >= LOOK {
        *told = now;
        let passed = at.0.passed + at.1.passed;
        progress.tell(passed, total.max(passed), format!("{passed} of about {total} rows, {} differ", counts.all()));
    }
}

fn finish(names: (&Side, &Side), wanted: &Wanted<'_>, shape: &Shape, counts: &Counts, is_cut: bool) {
    let Counts { inserted, deleted, changed } = counts;
    let value = json!({ "table": wanted.table, "from": names.0.to_string(), "to": names.1.to_string(),
        "inserted": inserted, "deleted": deleted, "changed": changed, "is_cut": is_cut,
        "columns_of_one_side": shape.left_out });
    let mut summary = format!(
        "{}: {inserted} rows inserted, {deleted} deleted, {changed} changed from {} to {}",
        wanted.table, names.0, names.1
    );
    if is_cut {
        summary += "; there are more (--limit)";
    }
    if !shape.left_out.is_empty() {
        summary += &format!("; not compared, as only one side has them: {}", shape.left_out.join(", "));
    }
    output::finish(wanted.json, &value, summary);
}

/// What can be compared of the tables.
fn shape(table: &str, key: &[String], before: &[Column], after: &[Column]) -> anyhow::Result<Shape> {
    let of_key = |columns: &[Column]| -> anyhow::Result<Vec<Column>> {
        if key.is_empty() {
            let mut own: Vec<Column> = columns.iter().filter(|column| column.key.is_some()).cloned().collect();
            own.sort_by_key(|column| column.key);
            return Ok(own);
        }
        let find = |name: &String| columns.iter().find(|column| column.name == *name).cloned();
        let missing = |name: &String| anyhow::anyhow!("{table} has no column {name} on one of the sides");
        key.iter().map(|name| find(name).ok_or_else(|| missing(name))).collect()
    };
    let (own, other) = (of_key(before)?, of_key(after)?);
    if own.is_empty() || other.is_empty() {
        bail!(
            "{table} has no primary key: say with --key which columns tell its rows from each other, or add one (ALTER \
             TABLE {table} ADD PRIMARY KEY (...))"
        );
    }
    let same = |one: &Column, other: &Column| (&one.name, &one.type_name) == (&other.name, &other.type_name);
    if own.len() != other.len() || !own.iter().zip(&other).all(|(one, other)| same(one, other)) {
        bail!("the key of {table} is another one on each side: say with --key by which columns to compare its rows");
    }
    let has = |columns: &[Column], wanted: &Column| columns.iter().any(|column| column.name == wanted.name);
    let (common, only): (Vec<Column>, Vec<Column>) = before.iter().cloned().partition(|column| has(after, column));
    let only_after = after.iter().filter(|column| !has(before, column)).cloned();
    let left_out = only.into_iter().chain(only_after).map(|column| column.name).collect();
    Ok(Shape { key: own, common, left_out })
}

/// A row that differs.
enum Difference {
    Inserted(Row),
    Deleted(Row),
    Changed(Row, Row),
}

/// The next row of both sides: `Some(None)` if it is the same, `None` at the end.
fn next(before: &mut Cursor, after: &mut Cursor, shape: &Shape) -> anyhow::Result<Option<Option<Difference>>> {
    let order = match (before.peek()?, after.peek()?) {
        (None, None) => return Ok(None),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (Some(one), Some(other)) => compare(&shape.key, &one.key, &other.key),
    };
    let old = if order.is_le() { before.take() } else { None };
    let new = if order.is_ge() { after.take() } else { None };
    Ok(Some(match (old, new) {
        (Some(old), None) => Some(Difference::Deleted(old)),
        (None, Some(new)) => Some(Difference::Inserted(new)),
        (Some(old), Some(new)) if old.cells != new.cells => Some(Difference::Changed(old, new)),
        _ => None,
    }))
}

impl Difference {
    /// As a line for people.
    fn text(&self, shape: &Shape) -> String {
        let names = shape.common.iter().map(|column| &column.name);
        let pairs = |cells: &[Cell]| {
            let pair = |(name, cell): (&String, &Cell)| format!("{name}={}", shown(cell));
            names.clone().zip(cells).map(pair).collect::<Vec<_>>().join(" ")
        };
        match self {
            Self::Inserted(row) => format!("+ {}", pairs(&row.cells)),
            Self::Deleted(row) => format!("- {}", pairs(&row.cells)),
            Self::Changed(old, new) => {
                let key = shape.key.iter().zip(&old.key);
                let key = key.map(|(column, value)| format!("{}={}", column.name, shown(&Some(value.clone()))));
                let cells = names.clone().zip(old.cells.iter().zip(&new.cells)).filter(|(_, (old, new))| old != new);
                let changes = cells.map(|(name, (old, new))| format!("{name}: {} -> {}", shown(old), shown(new)));
                format!("~ {}  {}", key.collect::<Vec<_>>().join(" "), changes.collect::<Vec<_>>().join(", "))
            }
        }
    }

    /// As an object for programs.
    fn json(&self, shape: &Shape) -> Value {
        let object = |cells: &[Cell]| {
            let names = shape.common.iter().map(|column| column.name.clone());
            names.zip(cells.iter().map(value)).collect::<Map<String, Value>>()
        };
        match self {
            Self::Inserted(row) => json!({ "change": "inserted", "row": object(&row.cells) }),
            Self::Deleted(row) => json!({ "change": "deleted", "row": object(&row.cells) }),
            Self::Changed(old, new) => {
                json!({ "change": "changed", "from": object(&old.cells), "to": object(&new.cells) })
            }
        }
    }
}

fn value(cell: &Cell) -> Value {
    cell.as_ref().map_or(Value::Null, |bytes| json!(String::from_utf8_lossy(bytes)))
}

fn shown(cell: &Cell) -> String {
    let Some(bytes) = cell else { return "NULL".to_owned() };
    let text = String::from_utf8_lossy(bytes);
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let cut: String = text.chars().take(SHOWN).map(plain).collect();
    let more = if cut.len() < text.len() { "..." } else { "" };
    format!("'{cut}{more}'")
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn column(name: &str, key: Option<usize>) -> Column {
        Column { name: name.to_owned(), type_name: "text".to_owned(), key }
    }

    fn row(key: &str, cells: &[Option<&str>]) -> Row {
        let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        Row { key: vec![bytes(key)], cells: cells.iter().map(|cell| cell.map(bytes)).collect() }
    }

    #[test]
    fn what_is_compared_is_what_both_have() {
        let (before, after) =
            (vec![column("a", Some(1)), column("b", None)], vec![column("c", None), column("a", Some(1))]);
        let found = shape("t", &[], &before, &after).unwrap();
        assert_eq!((found.key.len(), found.common.len(), found.left_out), (1, 1, vec!["b".to_owned(), "c".to_owned()]));
        let none = vec![column("a", None)];
        let refused = |key: &[String], before: &[Column], after: &[Column]| {
            shape("t", key, before, after).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert!(refused(&[], &none, &none).contains("--key"));
        assert!(refused(&["x".to_owned()], &none, &none).contains("no column x"));
        assert!(refused(&[], &before, &[column("b", Some(1))]).contains("another one"));
        assert_eq!(shape("t", &["a".to_owned()], &none, &none).unwrap().key.len(), 1);
    }

    #[test]
    fn differences_are_shown() {
        let shape = Shape {
            key: vec![column("id", Some(1))],
            common: vec![column("id", Some(1)), column("v", None)],
            left_out: vec![],
        };
        let changed = Difference::Changed(row("1", &[Some("1"), None]), row("1", &[Some("1"), Some("x\ny")]));
        assert_eq!(changed.text(&shape), "~ id='1'  v: NULL -> 'x y'");
        assert_eq!(changed.json(&shape)["to"], json!({ "id": "1", "v": "x\ny" }));
        assert_eq!(Difference::Deleted(row("2", &[Some("2"), Some("")])).text(&shape), "- id='2' v=''");
        let long = "x".repeat(SHOWN + 1);
        assert!(Difference::Inserted(row("3", &[Some("3"), Some(&long)])).text(&shape).ends_with("x...'"));
    }
}
