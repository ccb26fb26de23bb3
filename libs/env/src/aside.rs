//! Threads of low priority for work that nobody waits for: long jobs that would otherwise take the processors from
//! those who wait for an answer.

use std::io;
use std::sync::{PoisonError, RwLock};

use tokio::runtime::{Builder, Handle, Runtime};

static ASIDE: RwLock<Option<Handle>> = RwLock::new(None);

/// The threads. Without them, as in tests, such work is done by the current runtime. Dropping this ends the work.
#[derive(Debug)]
pub struct Aside(Option<Runtime>);

impl Aside {
    /// Starts `threads` threads, and makes work that is spawned aside run on them. Where the threads of the other
    /// runtime want all processors, these get the less the larger `niceness` is: at 5 a third of what those get.
    ///
    /// # Errors
    /// If no threads can be started.
    pub fn start(threads: usize, niceness: i32) -> io::Result<Self> {
        let lower = move || {
            // The priority is one of the thread, not of the process. Without it the work is done all the same.
            let _ = rustix::process::setpriority_process(None, niceness);
        };
        let mut builder = Builder::new_multi_thread();
        let runtime =
            builder.worker_threads(threads).enable_all().thread_name("aside").on_thread_start(lower).build()?;
        *ASIDE.write().unwrap_or_else(PoisonError::into_inner) = Some(runtime.handle().clone());
        Ok(Self(Some(runtime)))
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        *ASIDE.write().unwrap_or_else(PoisonError::into_inner) = None;
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Where work that nobody waits for is done.
pub(crate) fn handle() -> Handle {
    let aside = ASIDE.read().unwrap_or_else(PoisonError::into_inner).clone();
    aside.unwrap_or_else(Handle::current)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spawn;

    async fn niceness_of_work() -> i32 {
        spawn::aside("niceness", async { rustix::process::getpriority_process(None).unwrap() }, drop).await.unwrap()
    }

    #[tokio::test]
    async fn work_aside_has_a_lower_priority() {
        let usual = rustix::process::getpriority_process(None).unwrap();
        assert_eq!(niceness_of_work().await, usual);
        let aside = Aside::start(1, usual + 3).unwrap();
        assert_eq!(niceness_of_work().await, usual + 3);
        assert_eq!(rustix::process::getpriority_process(None).unwrap(), usual, "that of the others has changed");
        drop(aside);
        assert_eq!(niceness_of_work().await, usual);
    }
}
