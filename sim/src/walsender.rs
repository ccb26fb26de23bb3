//! What a Postgres of the simulation says to those who connect to it: it sends its WAL to one receiver at a time, ends
//! those who are silent, and tells what follows where it has left a timeline (`walsender.c`, `slot.c`).

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::BufMut;
use parking_lot::Mutex;
use pq_proto::backend::{ErrorFields, put};
use pq_proto::client::simulated::{Listening, listen as listen_at};
use pq_proto::frontend::FrontendMessage;
use pq_proto::server::{Connection, ConnectionError, ServerOptions, ServerWriter, Trust};
use pq_proto::sqlstate::SqlState;
use pq_proto::stream::BoxStream;
use simulated::random::Random;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use utils::lsn::Lsn;

use crate::network::Link;
use crate::origin::Origin;
use crate::wal::SYSTEM;

/// Bytes of WAL in a message, at most.
const PIECE: u64 = 40_000;
/// After so much silence a receiver is asked for a sign of life, and after twice that its connection is ended
/// (`wal_sender_timeout`).
const SILENCE: Duration = Duration::from_secs(30);
/// How long a farewell takes at most.
const FAREWELL: Duration = Duration::from_secs(5);

/// The slot, of which there is one, and the one beside it.
#[derive(Default)]
struct Slot {
    exists: bool,
    /// What the receiver has called durable.
    flushed: Lsn,
    /// The second slot, if there is one: from where on it keeps WAL.
    kept: Option<Lsn>,
    /// The process that streams from it, and what ends that.
    active: Option<(u64, CancellationToken)>,
    last_process: u64,
}

impl Slot {
    /// Nobody keeps the WAL before.
    fn let_go(&self) -> Lsn {
        self.kept.map_or(self.flushed, |kept| kept.min(self.flushed))
    }
}

/// Those who receive, and what is committed since enough of them have it (`syncrep.c`: `ANY wanted (*)`).
#[derive(Default)]
pub struct Quorum {
    /// How many of them have to have it.
    wanted: usize,
    receivers: BTreeMap<u64, Heard>,
    last: u64,
    committed: Lsn,
}

/// What one of them has said.
struct Heard {
    name: String,
    flushed: Lsn,
    stop: CancellationToken,
}

impl Quorum {
    /// Of so many.
    pub fn of(wanted: usize) -> Self {
        Self { wanted, ..Self::default() }
    }

    /// The end of what is committed.
    pub fn committed(&self) -> Lsn {
        self.committed
    }

    fn begin(&mut self, name: String, stop: CancellationToken) -> u64 {
        self.last += 1;
        self.receivers.insert(self.last, Heard { name, flushed: Lsn::INVALID, stop });
        self.last
    }

    fn hear(&mut self, number: u64, flushed: Lsn) {
        if let Some(heard) = self.receivers.get_mut(&number) {
            heard.flushed = flushed;
        }
        let mut all: Vec<Lsn> = self.receivers.values().map(|heard| heard.flushed).collect();
        all.sort_unstable_by(|one, other| other.cmp(one));
        if let Some(committed) = self.wanted.checked_sub(1).and_then(|at| all.get(at)) {
            self.committed = self.committed.max(*committed);
        }
    }

    /// Ends all who receive under a name. Whether there are any.
    fn end(&mut self, name: &str) -> bool {
        let ended: Vec<Heard> =
            self.receivers.extract_if(.., |_, heard| heard.name == name).map(|(_, heard)| heard).collect();
        ended.iter().for_each(|heard| heard.stop.cancel());
        !ended.is_empty()
    }
}

/// A Postgres that can be reached.
#[derive(Clone)]
struct Host {
    origin: Origin,
    slot: Arc<Mutex<Slot>>,
    quorum: Arc<Mutex<Quorum>>,
    /// It is there no more.
    gone: CancellationToken,
}

/// What a receiver has asked for.
struct Wanted {
    from: Lsn,
    timeline: u32,
    /// Its number among all who receive.
    number: u64,
    has_slot: bool,
}

/// A Postgres is reached until this is dropped.
pub struct Reached {
    _listening: Listening,
    gone: CancellationToken,
}

impl Drop for Reached {
    fn drop(&mut self) {
        self.gone.cancel();
    }
}

/// How to reach the origin's Postgres.
pub fn connstr(origin: &Origin) -> String {
    format!("host=/simulated/{} user=pageserver", origin.id)
}

/// Whoever connects to the origin's Postgres reaches it until this is dropped, over links on which things go wrong as
/// long as it is not calm.
pub fn listen(origin: &Origin, is_calm: &Arc<AtomicBool>) -> Reached {
    listen_for(origin, is_calm, Arc::default())
}

/// The same; what is committed there is up to a quorum.
pub fn listen_for(origin: &Origin, is_calm: &Arc<AtomicBool>, quorum: Arc<Mutex<Quorum>>) -> Reached {
    let gone = CancellationToken::new();
    let host = Host { origin: origin.clone(), slot: Arc::default(), quorum, gone: gone.clone() };
    let (sender, mut connections) = mpsc::unbounded_channel::<(BoxStream, Pin<Box<dyn Future<Output = ()> + Send>>)>();
    let calm = Arc::clone(is_calm);
    let listening = listen_at(format!("/simulated/{}/.s.PGSQL.5432", origin.id), move || {
        let mut random = Random::new(env::random::u64());
        let link = if calm.load(Ordering::Relaxed) { Link::GOOD } else { Link::draw(&mut random) };
        let (near, far, carry) = link.lay(random.next());
        // What is spawned here would belong to the process that connects.
        let sent = sender.send((far, Box::pin(carry)));
        sent.map_err(|_| std::io::ErrorKind::ConnectionRefused)?;
        Ok(near)
    });
    drop(env::spawn::task("postgres", async move {
        while let Some((stream, carry)) = connections.recv().await {
            drop(env::spawn::task("network", carry));
            let (backend, gone) = (host.clone().serve(stream), host.gone.clone());
            drop(env::spawn::task("backend", async move {
                let _ = gone.run_until_cancelled_owned(backend).await;
            }));
        }
    }));
    Reached { _listening: listening, gone }
}

impl Host {
    async fn serve(self, stream: BoxStream) {
        let options =
            ServerOptions { tls: None, handshake_timeout: SILENCE, idle_timeout: SILENCE, describe: |_| None };
        let Ok((mut connection, ())) = Connection::accept(stream, options, &Trust).await else { return };
        while let Ok(Some(query)) = connection.next_query().await {
            let text = query.text.as_str();
            let answered = if text.starts_with("START_REPLICATION") {
                self.start_replication(&mut connection, text).await
            } else {
                self.answer(connection.writer(), text);
                connection.writer().flush().await.map_err(ConnectionError::from)
            };
            if answered.is_err() {
                return;
            }
        }
    }

    /// Answers what needs no more than one row.
    fn answer(&self, writer: &mut ServerWriter, text: &str) {
        let (timeline, end) = self.position();
        let row: Vec<String> = if text == "IDENTIFY_SYSTEM" {
            vec![SYSTEM.to_string(), timeline.to_string(), end.to_string()]
        } else if text.starts_with("TIMELINE_HISTORY") {
            let content = self.origin.ask_postgres(|postgres| postgres.history());
            vec![format!("{timeline:08X}.history"), content.unwrap_or_default()]
        } else if text.starts_with("CREATE_REPLICATION_SLOT") {
            self.slot.lock().exists = true;
            vec!["slot".to_owned()]
        } else if text.contains("slot_kept") {
            self.answer_of_kept(text)
        } else if text.contains("FROM pg_catalog.pg_stat_replication WHERE application_name") {
            let name = text.split('\'').nth(1).unwrap_or_default();
            if self.quorum.lock().end(name) { vec!["t".to_owned()] } else { Vec::new() }
        } else if text.starts_with("SELECT s.active_pid") {
            let active = self.slot.lock().active.as_ref().map(|(process, _)| process.to_string());
            active.map_or(Vec::new(), |process| vec![process, "pageserver".to_owned(), "t".to_owned()])
        } else {
            self.end_backend(text);
            vec!["t".to_owned()]
        };
        let buf = writer.buffer();
        put::row_description(buf, &vec!["column"; row.len()]);
        if !row.is_empty() {
            let row: Vec<Option<&[u8]>> = row.iter().map(|text| Some(text.as_bytes())).collect();
            put::data_row(buf, &row);
        }
        put::command_complete(buf, "DONE");
        put::ready_for_query(buf);
    }

    /// Whatever is asked about the second slot.
    fn answer_of_kept(&self, text: &str) -> Vec<String> {
        let mut slot = self.slot.lock();
        if text.contains("pg_copy_physical_replication_slot") {
            slot.kept = Some(slot.flushed.max(self.origin.begins));
        } else if text.contains("pg_drop_replication_slot") {
            slot.kept = None;
        } else if text.contains("pg_replication_slot_advance") {
            let wanted = text.rsplit('\'').nth(1).and_then(|lsn| lsn.parse::<Lsn>().ok());
            slot.kept = slot.kept.max(wanted);
        }
        self.origin.acknowledge(slot.let_go());
        slot.kept.map(|lsn| lsn.to_string()).into_iter().collect()
    }

    /// `SELECT pg_terminate_backend(process)`.
    fn end_backend(&self, text: &str) {
        let wanted = text.trim_end_matches(')').rsplit('(').next().and_then(|process| process.parse::<u64>().ok());
        if let Some((process, stop)) = &self.slot.lock().active
            && wanted == Some(*process)
        {
            stop.cancel();
        }
    }

    /// The timeline that it is on, and the end of its WAL.
    fn position(&self) -> (u32, Lsn) {
        let position = self.origin.ask_postgres(|postgres| (postgres.log().timeline(), postgres.log().end()));
        position.unwrap_or((1, Lsn::INVALID))
    }

    async fn start_replication(&self, connection: &mut Connection, text: &str) -> Result<(), ConnectionError> {
        let after = |word: &str| text.split_ascii_whitespace().skip_while(move |it| *it != word).nth(1);
        let from = after("PHYSICAL").and_then(|lsn| lsn.parse().ok()).unwrap_or(Lsn::INVALID);
        let timeline = after("TIMELINE").and_then(|timeline| timeline.parse().ok()).unwrap_or_default();
        let has_slot = text.contains(" SLOT ");
        let (process, stop) = match if has_slot { self.take_slot() } else { Ok((0, CancellationToken::new())) } {
            Ok(taken) => taken,
            Err(error) => {
                put::error(connection.writer().buffer(), &error);
                put::ready_for_query(connection.writer().buffer());
                return Ok(connection.writer().flush().await?);
            }
        };
        let name = connection.startup().get("application_name").unwrap_or_default().to_owned();
        let number = self.quorum.lock().begin(name, stop.clone());
        let streamed = tokio::select! {
            streamed = self.stream(connection, Wanted { from, timeline, number, has_slot }) => streamed,
            () = stop.cancelled() => Err(ConnectionError::Timeout("ended by an operator")),
        };
        self.quorum.lock().receivers.remove(&number);
        self.slot.lock().active.take_if(|(active, _)| *active == process);
        if stop.is_cancelled() {
            let error = ErrorFields::new(SqlState::ADMIN_SHUTDOWN, "terminating connection");
            put::error(connection.writer().buffer(), &error);
            let _ = env::clock::timeout(FAREWELL, connection.writer().flush()).await;
        }
        streamed
    }

    fn take_slot(&self) -> Result<(u64, CancellationToken), ErrorFields> {
        let mut slot = self.slot.lock();
        if !slot.exists {
            return Err(ErrorFields::new(SqlState::UNDEFINED_OBJECT, "replication slot \"slot\" does not exist"));
        }
        if let Some((process, _)) = &slot.active {
            let message = format!("replication slot \"slot\" is active for PID {process}");
            return Err(ErrorFields::new(SqlState::OBJECT_IN_USE, message));
        }
        slot.last_process += 1;
        let active = (slot.last_process, CancellationToken::new());
        slot.active = Some(active.clone());
        Ok(active)
    }

    /// Sends WAL until the receiver leaves, or the timeline ends.
    async fn stream(&self, connection: &mut Connection, wanted: Wanted) -> Result<(), ConnectionError> {
        let (reader, writer) = connection.split();
        put::copy_both(writer.buffer());
        writer.flush().await?;
        let (mut at, mut end) = (wanted.from, self.origin.watch());
        let (mut heard, mut random) = (env::clock::now(), Random::new(env::random::u64()));
        loop {
            end.mark_unchanged();
            let (to, next) = self.end_of(wanted.timeline);
            while at < to {
                at = self.send_piece(writer, at, to, &mut random).await?;
            }
            if let Some(next) = next {
                put::copy_done(writer.buffer());
                writer.flush().await?;
                while let Some(raw) = reader.read().await? {
                    if matches!(FrontendMessage::decode(raw)?, FrontendMessage::CopyDone) {
                        break;
                    }
                }
                return tell_next(writer, next, to).await;
            }
            tokio::select! {
                message = reader.read() => {
                    let Some(raw) = message? else { return Err(ConnectionError::Timeout("nobody is there")) };
                    heard = env::clock::now();
                    if self.hear(&wanted, FrontendMessage::decode(raw)?) {
                        keep_alive(writer, to, false).await?;
                    }
                }
                _ = end.changed() => {}
                () = env::clock::sleep(SILENCE) => {
                    if env::clock::now().saturating_duration_since(heard) >= SILENCE * 2 {
                        return Err(ConnectionError::Timeout("waiting for a sign of life"));
                    }
                    keep_alive(writer, to, true).await?;
                }
            }
        }
    }

    /// The end of a timeline's WAL, and which one follows if it has been left.
    fn end_of(&self, timeline: u32) -> (Lsn, Option<u32>) {
        let end = self.origin.ask_postgres(|postgres| match postgres.left(timeline) {
            Some((lsn, next)) => (lsn, Some(next)),
            None => (postgres.log().end(), None),
        });
        end.unwrap_or((Lsn::INVALID, None))
    }

    async fn send_piece(
        &self,
        writer: &mut ServerWriter,
        at: Lsn,
        to: Lsn,
        random: &mut Random,
    ) -> Result<Lsn, ConnectionError> {
        let most = 1 + random.below(PIECE) as usize;
        let bytes = self.origin.ask_postgres(|postgres| postgres.log().read(at, to, most)).unwrap_or_default();
        self.origin.note_sent(at + bytes.len() as u64);
        put::copy_data(writer.buffer(), |buf| {
            buf.put_u8(b'w');
            buf.put_u64(at.0);
            buf.put_u64(to.0);
            buf.put_u64(0);
            buf.put_slice(&bytes);
        });
        writer.flush().await?;
        Ok(at + bytes.len() as u64)
    }

    /// Takes what a receiver says. Whether it wants an answer.
    fn hear(&self, wanted: &Wanted, message: FrontendMessage) -> bool {
        let FrontendMessage::CopyData(bytes) = message else { return false };
        let number = |at: usize| bytes.get(at..at + 8).and_then(|it| it.try_into().ok()).map_or(0, u64::from_be_bytes);
        if bytes.first() != Some(&b'r') {
            return false;
        }
        self.quorum.lock().hear(wanted.number, Lsn(number(9)));
        if wanted.has_slot {
            let mut slot = self.slot.lock();
            slot.flushed = Lsn(number(9));
            self.origin.acknowledge(slot.let_go());
        }
        bytes.get(33) == Some(&1)
    }
}

async fn keep_alive(writer: &mut ServerWriter, end: Lsn, reply: bool) -> Result<(), ConnectionError> {
    put::copy_data(writer.buffer(), |buf| {
        buf.put_u8(b'k');
        buf.put_u64(end.0);
        buf.put_u64(0);
        buf.put_u8(reply.into());
    });
    Ok(writer.flush().await?)
}

/// The end of a timeline: which one follows, from where on.
async fn tell_next(writer: &mut ServerWriter, next: u32, from: Lsn) -> Result<(), ConnectionError> {
    let buf = writer.buffer();
    put::row_description(buf, &["next_tli", "next_tli_startpos"]);
    put::data_row(buf, &[Some(next.to_string().as_bytes()), Some(from.to_string().as_bytes())]);
    put::command_complete(buf, "START_STREAMING");
    put::command_complete(buf, "START_REPLICATION");
    put::ready_for_query(buf);
    Ok(writer.flush().await?)
}
