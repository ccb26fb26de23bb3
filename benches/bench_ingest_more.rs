//! What `bench_ingest` leaves out: values that are read while more are written, several timelines at once, image
//! layers, and layers fetched from a bucket.
//!
//! The cases are run in rounds whose order turns around each time (A B B A), and just before each of them, the disk
//! itself is measured. Values and pages are made before the clock runs; whatever is read is compared with what was
//! written, and so are parts of each delta layer and all of each image layer. Settings are those of the server where
//! they matter: 16 MiB of written values stay in memory for readers, two layers are written at a time.
//!
//! `BENCH_MORE_MIB` and `BENCH_MORE_ROUNDS` set the size, arguments choose cases by what their names contain. Writes
//! `ingest_more.json` into the directory that `BENCH_RESULTS` names.

#[path = "common/artifact.rs"]
mod artifact;
// Its WAL-shaped and scattered cases are not used.
#[allow(dead_code)]
#[path = "ingest/case.rs"]
mod case;
#[path = "common/device.rs"]
mod device;
#[path = "ingest_more/download.rs"]
mod download;
#[path = "ingest_more/images.rs"]
mod images;
// Of the benchmark of buckets, only what makes a layer in one and opens it is used.
#[allow(dead_code)]
#[path = "tiered/processor.rs"]
mod processor;
#[path = "ingest_more/reader.rs"]
mod reader;
#[path = "ingest_more/sample.rs"]
mod sample;
#[allow(dead_code)]
#[path = "tiered/store.rs"]
mod store;
#[path = "ingest_more/values.rs"]
mod values;
#[allow(dead_code)]
#[path = "tiered/world.rs"]
mod world;
#[path = "ingest_more/write.rs"]
mod write;

use std::env;

use camino::Utf8Path;
use engine::config::PageServerConf;
use pageserver_api::models::virtual_file::IoMode;
use serde_json::{Map, Value, json};

use artifact::{Setting, Topology, Unit, Validity};
use case::VOLUME_MIB;
use device::{Device, Way};
use download::Bucket;
use images::{Kind, Pages};
use sample::Checked;
use write::Write;

/// An even number, so that each case precedes and follows each other equally often.
const ROUNDS: usize = 6;
/// The server's default.
const KEEP_BYTES: u64 = 16 << 20;
const DEPTHS: [usize; 3] = [1, 2, 4];

/// What is measured.
enum Job {
    Write(Write),
    Image(Kind),
    /// What an image layer costs before anything is written.
    Compress(Kind),
    Download,
    Copy,
}

/// What the jobs need; made before the clock runs.
struct Bench {
    conf: &'static PageServerConf,
    volume_mib: usize,
    device: Device,
    pages: [Pages; 2],
    bucket: Bucket,
}

impl Bench {
    async fn prepare(dir: &Utf8Path, volume_mib: usize) -> anyhow::Result<Self> {
        let conf =
            PageServerConf { ephemeral_keep_bytes: KEEP_BYTES, ..PageServerConf::dummy_conf(dir.join("workdir")) };
        Ok(Self {
            conf: Box::leak(Box::new(conf)),
            volume_mib,
            device: Device::new(dir.join("device").into(), volume_mib << 20),
            pages: [Kind::Random, Kind::Rows].map(|kind| Pages::new(kind, volume_mib)),
            bucket: Bucket::make(dir, volume_mib).await?,
        })
    }

    fn pages(&self, kind: Kind) -> &Pages {
        &self.pages[kind as usize]
    }

    fn describe(&self, job: &Job) -> Value {
        match job {
            Job::Write(write) => write.describe(),
            Job::Image(kind) => self.pages(*kind).describe("image"),
            Job::Compress(kind) => self.pages(*kind).describe("compress"),
            Job::Download => json!({ "kind": "download" }),
            Job::Copy => json!({ "kind": "copy" }),
        }
    }

    async fn run(&self, job: &Job) -> anyhow::Result<Checked> {
        match job {
            Job::Write(write) => write.run(self.conf, self.volume_mib).await,
            Job::Image(kind) => self.pages(*kind).write(self.conf).await,
            Job::Compress(kind) => self.pages(*kind).compress(),
            Job::Download => self.bucket.download().await,
            Job::Copy => self.bucket.copy(),
        }
    }

    /// MiB/s of the disk itself, by depth.
    async fn limit(&self) -> Map<String, Value> {
        let mut rates = Map::new();
        for way in DEPTHS.map(Way::Direct) {
            rates.insert(way.name(), self.device.write(way, false).await.into());
        }
        rates
    }

    /// Runs a case once, after the disk itself.
    async fn sample(&self, job: &Job, validity: &mut Validity) -> anyhow::Result<Value> {
        let device = self.limit().await;
        let compared = self.device.compare();
        anyhow::ensure!(compared.seen == compared.expected && compared.different == 0, "the disk: {compared:?}");
        self.device.remove();
        let (sample, checked) = self.run(job).await?;
        validity.add(checked);
        Ok(sample.figures(device))
    }
}

fn jobs() -> Vec<Job> {
    let images = [Kind::Random, Kind::Rows].into_iter().flat_map(|kind| [Job::Image(kind), Job::Compress(kind)]);
    Write::all().into_iter().map(Job::Write).chain(images).chain([Job::Download, Job::Copy]).collect()
}

/// The values of a case's description.
fn name(described: &Value) -> String {
    let words = described.as_object().into_iter().flatten().map(|(name, value)| format!("{name}={value}"));
    words.collect::<Vec<_>>().join(" ").replace('"', "")
}

fn number(variable: &str, default: usize) -> anyhow::Result<usize> {
    Ok(env::var(variable).map_or(Ok(default), |text| text.parse())?)
}

async fn run(dir: &Utf8Path, wanted: &[String]) -> anyhow::Result<()> {
    let engine = virtual_file::io_engine_for_bench();
    let setting = Setting::one_process(dir.as_std_path(), engine, "DirectRw");
    let topology = Topology::take(Setting { store: "directory".to_owned(), ..setting });
    virtual_file::init(16384, engine, IoMode::DirectRw, virtual_file::SyncMode::Sync);
    let (volume_mib, rounds) = (number("BENCH_MORE_MIB", VOLUME_MIB)?, number("BENCH_MORE_ROUNDS", ROUNDS)?);
    let bench = Bench::prepare(dir, volume_mib).await?;
    let mut rows: Vec<(Job, Value, Vec<Value>)> =
        jobs().into_iter().map(|job| (bench.describe(&job), job)).map(|(told, job)| (job, told, Vec::new())).collect();
    rows.retain(|(_, told, _)| wanted.is_empty() || wanted.iter().any(|word| name(told).contains(word)));
    let mut validity = Validity::of(Unit::Values);
    for round in 0..rounds {
        for (job, told, samples) in &mut rows {
            let sample = bench.sample(job, &mut validity).await?;
            println!("round {round} {}: {:.0} MiB/s", name(told), sample["mib_per_s"].as_f64().unwrap_or(f64::NAN));
            samples.push(sample);
        }
        rows.reverse();
    }
    if !rounds.is_multiple_of(2) {
        rows.reverse();
    }
    let as_json = |(_, told, samples)| json!({ "case": told, "runs": samples });
    let rows: Vec<Value> = rows.into_iter().map(as_json).collect();
    let results = json!({ "volume_mib": volume_mib, "rounds": rounds, "keep_bytes": KEEP_BYTES, "rows": rows });
    artifact::write("ingest_more", &topology, validity, results)?;
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let wanted: Vec<String> = env::args().skip(1).filter(|arg| arg != "--bench").collect();
    if wanted.iter().any(|arg| arg == "--test") {
        return Ok(());
    }
    // The same provider that the engine would install when it opens a bucket.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // Where the benchmark of buckets has its files, too: everything must be on one disk.
    let dir = camino_tempfile::tempdir_in(env::var("CARGO_TARGET_TMPDIR").unwrap_or_else(|_| "/tmp".to_owned()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(run(dir.path(), &wanted))
}
