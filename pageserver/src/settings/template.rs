//! The table of keys for people: as a commented file, and as Markdown.

use std::fmt::Write;

use super::keys::{KEYS, Settings};
use super::{ENV_PREFIX, FILE_NAME};

/// A settings file that lists every key with its meaning, unit and default. Keys whose value in `settings` is not the
/// default are set; the others are commented out.
pub fn commented_file(settings: &Settings) -> String {
    let mut text = format!(
        "# {FILE_NAME}: settings of one pageserver. What is commented out has the value shown.\n\
         # The environment ({ENV_PREFIX}<KEY>) overrides this file, and flags (-c key=value) override both.\n"
    );
    let mut group = "";
    for key in KEYS {
        if key.group != group {
            group = key.group;
            let _ = write!(text, "\n### {group}\n");
        }
        let default = key.default_value();
        let value = settings.get(key.name).unwrap_or_else(|| default.clone());
        let mark = if settings.get(key.name) == Settings::default().get(key.name) { "#" } else { "" };
        let _ = write!(text, "\n{}", comment(&format!("{} Unit: {}. Default: {default}.", key.doc.trim(), key.unit)));
        let _ = writeln!(text, "{mark}{} = {}", key.name, if mark.is_empty() { &value } else { &default });
    }
    text
}

/// Wraps `text` into comment lines.
fn comment(text: &str) -> String {
    const WIDTH: usize = 100;
    let mut lines = String::from("#");
    let mut width = 1;
    for word in text.split_whitespace() {
        if width + 1 + word.len() > WIDTH {
            lines.push_str("\n#");
            width = 1;
        }
        lines.push(' ');
        lines.push_str(word);
        width += 1 + word.len();
    }
    lines.push('\n');
    lines
}

/// The keys as Markdown tables, one per group.
pub fn markdown_table() -> String {
    let mut text = String::new();
    let mut group = "";
    for key in KEYS {
        if key.group != group {
            group = key.group;
            let _ = write!(text, "\n### {group}\n\n| key | unit | default | meaning |\n|---|---|---|---|\n");
        }
        let doc = key.doc.split_whitespace().collect::<Vec<_>>().join(" ");
        let _ = writeln!(text, "| `{}` | {} | `{}` | {doc} |", key.name, key.unit, key.default_value());
    }
    text
}
