//! A throw-away PostgreSQL cluster on a unix socket.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use camino_tempfile::Utf8TempDir;

/// Settings for all clusters: WAL with check images, nothing that runs by itself, no WAL file ever removed.
const COMMON: &str = "
listen_addresses = ''
wal_level = replica
wal_consistency_checking = 'all'
wal_keep_size = 20GB
max_wal_size = 20GB
checkpoint_timeout = 1h
max_prepared_transactions = 10
max_wal_senders = 10
track_commit_timestamp = on
autovacuum = off
fsync = off
synchronous_commit = off
shared_buffers = 256MB
port = 6549
";

/// The installed server of a major version, if there is one.
pub fn find_binaries(major: u32) -> Option<PathBuf> {
    let by_env = std::env::var_os(format!("PG{major}_BIN_DIR")).map(PathBuf::from);
    let dir = by_env.unwrap_or_else(|| format!("/usr/lib/postgresql/{major}/bin").into());
    dir.join("postgres").exists().then_some(dir)
}

pub struct Cluster {
    bin: PathBuf,
    dir: Utf8TempDir,
    running: bool,
}

impl Cluster {
    /// Initializes a cluster; `settings` are lines of postgresql.conf.
    pub fn init(bin: &Path, initdb_options: &[&str], settings: &str) -> Self {
        let dir = camino_tempfile::Builder::new().prefix("redo-real-wal-").tempdir_in("/tmp").unwrap();
        let cluster = Self { bin: bin.to_owned(), dir, running: false };
        if is_root() {
            run(Command::new("chown").arg("postgres").arg(cluster.dir.path()));
        }
        let data = cluster.data();
        let fixed = ["-U", "postgres", "--locale=C", "-E", "UTF8", "--no-sync", "-D"];
        run(cluster.command("initdb").args(fixed).arg(&data).args(initdb_options));
        let conf = data.join("postgresql.conf");
        let socket_dir = format!("unix_socket_directories = '{}'\n", cluster.dir.path());
        let old = fs::read_to_string(&conf).unwrap();
        fs::write(&conf, old + COMMON + &socket_dir + settings).unwrap();
        cluster
    }

    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data").into()
    }

    /// Copies the data files of the stopped cluster: the pages as they are before the first record to come.
    pub fn copy_base(&self) -> PathBuf {
        let base = PathBuf::from(self.dir.path().join("before"));
        run(Command::new("cp").arg("-r").arg(self.data()).arg(&base));
        base
    }

    pub fn start(&mut self) {
        let log = self.dir.path().join("log");
        run(self.command("pg_ctl").args(["-w", "-l"]).arg(log).arg("-D").arg(self.data()).arg("start"));
        self.running = true;
    }

    pub fn stop(&mut self) {
        run(self.command("pg_ctl").args(["-w", "-m", "fast", "-D"]).arg(self.data()).arg("stop"));
        self.running = false;
    }

    /// Runs SQL files of the tests directory in one session.
    pub fn psql_files(&self, files: &[&str]) {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
        let mut command = self.client("psql");
        command.args(["-X", "-v", "ON_ERROR_STOP=1", "-v"]).arg(format!("conn={}", self.conninfo()));
        // The server's user may not be able to read the source tree.
        let copies = self.dir.path().join("sql");
        fs::create_dir_all(&copies).unwrap();
        for file in files {
            fs::copy(tests.join(file), copies.join(file)).unwrap();
            command.arg("-f").arg(copies.join(file));
        }
        run(&mut command);
    }

    /// Runs one command; false if the server refused it.
    pub fn psql(&self, sql: &str) -> bool {
        let mut command = self.client("psql");
        let output = command.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-c", sql]).output().expect("psql runs");
        output.status.success()
    }

    pub fn pgbench(&self, args: &[&str], script: Option<&str>) {
        let mut command = self.client("pgbench");
        command.args(args);
        if let Some(script) = script {
            let copy = self.dir.path().join(script);
            fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(script), &copy).unwrap();
            command.arg("-f").arg(copy);
        }
        run(&mut command);
    }

    fn conninfo(&self) -> String {
        format!("host={} port=6549 user=postgres", self.dir.path())
    }

    fn client(&self, program: &str) -> Command {
        let mut command = self.command(program);
        command.env("PGHOST", self.dir.path()).env("PGPORT", "6549").env("PGUSER", "postgres");
        command.env("PGDATABASE", "postgres");
        command
    }

    /// Servers refuse to run as root: then everything runs as user postgres.
    fn command(&self, program: &str) -> Command {
        let program = self.bin.join(program);
        let mut command = if is_root() {
            let mut command = Command::new("runuser");
            command.args(["-u", "postgres", "--"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        command.current_dir("/tmp");
        command
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.running {
            let stop = self.command("pg_ctl").args(["-m", "immediate", "-D"]).arg(self.data()).arg("stop").output();
            drop(stop);
        }
    }
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|meta| std::os::unix::fs::MetadataExt::uid(&meta) == 0)
}

/// Output goes to files: a server keeps pipes open after `pg_ctl start`.
fn run(command: &mut Command) {
    let out = camino_tempfile::tempfile().unwrap();
    let streams = (out.try_clone().unwrap(), out.try_clone().unwrap());
    let status = command.stdin(Stdio::null()).stdout(streams.0).stderr(streams.1).status();
    let status = status.unwrap_or_else(|e| panic!("{command:?}: {e}"));
    if !status.success() {
        use std::io::{Read, Seek};
        let (mut out, mut text) = (out, String::new());
        out.rewind().unwrap();
        out.read_to_string(&mut text).unwrap();
        panic!("{command:?}: {status}\n{text}");
    }
}
