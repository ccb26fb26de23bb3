//! One trial: a pageserver on an empty disk, a read-only compute on it, and the queries.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use camino::{Utf8Path, Utf8PathBuf};
use pageserver::settings::{KEYS, Overrides, Settings};
use pageserver_api::shard::TenantShardId;
use remote_storage::{RemotePath, RemoteStorage, RequestClass};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use virtual_file::fs;

use super::options::TuneArgs;
use super::search::Choice;
use crate::args::Common;
use crate::remote::Client;

/// How long the pageserver may take to start, and to stop.
const START: Duration = Duration::from_secs(90);
const STOP: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_millis(10);
/// Lines of a log that are shown if the pageserver ends by itself.
const LINES: usize = 20;
/// The compute.
const COMPUTE: &str = "tune";
/// Groups of settings that the second pageserver takes over from the first: where it reads, and how much it may keep.
const GROUPS: [&str; 5] = ["Memory and files", "Writing", "Reading", "Object storage", "Local disk"];
/// But not these, which it has of its own, or would write by.
const NOT: [&str; 5] =
    ["remote_storage", "remote_storage_scratch", "remote_storage_credentials_file", "attach_on_start", "server_id"];

/// What one run of the queries took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figures {
    /// Of all statements, as psql tells.
    pub(super) ms: f64,
    /// To the bucket.
    pub(super) requests: f64,
    /// From the bucket.
    pub(super) bytes: f64,
}

/// All trials. What they leave goes when this is dropped.
pub(super) struct Trials<'a> {
    args: &'a TuneArgs,
    /// Those of the first pageserver,
    settings: Settings,
    /// and its working directory.
    workdir: Utf8PathBuf,
    tenant: TenantShardId,
    server: Utf8PathBuf,
    computes: Utf8PathBuf,
    runtime: Runtime,
}

impl<'a> Trials<'a> {
    pub(super) fn new(common: &Common, args: &'a TuneArgs) -> anyhow::Result<Self> {
        ensure!(args.sql.is_file(), "{}: there is no such file", args.sql);
        let workdir = camino::absolute_utf8(&common.workdir)?;
        let (settings, _) = Settings::load(&workdir, &Overrides::default())
            .with_context(|| format!("{workdir} is to be the working directory of a pageserver (--workdir)"))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let tenant = runtime.block_on(tenant_of(&settings, &workdir, common.tenant))?;
        let place = match &args.place {
            Some(place) => camino::absolute_utf8(place)?,
            None => Utf8PathBuf::try_from(std::env::temp_dir())?,
        };
        let name = format!("pagectl-tune-{}", std::process::id());
        let (server, computes) = (place.join(format!("{name}-server")), place.join(format!("{name}-computes")));
        Ok(Self { args, settings, workdir, tenant, server, computes, runtime })
    }

    /// What is in use.
    pub(super) fn yours(&self) -> Choice {
        let Settings { read_ahead_max, prefetch_whole_after, .. } = self.settings;
        Choice::new([read_ahead_max, prefetch_whole_after, self.args.effective_io_concurrency])
    }

    /// Whether the pageserver would accept it.
    pub(super) fn is_allowed(&self, choice: Choice) -> bool {
        choice.values()[0] <= self.settings.block_cache_memory / 6
    }

    /// Runs the queries as often as is asked for, each time with nothing in memory and on an empty disk.
    pub(super) fn run(&self, choice: &Choice) -> anyhow::Result<Vec<Figures>> {
        (0..self.args.rounds).map(|_| self.run_once(choice).with_context(|| choice.to_string())).collect()
    }

    fn run_once(&self, choice: &Choice) -> anyhow::Result<Figures> {
        self.wipe()?;
        self.runtime.block_on(async {
            fs::create_dir_all(&self.server).await?;
            let path = self.server.join("pageserver.toml");
            virtual_file::write_file_durably(&path, self.config(choice)?.as_bytes()).await?;
            anyhow::Ok(())
        })?;
        let server = Server::start(&self.server)?;
        let path = format!("/v1/tenant/{}/location_config", self.tenant);
        server.client.call("PUT", &path, Some(&json!({ "mode": "AttachedSingle" })))?;
        let compute = Running { trials: self, url: &server.url };
        // What is fetched for the compute's start may be what the queries need.
        let before = server.counters()?;
        compute.start(&server.page_service, choice)?;
        let ms = compute.ask()?;
        let after = server.counters()?;
        drop(compute);
        server.stop()?;
        Ok(Figures { ms, requests: after.0 - before.0, bytes: after.1 - before.1 })
    }

    /// The configuration of the second pageserver.
    fn config(&self, choice: &Choice) -> anyhow::Result<String> {
        let url = self.settings.store(&self.workdir).map_err(anyhow::Error::msg)?.name;
        let credentials = &self.settings.remote_storage_credentials_file;
        let mut text = format!(
            "listen_pg_addr = \"127.0.0.1:0\"\nlisten_http_addr = \"127.0.0.1:0\"\nremote_storage = {}\n\
             remote_storage_scratch = \"scratch\"\nattach_on_start = \"local\"\ncompaction_threshold = 0\n\
             gc_period = \"1000d\"\nlog_filter = \"warn\"\n{}",
            toml::Value::from(url),
            choice.server_lines(),
        );
        if !credentials.as_str().is_empty() {
            let path = Settings::path(&self.workdir, credentials);
            writeln!(text, "remote_storage_credentials_file = {}", toml::Value::from(path.as_str()))?;
        }
        for key in KEYS.iter().filter(|key| GROUPS.contains(&key.group) && !NOT.contains(&key.name)) {
            let value = self.settings.get(key.name).unwrap_or_else(|| key.default_value());
            if value != key.default_value() && !choice.has(key.name) {
                writeln!(text, "{} = {value}", key.name)?;
            }
        }
        Ok(text)
    }

    /// Removes what a trial leaves.
    fn wipe(&self) -> anyhow::Result<()> {
        self.runtime.block_on(async {
            fs::remove_tree(&self.server).await?;
            fs::remove_tree(&self.computes).await?;
            Ok(())
        })
    }
}

impl Drop for Trials<'_> {
    fn drop(&mut self) {
        if let Err(left) = self.wipe() {
            tracing::warn!("left behind: {left:#}");
        }
    }
}

/// The tenant that is asked for, or the only one that the bucket has.
async fn tenant_of(
    settings: &Settings,
    workdir: &Utf8Path,
    asked: Option<TenantShardId>,
) -> anyhow::Result<TenantShardId> {
    let store = settings.store(workdir).map_err(anyhow::Error::msg)?;
    let bucket = RemoteStorage::open(&store).await?;
    let bucket = bucket.context("there is no bucket (remote_storage is none): only what is in one can be tried")?;
    let names = bucket.list_dirs(RequestClass::Control, &RemotePath::tenants()).await?;
    let there: Vec<TenantShardId> = names.iter().filter_map(|name| name.parse().ok()).collect();
    match (asked, there.as_slice()) {
        (Some(asked), there) if there.contains(&asked) => Ok(asked),
        (Some(asked), _) => bail!("{} has no tenant {asked}", store.name),
        (None, [only]) => Ok(*only),
        (None, []) => bail!("{} has no tenant", store.name),
        (None, there) => bail!("{} has {} tenants: say which one with --tenant", store.name, there.len()),
    }
}

/// The second pageserver.
struct Server {
    child: Child,
    log: Arc<Mutex<VecDeque<String>>>,
    url: String,
    page_service: String,
    client: Client,
}

impl Server {
    fn start(workdir: &Utf8Path) -> anyhow::Result<Self> {
        let program = beside_us("pageserver")?;
        let mut child = Command::new(program.as_std_path())
            .args(["--workdir", workdir.as_str()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        let log = Arc::new(Mutex::new(VecDeque::new()));
        if let Some(stderr) = child.stderr.take() {
            keep_lines(stderr, Arc::clone(&log))?;
        }
        let client = Client::new("http://127.0.0.1:1", None, None)?;
        let mut server = Self { child, log, url: String::new(), page_service: String::new(), client };
        server.await_answer(workdir)?;
        Ok(server)
    }

    fn await_answer(&mut self, workdir: &Utf8Path) -> anyhow::Result<()> {
        let deadline = env::clock::now() + START;
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("the pageserver for trials ended ({status}):\n{}", self.said());
            }
            if self.answers(workdir).is_some() {
                return Ok(());
            }
            ensure!(env::clock::now() < deadline, "the pageserver for trials does not answer:\n{}", self.said());
            env::clock::pause(TICK);
        }
    }

    fn answers(&mut self, workdir: &Utf8Path) -> Option<()> {
        let text = std::fs::read_to_string(workdir.join("pageserver.addr")).ok()?;
        let told: Value = serde_json::from_str(&text).ok()?;
        let (_, port) = told["listen_pg_addr"].as_str()?.rsplit_once(':')?;
        self.url = format!("http://{}", told["listen_http_addr"].as_str()?);
        self.page_service = format!("host=127.0.0.1 port={port} user=compute");
        self.client = Client::new(&self.url, None, None).ok()?;
        self.client.call("GET", "/v1/status", None).ok().map(drop)
    }

    fn said(&self) -> String {
        let lines = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    /// Requests to the bucket so far, and bytes from there.
    fn counters(&self) -> anyhow::Result<(f64, f64)> {
        let text = String::from_utf8(self.client.bytes("GET", "/metrics", None)?)?;
        let sum = |name: &str| {
            let lines = text.lines().filter_map(|line| line.strip_prefix(name)).filter(|line| line.starts_with('{'));
            lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
        };
        Ok((sum("pageserver_remote_storage_requests_total"), sum("pageserver_remote_storage_bytes_in_total")))
    }

    fn stop(mut self) -> anyhow::Result<()> {
        self.signal(Signal::TERM);
        let deadline = env::clock::now() + STOP;
        while self.child.try_wait()?.is_none() {
            ensure!(env::clock::now() < deadline, "the pageserver for trials does not stop:\n{}", self.said());
            env::clock::pause(TICK);
        }
        Ok(())
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has nothing that anybody needs.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Keeps the last lines of a log.
fn keep_lines(stderr: ChildStderr, log: Arc<Mutex<VecDeque<String>>>) -> anyhow::Result<()> {
    env::spawn::thread("log of the pageserver for trials", move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let mut lines = log.lock().unwrap_or_else(PoisonError::into_inner);
            if lines.len() == LINES {
                lines.pop_front();
            }
            lines.push_back(line);
        }
    })?;
    Ok(())
}

/// The compute of a trial, which is removed when this is dropped.
struct Running<'a> {
    trials: &'a Trials<'a>,
    url: &'a str,
}

impl Running<'_> {
    fn start(&self, page_service: &str, choice: &Choice) -> anyhow::Result<()> {
        let tenant = self.trials.tenant.to_string();
        let words = choice.compute_words();
        let mut command = self.command("start")?;
        command.args([COMPUTE, "--read-only", "--page-service", page_service, "--tenant", &tenant]);
        command.args(words.split_whitespace());
        if let Some(branch) = &self.trials.args.branch {
            command.args(["--branch", branch]);
        }
        if let Some(dir) = &self.trials.args.pg_bin {
            command.arg("--pg-bin").arg(dir);
        }
        run(command, START).map(drop).context("the compute for trials does not start")
    }

    /// Runs the queries; the milliseconds of all statements together.
    fn ask(&self) -> anyhow::Result<f64> {
        let args = self.trials.args;
        let sql = camino::absolute_utf8(&args.sql)?;
        let mut command = self.command("connect")?;
        command.args([COMPUTE, "--dbname", &args.dbname, "--", "-Xq", "-v", "ON_ERROR_STOP=1", "-o", "/dev/null"]);
        command.args(["-c", "\\timing on", "-f", sql.as_str()]);
        let output = run(command, args.timeout).with_context(|| format!("the queries of {sql}"))?;
        let times = times(&String::from_utf8_lossy(&output.stdout));
        ensure!(!times.is_empty(), "{sql} has no statement");
        Ok(times.iter().sum())
    }

    fn command(&self, what: &str) -> anyhow::Result<Command> {
        let ours = std::env::current_exe().context("which program is this?")?;
        let mut command = Command::new(ours);
        command.args(["--server", self.url, "compute", "--computes", self.trials.computes.as_str(), what]);
        Ok(command)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let destroyed = self.command("destroy").and_then(|mut command| {
            command.args([COMPUTE, "--force"]);
            run(command, STOP)
        });
        if let Err(left) = destroyed {
            tracing::debug!("no compute is removed: {left:#}");
        }
    }
}

/// The times that psql tells, in milliseconds.
fn times(text: &str) -> Vec<f64> {
    let time = |line: &str| line.strip_prefix("Time: ")?.split_whitespace().next()?.parse().ok();
    text.lines().filter_map(time).collect()
}

/// A program of ours, from where this one is.
fn beside_us(name: &str) -> anyhow::Result<Utf8PathBuf> {
    let ours = Utf8PathBuf::try_from(std::env::current_exe().context("which program is this?")?)?;
    Ok(ours.with_file_name(name))
}

/// Runs a program to its end; it must succeed, within `limit`.
fn run(mut command: Command, limit: Duration) -> anyhow::Result<Output> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let (sender, ended) = mpsc::channel();
    env::spawn::thread("wait for a program", move || sender.send(child.wait_with_output()))?;
    let output = match ended.recv_timeout(limit) {
        Ok(output) => output?,
        Err(_) => {
            if let Some(pid) = pid {
                let _ = kill_process(pid, Signal::TERM);
            }
            bail!("not done within {}", humantime::format_duration(limit));
        }
    };
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_psql_tells_them() {
        let text = "Time: 1.250 ms\nother\nTime: 61000.500 ms (01:01.001)\nTime: nothing\n";
        assert_eq!(times(text), [1.25, 61000.5]);
    }

    #[test]
    fn a_program_that_fails_or_takes_too_long_is_an_error() {
        let shell = |text: &str| {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", text]);
            command
        };
        assert!(run(shell("true"), START).is_ok());
        assert_eq!(run(shell("echo why >&2; exit 3"), START).unwrap_err().to_string(), "why");
        let late = run(shell("exec sleep 60"), Duration::from_millis(50)).unwrap_err().to_string();
        assert_eq!(late, "not done within 50ms");
    }
}
