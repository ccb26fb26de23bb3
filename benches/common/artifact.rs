//! The artifact of a benchmark: its results with where they were measured and what was checked.
//!
//! The form is that of `benches/artifact.py`, which the reports read: they refuse an artifact without topology or
//! validity, with nothing compared, or with a difference. A run whose artifact they would refuse writes nothing.

use std::io::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

/// Version of the form; `FORMAT` in `benches/artifact.py`.
const FORMAT: u32 = 1;

/// The part of the topology that only the benchmark knows.
pub struct Setting<'a> {
    /// Where its files are.
    pub dir: &'a Path,
    /// I/O engine and mode of the server's files; "none" if it has none.
    pub engine: String,
    pub io_mode: String,
    pub allocator: &'static str,
    /// Where layers are besides the local disk, and the delay added to each request there, in ms.
    pub store: String,
    pub delay_ms: Vec<u64>,
    /// Whether the client shares the server's cores.
    pub client_on_same_cores: bool,
}

#[allow(dead_code, reason = "not every benchmark runs like this")]
impl<'a> Setting<'a> {
    /// Everything in one process with the system's allocator, and no bucket besides the local disk.
    pub fn one_process(dir: &'a Path, engine: impl ToString, io_mode: &str) -> Self {
        Self {
            dir,
            engine: engine.to_string(),
            io_mode: io_mode.to_owned(),
            allocator: "malloc",
            store: "none".to_owned(),
            delay_ms: vec![0],
            client_on_same_cores: true,
        }
    }
}

/// Where a run takes place; created at its beginning, because it records the machine's load before the run.
pub struct Topology(Value);

impl Topology {
    pub fn take(setting: Setting<'_>) -> Self {
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        Self(json!({
            "date": first_line("date", &["-u", "+%F"]),
            "commit": first_line("git", &["rev-parse", "--short", "HEAD"]),
            "dirty": dirty(), "cores": cores, "cpu": cpu(), "memory_gib": memory_gib(),
            "kernel": read("/proc/sys/kernel/osrelease").trim(), "file_system": file_system(setting.dir),
            "engine": setting.engine, "io_mode": setting.io_mode, "allocator": setting.allocator, "profile": profile(),
            "store": setting.store, "delay_ms": setting.delay_ms,
            "client_on_same_cores": setting.client_on_same_cores, "load_before": load(),
        }))
    }
}

/// What was checked of the answers, in `unit`s.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub struct Validity {
    pub unit: Unit,
    pub expected: u64,
    pub seen: u64,
    pub compared: u64,
    pub different: u64,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    Pages,
    Values,
    Bytes,
}

#[allow(dead_code, reason = "not every benchmark counts in the same way")]
impl Validity {
    /// An empty count.
    pub fn of(unit: Unit) -> Self {
        Self { unit, expected: 0, seen: 0, compared: 0, different: 0 }
    }

    /// Counts an answer that was compared.
    pub fn compare(&mut self, equal: bool) {
        self.expected += 1;
        self.seen += 1;
        self.compared += 1;
        self.different += u64::from(!equal);
    }

    /// Counts an expected answer that did not arrive.
    pub fn missing(&mut self) {
        self.expected += 1;
    }

    /// Adds another part of the same run.
    pub fn add(&mut self, other: Self) {
        self.expected += other.expected;
        self.seen += other.seen;
        self.compared += other.compared;
        self.different += other.different;
    }

    fn check(&self) -> Result<()> {
        let whole = self.compared > 0 && self.seen == self.expected && self.compared <= self.seen;
        if whole && self.different == 0 {
            return Ok(());
        }
        Err(Error::other(format!("the run does not count, nothing is written: {self:?}")))
    }
}

/// Writes `NAME.json` into the directory that `BENCH_RESULTS` names, else into the build's directory for such files.
///
/// # Errors Answers were missing or different, or none was compared; or the file cannot be written.
pub fn write(name: &str, topology: &Topology, validity: Validity, results: Value) -> Result<PathBuf> {
    validity.check()?;
    let artifact = json!({
        "format": FORMAT, "bench": name, "topology": topology.0, "validity": validity, "results": results,
    });
    let dir =
        std::env::var_os("BENCH_RESULTS").map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
    let path = dir.join(format!("{name}.json"));
    std::fs::write(&path, format!("{artifact:#}\n"))?;
    println!("written to {}", path.display());
    Ok(path)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn first_line(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).lines().next().unwrap_or("unknown").to_owned()
}

/// Whether the measured code differs from the commit; earlier results do not matter.
fn dirty() -> bool {
    let root = first_line("git", &["rev-parse", "--show-toplevel"]);
    let sources = ["-C", &root, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!benches/results"];
    first_line("git", &sources) != "unknown"
}

fn cpu() -> String {
    let info = read("/proc/cpuinfo");
    let model = info.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split(": ").nth(1));
    model.unwrap_or(std::env::consts::ARCH).to_owned()
}

fn memory_gib() -> u64 {
    let info = read("/proc/meminfo");
    let kib = info.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0);
    kib.div_ceil(1 << 20)
}

fn file_system(dir: &Path) -> String {
    first_line("findmnt", &["-no", "FSTYPE", "-T", &dir.to_string_lossy()])
}

/// The build's profile is the directory that the program is in.
fn profile() -> String {
    let program = std::env::current_exe().unwrap_or_default();
    let dirs = program.iter().rev().skip(1).map(|part| part.to_string_lossy().into_owned());
    dirs.into_iter().find(|part| part != "deps").unwrap_or_default()
}

fn load() -> f64 {
    read("/proc/loadavg").split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(f64::NAN)
}
