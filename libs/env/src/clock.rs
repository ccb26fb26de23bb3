//! Time. A test may pause its runtime's clock (tokio's `start_paused`), which then jumps to the next timer that a
//! task awaits; or freeze its thread's clock and advance it by hand. A simulation pauses its runtime's clock, and has a
//! wall clock that moves with it.

use std::cell::Cell;
use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime};

use tokio::time::{Interval, MissedTickBehavior, Sleep, Timeout};

use crate::process::Process;

thread_local! {
    static FROZEN: Cell<Option<(Instant, SystemTime)>> = const { Cell::new(None) };
    /// What both clocks of a simulation show at the same moment.
    static SIMULATED: Cell<Option<(Instant, SystemTime)>> = const { Cell::new(None) };
}

/// Monotonic time: the runtime's, if called on one of its threads.
pub fn now() -> Instant {
    FROZEN.get().map_or_else(|| tokio::time::Instant::now().into_std(), |(instant, _)| instant)
}

/// Wall-clock time.
pub fn system_now() -> SystemTime {
    let system = match (FROZEN.get(), SIMULATED.get()) {
        (Some((_, system)), _) => system,
        (None, Some((began, system))) => system + now().saturating_duration_since(began),
        (None, None) => SystemTime::now(),
    };
    let (ahead, behind) = Process::current().map(|process| process.clock()).unwrap_or_default();
    system + ahead - behind
}

/// From now on what this thread does is a simulation: its wall clock shows `wall` and moves with the runtime's clock,
/// and blocking calls are made where they are spawned ([`spawn::blocking`](crate::spawn::blocking)).
pub fn simulate(wall: SystemTime) {
    SIMULATED.set(Some((now(), wall)));
}

/// Ends the simulation on this thread.
pub fn end_simulation() {
    SIMULATED.set(None);
}

/// Whether what this thread does is a simulation.
pub fn is_simulated() -> bool {
    SIMULATED.get().is_some()
}

/// When this was first asked for, by both clocks.
static BEGAN: LazyLock<(Instant, SystemTime)> = LazyLock::new(|| (Instant::now(), SystemTime::now()));

/// What the wall clock would show if nobody had set it since the process began: it moves only with the monotonic clock,
/// so no promise ends early because somebody corrects the time.
pub fn steady_now() -> SystemTime {
    let (began, wall) = SIMULATED.get().unwrap_or(*BEGAN);
    let now = now();
    match now.checked_duration_since(began) {
        Some(since) => wall + since,
        None => wall - began.saturating_duration_since(now),
    }
}

/// Stops this thread's clocks at their present values.
pub fn freeze_thread() {
    FROZEN.set(Some((now(), system_now())));
}

/// Advances this thread's frozen clocks; running clocks are not affected.
pub fn advance_thread(by: Duration) {
    FROZEN.set(FROZEN.get().map(|(instant, system)| (instant + by, system + by)));
}

/// Sets this thread's frozen wall clock ahead, or back, as somebody who corrects it does.
pub fn set_thread(by: Duration, ahead: bool) {
    let set = |system: SystemTime| if ahead { system + by } else { system - by };
    FROZEN.set(FROZEN.get().map(|(instant, system)| (instant, set(system))));
}

/// Lets this thread's clocks run again.
pub fn thaw_thread() {
    FROZEN.set(None);
}

/// Blocks this thread for `duration`.
pub fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// Completes after `duration`.
pub fn sleep(duration: Duration) -> Sleep {
    tokio::time::sleep(duration)
}

/// Runs `future`, for `limit` at most.
pub fn timeout<F: IntoFuture>(limit: Duration, future: F) -> Timeout<F::IntoFuture> {
    tokio::time::timeout(limit, future)
}

/// Ticks immediately and then every `period`, with at least that much time after a late tick.
pub fn interval(period: Duration) -> Interval {
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_paused_runtime_moves_every_clock() {
        let (start, began) = (now(), Instant::now());
        sleep(Duration::from_secs(3600)).await;
        assert!(timeout(Duration::from_secs(600), std::future::pending::<()>()).await.is_err());
        assert_eq!(now() - start, Duration::from_secs(4200));
        let mut ticks = interval(Duration::from_secs(60));
        ticks.tick().await;
        sleep(Duration::from_secs(90)).await;
        ticks.tick().await;
        let late = now();
        ticks.tick().await;
        assert_eq!(now() - late, Duration::from_secs(60));
        assert!(began.elapsed() < Duration::from_secs(60));
    }

    #[tokio::test(start_paused = true)]
    async fn the_wall_clock_of_a_simulation_moves_with_the_runtime() {
        let (wall, day) = (SystemTime::UNIX_EPOCH + Duration::from_secs(1_577_836_800), Duration::from_secs(86_400));
        assert!(!is_simulated());
        simulate(wall);
        assert_eq!((is_simulated(), system_now(), steady_now()), (true, wall, wall));
        sleep(day).await;
        assert_eq!((system_now(), steady_now()), (wall + day, wall + day));
        end_simulation();
        assert!(!is_simulated() && system_now() > wall + day);
    }

    #[test]
    fn a_frozen_clock_moves_only_by_hand() {
        freeze_thread();
        let start = now();
        assert_eq!(start, now());
        advance_thread(Duration::from_secs(5));
        assert_eq!(now() - start, Duration::from_secs(5));
        thaw_thread();
        assert!(now() < start + Duration::from_secs(5));
    }

    #[test]
    fn the_steady_clock_does_not_notice_that_the_wall_clock_is_set() {
        let day = Duration::from_secs(24 * 3600);
        freeze_thread();
        let (start, wall) = (steady_now(), system_now());
        set_thread(day, true);
        assert_eq!((steady_now(), system_now()), (start, wall + day));
        set_thread(2 * day, false);
        advance_thread(Duration::from_secs(5));
        assert_eq!(steady_now(), start + Duration::from_secs(5));
        assert_eq!(system_now(), wall - day + Duration::from_secs(5));
        thaw_thread();
    }

    #[tokio::test(start_paused = true)]
    async fn the_steady_clock_moves_with_a_paused_runtime() {
        let start = steady_now();
        sleep(Duration::from_secs(3600)).await;
        assert_eq!(steady_now().duration_since(start).ok(), Some(Duration::from_secs(3600)));
    }
}
