//! A throw-away Postgres server on a unix socket and a loopback port.

use std::fs;
use std::io::{Read, Seek};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use camino_tempfile::Utf8TempDir;
use tokio_postgres::Config;

const SETTINGS: &str = "
wal_level = replica
max_wal_senders = 10
fsync = off
autovacuum = off
shared_buffers = 16MB
wal_keep_size = 1GB
";

pub struct Server {
    bin: PathBuf,
    dir: Utf8TempDir,
    port: u16,
    running: bool,
}

impl Server {
    /// Initializes and starts a server. `settings` are lines of postgresql.conf, `hba` of pg_hba.conf.
    pub fn start(settings: &str, hba: &str) -> Self {
        let mut server = Self::empty();
        server.chown();
        let initdb = ["-U", "postgres", "--locale=C", "-E", "UTF8", "--no-sync", "-D"];
        run(server.command("initdb").args(initdb).arg(server.data()));
        server.append_setting(SETTINGS);
        fs::write(server.data().join("pg_hba.conf"), hba).unwrap();
        server.configure(settings);
        server.go();
        server
    }

    /// A server without data.
    pub fn empty() -> Self {
        let bin = std::env::var_os("PG_BIN").map_or_else(|| "/usr/lib/postgresql/15/bin".into(), PathBuf::from);
        let dir = camino_tempfile::Builder::new().prefix("pq-proto-").tempdir_in("/tmp").unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Self { bin, dir, port, running: false }
    }

    /// Says where to listen, and what else is wanted.
    pub fn configure(&self, settings: &str) {
        let (port, dir) = (self.port, self.dir.path());
        self.append_setting(&format!(
            "listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = '{dir}'\n{settings}\n"
        ));
    }

    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data").into()
    }

    pub fn dir(&self) -> PathBuf {
        self.dir.path().into()
    }

    pub fn append_setting(&self, line: &str) {
        let conf = self.data().join("postgresql.conf");
        let old = fs::read_to_string(&conf).unwrap();
        fs::write(conf, old + line).unwrap();
    }

    pub fn chown(&self) {
        if is_root() {
            run(Command::new("chown").args(["-R", "postgres"]).arg(self.dir.path()));
        }
    }

    pub fn go(&mut self) {
        let log = self.dir.path().join("log");
        run(self.command("pg_ctl").args(["-w", "-l"]).arg(log).arg("-D").arg(self.data()).arg("start"));
        self.running = true;
    }

    pub fn stop(&mut self) {
        run(self.command("pg_ctl").args(["-w", "-m", "fast", "-D"]).arg(self.data()).arg("stop"));
        self.running = false;
    }

    /// Runs a program of the installation that is about the stopped server's data.
    pub fn offline(&self, program: &str, arguments: &[&str]) {
        run(self.command(program).args(arguments).arg("-D").arg(self.data()));
    }

    /// Settings for the unix socket, with `more` in libpq's key=value form.
    pub fn by_socket(&self, more: &str) -> Config {
        format!("host={} port={} {more}", self.dir.path(), self.port).parse().unwrap()
    }

    /// Settings for the loopback port.
    pub fn by_tcp(&self, more: &str) -> Config {
        format!("host=localhost hostaddr=127.0.0.1 port={} {more}", self.port).parse().unwrap()
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

impl Drop for Server {
    fn drop(&mut self) {
        if self.running {
            let _ = self.command("pg_ctl").args(["-m", "immediate", "-D"]).arg(self.data()).arg("stop").output();
        }
    }
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|meta| std::os::unix::fs::MetadataExt::uid(&meta) == 0)
}

/// Runs a command that must succeed. Output goes to a file: a server keeps pipes open after `pg_ctl start`.
pub fn run(command: &mut Command) {
    let mut out = camino_tempfile::tempfile().unwrap();
    let streams = (out.try_clone().unwrap(), out.try_clone().unwrap());
    let status = command.stdin(Stdio::null()).stdout(streams.0).stderr(streams.1).status();
    let status = status.unwrap_or_else(|e| panic!("{command:?}: {e}"));
    if !status.success() {
        let mut text = String::new();
        out.rewind().unwrap();
        out.read_to_string(&mut text).unwrap();
        panic!("{command:?}: {status}\n{text}");
    }
}
