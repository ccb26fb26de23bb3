//! Reads that go on while their job awaits something else.
//!
//! A future that has begun may hold what others wait for: memory for blocks from the bucket, its place in the queue for
//! that, the lock of a layer that is being opened. If its job then awaits one of these without polling the future, both
//! wait for ever, and so does everyone after them. So a job that has begun reads awaits nothing but through
//! [`Ongoing`].

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;

/// Futures that were begun, and the results of those that have ended, in order.
pub(super) struct Ongoing<F: Future> {
    running: FuturesOrdered<F>,
    ended: VecDeque<F::Output>,
}

impl<F: Future> Default for Ongoing<F> {
    fn default() -> Self {
        Self { running: FuturesOrdered::new(), ended: VecDeque::new() }
    }
}

impl<F: Future> Ongoing<F> {
    pub(super) fn push(&mut self, future: F) {
        self.running.push_back(future);
    }

    /// Results that are still to be taken, of futures that have ended and of those that have not.
    pub(super) fn len(&self) -> usize {
        self.running.len() + self.ended.len()
    }

    /// The next result; `None` if there are no more futures.
    pub(super) async fn next(&mut self) -> Option<F::Output> {
        match self.ended.pop_front() {
            Some(result) => Some(result),
            None => self.running.next().await,
        }
    }

    /// Awaits `work` while the futures go on.
    pub(super) async fn beside<W: Future>(&mut self, work: W) -> W::Output {
        let mut work = pin!(work);
        poll_fn(|cx| {
            if let Poll::Ready(output) = work.as_mut().poll(cx) {
                return Poll::Ready(output);
            }
            while let Poll::Ready(Some(result)) = self.running.poll_next_unpin(cx) {
                self.ended.push_back(result);
            }
            Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::sync::Semaphore;
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_others_hold_comes_free() {
        let memory = Arc::new(Semaphore::new(1));
        let read = |number: u32| {
            let memory = Arc::clone(&memory);
            async move {
                let _held = memory.acquire().await.unwrap();
                yield_now().await;
                number
            }
        };
        let mut ongoing = Ongoing::default();
        ongoing.push(read(1));
        ongoing.push(read(2));
        // The first one has what is needed next, the second one waits before it.
        ongoing.beside(yield_now()).await;
        assert_eq!((memory.available_permits(), ongoing.len()), (0, 2));
        let work = env::clock::timeout(Duration::from_secs(60), ongoing.beside(memory.acquire())).await;
        drop(work.expect("a deadlock").unwrap());
        ongoing.push(read(3));
        assert_eq!(ongoing.len(), 3);
        for number in 1..=3 {
            assert_eq!(ongoing.next().await, Some(number));
        }
        assert_eq!((ongoing.next().await, ongoing.len()), (None, 0));
    }
}
