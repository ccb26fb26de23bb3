//! Configuration files of Postgres, `postgresql.conf` and `postgresql.auto.conf` (`guc-file.l`): lines of a name and
//! a value.

/// The file that `ALTER SYSTEM` writes, in the data directory.
pub const AUTO_CONF: &str = "postgresql.auto.conf";
/// The file that users edit. It may be elsewhere.
pub const CONF: &str = "postgresql.conf";

/// A setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its name, in lower case.
    pub name: String,
    /// Its value without quotes, in the encoding of the file.
    pub value: Vec<u8>,
}

/// The settings of a file, each once, in the order of their last lines, which take effect. Lines that a server would
/// not understand are skipped, and so are those that include other files.
pub fn parse(file: &[u8]) -> Vec<Setting> {
    let mut settings: Vec<Setting> = Vec::new();
    for line in file.split(|byte| *byte == b'\n') {
        if let Some(setting) = parse_line(line) {
            settings.retain(|earlier| earlier.name != setting.name);
            settings.push(setting);
        }
    }
    settings
}

/// A line that sets `setting`, for any file of this kind.
pub fn line(setting: &Setting) -> Vec<u8> {
    let mut line = format!("{} = '", setting.name).into_bytes();
    for byte in &setting.value {
        match byte {
            b'\n' => line.extend_from_slice(b"\\n"),
            b'\'' | b'\\' => line.extend_from_slice(&[*byte, *byte]),
            byte => line.push(*byte),
        }
    }
    line.extend_from_slice(b"'\n");
    line
}

fn parse_line(line: &[u8]) -> Option<Setting> {
    let (name, rest) =
        split_at_end_of(line.trim_ascii_start(), |byte| is_letter(byte) || byte.is_ascii_digit() || byte == b'.');
    let rest = rest.trim_ascii_start();
    let rest = rest.strip_prefix(b"=").unwrap_or(rest).trim_ascii_start();
    let (value, rest) = match rest.strip_prefix(b"'") {
        Some(quoted) => unquote(quoted)?,
        None => {
            let (value, rest) = split_at_end_of(rest, is_plain);
            (value.to_vec(), rest)
        }
    };
    let is_quoted_empty = value.is_empty() && !line.contains(&b'\'');
    let rest = rest.trim_ascii_start();
    let ends = rest.is_empty() || rest.starts_with(b"#");
    let name = String::from_utf8(name.to_ascii_lowercase()).ok().filter(|name| is_name(name))?;
    (ends && !is_quoted_empty && !value.contains(&0)).then_some(Setting { name, value })
}

fn split_at_end_of(bytes: &[u8], belongs: impl Fn(u8) -> bool) -> (&[u8], &[u8]) {
    let end = bytes.iter().position(|byte| !belongs(*byte)).unwrap_or(bytes.len());
    bytes.split_at_checked(end).unwrap_or((bytes, &[]))
}

fn is_letter(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_'
}

/// Words, numbers with units, paths and addresses need no quotes.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-.:/+".contains(&byte) || !byte.is_ascii()
}

/// One word, or several separated by dots: then it belongs to an extension.
fn is_name(name: &str) -> bool {
    const INCLUDES: [&str; 3] = ["include", "include_dir", "include_if_exists"];
    let starts_well = |word: &str| word.bytes().next().is_some_and(is_letter);
    name.split('.').all(starts_well) && !INCLUDES.contains(&name)
}

/// The value before the closing quote, and the text after it.
fn unquote(quoted: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let (mut value, mut rest) = (Vec::new(), quoted);
    loop {
        rest = match rest {
            [b'\'', b'\'', rest @ ..] => {
                value.push(b'\'');
                rest
            }
            [b'\'', rest @ ..] => return Some((value, rest)),
            [b'\\', rest @ ..] => unescape(rest, &mut value)?,
            [byte, rest @ ..] => {
                value.push(*byte);
                rest
            }
            [] => return None,
        };
    }
}

/// Appends the meaning of an escape sequence to `value`; returns the rest.
fn unescape<'a>(escaped: &'a [u8], value: &mut Vec<u8>) -> Option<&'a [u8]> {
    let (first, rest) = escaped.split_first()?;
    if (b'0'..=b'7').contains(first) {
        let digits = escaped.iter().take(3).take_while(|byte| (b'0'..=b'7').contains(byte)).count();
        let (octal, rest) = escaped.split_at_checked(digits)?;
        value.push(octal.iter().fold(0u8, |number, digit| number.wrapping_mul(8).wrapping_add(digit - b'0')));
        return Some(rest);
    }
    value.push(match first {
        b'b' => 0x08,
        b'f' => 0x0C,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        other => *other,
    });
    Some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(file: &str) -> Vec<(String, String)> {
        let text = |setting: Setting| (setting.name, String::from_utf8(setting.value).unwrap());
        parse(file.as_bytes()).into_iter().map(text).collect()
    }

    fn one(line: &str) -> Option<(String, String)> {
        let mut found = found(line);
        assert!(found.len() < 2);
        found.pop()
    }

    #[test]
    fn lines_as_people_write_them() {
        for (line, name, value) in [
            ("work_mem = 64MB", "work_mem", "64MB"),
            ("  Work_Mem=64MB  # per node", "work_mem", "64MB"),
            ("work_mem '64 MB'\t\r", "work_mem", "64 MB"),
            ("jit off", "jit", "off"),
            ("random_page_cost = 1.1", "random_page_cost", "1.1"),
            ("geqo_seed = -1e-3", "geqo_seed", "-1e-3"),
            ("search_path = '\"$user\", public'", "search_path", "\"$user\", public"),
            ("log_line_prefix = '%m it''s \\'x\\' \\\\ \\101\\n'", "log_line_prefix", "%m it's 'x' \\ A\n"),
            ("pg_stat_statements.max = 100", "pg_stat_statements.max", "100"),
            ("a.b.c = ''", "a.b.c", ""),
            ("timezone = Europe/Berlin", "timezone", "Europe/Berlin"),
            ("x = '# no comment' # comment", "x", "# no comment"),
        ] {
            assert_eq!(one(line), Some((name.to_owned(), value.to_owned())), "{line}");
        }
    }

    #[test]
    fn lines_that_say_nothing_are_passed_over() {
        for line in [
            "",
            "# work_mem = 4MB",
            "work_mem",
            "work_mem =",
            "= 5",
            "work_mem = 'x",
            "work_mem = a b",
            "1x = 5",
            "a. = 5",
            ".a = 5",
            "include 'other.conf'",
            "INCLUDE_DIR = 'conf.d'",
            "include_if_exists = 'x'",
            "x = 'a' 'b'",
            "x = '\\000'",
            "x = 5, 6",
            "\u{e9} = 5",
        ] {
            assert_eq!(one(line), None, "{line}");
        }
    }

    #[test]
    fn the_last_line_of_a_name_counts() {
        let expected = [("b", "2"), ("a", "3")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(found("a = 1\nb = 2\n\nA = 3\n"), expected);
    }

    #[test]
    fn what_is_written_is_read_again() {
        let value = b"it's \\ a\nb\xE9\tc".to_vec();
        let setting = Setting { name: "x.y".to_owned(), value };
        assert_eq!(parse(&line(&setting)), [setting]);
    }
}
