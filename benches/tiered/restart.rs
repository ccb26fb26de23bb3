//! A start on an empty disk: the time until everything is open, and until the first page.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::store::Place;
use crate::world::{Shape, World};

const PAGES_PER_LAYER: u32 = 4;
const STARTS: usize = 5;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Makes a timeline of `layers` layers, and opens it with each latency. The figures are medians.
pub async fn measure(place: &Place, prefix: &str, layers: u32, latencies_ms: &[u64]) -> anyhow::Result<Vec<Value>> {
    let world = World::make(place.open(prefix).await?, Shape { layers, pages: PAGES_PER_LAYER }).await?;
    let mut results = Vec::new();
    for latency_ms in latencies_ms {
        let (mut opened_ms, mut first_page_ms, mut requests) = (Vec::new(), Vec::new(), Vec::new());
        for start in 0..STARTS {
            world.store.set_latency(Duration::from_millis(*latency_ms));
            world.store.asked();
            let began = Instant::now();
            let opened = world.open(|_| ()).await?;
            opened_ms.push(began.elapsed().as_secs_f64() * 1000.0);
            opened.read(world.shape.total() / 7 * start as u32).await?;
            first_page_ms.push(began.elapsed().as_secs_f64() * 1000.0);
            requests.push(world.store.asked().requests as f64);
            world.store.set_latency(Duration::ZERO);
            opened.close().await;
        }
        results.push(json!({
            "layers": layers, "latency_ms": latency_ms, "starts": STARTS, "open_ms": median(opened_ms),
            "first_page_ms": median(first_page_ms), "requests_until_first_page": median(requests),
        }));
    }
    Ok(results)
}
