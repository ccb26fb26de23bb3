//! Clients of a server.

use std::io::{Seek, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use utils::lsn::Lsn;

use crate::{Server, run};

impl Server {
    /// Where to connect by its socket, as `host` and `port` in libpq's form.
    pub fn socket(&self) -> String {
        format!("host={} port={}", self.place().path(), self.port())
    }

    /// The same over TCP.
    pub fn loopback(&self) -> String {
        format!("host=localhost hostaddr=127.0.0.1 port={}", self.port())
    }

    /// Connection string by its socket as its superuser.
    pub fn connstr(&self) -> String {
        format!("{} user=postgres dbname=postgres", self.socket())
    }

    /// Connection string that tries this server first, then `other` of the same place.
    pub fn connstr_with(&self, other: &Self) -> String {
        let hosts = [self, other].map(|server| server.place().path().as_str()).join(",");
        format!("host={hosts} port={},{} user=postgres", self.port(), other.port())
    }

    /// A client program; it connects to this server by default.
    pub fn client(&self, program: &str) -> Command {
        let mut command = self.place().postgres().command(program);
        command.env("PGHOST", self.place().path()).env("PGPORT", self.port().to_string());
        command.env("PGUSER", "postgres").env("PGDATABASE", "postgres");
        command
    }

    /// Runs a client program, which must succeed; returns its output.
    pub fn run(&self, program: &str, arguments: &[&str]) -> String {
        run(self.client(program).args(arguments))
    }

    /// Runs SQL in one session, each statement in its own transaction; returns the results, unaligned.
    pub fn sql(&self, sql: &str) -> String {
        self.sql_in("postgres", sql)
    }

    /// The same in another database.
    pub fn sql_in(&self, database: &str, sql: &str) -> String {
        let mut input = camino_tempfile::tempfile().unwrap();
        input.write_all(sql.as_bytes()).unwrap();
        input.rewind().unwrap();
        let mut command = self.client("psql");
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", database]).stdin(input);
        run(&mut command).trim_end().to_owned()
    }

    /// The end of its WAL.
    pub fn current_lsn(&self) -> Lsn {
        self.sql("SELECT pg_current_wal_flush_lsn()").parse().unwrap()
    }

    /// Creates and fills the `pgbench` tables.
    pub fn bench_init(&self, scale: u32) {
        self.run("pgbench", &["-i", "-q", "-s", &scale.to_string()]);
    }

    /// Runs `pgbench`, which must succeed.
    pub fn bench(&self, arguments: &[&str]) {
        self.run("pgbench", arguments);
    }

    /// Starts `pgbench` without waiting; its logs are in the server's place.
    pub fn start_bench(&self, arguments: &[&str]) -> Child {
        let mut command = self.client("pgbench");
        command.args(arguments).current_dir(self.place().path()).process_group(0);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}
