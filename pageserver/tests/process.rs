//! The program from outside: its arguments, one instance per directory, its signals.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use camino::Utf8Path;
use camino_tempfile::Utf8TempDir;
use rustix::process::{Pid, Signal, kill_process};

const EXE: &str = env!("CARGO_BIN_EXE_pageserver");

fn run(args: &[&str]) -> Output {
    Command::new(EXE).args(args).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A directory created by `init`, with free ports.
fn workdir() -> Utf8TempDir {
    let dir = camino_tempfile::tempdir().unwrap();
    let ports = ["-c", "listen_pg_addr=127.0.0.1:0", "-c", "listen_http_addr=127.0.0.1:0"];
    let output = run(&[&["init", "--workdir", dir.path().as_str()], &ports[..]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    dir
}

struct Server {
    child: Child,
    http: SocketAddr,
}

impl Server {
    fn start(dir: &Utf8Path, more: &[&str]) -> Self {
        let mut command = Command::new(EXE);
        command.args(["--workdir", dir.as_str()]).args(more).stderr(Stdio::piped());
        let mut server = Self { child: command.spawn().unwrap(), http: SocketAddr::from(([0, 0, 0, 0], 0)) };
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            if let Ok(text) = std::fs::read(dir.join("pageserver.addr")) {
                let addresses: serde_json::Value = serde_json::from_slice(&text).unwrap();
                assert_eq!(addresses["pid"], server.child.id());
                server.http = addresses["listen_http_addr"].as_str().unwrap().parse().unwrap();
                return server;
            }
            assert!(Instant::now() < deadline, "the server does not come up");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The status line of an answer.
    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.http).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Waits for the process to exit; returns the exit code and the log.
    fn wait(mut self) -> (Option<i32>, String) {
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (self.child.wait().unwrap().code(), log)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have exited and been reaped already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn init_writes_settings_once_and_print_config_shows_what_holds() {
    let dir = camino_tempfile::tempdir().unwrap();
    let place = dir.path().join("store");
    let init = ["init", "-D", place.as_str(), "-c", "checkpoint_distance=1048576"];
    let first = run(&init);
    assert!(first.status.success(), "{}", stderr(&first));
    let text = std::fs::read_to_string(place.join("pageserver.toml")).unwrap();
    assert!(text.contains("\ncheckpoint_distance = 1048576\n") && text.contains("\n#page_cache_size = 8192\n"));
    let second = run(&init);
    assert!(!second.status.success() && stderr(&second).contains("exists already"), "{}", stderr(&second));
    assert_eq!(std::fs::read_to_string(place.join("pageserver.toml")).unwrap(), text);

    let mut printed = Command::new(EXE);
    printed.args(["-D", place.as_str(), "--print-config", "-c", "log_format=json"]);
    let printed = printed.env("PAGESERVER_PAGE_CACHE_SIZE", "99").output().unwrap();
    let shown = String::from_utf8(printed.stdout).unwrap();
    for line in ["checkpoint_distance = 1048576", "page_cache_size = 99", "log_format = \"json\""] {
        assert!(shown.lines().any(|shown| shown == line), "{line} is not in\n{shown}");
    }
}

#[test]
fn what_cannot_be_started_says_why() {
    let dir = workdir();
    let place = dir.path().as_str();
    for (args, expected) in [
        (vec![], "--workdir"),
        (vec!["-D", "/nonexistent/place"], "pageserver init"),
        (vec!["-D", place, "-c", "page_cache_sise=1"], "did you mean \"page_cache_size\"?"),
        (vec!["-D", place, "-c", "listen_http_addr=0.0.0.0:0"], "allow_insecure_listen"),
        (vec!["-D", place, "-c", "listen_pg_addr=0.0.0.0:0"], "allow_insecure_listen"),
        (vec!["-D", place, "-c", "http_auth_type=JWT"], "auth_public_key.pem"),
        (vec!["-D", place, "-c", "enable_tls_http_api=true"], "server.crt"),
        (vec!["-D", place, "-c", "log_filter=a=b=c"], "log_filter"),
        (vec!["-D", place, "-c", "listen_pg_addr=nowhere.invalid:0"], "nowhere.invalid"),
    ] {
        let output = run(&args);
        assert!(!output.status.success(), "{args:?}");
        assert!(stderr(&output).contains(expected), "{args:?}: {}", stderr(&output));
    }
}

#[test]
fn a_directory_has_one_server_which_ends_in_order() {
    let dir = workdir();
    let server = Server::start(dir.path(), &[]);
    assert_eq!(server.get("/v1/status"), "HTTP/1.1 200 OK");
    let second = run(&["-D", dir.path().as_str()]);
    assert!(!second.status.success());
    assert!(stderr(&second).contains(&format!("process {}", server.child.id())), "{}", stderr(&second));

    server.signal(Signal::TERM);
    let (code, log) = server.wait();
    // If it took longer than `shutdown_timeout`, it would be cut off with a warning.
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("SIGTERM: stopping") && log.contains("stopped"), "{log}");
    assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
    assert!(!dir.path().join("pageserver.addr").exists());

    let again = Server::start(dir.path(), &["-c", "log_format=json"]);
    again.signal(Signal::INT);
    let (code, log) = again.wait();
    assert_eq!(code, Some(0));
    assert!(log.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()), "{log}");
}

#[test]
fn a_second_signal_ends_it_at_once_and_a_hangup_reads_keys_again() {
    let dir = workdir();
    let keys = dir.path().join("auth_public_key.pem");
    // The key of RFC 8037, appendix A.
    let pem = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n\
               -----END PUBLIC KEY-----\n";
    std::fs::write(&keys, pem).unwrap();
    let server = Server::start(dir.path(), &["-c", "http_auth_type=JWT", "-c", "listen_http_addr=127.0.0.1:0"]);
    assert_eq!(server.get("/v1/tenant"), "HTTP/1.1 401 Unauthorized");
    std::fs::write(&keys, "rubbish").unwrap();
    server.signal(Signal::HUP);
    std::thread::sleep(Duration::from_millis(300));
    std::fs::write(&keys, [pem, pem].concat()).unwrap();
    server.signal(Signal::HUP);
    std::thread::sleep(Duration::from_millis(300));
    // A request in progress keeps the first signal from completing the shutdown.
    let mut slow = TcpStream::connect(server.http).unwrap();
    slow.write_all(b"POST /v1/follow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n").unwrap();
    std::thread::sleep(Duration::from_millis(300));
    server.signal(Signal::TERM);
    std::thread::sleep(Duration::from_millis(300));
    server.signal(Signal::TERM);
    let (code, log) = server.wait();
    assert!(log.contains("The keys in use stay") && log.contains("2 public keys"), "{log}");
    assert!(code == Some(0) || code == Some(4) && log.contains("second signal"), "{code:?}: {log}");
}
