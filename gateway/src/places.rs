//! Places, whether their computes are awake, and who is there.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pq_proto::backend::ErrorFields;
use pq_proto::sqlstate::SqlState;
use pq_proto::stream::BoxStream;
use tokio::sync::{Mutex as Turn, OwnedMutexGuard, Semaphore};
use traces::{Parent, Trace};
use utils::lsn::Lsn;

use crate::address::Address;
use crate::fleet::{Fleet, Place, Refused};
use crate::refusal;
use crate::settings::Settings;

/// Idle computes are looked for at least and at most so often.
const ROUND_MAX: Duration = Duration::from_secs(10);
const ROUND_MIN: Duration = Duration::from_millis(50);
/// For how long it is believed that a compute is the right one for its branch.
const CHECKED: Duration = Duration::from_millis(500);

/// All places that somebody has asked for lately.
pub(crate) struct Places<F> {
    fleet: Arc<F>,
    spots: Mutex<HashMap<Place, Arc<Spot>>>,
    /// Computes that are awake, or being woken.
    awake: Arc<AtomicUsize>,
    awake_max: usize,
    wakes: Arc<Semaphore>,
    wake_limit: Duration,
    visits_max: usize,
    idle_timeout: Option<Duration>,
}

/// One place.
struct Spot {
    place: Place,
    /// Where its compute listens, as far as is known; `None` if it sleeps. Whoever wakes it or lets it sleep holds this
    /// meanwhile, however long that takes.
    address: Arc<Turn<Option<Address>>>,
    visits: AtomicUsize,
    /// When the last visit ended.
    used: Mutex<Instant>,
    /// When its compute was last known to be the right one.
    checked: Mutex<Option<Instant>>,
}

impl Spot {
    fn new(place: Place, address: Option<Address>) -> Self {
        let address = Arc::new(Turn::new(address));
        let (used, checked) = (Mutex::new(env::clock::now()), Mutex::default());
        Self { place, address, visits: AtomicUsize::new(0), used, checked }
    }

    fn is_idle(&self, limit: Duration) -> bool {
        // The count first: a visit that ends between the two has just set the time.
        self.visits.load(Ordering::SeqCst) == 0
            && env::clock::now().saturating_duration_since(*self.used.lock()) >= limit
    }
}

/// One client at a place: while this lives, the place's compute is not put to sleep.
pub(crate) struct Visit {
    counted: Counted,
    address: Address,
}

impl Visit {
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    pub(crate) fn place(&self) -> &Place {
        &self.counted.0.place
    }
}

/// Counts a client from before its compute is known to be awake.
struct Counted(Arc<Spot>);

impl Drop for Counted {
    fn drop(&mut self) {
        *self.0.used.lock() = env::clock::now();
        self.0.visits.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<F: Fleet> Places<F> {
    pub(crate) fn new(fleet: F, settings: &Settings) -> Self {
        let awake = fleet.awake();
        let count = awake.len();
        let spot = |(place, address): (Place, Address)| (place.clone(), Arc::new(Spot::new(place, Some(address))));
        Self {
            spots: Mutex::new(awake.into_iter().map(spot).collect()),
            awake: Arc::new(AtomicUsize::new(count)),
            awake_max: settings.computes_max,
            fleet: Arc::new(fleet),
            wakes: Arc::new(Semaphore::new(settings.wakes_max)),
            wake_limit: settings.wake_limit,
            visits_max: settings.branch_connections_max,
            idle_timeout: settings.idle_timeout,
        }
    }

    #[cfg(test)]
    pub(crate) fn fleet(&self) -> &F {
        &self.fleet
    }

    /// The LSN of a moment.
    pub(crate) async fn lsn(&self, branch: String, moment: String) -> Result<Lsn, ErrorFields> {
        let fleet = Arc::clone(&self.fleet);
        self.in_time(&branch.clone(), async move { Ok(blocking(move || fleet.lsn(&branch, &moment)).await??) }).await
    }

    /// Connects to the compute of a place, which is woken if it sleeps.
    pub(crate) async fn visit(&self, place: Place, trace: Option<&Trace>) -> Result<(Visit, BoxStream), ErrorFields> {
        let name = place.to_string();
        let counted = self.enter(place)?;
        self.in_time(&name, async {
            let known = counted.0.address.lock().await.clone();
            let is_current = known.is_none() || self.is_current(&counted.0).await?;
            if let Some(address) = known.filter(|_| is_current)
                && let Ok(stream) = address.connect().await
            {
                return Ok((Visit { counted, address }, stream));
            }
            let began = env::clock::now();
            let woken = self.wake(&counted.0, is_current, trace.map(Trace::as_parent)).await;
            if let Some(trace) = trace {
                let took = env::clock::now().saturating_duration_since(began);
                trace.part(None, "gateway: wake", began, took, Vec::new());
            }
            let address = woken?;
            let stream = address.connect().await.map_err(|error| Refused::Unavailable {
                message: format!("the compute of {} runs, and cannot be reached: {error}", counted.0.place),
                hint: None,
            })?;
            Ok((Visit { counted, address }, stream))
        })
        .await
    }

    async fn in_time<T>(
        &self,
        name: &str,
        work: impl Future<Output = Result<T, ErrorFields>>,
    ) -> Result<T, ErrorFields> {
        let done = env::clock::timeout(self.wake_limit, work).await;
        done.unwrap_or_else(|_| Err(refusal::late(name, self.wake_limit)))
    }

    fn enter(&self, place: Place) -> Result<Counted, ErrorFields> {
        let mut spots = self.spots.lock();
        let spot = spots.entry(place).or_insert_with_key(|place| Arc::new(Spot::new(place.clone(), None)));
        // Under the lock: a place that nobody visits may be forgotten.
        let before = spot.visits.fetch_add(1, Ordering::SeqCst);
        let counted = Counted(Arc::clone(spot));
        drop(spots);
        if before >= self.visits_max {
            return Err(refusal::too_many(&format!("to {}", counted.0.place)));
        }
        Ok(counted)
    }

    /// Whether the compute that is known of a place is still the right one; whoever asks soon again is not told anew.
    async fn is_current(&self, spot: &Spot) -> Result<bool, ErrorFields> {
        let now = env::clock::now();
        if spot.checked.lock().is_some_and(|checked| now.saturating_duration_since(checked) < CHECKED) {
            return Ok(true);
        }
        let (fleet, place) = (Arc::clone(&self.fleet), spot.place.clone());
        let is_current = blocking(move || fleet.is_current(&place)).await??;
        *spot.checked.lock() = is_current.then_some(now);
        Ok(is_current)
    }

    /// Wakes a compute, one after the other where there are many. It goes on if the caller no longer waits. What is
    /// known of it is used if it is current.
    async fn wake(&self, spot: &Arc<Spot>, is_current: bool, caller: Option<Parent>) -> Result<Address, ErrorFields> {
        let mut turn = Arc::clone(&spot.address).lock_owned().await;
        if let Some(address) = &*turn
            && is_current
            && address.connect().await.is_ok()
        {
            return Ok(address.clone());
        }
        // One that is gone is counted still, and is known to be gone from here on, however this ends.
        let counted = Awake::count(&self.awake, turn.take().is_some());
        if self.awake.load(Ordering::SeqCst) > self.awake_max {
            return Err(refusal::too_many("to different branches and moments"));
        }
        let Ok(permit) = Arc::clone(&self.wakes).acquire_owned().await else {
            return Err(refusal::fatal(SqlState::ADMIN_SHUTDOWN, "the gateway is shutting down"));
        };
        let (fleet, place) = (Arc::clone(&self.fleet), spot.place.clone());
        let woken = env::spawn::task("waking a compute", async move {
            let woken = blocking(move || fleet.wake(&place, caller)).await;
            drop(permit);
            settle(turn, counted, woken)
        });
        woken.await.unwrap_or_else(|error| Err(broke_off(&error)))
    }

    /// How often idle computes are looked for.
    pub(crate) fn round(&self) -> Duration {
        (self.idle_timeout.unwrap_or(ROUND_MAX) / 4).clamp(ROUND_MIN, ROUND_MAX)
    }

    /// Lets the computes sleep that nobody uses, and forgets places whose computes sleep.
    pub(crate) async fn let_sleep(&self) {
        let idle: Vec<Arc<Spot>> = {
            let mut spots = self.spots.lock();
            spots.retain(|_, spot| {
                let is_asleep = spot.address.try_lock().is_ok_and(|address| address.is_none());
                spot.visits.load(Ordering::SeqCst) > 0 || !is_asleep
            });
            let limit = self.idle_timeout.unwrap_or(Duration::MAX);
            spots.values().filter(|spot| spot.is_idle(limit)).cloned().collect()
        };
        for spot in idle {
            self.put_to_sleep(&spot).await;
        }
    }

    async fn put_to_sleep(&self, spot: &Arc<Spot>) {
        let Some(limit) = self.idle_timeout else { return };
        let Ok(mut turn) = Arc::clone(&spot.address).try_lock_owned() else { return };
        // Whoever comes from now on waits for the turn.
        if turn.is_none() || !spot.is_idle(limit) {
            return;
        }
        let (fleet, place) = (Arc::clone(&self.fleet), spot.place.clone());
        match env::spawn::blocking(move || fleet.sleep(&place)).await {
            Ok(Ok(true)) => {
                tracing::info!("{} sleeps", spot.place);
                *turn = None;
                self.awake.fetch_sub(1, Ordering::SeqCst);
            }
            // Somebody uses it in another way, or it failed: it is looked at again when as much time has passed.
            Ok(Ok(false)) => *spot.used.lock() = env::clock::now(),
            Ok(Err(error)) => {
                *spot.used.lock() = env::clock::now();
                tracing::warn!("{} does not go to sleep: {error}", spot.place);
            }
            Err(error) => tracing::error!("{} does not go to sleep: {error}", spot.place),
        }
    }
}

/// Notes where a compute listens that has been woken, and lets others have their turn.
fn settle(
    mut turn: OwnedMutexGuard<Option<Address>>,
    counted: Awake,
    woken: Result<Result<Address, Refused>, ErrorFields>,
) -> Result<Address, ErrorFields> {
    let woken = woken.and_then(|woken| woken.map_err(ErrorFields::from));
    *turn = woken.as_ref().ok().cloned();
    if woken.is_ok() {
        counted.stays();
    }
    woken
}

/// Counts a compute as awake from before it is; no longer if this is dropped.
struct Awake(Arc<AtomicUsize>);

impl Awake {
    fn count(awake: &Arc<AtomicUsize>, is_counted: bool) -> Self {
        if !is_counted {
            awake.fetch_add(1, Ordering::SeqCst);
        }
        Self(Arc::clone(awake))
    }

    fn stays(self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ErrorFields> {
    env::spawn::blocking(work).await.map_err(|error| broke_off(&error))
}

fn broke_off(error: &dyn std::fmt::Display) -> ErrorFields {
    tracing::error!("the gateway failed: {error}");
    refusal::fatal(SqlState::INTERNAL_ERROR, "the gateway failed, as its log says")
}
