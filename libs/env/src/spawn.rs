//! Spawns tasks: the only place to do so, so that a simulator can schedule them and no panic goes unnoticed.
//!
//! A panic of a task is counted under the task's name ([`panics`]) and printed by the process's panic hook. Further
//! consequences are declared at the spawn: whoever awaits a [`task`] learns of the panic from the handle; a caller
//! that does not await uses [`watched`] to handle what the task worked on; and the process does not survive a panic
//! of a [`vital`] task.

use std::any::Any;
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::process::{Process, Task};
use crate::{aside, clock, planted};

/// Part of tokio's panic messages about a runtime that is being dropped.
const SHUTTING_DOWN: &str = "context was found, but it is being shutdown";

static PANICS: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

/// Number of panics of tasks since the process started, by task name.
pub fn panics() -> BTreeMap<&'static str, u64> {
    PANICS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Runs `future` as a task of the current runtime. `name` says what the task is for. Meant for tasks that are
/// awaited, and for those that serve one request, whose connection ends with them.
pub fn task<F>(name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    watched(name, future, |_| {})
}

/// As [`task`]; if it panics, `on_panic` is called with the panic's message.
pub fn watched<F>(
    name: &'static str,
    future: F,
    on_panic: impl FnOnce(String) + Send + 'static,
) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    watched_on(&Handle::current(), name, future, on_panic)
}

/// As [`watched`], for work that nobody waits for: by threads of low priority, if there are any
/// ([`Aside`](crate::aside::Aside)).
pub fn aside<F>(name: &'static str, future: F, on_panic: impl FnOnce(String) + Send + 'static) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    watched_on(&aside::handle(), name, future, on_panic)
}

fn watched_on<F>(
    runtime: &Handle,
    name: &'static str,
    future: F,
    on_panic: impl FnOnce(String) + Send + 'static,
) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    match Process::current() {
        None => runtime.spawn(observed(name, future, on_panic)),
        Some(process) => in_process(&process, runtime, name, observed(name, future, on_panic)),
    }
}

/// Runs `future` as a task of one of a simulation's processes.
fn in_process<F>(process: &Process, runtime: &Handle, name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let membership = process.admit(name);
    let number = membership.number;
    let task = runtime.spawn(Task::new(future, membership));
    process.adopt(number, task.abort_handle());
    task
}

/// Counts and tells a panic of `future`.
async fn observed<F: Future>(name: &'static str, future: F, on_panic: impl FnOnce(String)) -> F::Output {
    // Boxed separately, because otherwise the task would contain a copy for each of the wrapping futures.
    let mut future = Box::pin(future);
    let mut has_begun = false;
    let mut poll = |cx: &mut Context<'_>| {
        if !std::mem::replace(&mut has_begun, true) {
            planted::panic_if_next(name);
        }
        future.as_mut().poll(cx)
    };
    let polled = poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| poll(cx))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
        Err(panic) => Poll::Ready(Err(panic)),
    });
    match polled.await {
        Ok(value) => value,
        // Timers raise this in a task that runs while its runtime is being dropped: the task is about to be dropped
        // anyway.
        Err(panic) if message(&*panic).contains(SHUTTING_DOWN) => resume_unwind(panic),
        Err(panic) => {
            *PANICS.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_default() += 1;
            on_panic(told(name, &*panic));
            resume_unwind(panic)
        }
    }
}

/// As [`task`]; if it panics, the process exits at once: durable state is recovered at the next start.
pub fn vital<F>(name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    watched(name, future, |reason| end_process(&reason))
}

/// Runs a blocking call on the runtime's blocking pool; in a simulation, which has one thread, as a task of it.
pub fn blocking<F, R>(call: F) -> JoinHandle<R>
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    match (clock::is_simulated(), Process::current()) {
        (false, _) => tokio::task::spawn_blocking(call),
        (true, None) => tokio::spawn(async { call() }),
        (true, Some(process)) => in_process(&process, &Handle::current(), "blocking call", async { call() }),
    }
}

/// As [`blocking`], for whoever does not wait for it; without a runtime, at once.
pub fn blocking_or_now(call: impl FnOnce() + Send + 'static) {
    match Handle::try_current() {
        Ok(_) => drop(blocking(call)),
        Err(_) => call(),
    }
}

/// Runs a blocking call on its own thread, which needs no runtime. Whoever joins the thread learns of its panic.
pub fn thread<T, F>(name: &'static str, call: F) -> io::Result<std::thread::JoinHandle<T>>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    std::thread::Builder::new().name(name.to_owned()).spawn(call)
}

/// As [`blocking`]; if it panics, the process exits at once.
pub fn vital_blocking<F, R>(name: &'static str, call: F) -> JoinHandle<R>
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    blocking(move || match catch_unwind(AssertUnwindSafe(call)) {
        Ok(value) => value,
        Err(panic) => end_process(&told(name, &*panic)),
    })
}

fn end_process(reason: &str) -> ! {
    eprintln!("{reason}; the process cannot go on without it");
    std::process::abort()
}

fn told(name: &'static str, panic: &(dyn Any + Send)) -> String {
    format!("the task `{name}` panicked: {}", message(panic))
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_panic_is_counted_and_told() {
        let (sender, receiver) = mpsc::channel();
        let ended = watched("test: watched", async { panic!("for {}", "a test") }, move |reason| {
            sender.send(reason).unwrap();
        });
        let ended: Result<(), _> = ended.await;
        assert!(ended.unwrap_err().is_panic());
        assert_eq!(receiver.recv().unwrap(), "the task `test: watched` panicked: for a test");
        assert_eq!(panics()["test: watched"], 1);
        assert_eq!(task("test: fine", async { 7 }).await.unwrap(), 7);
        assert!(!panics().contains_key("test: fine"));
    }

    #[tokio::test]
    async fn a_planted_panic_happens_once() {
        planted::panic_in("test: planted");
        assert!(task("test: other", async {}).await.is_ok());
        assert!(!planted::is_over());
        assert!(task("test: planted", async {}).await.is_err());
        assert!(planted::is_over() && task("test: planted", async {}).await.is_ok());
    }

    /// Run by the test below in a separate process.
    #[tokio::test]
    #[ignore = "ends the process"]
    async fn without_a_vital_task() {
        let ended: Result<(), _> = vital("test: vital", async { panic!("for a test") }).await;
        drop(ended);
        println!("went on");
    }

    #[test]
    fn the_process_ends_with_a_vital_task() {
        let program = std::env::current_exe().unwrap();
        let name = "spawn::tests::without_a_vital_task";
        let output = std::process::Command::new(program).args([name, "--exact", "--ignored", "--nocapture"]).output();
        let output = output.unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(!output.status.success() && !out.contains("went on"), "{out}{err}");
        assert!(err.contains("the task `test: vital` panicked: for a test; the process cannot go on"), "{err}");
    }
}
