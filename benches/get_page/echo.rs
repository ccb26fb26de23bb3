//! The time that the machine itself takes for a request and an answer of a page's size, between two processes over
//! loopback, with blocking reads and writes: the lower bound for the latencies of `bench_get_page`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// The name of the case in the results.
pub const NAME: &str = "echo without a page server";
const VARIABLE: &str = "BENCH_ECHO";
/// Sizes in bytes of a page request and its answer on the wire.
const REQUEST: usize = 51;
const ANSWER: usize = 8192 + 51;

/// Answers until the client is gone, if this process was started as the server.
pub fn serves_here() -> anyhow::Result<bool> {
    if std::env::var_os(VARIABLE).is_none() {
        return Ok(false);
    }
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?.port());
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let (mut request, answer) = ([0; REQUEST], [7; ANSWER]);
    while stream.read_exact(&mut request).is_ok() {
        stream.write_all(&answer)?;
    }
    Ok(true)
}

/// The other process; it ends with its connection, or when this is dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Exchanges per second and their times in nanoseconds, after a second of warm-up.
pub fn measure(duration: Duration) -> anyhow::Result<(f64, Histogram<u64>)> {
    let mut command = Command::new(std::env::current_exe()?);
    let mut server = Server(command.env(VARIABLE, "1").stdout(Stdio::piped()).spawn()?);
    let output = server.0.stdout.take().ok_or_else(|| anyhow::anyhow!("no output"))?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    let mut stream = TcpStream::connect(("127.0.0.1", line.trim().parse()?))?;
    stream.set_nodelay(true)?;
    exchange(&mut stream, Duration::from_secs(1))?;
    exchange(&mut stream, duration)
}

fn exchange(stream: &mut TcpStream, duration: Duration) -> anyhow::Result<(f64, Histogram<u64>)> {
    let (request, mut answer) = ([3; REQUEST], vec![0; ANSWER]);
    let (mut times, mut count, began) = (Histogram::<u64>::new(3)?, 0u64, Instant::now());
    while began.elapsed() < duration {
        let asked = Instant::now();
        stream.write_all(&request)?;
        stream.read_exact(&mut answer)?;
        times.record(asked.elapsed().as_nanos() as u64)?;
        count += 1;
    }
    Ok((count as f64 / began.elapsed().as_secs_f64(), times))
}
