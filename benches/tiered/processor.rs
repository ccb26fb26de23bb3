//! Elapsed processor time: here, in the S3 server, and in everything else on the machine, which makes a run slower
//! than it would be alone.

use serde_json::{Value, json};

/// Ticks of the processors' clocks since the processes, and the machine, were started.
#[derive(Clone, Copy)]
pub struct Ticks {
    client: f64,
    server: Option<f64>,
    machine: f64,
}

/// The kernel's unit of these figures on every platform that it runs on today.
const TICKS_PER_SECOND: f64 = 100.0;

impl Ticks {
    /// The ticks until now. `BENCH_S3_PID` names the server's process.
    pub fn now() -> Self {
        let server = std::env::var("BENCH_S3_PID").ok();
        Self {
            client: of_process("self").unwrap_or_default(),
            server: server.and_then(|pid| of_process(&pid)),
            machine: of_machine().unwrap_or_default(),
        }
    }

    /// What was spent since, while `bytes` were moved in `seconds`.
    pub fn spent(&self, bytes: u64, seconds: f64) -> Value {
        let now = Self::now();
        let per_mb = |ticks: f64| ticks / TICKS_PER_SECOND * 1e3 / (bytes as f64 / 1e6);
        let client = now.client - self.client;
        let server = now.server.zip(self.server).map(|(now, before)| now - before);
        let elsewhere = (now.machine - self.machine - client - server.unwrap_or_default()).max(0.0);
        json!({
            "client_ms_per_mb": per_mb(client), "server_ms_per_mb": server.map(per_mb),
            "cores_busy_elsewhere": elsewhere / TICKS_PER_SECOND / seconds,
        })
    }
}

fn of_process(pid: &str) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // After the name, which may contain blanks: user and system time are the 14th and 15th fields of the line.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(fields.next()?.parse::<f64>().ok()? + fields.next()?.parse::<f64>().ok()?)
}

fn of_machine() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let times: Vec<f64> = stat.lines().next()?.split_whitespace().skip(1).filter_map(|it| it.parse().ok()).collect();
    // Of the first eight, those that are neither idle nor waiting for a disk; the others are already included in them.
    Some(times.iter().take(8).enumerate().filter(|(at, _)| !(3..=4).contains(at)).map(|(_, ticks)| ticks).sum())
}
