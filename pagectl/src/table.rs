//! Formatting of tables for people.

use serde_json::Value;

/// Formats `rows` below `head`, each column as wide as necessary.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let widths: Vec<usize> = head
        .iter()
        .enumerate()
        .map(|(at, name)| {
            rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).fold(name.len(), usize::max)
        })
        .collect();
    let line = |cells: Vec<&str>| {
        let padded: Vec<String> = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        padded.join("  ").trim_end().to_owned()
    };
    let body = rows.iter().map(|row| line(row.iter().map(String::as_str).collect()));
    std::iter::once(line(head.to_vec())).chain(body).collect::<Vec<_>>().join("\n")
}

/// A member of an object as text; "-" if it is null or missing.
pub(crate) fn text(value: &Value, name: &str) -> String {
    match &value[name] {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A number of bytes in human-readable form.
pub(super) fn bytes(value: &Value, name: &str) -> String {
    value[name].as_u64().map_or_else(|| "-".to_owned(), |bytes| indicatif::HumanBytes(bytes).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_must_be() {
        let rows = [vec!["a".to_owned(), "longer".to_owned()], vec!["bbbb".to_owned(), String::new()]];
        assert_eq!(table(&["x", "y"], &rows), "x     y\na     longer\nbbbb");
        assert_eq!(table(&["x", "y"], &[]), "x  y");
    }

    #[test]
    fn members_are_shown_as_people_write_them() {
        let value = serde_json::json!({"lsn": "0/1", "n": 7, "size": 2048, "none": null});
        assert_eq!(["lsn", "n", "none", "absent"].map(|name| text(&value, name)), ["0/1", "7", "-", "-"]);
        assert_eq!((bytes(&value, "size"), bytes(&value, "lsn")), ("2.00 KiB".to_owned(), "-".to_owned()));
    }
}
