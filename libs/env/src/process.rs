//! Processes of a simulation: groups of tasks of one thread that are killed, paused and given a wrong clock together,
//! as the tasks of a real process are. Whatever is spawned by a task of a process belongs to it. Outside of simulations
//! there are none, and all of this costs one look at a task-local variable for each spawn.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::task::AbortHandle;

tokio::task_local! {
    static CURRENT: Process;
}

/// A process. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Process(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    tasks: BTreeMap<u64, Member>,
    dead: bool,
    stopped: bool,
    /// Of the polls that were put off.
    waiting: Vec<Waker>,
    ahead: Duration,
    behind: Duration,
}

#[derive(Debug)]
struct Member {
    name: &'static str,
    handle: Option<AbortHandle>,
}

impl Process {
    /// A process without tasks.
    pub fn new() -> Self {
        Self::default()
    }

    /// The process whose task runs now.
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Self::clone).ok()
    }

    /// Ends all tasks at the points where they wait, and every task that is still to come before it begins.
    pub fn kill(&self) {
        let mut state = self.state();
        state.dead = true;
        let handles: Vec<AbortHandle> = state.tasks.values().filter_map(|task| task.handle.clone()).collect();
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        handles.iter().for_each(AbortHandle::abort);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Whether it was killed.
    pub fn is_dead(&self) -> bool {
        self.state().dead
    }

    /// No task goes on until [`Process::proceed`], although time does.
    pub fn stop(&self) {
        self.state().stopped = true;
    }

    /// Ends what [`Process::stop`] began.
    pub fn proceed(&self) {
        let mut state = self.state();
        state.stopped = false;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Sets the process's wall clock so much ahead of, or behind, that of the others.
    pub fn set_clock(&self, ahead: Duration, behind: Duration) {
        let mut state = self.state();
        (state.ahead, state.behind) = (ahead, behind);
    }

    pub(crate) fn clock(&self) -> (Duration, Duration) {
        let state = self.state();
        (state.ahead, state.behind)
    }

    /// Names of the tasks that have not ended, in the order in which they were spawned.
    pub fn tasks(&self) -> Vec<&'static str> {
        self.state().tasks.values().map(|task| task.name).collect()
    }

    /// What `call` spawns belongs to this process.
    pub fn enter<T>(&self, call: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(self.clone(), call)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn admit(&self, name: &'static str) -> Membership {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        state.tasks.insert(number, Member { name, handle: None });
        drop(state);
        Membership { process: self.clone(), number }
    }

    /// Tells the process how to end a task.
    pub(crate) fn adopt(&self, number: u64, handle: AbortHandle) {
        let mut state = self.state();
        if state.dead {
            handle.abort();
        } else if let Some(member) = state.tasks.get_mut(&number) {
            member.handle = Some(handle);
        }
    }

    /// Whether a task may go on; otherwise it is woken when it may.
    fn may_go_on(&self, cx: &Context<'_>) -> bool {
        let mut state = self.state();
        let may = !state.dead && !state.stopped;
        if !may {
            state.waiting.push(cx.waker().clone());
        }
        may
    }
}

/// A task's place in its process; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Membership {
    process: Process,
    pub(crate) number: u64,
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.process.state().tasks.remove(&self.number);
    }
}

/// A task of a process, which is polled only while the process may go on.
pub(crate) struct Task<F> {
    future: Pin<Box<F>>,
    membership: Membership,
}

impl<F: Future> Task<F> {
    pub(crate) fn new(future: F, membership: Membership) -> Self {
        Self { future: Box::pin(future), membership }
    }
}

impl<F: Future> Future for Task<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let process = self.membership.process.clone();
        if !process.may_go_on(cx) {
            return Poll::Pending;
        }
        process.enter(|| self.future.as_mut().poll(cx))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::{clock, spawn};

    async fn count(counted: Arc<AtomicU64>) {
        loop {
            clock::sleep(Duration::from_secs(1)).await;
            counted.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn all_tasks_of_a_killed_process_end_and_no_others() {
        let (inside, outside) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let process = Process::new();
        let (counted, nested) = (Arc::clone(&inside), Arc::clone(&inside));
        process.enter(|| {
            spawn::task("test: one", async move {
                spawn::task("test: one's own", count(nested));
                count(counted).await;
            })
        });
        let other = spawn::task("test: other", count(Arc::clone(&outside)));
        clock::sleep(Duration::from_millis(2500)).await;
        assert_eq!(process.tasks(), ["test: one", "test: one's own"]);
        process.kill();
        assert!(process.is_dead() && !other.is_finished());
        clock::sleep(Duration::from_secs(2)).await;
        assert_eq!((inside.load(Ordering::Relaxed), outside.load(Ordering::Relaxed)), (4, 4));
        assert_eq!(process.tasks(), Vec::<&str>::new());
        let late = process.enter(|| spawn::task("test: too late", async {}));
        assert!(late.await.is_err_and(|error| error.is_cancelled()));
        other.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_stopped_process_goes_on_where_it_was() {
        let (counted, process) = (Arc::new(AtomicU64::new(0)), Process::new());
        process.enter(|| spawn::task("test: counting", count(Arc::clone(&counted))));
        clock::sleep(Duration::from_millis(1500)).await;
        process.stop();
        clock::sleep(Duration::from_secs(60)).await;
        assert_eq!(counted.load(Ordering::Relaxed), 1);
        process.proceed();
        clock::sleep(Duration::from_millis(1500)).await;
        assert_eq!(counted.load(Ordering::Relaxed), 3, "one tick that was due, and one that came after it");
        process.kill();
    }

    #[test]
    fn each_process_has_a_clock_of_its_own() {
        let hour = Duration::from_secs(3600);
        let (ahead, behind) = (Process::new(), Process::new());
        ahead.set_clock(hour, Duration::ZERO);
        behind.set_clock(Duration::ZERO, hour);
        let (before, after) = (behind.enter(clock::system_now), ahead.enter(clock::system_now));
        let apart = after.duration_since(before).unwrap();
        assert!(apart >= 2 * hour && apart < 3 * hour, "{apart:?}");
    }
}
