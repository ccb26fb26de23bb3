//! A stock Postgres, plain and as a compute on a plain directory.
#![allow(dead_code, clippy::disallowed_methods)]

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use compute::layout::Layout;
use compute::supervisor::launch;
use test_needs::Missing;

pub const BIN: &str = test_needs::POSTGRES_15;

/// What a compute needs of the machine.
pub fn machine() -> Result<(), Missing> {
    test_needs::root()?;
    test_needs::file("/dev/fuse")?;
    test_needs::postgres_15()?;
    if can_mount() { Ok(()) } else { Err(Missing::new("the right to mount a file system")) }
}

fn can_mount() -> bool {
    let dir = tempdir();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(dir.path()).status();
    mounted.is_ok_and(|status| status.success())
        && Command::new("umount").arg(dir.path()).status().is_ok_and(|status| status.success())
}

fn tempdir() -> camino_tempfile::Utf8TempDir {
    camino_tempfile::Builder::new().prefix("compute-").tempdir_in("/tmp").unwrap()
}

fn as_postgres(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new("runuser");
    command.args(["-u", "postgres", "--"]).arg(program.as_ref()).stdin(Stdio::null()).current_dir("/");
    command
}

fn checked(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{stdout}\n{stderr}");
    stdout.into_owned()
}

/// A directory with everything; removed in the end.
pub struct World {
    pub dir: camino_tempfile::Utf8TempDir,
}

impl World {
    pub fn new() -> Self {
        let world = Self { dir: tempdir() };
        checked(Command::new("chown").arg("postgres").arg(world.dir.path()));
        checked(Command::new("chmod").arg("755").arg(world.dir.path()));
        world
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name).into_std_path_buf()
    }

    /// A new cluster with checksums, started.
    pub fn cluster(&self) -> Server {
        let data = self.path("plain");
        checked(
            as_postgres(format!("{BIN}/initdb"))
                .args(["-k", "-N", "-A", "trust", "--no-locale", "-E", "UTF8"])
                .arg(&data),
        );
        let conf = "shared_buffers = 16MB\nmax_wal_size = 256MB\nlisten_addresses = ''\nautovacuum_naptime = 1s\n\
                    checkpoint_timeout = 30s\nmin_wal_size = 80MB\nlog_min_messages = info\n\
                    log_checkpoints = on\n";
        let path = data.join("postgresql.conf");
        let old = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, old + conf).unwrap();
        let server = self.server(data);
        server.start();
        server
    }

    pub fn server(&self, data: PathBuf) -> Server {
        let log = data.with_extension("log");
        Server { data, log, sockets: self.dir.path().as_std_path().to_owned() }
    }

    /// A compute on the cluster in `plain`, mounted and started.
    pub fn compute(&self, plain: &Server, args: &[&str]) -> Compute {
        let layout = Layout::new(self.path("compute"));
        compute::source::directory::boot(&plain.data, &layout).unwrap();
        let mut serving = vec![format!("--source-directory={}", plain.data.display())];
        serving.extend(args.iter().map(|arg| (*arg).to_owned()));
        let compute = Compute { server: self.server(layout.data()), layout, serving };
        compute.mount();
        compute.server.start();
        compute
    }
}

pub struct Server {
    pub data: PathBuf,
    log: PathBuf,
    sockets: PathBuf,
}

impl Server {
    pub fn start(&self) {
        let options = format!("-k {} -c listen_addresses=''", self.sockets.display());
        let mut command = as_postgres(format!("{BIN}/pg_ctl"));
        command
            .arg("-D")
            .arg(&self.data)
            .args(["-w", "-t", "120", "-s", "-o", &options, "start"])
            .arg("-l")
            .arg(&self.log);
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
        assert!(status.success(), "{}", std::fs::read_to_string(&self.log).unwrap_or_default());
    }

    pub fn stop(&self) {
        checked(
            as_postgres(format!("{BIN}/pg_ctl"))
                .arg("-D")
                .arg(&self.data)
                .args(["-w", "-t", "120", "-m", "fast", "stop"]),
        );
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    pub fn tool(&self, name: &str, args: &[&str]) -> Command {
        let mut command = as_postgres(format!("{BIN}/{name}"));
        command.arg("-h").arg(&self.sockets).args(args);
        command
    }

    pub fn run(&self, name: &str, args: &[&str]) -> String {
        checked(&mut self.tool(name, args))
    }

    pub fn sql(&self, db: &str, sql: &str) -> String {
        self.run("psql", &["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", db, "-c", sql]).trim_end().to_owned()
    }

    /// All of the databases as SQL, without what is drawn anew for every dump.
    pub fn dump(&self, db: &str) -> String {
        let dump = self.run("pg_dump", &["-d", db]);
        dump.lines().filter(|line| !line.contains("restrict")).map(|line| format!("{line}\n")).collect()
    }

    /// Verifies all tables and indexes; gives how many were.
    pub fn amcheck(&self) -> usize {
        let all = "SELECT datname FROM pg_database WHERE datallowconn";
        for db in self.sql("postgres", all).lines() {
            self.sql(db, "CREATE EXTENSION IF NOT EXISTS amcheck");
        }
        let mut command = self.tool("pg_amcheck", &["--all", "--heapallindexed", "--parent-check", "--verbose"]);
        let Output { status, stdout, stderr } = command.output().unwrap();
        let text = String::from_utf8_lossy(&stdout) + String::from_utf8_lossy(&stderr);
        assert!(status.success(), "{text}");
        text.lines().filter(|line| line.contains("checking ")).count()
    }

    /// What `pg_checksums` says; the server must be stopped.
    pub fn checksums(&self) -> String {
        checked(as_postgres(format!("{BIN}/pg_checksums")).arg("-c").arg("-D").arg(&self.data))
    }

    pub fn postmaster(&self) -> i32 {
        let upper = self.data.parent().unwrap().join("upper");
        let dir = if upper.exists() { upper } else { self.data.clone() };
        let text = std::fs::read_to_string(dir.join("postmaster.pid")).unwrap();
        text.lines().next().unwrap().parse().unwrap()
    }

    /// Processes of this server.
    pub fn processes(&self) -> Vec<i32> {
        processes(&self.data)
    }

    pub fn pgbench(&self, args: &[&str]) -> Child {
        let mut command = self.tool("pgbench", args);
        command
            .current_dir(&self.sockets)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap()
    }

    /// What TPC-B keeps equal.
    pub fn assert_balanced(&self, db: &str) {
        let sums = self.sql(
            db,
            "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(bbalance) FROM pgbench_branches), \
             (SELECT sum(tbalance) FROM pgbench_tellers), (SELECT coalesce(sum(delta), 0) FROM pgbench_history)",
        );
        let sums: Vec<&str> = sums.split('|').collect();
        assert!(sums.iter().all(|sum| *sum == sums[0]), "{sums:?}");
    }
}

pub fn processes(data: &Path) -> Vec<i32> {
    let pids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let works_there = |pid: &i32| std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == data);
    let is_postgres =
        |pid: &i32| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with("postgres"));
    pids.filter(works_there).filter(is_postgres).collect()
}

pub struct Compute {
    pub server: Server,
    pub layout: Layout,
    serving: Vec<String>,
}

impl Compute {
    pub fn mount(&self) {
        let program = Path::new(env!("CARGO_BIN_EXE_compute-fs"));
        let mut supervisor = launch::start(program, &self.layout, &self.serving).unwrap();
        std::thread::spawn(move || supervisor.wait());
    }

    pub fn unmount(&self) {
        launch::stop(&self.layout, Duration::from_secs(60)).unwrap();
    }

    pub fn supervisor(&self) -> i32 {
        launch::supervisor(&self.layout).unwrap().unwrap()
    }

    pub fn daemon(&self) -> i32 {
        let text = std::fs::read_to_string(self.layout.daemon_lock()).unwrap();
        text.trim().parse().unwrap_or(0)
    }

    /// Kills the daemon and waits for the next one.
    pub fn kill_daemon(&self) {
        let old = self.daemon();
        kill(old);
        wait_until("another daemon", || ![0, old].contains(&self.daemon()));
    }

    /// Ends the connection under everybody's feet.
    pub fn lose_connection(&self) {
        let _ = rustix::mount::unmount(self.layout.data(), rustix::mount::UnmountFlags::FORCE);
    }

    /// Device of the mount at the data directory. The kernel uses numbers again, of those that are not [`Pin`]ned.
    pub fn device(&self) -> Option<String> {
        let data = self.layout.data();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = mounts.lines().find(|line| line.split(' ').nth(4) == data.to_str())?;
        line.split(' ').nth(2).map(str::to_owned)
    }

    /// Keeps the device of the present mount, without making that busy.
    pub fn pin(&self) -> Pin {
        let path = self.layout.root().with_extension("pin");
        let _ = std::fs::create_dir(&path);
        checked(Command::new("mount").arg("--bind").arg(self.layout.data()).arg(&path));
        Pin { path }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.layout.log()).unwrap()
    }
}

impl Drop for Compute {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- fs.log\n{}", self.log());
            let log = std::fs::read_to_string(&self.server.log).unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(40).collect();
            eprintln!("--- postgres log, last first\n{}", last.join("\n"));
        }
        let _ = launch::stop(&self.layout, Duration::from_secs(60));
    }
}

pub struct Pin {
    path: PathBuf,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.path, rustix::mount::UnmountFlags::DETACH);
    }
}

pub fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

/// Returns when none of `pids` is there: one that its parent has not waited for still looks alive to Postgres.
pub fn await_end(pids: &[i32]) {
    wait_until("end of Postgres", || pids.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists()));
}

pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < Duration::from_secs(60), "no {what} within a minute");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Number after `label` in the output of pgbench.
pub fn figure(text: &str, label: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(label)).unwrap_or_else(|| panic!("no {label} in {text}"));
    let number: String = line.trim().chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    number.parse().unwrap()
}
