//! Postgres servers for tests, on unix sockets, as user postgres.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use camino_tempfile::Utf8TempDir;

const BIN: &str = test_needs::POSTGRES_15;

const SETTINGS: &str = "
listen_addresses = ''
fsync = off
shared_buffers = 64MB
max_wal_size = 1GB
min_wal_size = 80MB
max_prepared_transactions = 10
wal_log_hints = on
";

/// Where servers live; removed with all that is in it.
pub struct Place {
    dir: Utf8TempDir,
}

impl Place {
    pub fn new() -> Self {
        let dir = camino_tempfile::tempdir().unwrap();
        run("chown", &["postgres", dir.path().as_str()]);
        Self { dir }
    }

    pub fn path(&self) -> &Utf8Path {
        self.dir.path()
    }
}

/// A server; stopped when dropped.
pub struct Server {
    pub data: Utf8PathBuf,
    sockets: Utf8PathBuf,
    port: u16,
}

fn run(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{program} {args:?}: {text}");
    String::from_utf8(out.stdout).unwrap()
}

fn as_postgres(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new("runuser");
    command.args(["-u", "postgres", "--", &format!("{BIN}/{program}")]).args(args);
    command
}

fn run_as_postgres(program: &str, args: &[&str]) -> String {
    let log = Stdio::piped();
    let out = as_postgres(program, args).stderr(log).output().unwrap();
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{program} {args:?}: {text}");
    String::from_utf8(out.stdout).unwrap()
}

impl Server {
    fn at(place: &Place, name: &str) -> Self {
        static NEXT: AtomicU16 = AtomicU16::new(6000);
        let port = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { data: place.path().join(name), sockets: place.path().to_owned(), port }
    }

    /// A new cluster, started.
    pub fn create(place: &Place, name: &str, settings: &str) -> Self {
        let server = Self::at(place, name);
        run_as_postgres("initdb", &["-D", server.data.as_str(), "-k", "-A", "trust", "-U", "postgres"]);
        server.configure(&format!("{SETTINGS}{settings}"));
        server.start();
        server
    }

    /// A standby of this server, started.
    pub fn standby(&self, place: &Place, name: &str) -> Self {
        let standby = Self::at(place, name);
        let (host, port) = (self.sockets.as_str(), self.port.to_string());
        let target = standby.data.as_str();
        run_as_postgres(
            "pg_basebackup",
            &["-h", host, "-p", &port, "-U", "postgres", "-D", target, "-R", "-c", "fast"],
        );
        standby.configure("");
        standby.start();
        standby
    }

    fn configure(&self, settings: &str) {
        let own = format!("{settings}\nport = {}\nunix_socket_directories = '{}'\n", self.port, self.sockets);
        let path = self.data.join("postgresql.conf");
        let before = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, before + &own).unwrap();
    }

    pub fn start(&self) {
        let log = format!("{}.log", self.data);
        let args = ["-D", self.data.as_str(), "-l", &log, "-w", "-s", "start"];
        // What a crash left of a server may hold its shared memory for a moment.
        let attempts = (0..20).any(|_| {
            let started = as_postgres("pg_ctl", &args).stderr(Stdio::null()).status().unwrap().success();
            if !started {
                std::thread::sleep(Duration::from_millis(500));
            }
            started
        });
        assert!(attempts, "cannot start: {}", std::fs::read_to_string(&log).unwrap_or_default());
    }

    pub fn stop(&self) {
        run_as_postgres("pg_ctl", &["-D", self.data.as_str(), "-w", "-s", "-m", "fast", "stop"]);
    }

    pub fn promote(&self) {
        run_as_postgres("pg_ctl", &["-D", self.data.as_str(), "-w", "-s", "promote"]);
    }

    /// SIGKILL. Its children notice by themselves.
    pub fn kill(&self) {
        let pid = std::fs::read_to_string(self.data.join("postmaster.pid")).unwrap();
        let pid = pid.lines().next().unwrap().to_owned();
        run("kill", &["-9", &pid]);
    }

    pub fn connstr(&self) -> String {
        format!("host={} port={} user=postgres dbname=postgres", self.sockets, self.port)
    }

    /// One that tries this server first, then `other`.
    pub fn connstr_with(&self, other: &Server) -> String {
        format!("host={0},{0} port={1},{2} user=postgres", self.sockets, self.port, other.port)
    }

    fn client_args(&self) -> [String; 6] {
        let words = ["-h", self.sockets.as_str(), "-U", "postgres", "-p", &self.port.to_string()];
        words.map(str::to_owned)
    }

    pub fn sql(&self, sql: &str) -> String {
        let own = self.client_args();
        let mut args: Vec<&str> = own.iter().map(String::as_str).collect();
        args.extend(["-d", "postgres", "-qAtX", "-v", "ON_ERROR_STOP=1"]);
        let lines: Vec<&str> = sql.split(";\n").collect();
        lines.iter().for_each(|line| args.extend(["-c", line]));
        run_as_postgres("psql", &args).trim().to_owned()
    }

    pub fn pgbench(&self, extra: &[&str]) -> Child {
        let own = self.client_args();
        let mut args: Vec<&str> = own.iter().map(String::as_str).collect();
        args.extend(extra);
        args.push("postgres");
        as_postgres("pgbench", &args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    pub fn current_lsn(&self) -> utils::lsn::Lsn {
        self.sql("select pg_current_wal_flush_lsn()").parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let args = ["-D", self.data.as_str(), "-s", "-m", "immediate", "stop"];
        let _ = as_postgres("pg_ctl", &args).stderr(Stdio::null()).status();
    }
}
