//! A small PostgreSQL cluster in a temporary directory, run as user `postgres`, removed when dropped.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use postgres_formats::version::PgVersion;
use test_needs::{Missing, POSTGRES_15};

/// A cluster's directory. The server runs only between [`Cluster::start`] and [`Cluster::stop`].
pub struct Cluster {
    bin: PathBuf,
    dir: PathBuf,
    running: bool,
    /// Major version of the programs.
    pub version: PgVersion,
}

/// A program to be run as user `postgres`, which servers insist on.
fn as_postgres(program: &Path, args: &[&str]) -> Command {
    let mut command = match user().as_str() {
        "postgres" => Command::new(program),
        _ => {
            let mut command = Command::new("runuser");
            command.args(["-u", "postgres", "--"]).arg(program);
            command
        }
    };
    command.args(args).current_dir("/").env("LC_ALL", "C");
    command
}

/// Runs a program as user `postgres`; fails loudly.
fn run_as_postgres(program: &Path, args: &[&str], input: Option<&Path>) -> Output {
    let mut command = as_postgres(program, args);
    if let Some(input) = input {
        command.stdin(std::fs::File::open(input).unwrap());
    }
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} {args:?}: {stderr}", program.display());
    output
}

fn user() -> String {
    let output = Command::new("id").arg("-un").output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

impl Cluster {
    /// A new cluster, where there are programs and the right to run them.
    pub fn create(settings: &str) -> Result<Self, Missing> {
        let bin = std::env::var("PG_BIN_DIR").unwrap_or_else(|_| POSTGRES_15.to_owned());
        let bin = PathBuf::from(bin);
        test_needs::file(bin.join("initdb"))?;
        if !["root", "postgres"].contains(&user().as_str()) {
            return Err(Missing::new("the rights of root or of user postgres"));
        }
        let version = run_as_postgres(&bin.join("postgres"), &["--version"], None).stdout;
        let version = String::from_utf8(version).unwrap();
        let major = version.split_whitespace().nth(2).unwrap().split('.').next().unwrap().parse().unwrap();
        let version = PgVersion::from_major(major).unwrap();
        let made = run_as_postgres(Path::new("mktemp"), &["-d", "/tmp/real_wal.XXXXXX"], None).stdout;
        let dir = PathBuf::from(String::from_utf8(made).unwrap().trim());
        let cluster = Self { bin, dir, running: false, version };
        let data = cluster.data();
        cluster.run("initdb", &["-k", "-N", "-A", "trust", "-D", data.to_str().unwrap()]);
        let conf = data.join("postgresql.conf");
        let socket = cluster.dir.display();
        let more = format!("listen_addresses = ''\nunix_socket_directories = '{socket}'\n{settings}\n");
        std::fs::write(&conf, std::fs::read_to_string(&conf).unwrap() + &more).unwrap();
        Ok(cluster)
    }

    /// The data directory.
    pub fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Runs one of the server's programs.
    pub fn run(&self, program: &str, args: &[&str]) -> String {
        String::from_utf8_lossy(&run_as_postgres(&self.bin.join(program), args, None).stdout).into_owned()
    }

    /// Starts the server.
    pub fn start(&mut self) {
        let (data, log) = (self.data(), self.dir.join("log"));
        self.running = true;
        self.run("pg_ctl", &["-s", "-w", "-D", data.to_str().unwrap(), "-l", log.to_str().unwrap(), "start"]);
    }

    /// Stops the server: `fast`, or `immediate` as by a crash.
    pub fn stop(&mut self, mode: &str) {
        self.run("pg_ctl", &["-s", "-w", "-D", self.data().to_str().unwrap(), "-m", mode, "stop"]);
        self.running = false;
    }

    /// Runs SQL, each statement by itself.
    pub fn sql(&self, sql: &str) {
        let file = self.dir.join("input.sql");
        std::fs::write(&file, sql).unwrap();
        let args = ["-h", self.dir.to_str().unwrap(), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", "postgres"];
        run_as_postgres(&self.bin.join("psql"), &args, Some(&file));
    }

    /// Fills the tables of `pgbench`.
    pub fn pgbench_init(&self, scale: u32) {
        let scale = scale.to_string();
        self.run("pgbench", &["-h", self.dir.to_str().unwrap(), "-i", "-q", "-s", &scale, "postgres"]);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Best effort, for the test may have failed because the server did not start.
        let data = self.data();
        if self.running {
            let args = ["-s", "-D", data.to_str().unwrap_or_default(), "-m", "immediate", "stop"];
            let _ = as_postgres(&self.bin.join("pg_ctl"), &args).output();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
