//! What is told of SQL that has failed: where, and why, without values of rows, which may be those that it is to mask.

use compute::lifecycle::SqlError;

/// Where and why SQL has failed, for whoever may not see the data.
pub(super) fn without_values(sql: &str, failed: &SqlError) -> String {
    let error = &failed.error;
    let code = error.code.to_string();
    // Messages of this class have values in quotes, those of others names; details may have whole rows.
    let message = if code.starts_with("22") { unquoted(&error.message) } else { error.message.clone() };
    format!("{}: {message} (SQLSTATE {code})", place(sql, failed))
}

/// The same with all that Postgres says, for whoever runs it.
pub(super) fn in_full(sql: &str, failed: &SqlError) -> String {
    format!("{}: {}", place(sql, failed), failed.error)
}

/// The command, and its line.
fn place(sql: &str, failed: &SqlError) -> String {
    let at = failed.error.position.and_then(|position| usize::try_from(position).ok()?.checked_sub(1));
    let at = at.or_else(|| starts(sql).get(failed.succeeded).copied());
    let number = failed.succeeded + 1;
    match at {
        Some(at) => {
            let line = sql.chars().take(at).filter(|c| *c == '\n').count() + 1;
            format!("statement {number}, line {line}")
        }
        None => format!("statement {number}"),
    }
}

/// Replaces what is in quotes.
fn unquoted(message: &str) -> String {
    let mut parts = message.split('"');
    let mut text = parts.next().unwrap_or_default().to_owned();
    while let Some(_value) = parts.next() {
        text.push_str("\"...\"");
        text.push_str(parts.next().unwrap_or_default());
    }
    text
}

/// Where the statements of a text begin, in characters: what is between semicolons that are in no quotes and comments.
fn starts(sql: &str) -> Vec<usize> {
    let chars: Vec<char> = sql.chars().collect();
    let (mut found, mut at, mut is_open) = (Vec::new(), 0, false);
    while let Some(&c) = chars.get(at) {
        let next = chars.get(at + 1).copied();
        let end = match (c, next) {
            ('-', Some('-')) => Some(until(&chars, at, &['\n'])),
            ('/', Some('*')) => Some(comment(&chars, at)),
            _ => None,
        };
        if let Some(end) = end {
            at = end;
            continue;
        }
        if c == ';' {
            is_open = false;
        } else if !c.is_whitespace() && !is_open {
            found.push(at);
            is_open = true;
        }
        at = match c {
            '\'' if is_escape(&chars, at) => escaped(&chars, at),
            '\'' | '"' => until(&chars, at + 1, &[c]),
            '$' => dollar(&chars, at),
            _ => at + 1,
        };
    }
    found
}

/// Behind the next `end` from `at` on.
fn until(chars: &[char], at: usize, end: &[char]) -> usize {
    let rest = chars.get(at..).unwrap_or_default();
    rest.windows(end.len()).position(|window| window == end).map_or(chars.len(), |found| at + found + end.len())
}

/// Behind a comment, which may have others in it.
fn comment(chars: &[char], at: usize) -> usize {
    let (mut at, mut depth) = (at + 2, 1);
    while depth > 0 {
        match (chars.get(at), chars.get(at + 1)) {
            (Some('/'), Some('*')) => (at, depth) = (at + 2, depth + 1),
            (Some('*'), Some('/')) => (at, depth) = (at + 2, depth - 1),
            (None, _) => return chars.len(),
            _ => at += 1,
        }
    }
    at
}

/// Whether a quote begins a string with backslashes: `E'...'`.
fn is_escape(chars: &[char], at: usize) -> bool {
    let before = |back: usize| at.checked_sub(back).and_then(|at| chars.get(at)).copied();
    matches!(before(1), Some('e' | 'E')) && !before(2).is_some_and(|c| c.is_alphanumeric() || c == '_')
}

fn escaped(chars: &[char], at: usize) -> usize {
    let mut at = at + 1;
    loop {
        match chars.get(at) {
            Some('\\') => at += 2,
            Some('\'') | None => return at + 1,
            Some(_) => at += 1,
        }
    }
}

/// Behind a string in dollars, `$tag$...$tag$`, or behind the dollar.
fn dollar(chars: &[char], at: usize) -> usize {
    let is_name = |c: &char| c.is_alphanumeric() || *c == '_';
    let in_name = at.checked_sub(1).and_then(|at| chars.get(at)).is_some_and(is_name);
    let length = chars.get(at + 1..).unwrap_or_default().iter().take_while(|c| is_name(c)).count();
    let end = at + 1 + length;
    let is_digit = chars.get(at + 1).is_some_and(char::is_ascii_digit);
    match chars.get(at..=end) {
        Some(tag) if tag.last() == Some(&'$') && !is_digit && !in_name => until(chars, end + 1, tag),
        _ => at + 1,
    }
}

#[cfg(test)]
mod tests {
    use pq_proto::backend::ErrorFields;
    use pq_proto::sqlstate::SqlState;

    use super::*;

    #[test]
    fn statements_are_found_whatever_is_in_them() {
        let lines = |sql: &str| -> Vec<usize> {
            starts(sql).into_iter().map(|at| sql.chars().take(at).filter(|c| *c == '\n').count() + 1).collect()
        };
        assert_eq!(lines("SELECT 1;\nSELECT 2;\n"), [1, 2]);
        assert_eq!(lines("-- a;\n/* b; /* c; */ ; */\nSELECT ';', 'it''s;' , \"a;b\";\n\nSELECT 2"), [3, 5]);
        assert_eq!(lines("DO $$ BEGIN; END $$;\nSELECT $a$ $b$; $a$;\nSELECT $1; SELECT a$b;"), [1, 2, 3, 3]);
        assert_eq!(lines("SELECT E'\\';';\nSELECT 'a\\';\nSELECT 3"), [1, 2, 3]);
        assert_eq!(lines(";;\n ; "), Vec::<usize>::new());
        for unclosed in ["SELECT '", "SELECT E'\\", "/* /*", "--", "$a$ x", "\"", "$", "\u{e9}; \u{fc}"] {
            starts(unclosed);
        }
    }

    #[test]
    fn no_value_of_a_row_is_told() {
        let sql = "SELECT 1;\nUPDATE people\n SET age = name::int";
        let message = "invalid input syntax for type integer: \"Ann Smith\"";
        let error = ErrorFields::new(SqlState::from_bytes(b"22P02"), message).with_detail("Key (name)=(Ann Smith)");
        let failed = SqlError { error, succeeded: 1 };
        let told = without_values(sql, &failed);
        assert_eq!(told, "statement 2, line 2: invalid input syntax for type integer: \"...\" (SQLSTATE 22P02)");
        assert!(in_full(sql, &failed).contains("Ann Smith"));
        let mut error = ErrorFields::new(SqlState::from_bytes(b"42703"), "column \"agee\" does not exist");
        error.position = Some(30);
        let told = without_values(sql, &SqlError { error, succeeded: 1 });
        assert_eq!(told, "statement 2, line 3: column \"agee\" does not exist (SQLSTATE 42703)");
        assert_eq!(unquoted("a \"b\" c \"d"), "a \"...\" c \"...\"");
    }
}
