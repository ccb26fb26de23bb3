//! Walks the tree and measures every source file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::rust;

const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;
const COLUMNS_MAX: usize = 120;
/// Calls of `expect` in the whole product: each promises that something cannot fail, and says why.
const EXPECTS_MAX: usize = 20;
const EXPECT_WORDS_MIN: usize = 3;

/// Extensions of the files that count as sources.
const SOURCES: [&str; 4] = ["rs", "py", "sh", "toml"];

/// Directories without sources of ours. Names that start with a dot are skipped too, except `.ci`.
const SKIPPED: [&str; 4] = ["target", "__pycache__", "test_output", "node_modules"];

/// Sizes by rule, then by offender.
pub(crate) type Offenders = BTreeMap<String, BTreeMap<String, usize>>;

/// Results of measuring a tree.
#[derive(Default)]
pub(crate) struct Measured {
    pub(crate) offenders: Offenders,
    /// Lines of each offender, by rule and name.
    places: BTreeMap<(String, String), Vec<usize>>,
    pub(crate) files: usize,
    pub(crate) rust_lines: usize,
    pub(crate) functions: usize,
    /// `file:line` of each call of `expect`, and whether it says why it cannot fail.
    expects: Vec<(String, bool)>,
}

impl Measured {
    fn add(&mut self, rule: &str, name: &str, size: usize, lines: Vec<usize>) {
        let entry = self.offenders.entry(rule.to_owned()).or_default().entry(name.to_owned()).or_default();
        // Two functions of one name in one file share an entry: the larger counts.
        *entry = size.max(*entry);
        self.places.insert((rule.to_owned(), name.to_owned()), lines);
    }

    /// Measures that apply to every kind of source.
    fn text(&mut self, file: &Path, text: &str) {
        let name = file.display().to_string();
        self.add_lines("long_lines", &name, lines_where(text, |line| line.chars().count() > COLUMNS_MAX));
        self.add_lines("non_ascii", &name, lines_where(text, |line| !line.is_ascii()));
        self.add_lines("marks", &name, lines_where(text, has_mark));
    }

    /// Measures that apply to Rust; tests may be long and may unwrap.
    fn rust(&mut self, name: &str, found: &rust::Found, is_test: bool) {
        self.add_lines("bare_unsafe", name, found.bare_unsafe.clone());
        if is_test {
            return;
        }
        self.add_lines("unwrap", name, found.unwraps.clone());
        let expects = found.expects.iter();
        self.expects.extend(expects.map(|call| (format!("{name}:{}", call.line), call.words >= EXPECT_WORDS_MIN)));
        if found.lines > FILE_LINES_MAX {
            self.add("file_lines", name, found.lines, Vec::new());
        }
        self.rust_lines += found.lines;
        self.functions += found.functions.len();
        for function in found.functions.iter().filter(|function| function.lines > FUNCTION_LINES_MAX) {
            self.add("function_lines", &format!("{name}::{}", function.name), function.lines, vec![function.at]);
        }
    }

    fn add_lines(&mut self, rule: &str, name: &str, lines: Vec<usize>) {
        if !lines.is_empty() {
            self.add(rule, name, lines.len(), lines);
        }
    }

    /// Number of calls of `expect` in the product.
    pub(crate) fn expects(&self) -> usize {
        self.expects.len()
    }

    /// Findings about calls of `expect`: too many in total, or one that does not say why it cannot fail.
    pub(crate) fn expect_findings(&self) -> Vec<String> {
        let mute = self.expects.iter().filter(|(_, says_why)| !says_why);
        let mut findings: Vec<String> =
            mute.map(|(place, _)| format!("{place}: expect does not say, as plain text, why it cannot fail")).collect();
        if self.expects.len() > EXPECTS_MAX {
            let places: Vec<&str> = self.expects.iter().map(|(place, _)| place.as_str()).collect();
            let (count, places) = (places.len(), places.join(", "));
            findings.push(format!("{count} calls of expect outside tests, at most {EXPECTS_MAX} may be: {places}"));
        }
        findings
    }

    /// ` at line(s) ..`, or nothing if the whole file is meant.
    pub(crate) fn place(&self, rule: &str, name: &str) -> String {
        match self.places.get(&(rule.to_owned(), name.to_owned())) {
            Some(lines) if !lines.is_empty() => {
                let lines: Vec<String> = lines.iter().take(5).map(usize::to_string).collect();
                format!(" at line {}", lines.join(", "))
            }
            _ => String::new(),
        }
    }
}

/// Measures all sources below `root`.
pub(crate) fn tree(root: &Path) -> Result<Measured> {
    let mut files = Vec::new();
    find_sources(root, &mut files)?;
    files.sort();
    let mut measured = Measured { files: files.len(), ..Measured::default() };
    let mut parsed = Vec::new();
    for file in files {
        let name = file.strip_prefix(root).unwrap_or(&file).to_owned();
        let bytes = std::fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
        let text = String::from_utf8_lossy(&bytes);
        measured.text(&name, &text);
        if name.extension().is_some_and(|ending| ending == "rs") {
            let found = rust::measure(&text)
                .map_err(|e| anyhow::anyhow!("{}:{}: {e}", name.display(), e.span().start().line))?;
            parsed.push((name, found));
        }
    }
    let test_modules: Vec<PathBuf> = parsed.iter().flat_map(|(name, found)| test_modules(name, found)).collect();
    for (name, found) in &parsed {
        let is_test =
            is_test_file(name) || test_modules.iter().any(|module| name.with_extension("").starts_with(module));
        measured.rust(&name.display().to_string(), found, is_test);
    }
    Ok(measured)
}

/// The paths, without extension, of the modules that a file declares only for tests.
fn test_modules(file: &Path, found: &rust::Found) -> Vec<PathBuf> {
    let is_root = file.file_stem().is_some_and(|stem| stem == "lib" || stem == "main" || stem == "mod");
    let dir = if is_root { file.parent().unwrap_or(Path::new("")).to_owned() } else { file.with_extension("") };
    found.test_modules.iter().map(|module| dir.join(module)).collect()
}

fn find_sources(dir: &Path, out: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let kind = entry.file_type()?;
        let hidden = name.starts_with('.') && name != ".ci";
        if kind.is_dir() {
            if !hidden && !SKIPPED.contains(&name.as_ref()) {
                find_sources(&entry.path(), out)?;
            }
        } else if kind.is_file() && is_source(&entry.path()) {
            out.push(entry.path());
        }
    }
    Ok(())
}

fn is_source(file: &Path) -> bool {
    match file.extension() {
        Some(ending) => SOURCES.iter().any(|source| ending == *source),
        None => file.ends_with("Makefile") || file.ends_with(".ci/run"),
    }
}

/// Numbers, from 1, of the lines for which `is_offender` holds.
fn lines_where(text: &str, is_offender: impl Fn(&str) -> bool) -> Vec<usize> {
    text.lines().enumerate().filter(|(_, line)| is_offender(line)).map(|(at, _)| at + 1).collect()
}

/// The usual marks, assembled here so that this file contains none.
fn has_mark(line: &str) -> bool {
    [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"), concat!("HA", "CK")].iter().any(|mark| {
        line.match_indices(mark).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let after = line[at + mark.len()..].chars().next();
            !before.is_some_and(char::is_alphanumeric) && !after.is_some_and(char::is_alphanumeric)
        })
    })
}

/// Files that contain only tests, benches or fuzz targets, and those of crates that only tests use.
fn is_test_file(file: &Path) -> bool {
    let in_test_dir = file.parent().is_some_and(|dir| {
        dir.components()
            .filter_map(|part| part.as_os_str().to_str())
            .any(|part| ["tests", "benches", "fuzz", "examples"].contains(&part) || part.starts_with("test_"))
    });
    in_test_dir || file.file_stem().is_some_and(|stem| stem == "tests")
}
