//! A server: its files and its process.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use postgres_formats::version::PgVersion;
use rustix::process::Signal;

use crate::command::{Done, output, run, tail, tar};
use crate::place::Place;
use crate::process;
use crate::programs::{Postgres, own};

/// Small and not durable. An abandoned slot must not fill the disk.
const SETTINGS: &str = "fsync = off\nshared_buffers = 16MB\nmax_slot_wal_keep_size = 4GB\n";

/// How long `pg_ctl` waits, in seconds.
const PATIENCE: &str = "120";

/// A server. Dropping it ends its processes.
#[derive(Debug)]
pub struct Server {
    place: Place,
    data: Utf8PathBuf,
    port: u16,
    listens: bool,
}

impl Postgres {
    /// Creates and starts a server in its own place, with these lines of `postgresql.conf`.
    pub fn start(&self, settings: &str) -> Server {
        let server = self.place().server("data");
        server.init(&[]);
        server.configure(settings);
        server.start();
        server
    }
}

impl Place {
    /// A server that has no files yet.
    pub fn server(&self, name: &str) -> Server {
        self.server_on(self.path().join(name))
    }

    /// A server on a data directory that may be elsewhere; its sockets and its log are here.
    pub fn server_on(&self, data: impl Into<Utf8PathBuf>) -> Server {
        // Sockets in one directory differ by port.
        static NEXT: AtomicU16 = AtomicU16::new(6000);
        let port = NEXT.fetch_add(1, Ordering::Relaxed);
        Server { place: self.clone(), data: data.into(), port, listens: false }
    }

    /// Creates and starts a cluster with checksums, with these lines of `postgresql.conf`.
    pub fn start(&self, name: &str, settings: &str) -> Server {
        let server = self.server(name);
        server.init(&["-k"]);
        server.configure(settings);
        server.start();
        server
    }

    /// A server on the files of a backup, which `tar` unpacks; not started.
    pub fn restore(&self, name: &str, archive: &[u8]) -> Server {
        let server = self.server(name);
        std::fs::create_dir(server.data()).unwrap();
        tar(&["-x", "-C", server.data().as_str()], archive);
        server.own();
        server
    }
}

impl Server {
    /// The same server, which also listens on a port of the loopback interface.
    #[must_use]
    pub fn on_loopback(mut self) -> Self {
        self.port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        self.listens = true;
        self
    }

    /// Its data directory.
    pub fn data(&self) -> &Utf8Path {
        &self.data
    }

    /// The directory of its sockets and its log.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The port of its socket, and of TCP if it listens there.
    pub fn port(&self) -> u16 {
        self.port
    }

    fn postgres(&self) -> &Postgres {
        self.place.postgres()
    }

    /// Creates the cluster with superuser `postgres`, as whom anybody who can reach the socket may connect.
    pub fn init(&self, options: &[&str]) {
        let mut command = self.postgres().command("initdb");
        command.args(["-N", "-A", "trust", "-U", "postgres", "--locale=C", "-E", "UTF8", "-D"]).arg(&self.data);
        if self.postgres().version() >= PgVersion::V18 && !options.contains(&"-k") {
            command.arg("--no-data-checksums");
        }
        run(command.args(options));
        self.configure(SETTINGS);
    }

    /// Appends lines to `postgresql.conf`; the last line for a name takes effect, from the next start on.
    pub fn configure(&self, settings: &str) {
        let path = self.data.join("postgresql.conf");
        let before = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{before}\n{settings}\n")).unwrap();
    }

    /// Makes the user that runs it the owner of all files in its place, and its data directory private: for a data
    /// directory that a test has created or changed.
    pub fn own(&self) {
        own(self.place.path());
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(&self.data, mode).unwrap();
    }

    /// Starts it and waits until it answers.
    pub fn start(&self) {
        // The address is an argument, not a setting, so that files of any origin work.
        let address = if self.listens { "127.0.0.1" } else { "" };
        let options = format!("-k {} -p {} -c listen_addresses='{address}'", self.place.path(), self.port);
        let mut command = self.control(&["-w", "-t", PATIENCE, "-s", "-o", &options, "start", "-l"]);
        let Done { status, stderr, .. } = output(command.arg(self.log_file()));
        assert!(status.success(), "cannot start: {stderr}\n{}", tail(&self.log()));
    }

    /// Shuts it down cleanly.
    pub fn stop(&self) {
        run(&mut self.control(&["-w", "-t", PATIENCE, "-s", "-m", "fast", "stop"]));
    }

    /// Stops it without a checkpoint: the next start performs recovery.
    pub fn stop_immediately(&self) {
        run(&mut self.control(&["-w", "-t", PATIENCE, "-s", "-m", "immediate", "stop"]));
    }

    /// Promotes a standby to a primary.
    pub fn promote(&self) {
        run(&mut self.control(&["-w", "-t", PATIENCE, "-s", "promote"]));
    }

    /// Sends SIGKILL to the postmaster. The others notice by themselves, and until then no server can start there.
    pub fn kill(&self) {
        let all = self.processes();
        process::kill(self.postmaster());
        process::await_end(&all);
    }

    fn control(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = self.postgres().command("pg_ctl");
        command.arg("-D").arg(&self.data).args(arguments);
        command
    }

    /// Runs a program that works on the server's files, such as `pg_controldata`.
    pub fn offline(&self, program: &str, arguments: &[&str]) -> String {
        run(self.postgres().command(program).args(arguments).arg("-D").arg(&self.data))
    }

    /// The process id of its postmaster.
    ///
    /// # Panics
    ///
    /// If it does not run.
    pub fn postmaster(&self) -> i32 {
        self.running().unwrap_or_else(|| panic!("no server runs on {}", self.data))
    }

    fn running(&self) -> Option<i32> {
        let text = std::fs::read_to_string(self.data.join("postmaster.pid")).ok()?;
        let pid = text.lines().next()?.parse().ok()?;
        process::is_of_server(pid, self.data.as_std_path()).then_some(pid)
    }

    /// All its processes.
    pub fn processes(&self) -> Vec<i32> {
        process::of_server(self.data.as_std_path())
    }

    /// A standby of this server in the same place, started. It follows without a slot.
    pub fn standby(&self, name: &str) -> Self {
        let standby = self.place.server(name);
        run(self.client("pg_basebackup").args(["-R", "-c", "fast", "-D"]).arg(&standby.data));
        standby.start();
        standby
    }

    fn log_file(&self) -> Utf8PathBuf {
        let name = self.data.file_name().unwrap_or("server");
        self.place.path().join(format!("{name}-{}.log", self.port))
    }

    /// The content of its log.
    pub fn log(&self) -> String {
        let bytes = std::fs::read(self.log_file()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the end of the log of {}\n{}", self.data, tail(&self.log()));
        }
        // Immediately, by process id, and without panicking: the test may have failed because the server did not
        // start.
        let Some(postmaster) = self.running() else { return };
        let all = self.processes();
        process::send(postmaster, Signal::QUIT);
        if !process::end_within(&all, Duration::from_secs(10)) {
            all.iter().copied().for_each(process::kill);
            process::end_within(&all, Duration::from_secs(10));
        }
    }
}
