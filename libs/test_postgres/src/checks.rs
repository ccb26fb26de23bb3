//! Checks of a server's data by Postgres's own programs.

use crate::Server;
use crate::command::{Done, output, tail};

impl Server {
    /// A database as SQL, without the parts that are random in every dump.
    pub fn dump(&self, database: &str) -> String {
        let dump = self.run("pg_dump", &["-d", database]);
        dump.lines().filter(|line| !line.contains("restrict")).map(|line| format!("{line}\n")).collect()
    }

    /// Verifies all tables and indexes; returns how many.
    ///
    /// # Panics
    ///
    /// If one is damaged.
    pub fn amcheck(&self) -> usize {
        for database in self.sql("SELECT datname FROM pg_database WHERE datallowconn").lines() {
            self.sql_in(database, "CREATE EXTENSION IF NOT EXISTS amcheck");
        }
        let arguments = ["--all", "--heapallindexed", "--parent-check", "--verbose"];
        let Done { status, stdout, stderr } = output(self.client("pg_amcheck").args(arguments));
        let text = stdout + &stderr;
        assert!(status.success(), "{}", tail(&text));
        text.lines().filter(|line| line.contains("checking ")).count()
    }

    /// Verifies the checksums of the stopped server's pages; returns the output of `pg_checksums`.
    ///
    /// # Panics
    ///
    /// If a checksum is wrong.
    pub fn verify_checksums(&self) -> String {
        let told = self.offline("pg_checksums", &["--check"]);
        assert!(told.lines().any(|line| line.trim_end() == "Bad checksums:  0"), "{told}");
        told
    }

    /// Verifies that the sums that `pgbench` keeps equal are equal.
    ///
    /// # Panics
    ///
    /// If they are not.
    pub fn verify_balances(&self) {
        let sums = self.sql(
            "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(bbalance) FROM pgbench_branches), \
             (SELECT sum(tbalance) FROM pgbench_tellers), (SELECT coalesce(sum(delta), 0) FROM pgbench_history)",
        );
        let sums: Vec<&str> = sums.split('|').collect();
        assert!(sums.len() == 4 && sums.iter().all(|sum| *sum == sums[0]), "{sums:?}");
    }
}
