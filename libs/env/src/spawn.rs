//! Spawning of tasks: one place, so that a simulator can schedule them and a task's name shows in traces.

use std::future::Future;

use tokio::task::JoinHandle;

/// Runs `future` as a task of the current runtime. `name` says what the task is for.
pub fn task<F>(name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let _ = name;
    tokio::spawn(future)
}

/// Runs a blocking call on the runtime's blocking pool.
pub fn blocking<F, R>(call: F) -> JoinHandle<R>
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    tokio::task::spawn_blocking(call)
}
