//! Runs independent jobs on all cores.

use std::future::Future;
use std::sync::Arc;

use parking_lot::Mutex;

/// Runs `work` on every job, as many at a time as there are cores. The first error ends the run.
pub(crate) async fn for_each<T, F, W>(jobs: Vec<T>, work: W) -> anyhow::Result<()>
where
    T: Send + 'static,
    F: Future<Output = anyhow::Result<()>> + Send,
    W: Fn(T) -> F + Clone + Send + Sync + 'static,
{
    let workers = std::thread::available_parallelism().map_or(1, |count| count.get());
    let queue = Arc::new(Mutex::new(jobs.into_iter()));
    let mut running = Vec::with_capacity(workers);
    for _ in 0..workers {
        let (queue, work) = (Arc::clone(&queue), work.clone());
        running.push(env::spawn::task("worker", async move {
            loop {
                // The guard must not be held while the job is awaited.
                let next = queue.lock().next();
                let Some(job) = next else { return Ok(()) };
                if let Err(error) = work(job).await {
                    while queue.lock().next().is_some() {}
                    return Err(error);
                }
            }
        }));
    }
    let mut result = Ok(());
    for worker in running {
        let ended: anyhow::Result<()> = worker.await?;
        result = result.and(ended);
    }
    result
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn all_jobs_run_until_one_fails() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let sum = Arc::new(AtomicU64::new(0));
        let add = {
            let sum = Arc::clone(&sum);
            move |job: u64| {
                let sum = Arc::clone(&sum);
                async move {
                    anyhow::ensure!(job != 1000, "job 1000");
                    sum.fetch_add(job, Ordering::Relaxed);
                    Ok(())
                }
            }
        };
        runtime.block_on(for_each((0..100).collect(), add.clone())).unwrap();
        assert_eq!(sum.load(Ordering::Relaxed), 4950);
        let error = runtime.block_on(for_each((900..100_000).collect(), add)).unwrap_err();
        assert_eq!(error.to_string(), "job 1000");
        assert!(sum.load(Ordering::Relaxed) < 4950 + (900..100_000).sum::<u64>());
    }
}
