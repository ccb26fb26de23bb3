use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use pq_proto::client::{Client, ClientError};
use pq_proto::framing::put_message;
use pq_proto::frontend::{StartupPacket, StartupParameters, startup_len};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use utils::lsn::Lsn;

use super::*;
use crate::fleet::Refused;
use crate::{Address, Gateway, Settings};

const IDLE: Duration = Duration::from_millis(200);
const SECRET: &[u8] = b"\0\0\0\x07secret";

pub(crate) fn settings() -> Settings {
    Settings {
        tls: None,
        require_tls: false,
        domain: None,
        default_branch: None,
        connections_max: 100,
        branch_connections_max: 20,
        computes_max: 10,
        wakes_max: 2,
        login_limit: Duration::from_secs(10),
        wake_limit: Duration::from_secs(10),
        idle_timeout: None,
    }
}

/// What computes have seen.
#[derive(Default)]
struct Seen {
    startups: Mutex<Vec<StartupParameters>>,
    cancelled: Mutex<Vec<Bytes>>,
    wakes: AtomicUsize,
    sleeps: AtomicUsize,
    waking: AtomicUsize,
    waking_most: AtomicUsize,
    expired: AtomicBool,
}

/// Computes that are sockets in this process. `slow` takes a while to wake, `broken` does not wake.
struct Computes {
    seen: Arc<Seen>,
    runtime: tokio::runtime::Handle,
    running: Mutex<HashMap<Place, (SocketAddr, CancellationToken)>>,
}

impl Fleet for Computes {
    fn lsn(&self, branch: &str, moment: &str) -> Result<Lsn, Refused> {
        let missing = || Refused::Missing { message: format!("{branch} has no {moment}"), hint: "-1min".to_owned() };
        if moment.starts_with('-') { Ok(Lsn(7)) } else { moment.parse().map_err(|_| missing()) }
    }

    fn wake(&self, place: &Place, _: Option<traces::Parent>) -> Result<Address, Refused> {
        match place.branch.as_str() {
            "broken" => {
                return Err(Refused::Unavailable { message: "no room".to_owned(), hint: Some("make some".to_owned()) });
            }
            "missing" => {
                return Err(Refused::Missing { message: "no such branch".to_owned(), hint: "there is dev".to_owned() });
            }
            _ => {}
        }
        let now = self.seen.waking.fetch_add(1, SeqCst) + 1;
        self.seen.waking_most.fetch_max(now, SeqCst);
        env::clock::pause(Duration::from_millis(if place.branch.starts_with("slow") { 300 } else { 1 }));
        self.seen.waking.fetch_sub(1, SeqCst);
        self.seen.wakes.fetch_add(1, SeqCst);
        let stop = CancellationToken::new();
        let listener = self.runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        self.runtime.spawn(listen(listener, Arc::clone(&self.seen), stop.clone()));
        assert!(self.running.lock().insert(place.clone(), (address, stop)).is_none(), "{place} ran already");
        Ok(Address::Tcp(address))
    }

    fn is_current(&self, place: &Place) -> Result<bool, Refused> {
        let expired = || Refused::Missing { message: format!("{place} has expired"), hint: "make another".to_owned() };
        if !place.branch.starts_with("mortal") {
            return Ok(true);
        }
        if self.seen.expired.load(SeqCst) {
            return Err(expired());
        }
        // Each time that somebody asks it is another one; the former one runs on.
        self.running.lock().remove(place).unwrap();
        Ok(false)
    }

    fn sleep(&self, place: &Place) -> Result<bool, String> {
        if place.branch == "insomniac" {
            return Ok(false);
        }
        let (_, stop) = self.running.lock().remove(place).ok_or("it does not run")?;
        stop.cancel();
        self.seen.sleeps.fetch_add(1, SeqCst);
        Ok(true)
    }

    fn awake(&self) -> Vec<(Place, Address)> {
        Vec::new()
    }
}

async fn listen(listener: TcpListener, seen: Arc<Seen>, stop: CancellationToken) {
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                tokio::spawn(serve_one(accepted.unwrap().0, Arc::clone(&seen)));
            }
            () = stop.cancelled() => return,
        }
    }
}

/// Starts a session, and sends back what it gets.
async fn serve_one(mut stream: TcpStream, seen: Arc<Seen>) -> std::io::Result<()> {
    let mut len = [0; 4];
    stream.read_exact(&mut len).await?;
    let mut body = vec![0; startup_len(len).unwrap() - 4];
    stream.read_exact(&mut body).await?;
    match StartupPacket::decode(body.clone().into()).unwrap() {
        StartupPacket::Cancel => seen.cancelled.lock().push(Bytes::from(body.split_off(4))),
        StartupPacket::Startup(startup) => {
            seen.startups.lock().push(startup);
            let mut bytes = BytesMut::new();
            put::authentication_ok(&mut bytes);
            put_message(&mut bytes, b'K', |body| body.put_slice(SECRET));
            put::ready_for_query(&mut bytes);
            stream.write_all(&bytes).await?;
            let (mut read, mut write) = stream.split();
            tokio::io::copy(&mut read, &mut write).await?;
        }
        other => panic!("{other:?} went through"),
    }
    Ok(())
}

struct Served {
    port: u16,
    seen: Arc<Seen>,
    shared: Arc<Shared<Computes>>,
}

impl Served {
    async fn new(settings: Settings) -> Self {
        let seen = Arc::new(Seen::default());
        let running = Mutex::default();
        let fleet = Computes { seen: Arc::clone(&seen), runtime: tokio::runtime::Handle::current(), running };
        let gateway = Gateway::new(fleet, settings);
        let shared = Arc::clone(&gateway.0);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(gateway.run(listener, CancellationToken::new()));
        Self { port, seen, shared }
    }

    async fn connect(&self, user: &str) -> Result<Client, ClientError> {
        let config = format!("host=127.0.0.1 port={} user={user} sslmode=disable", self.port);
        Client::connect(&config.parse().unwrap(), &[]).await
    }

    async fn refusal(&self, user: &str) -> ErrorFields {
        match self.connect(user).await {
            Err(ClientError::Server(error)) => error,
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("{user} came in"),
        }
    }

    /// A session as bytes.
    async fn raw(&self, user: &str) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        let parameters = vec![("user".to_owned(), user.to_owned())];
        let mut bytes = BytesMut::new();
        StartupPacket::Startup(StartupParameters { minor: 2, parameters }).encode(&mut bytes);
        stream.write_all(&bytes).await.unwrap();
        stream.read_exact(&mut vec![0; 9 + 5 + SECRET.len() + 6]).await.unwrap();
        stream
    }

    async fn until(&self, what: impl Fn(&Seen) -> bool) {
        env::clock::timeout(Duration::from_secs(20), async {
            while !what(&self.seen) {
                env::clock::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .expect("it happens");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_reach_the_compute_that_they_name() {
    let served = Served::new(settings()).await;
    let mut client = served.raw("alice@dev").await;
    client.write_all(b"through and back").await.unwrap();
    let mut back = [0; 16];
    client.read_exact(&mut back).await.unwrap();
    assert_eq!(&back, b"through and back");
    let startups = served.seen.startups.lock().clone();
    assert_eq!((startups[0].minor, startups[0].get("user")), (2, Some("alice")), "all else as the client said it");
    // Its end is the other's end.
    drop(client);
    env::clock::timeout(Duration::from_secs(20), async {
        while served.shared.connections() > 0 {
            env::clock::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("connections end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compute_is_woken_once_however_many_wait() {
    let served = Arc::new(Served::new(settings()).await);
    let branches = ["slow1", "slow2", "slow3", "slow4"];
    let clients = (0..20).map(|i| {
        let served = Arc::clone(&served);
        tokio::spawn(async move { served.connect(&format!("a@{}", branches[i % branches.len()])).await.map(drop) })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap().unwrap();
    }
    assert_eq!(served.seen.wakes.load(SeqCst), branches.len());
    assert_eq!(served.seen.waking_most.load(SeqCst), 2, "as many at once as may be");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_means_the_same_moment_shares_a_compute() {
    let served = Served::new(settings()).await;
    for moment in ["-10min", "-10min", "0/7"] {
        served.connect(&format!("a@main@{moment}")).await.unwrap();
    }
    served.connect("a@main@0/8").await.unwrap();
    served.connect("a@main").await.unwrap();
    assert_eq!(served.seen.wakes.load(SeqCst), 3);
    let error = served.refusal("a@main@yesterday").await;
    assert_eq!((error.code, error.message.as_str()), (SqlState::INVALID_CATALOG_NAME, "main has no yesterday"));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_refused_learns_why() {
    let served = Served::new(Settings { wake_limit: Duration::from_millis(150), ..settings() }).await;
    let error = served.refusal("a@missing").await;
    assert_eq!((error.severity.as_str(), error.code.as_str()), ("FATAL", "3D000"));
    assert_eq!(error.hint.as_deref(), Some("there is dev"));
    let error = served.refusal("a@broken").await;
    assert_eq!((error.code, error.hint.as_deref()), (SqlState::CANNOT_CONNECT_NOW, Some("make some")));
    assert_eq!(served.refusal("a").await.code, SqlState::INVALID_AUTHORIZATION);
    assert_eq!(served.refusal("a@slow").await.code, SqlState::CANNOT_CONNECT_NOW, "that takes longer");
    served.until(|seen| seen.wakes.load(SeqCst) == 1).await;
    served.connect("a@slow").await.expect("it went on starting");
    assert_eq!(served.seen.wakes.load(SeqCst), 1);
    let strict = Served::new(Settings { require_tls: true, ..settings() }).await;
    assert_eq!(strict.refusal("a@dev").await.message, "must connect with TLS");
}

#[tokio::test(flavor = "multi_thread")]
async fn there_are_limits() {
    let served = Served::new(Settings { connections_max: 5, branch_connections_max: 3, ..settings() }).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(served.connect("a@dev").await.unwrap());
    }
    let error = served.refusal("a@dev").await;
    assert_eq!((error.code, error.message.as_str()), (SqlState::TOO_MANY_CONNECTIONS, "too many connections to dev"));
    clients.push(served.connect("a@other").await.unwrap());
    clients.push(served.connect("a@other").await.unwrap());
    assert_eq!(served.refusal("a@third").await.message, "too many connections to this gateway");
    drop(clients);
    env::clock::timeout(Duration::from_secs(20), async { while served.connect("a@dev").await.is_err() {} })
        .await
        .expect("there is room again");
    let idle_timeout = Some(IDLE);
    let served = Served::new(Settings { computes_max: 2, idle_timeout, ..settings() }).await;
    let first = (served.connect("a@1").await.unwrap(), served.refusal("a@broken").await);
    let second = served.connect("a@2").await.unwrap();
    assert_eq!(served.refusal("a@3").await.message, "too many connections to different branches and moments");
    drop((first, second));
    served.until(|seen| seen.sleeps.load(SeqCst) == 2).await;
    served.connect("a@3").await.expect("others sleep");
}

#[tokio::test(flavor = "multi_thread")]
async fn computes_sleep_when_nobody_is_there() {
    let served = Served::new(Settings { idle_timeout: Some(IDLE), ..settings() }).await;
    let client = served.connect("a@dev").await.unwrap();
    drop(served.connect("a@insomniac").await.unwrap());
    drop(served.connect("a@other").await.unwrap());
    served.until(|seen| seen.sleeps.load(SeqCst) == 1).await;
    env::clock::sleep(3 * IDLE).await;
    assert_eq!(served.seen.sleeps.load(SeqCst), 1, "somebody is there, or it does not sleep");
    drop(client);
    served.until(|seen| seen.sleeps.load(SeqCst) == 2).await;
    served.connect("a@dev").await.expect("it wakes again");
    assert_eq!(served.seen.wakes.load(SeqCst), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compute_that_is_gone_is_woken_again() {
    let served = Served::new(settings()).await;
    drop(served.connect("a@dev").await.unwrap());
    let place = Place { branch: "dev".to_owned(), lsn: None };
    served.shared.places.fleet().sleep(&place).unwrap();
    env::clock::sleep(Duration::from_millis(20)).await;
    served.connect("a@dev").await.expect("it is woken");
    assert_eq!(served.seen.wakes.load(SeqCst), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_that_is_another_one_by_now_or_has_expired_is_not_the_old_one() {
    let served = Served::new(settings()).await;
    let before = served.connect("a@mortal").await.unwrap();
    served.connect("a@mortal").await.expect("the new one is woken");
    assert_eq!(served.seen.wakes.load(SeqCst), 2);
    served.seen.expired.store(true, SeqCst);
    let error = served.refusal("a@mortal").await;
    assert_eq!((error.severity.as_str(), error.message.as_str()), ("FATAL", "mortal has expired"));
    // The others take a moment to go.
    let others_go = async {
        while served.shared.connections() > 1 {
            env::clock::sleep(Duration::from_millis(5)).await
        }
    };
    env::clock::timeout(Duration::from_secs(20), others_go).await.expect("whoever left is not counted");
    env::clock::sleep(Duration::from_millis(50)).await;
    assert_eq!(served.shared.connections(), 1, "who is there stays");
    drop(before);
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_requests_find_their_session() {
    let served = Served::new(settings()).await;
    let client = served.raw("a@dev").await;
    let cancel = async |key: &[u8]| {
        let mut stream = TcpStream::connect(("127.0.0.1", served.port)).await.unwrap();
        let mut bytes = BytesMut::new();
        bytes.put_u32(8 + key.len() as u32);
        bytes.put_i32(pq_proto::frontend::CANCEL_CODE);
        bytes.put_slice(key);
        stream.write_all(&bytes).await.unwrap();
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0, "nothing is told");
    };
    cancel(b"\0\0\0\x07guessed").await;
    cancel(SECRET).await;
    served.until(|seen| *seen.cancelled.lock() == [SECRET]).await;
    drop(client);
    env::clock::timeout(Duration::from_secs(20), async {
        while served.shared.connections() > 0 {
            env::clock::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
    cancel(SECRET).await;
    assert_eq!(served.seen.cancelled.lock().len(), 1, "the session has ended");
}

/// A certificate for a domain, and who trusts it: the name, for TLS does not reach further here.
fn tls_for(domain: &str) -> TlsAcceptor {
    use tokio_rustls::rustls::pki_types::PrivateKeyDer;
    use tokio_rustls::rustls::{ServerConfig, crypto};
    let key = rcgen::KeyPair::generate().unwrap();
    let made = rcgen::CertificateParams::new([format!("*.{domain}")]).unwrap().self_signed(&key).unwrap();
    let provider = Arc::new(crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![made.der().clone()], key).unwrap();
    TlsAcceptor::from(Arc::new(config))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_name_that_tls_tells_names_a_branch() {
    let tls = Some(tls_for("db.example"));
    let domain = Some("db.example".to_owned());
    let served = Served::new(Settings { tls, domain, require_tls: true, ..settings() }).await;
    for (negotiation, branch) in [("postgres", "dev"), ("direct", "test")] {
        let config = format!(
            "host={branch}.db.example hostaddr=127.0.0.1 port={} user=alice sslmode=require \
             sslnegotiation={negotiation}",
            served.port
        );
        Client::connect(&config.parse().unwrap(), &[]).await.unwrap();
    }
    assert_eq!(served.seen.wakes.load(SeqCst), 2);
    assert_eq!(served.refusal("a@dev").await.message, "must connect with TLS");
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_clients_harm_nobody() {
    let served = Served::new(Settings { login_limit: Duration::from_millis(200), ..settings() }).await;
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"\0\0\0\x08\x04\xd2\x16\x2f\0\0\0\x08\x04\xd2\x16\x2f\0\0\0\x08\x04\xd2\x16\x2f\0\0\0\x08\x04\xd2\x16\x2f",
        b"\x7f\xff\xff\xff",
        b"\0\0\0\x04",
        b"\0\0\0\x09\0\x03\0\0user",
        b"\0\0\0\x08\0\x02\0\0",
        b"\x16\x03\x01\0\xff",
        b"",
    ] {
        let mut stream = TcpStream::connect(("127.0.0.1", served.port)).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        // What was not read makes the kernel reset the connection.
        let _ = env::clock::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await.expect("it ends");
        assert!(answer.iter().all(|byte| *byte == b'N'), "{answer:?}");
    }
    assert_eq!(served.seen.wakes.load(SeqCst), 0);
    served.connect("a@dev").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_says_what_it_wants_byte_by_byte_does_not_stay() {
    let limit = Duration::from_millis(300);
    let served = Served::new(Settings { login_limit: limit, ..settings() }).await;
    let mut packet = BytesMut::new();
    let parameters = vec![("user".to_owned(), format!("a@dev{}", "x".repeat(1000)))];
    StartupPacket::Startup(StartupParameters { minor: 0, parameters }).encode(&mut packet);
    let began = env::clock::now();
    let mut slow = TcpStream::connect(("127.0.0.1", served.port)).await.unwrap();
    let mut sent = 0;
    for byte in &packet {
        if slow.write_all(&[*byte]).await.is_err() {
            break;
        }
        sent += 1;
        env::clock::sleep(Duration::from_millis(5)).await;
    }
    let took = env::clock::now().saturating_duration_since(began);
    assert!(sent < packet.len() && took < limit * 10, "it was listened to for {took:?}, {sent} bytes");
    // Others do not wait for it.
    let mut waiting = Vec::new();
    for _ in 0..20 {
        let mut one = TcpStream::connect(("127.0.0.1", served.port)).await.unwrap();
        one.write_all(&packet[..9]).await.unwrap();
        waiting.push(one);
    }
    served.connect("a@dev").await.unwrap();
    assert_eq!(served.seen.wakes.load(SeqCst), 1);
}
