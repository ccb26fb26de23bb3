//! The rows of a table in the order of a key, a few at a time.

use std::cmp::Ordering;
use std::collections::VecDeque;

use anyhow::{Context, bail};
use bytes::Bytes;
use compute::lifecycle::Session;

/// How many bytes of rows are fetched at once, as far as earlier ones tell, and rows at first and at most.
const BATCH: usize = 2 << 20;
const FIRST: usize = 100;
const MOST: usize = 10_000;
/// What both sides write in the same way, and how values come as they are.
const SETTINGS: &str = "SET client_encoding = 'SQL_ASCII'; SET datestyle = 'ISO, YMD'; SET timezone = 'UTC'; \
                        SET intervalstyle = 'postgres'; SET extra_float_digits = 1; SET bytea_output = 'hex'; \
                        BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// A value as text; `None` is NULL.
pub(super) type Cell = Option<Bytes>;

/// A column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) type_name: String,
    /// Its place in the primary key, from 1 on.
    pub(super) key: Option<usize>,
}

impl Column {
    /// Whether values are ordered as numbers.
    fn is_number(&self) -> bool {
        ["smallint", "integer", "bigint", "oid"].contains(&&*self.type_name)
    }

    /// By what rows are ordered, so that it is known here which comes first.
    fn order(&self) -> String {
        let name = quoted(&self.name);
        // The text of these is in the order of their values.
        let is_in_order = self.is_number() || ["uuid", "boolean", "bytea"].contains(&&*self.type_name);
        if is_in_order { format!("r.{name}") } else { format!("(r.{name}::text) COLLATE \"C\"") }
    }
}

/// The columns of a table.
pub(super) fn columns(session: &mut Session, table: &str) -> anyhow::Result<Vec<Column>> {
    let rel = literal(table);
    let sql = format!(
        "SELECT a.attname, format_type(a.atttypid, a.atttypmod), k.n FROM pg_attribute a LEFT JOIN (SELECT u.attnum, \
         u.n FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY AS u(attnum, n) WHERE i.indrelid = \
         {rel}::regclass \
         AND i.indisprimary AND u.n <= i.indnkeyatts) k ON k.attnum = a.attnum WHERE a.attrelid = {rel}::regclass AND \
         a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"
    );
    let rows = session.query(&sql)?.into_iter().flat_map(|set| set.rows);
    let column = |row: Vec<Cell>| {
        let text = |at: usize| row.get(at).cloned().flatten().map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let key = text(2).and_then(|number| number.parse().ok());
        Column { name: text(0).unwrap_or_default(), type_name: text(1).unwrap_or_default(), key }
    };
    Ok(rows.map(column).collect())
}

/// How many rows a table has, about.
pub(super) fn estimate(session: &mut Session, table: &str) -> anyhow::Result<u64> {
    let sql = format!("SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = {}::regclass", literal(table));
    let cell = session.query(&sql)?.into_iter().flat_map(|set| set.rows).flatten().flatten().next();
    Ok(cell.and_then(|bytes| std::str::from_utf8(&bytes).ok()?.parse().ok()).unwrap_or(0))
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A row.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// The values of the key.
    pub(super) key: Vec<Bytes>,
    /// All values, in the order of the columns that were asked for.
    pub(super) cells: Vec<Cell>,
}

/// Which of two keys comes first.
pub(super) fn compare(key: &[Column], one: &[Bytes], other: &[Bytes]) -> Ordering {
    let number = |bytes: &Bytes| std::str::from_utf8(bytes).ok().and_then(|text| text.parse::<i128>().ok());
    for ((column, one), other) in key.iter().zip(one).zip(other) {
        let order = match (column.is_number(), number(one), number(other)) {
            (true, Some(one), Some(other)) => one.cmp(&other),
            _ => one.cmp(other),
        };
        if order.is_ne() {
            return order;
        }
    }
    Ordering::Equal
}

/// Rows in the order of a key.
pub(super) struct Cursor {
    session: Session,
    key: Vec<Column>,
    /// Where in the row the key's columns are.
    places: Vec<usize>,
    fetched: VecDeque<Row>,
    batch: usize,
    is_at_end: bool,
    last: Option<Vec<Bytes>>,
    /// Rows so far.
    pub(super) passed: u64,
}

impl Cursor {
    /// Opens one over these columns, which have those of the key.
    pub(super) fn open(mut session: Session, table: &str, key: &[Column], columns: &[Column]) -> anyhow::Result<Self> {
        let place = |wanted: &Column| columns.iter().position(|column| column.name == wanted.name);
        let places: Option<Vec<usize>> = key.iter().map(place).collect();
        let Some(places) = places else { bail!("the columns of the key are not those of the table {table}") };
        let list: Vec<String> = columns.iter().map(|column| format!("r.{}::text", quoted(&column.name))).collect();
        let order: Vec<String> = key.iter().map(Column::order).collect();
        // The table by what it is called after its name was looked up.
        let name = format!("SELECT {}::regclass::text", literal(table));
        let found = session.query(&name)?.into_iter().flat_map(|set| set.rows).flatten().flatten().next();
        let found = found.with_context(|| format!("there is no table {table}"))?;
        let found = String::from_utf8_lossy(&found).into_owned();
        let sql = format!(
            "{SETTINGS}; DECLARE rows NO SCROLL CURSOR FOR SELECT {} FROM {found} AS r ORDER BY {}",
            list.join(", "),
            order.join(", ")
        );
        session.query(&sql)?;
        let key = key.to_vec();
        let fetched = VecDeque::new();
        Ok(Self { session, key, places, fetched, batch: FIRST, is_at_end: false, last: None, passed: 0 })
    }

    /// The next row, which stays the next one.
    pub(super) fn peek(&mut self) -> anyhow::Result<Option<&Row>> {
        if self.fetched.is_empty() && !self.is_at_end {
            self.fetch()?;
        }
        Ok(self.fetched.front())
    }

    /// Takes the next row.
    pub(super) fn take(&mut self) -> Option<Row> {
        let row = self.fetched.pop_front();
        self.passed += u64::from(row.is_some());
        row
    }

    fn fetch(&mut self) -> anyhow::Result<()> {
        let sets = self.session.query(&format!("FETCH {} FROM rows", self.batch))?;
        let (mut bytes, mut count) = (0, 0);
        for cells in sets.into_iter().flat_map(|set| set.rows) {
            bytes += cells.iter().flatten().map(Bytes::len).sum::<usize>() + cells.len();
            count += 1;
            let of_key = |place: &usize| cells.get(*place).cloned().flatten();
            let key: Option<Vec<Bytes>> = self.places.iter().map(of_key).collect();
            let Some(key) = key else {
                bail!("a column of the key is NULL: rows cannot be told from each other by it")
            };
            if self.last.as_ref().is_some_and(|last| compare(&self.key, last, &key).is_ge()) {
                let values: Vec<_> = key.iter().map(|value| String::from_utf8_lossy(value)).collect();
                bail!("several rows have the key {}: rows cannot be told from each other by it", values.join(", "));
            }
            self.last = Some(key.clone());
            self.fetched.push_back(Row { key, cells });
        }
        self.is_at_end = count < self.batch;
        self.batch = (BATCH / (bytes / count.max(1)).max(1)).clamp(1, MOST);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_ordered_as_postgres_orders_them() {
        let column = |type_name: &str| Column { name: "a".to_owned(), type_name: type_name.to_owned(), key: Some(1) };
        let key =
            |values: &[&str]| values.iter().map(|value| Bytes::copy_from_slice(value.as_bytes())).collect::<Vec<_>>();
        let both = [column("bigint"), column("text")];
        assert_eq!(compare(&both, &key(&["-5", "a"]), &key(&["10", "a"])), Ordering::Less);
        assert_eq!(compare(&both, &key(&["10", "a"]), &key(&["9", "b"])), Ordering::Greater);
        assert_eq!(compare(&both, &key(&["9", "B"]), &key(&["9", "a"])), Ordering::Less, "as bytes");
        assert_eq!(compare(&both, &key(&["9", "a"]), &key(&["9", "a"])), Ordering::Equal);
        assert_eq!(column("integer").order(), "r.\"a\"");
        assert_eq!(column("numeric(3,1)").order(), "(r.\"a\"::text) COLLATE \"C\"");
        assert_eq!((quoted("a\"b"), literal("o'k")), ("\"a\"\"b\"".to_owned(), "'o''k'".to_owned()));
    }
}
