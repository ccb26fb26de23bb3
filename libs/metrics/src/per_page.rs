//! Histograms of what reading pages takes, one observation for each page. They have no lock: a page that is in memory
//! is read in a microsecond or two, and all of these are updated for it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

/// Number of buckets.
const BUCKETS: usize = 16;

/// A histogram of whole numbers: 0, then up to a unit, and twice as many in each further bucket.
#[derive(Clone, Debug)]
pub struct PerPage {
    unit: u64,
    observed: Arc<Observed>,
}

#[derive(Debug, Default)]
struct Observed {
    /// How many were in each bucket and in no smaller one; the last one has all larger ones.
    buckets: [AtomicU64; BUCKETS],
    sum: AtomicU64,
}

impl PerPage {
    /// A histogram with the bounds 0, `unit`, 2 `unit`, 4 `unit`...
    pub(super) fn of(unit: u64) -> Self {
        Self { unit: unit.max(1), observed: Arc::default() }
    }

    /// Adds one observation.
    pub fn observe(&self, value: u64) {
        self.add(value, 1);
    }

    /// Adds an observation for each of the pages of one read.
    pub fn observe_each(&self, values: impl Iterator<Item = u64>) {
        let (mut buckets, mut sum) = ([0; BUCKETS], 0);
        for value in values {
            if let Some(count) = buckets.get_mut(self.bucket(value)) {
                *count += 1;
            }
            sum += value;
        }
        self.add_all(buckets.into_iter().enumerate(), sum);
    }

    /// Adds an observation for each of the `pages` of a read that took `total` together: all have the same share, as
    /// far as it can be divided.
    pub fn observe_shares(&self, total: u64, pages: u64) {
        let Some(share) = total.checked_div(pages) else { return };
        let larger = total % pages;
        self.add(share, pages - larger);
        self.add(share + 1, larger);
    }

    /// The largest value of each bucket, and how many observations it has by now.
    pub fn counts(&self) -> Vec<(u64, u64)> {
        let buckets = self.observed.buckets.iter().enumerate();
        buckets.map(|(number, count)| (self.bound(number) as u64, count.load(Ordering::Relaxed))).collect()
    }

    fn add(&self, value: u64, times: u64) {
        self.add_all(std::iter::once((self.bucket(value), times)), value * times);
    }

    fn add_all(&self, buckets: impl Iterator<Item = (usize, u64)>, sum: u64) {
        for (number, count) in buckets.filter(|(_, count)| *count > 0) {
            if let Some(bucket) = self.observed.buckets.get(number) {
                bucket.fetch_add(count, Ordering::Relaxed);
            }
        }
        if sum > 0 {
            self.observed.sum.fetch_add(sum, Ordering::Relaxed);
        }
    }

    fn bucket(&self, value: u64) -> usize {
        let Some(below) = value.checked_sub(1) else { return 0 };
        let doublings = u64::BITS - (below / self.unit).leading_zeros();
        (1 + doublings as usize).min(BUCKETS - 1)
    }

    /// The largest value of a bucket.
    fn bound(&self, bucket: usize) -> f64 {
        match bucket {
            0 => 0.0,
            _ if bucket == BUCKETS - 1 => f64::INFINITY,
            _ => (self.unit << (bucket - 1)) as f64,
        }
    }
}

impl EncodeMetric for PerPage {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let buckets = self.observed.buckets.iter().enumerate();
        let buckets = buckets.map(|(number, count)| (self.bound(number), count.load(Ordering::Relaxed)));
        let buckets: Vec<(f64, u64)> = buckets.collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = self.observed.sum.load(Ordering::Relaxed) as f64;
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    /// The cumulative counts of the first buckets, the last one, the number of observations and their sum.
    fn read(histogram: &PerPage) -> (Vec<f64>, [f64; 3]) {
        let mut registry = Registry::default();
        registry.register("h", "H", histogram.clone());
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let value = |name: &str| -> f64 {
            let line =
                text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}: {text}"));
            line.trim().parse().unwrap()
        };
        let bounds = ["0.0", "10.0", "20.0", "40.0", "80.0"];
        let buckets = bounds.map(|bound| value(&format!("h_bucket{{le=\"{bound}\"}}")));
        (buckets.to_vec(), [value("h_bucket{le=\"+Inf\"}"), value("h_count"), value("h_sum")])
    }

    #[test]
    fn each_value_is_in_the_bucket_that_it_belongs_to() {
        let histogram = PerPage::of(10);
        for value in [0, 1, 10, 11, 20, 21, 40, 41] {
            histogram.observe(value);
        }
        histogram.observe(1 << 40);
        assert_eq!(histogram.counts()[..5], [(0, 1), (10, 2), (20, 2), (40, 2), (80, 1)]);
        assert_eq!(histogram.counts()[15], (u64::MAX, 1));
        let sum = 144.0 + (1_u64 << 40) as f64;
        assert_eq!(read(&histogram), (vec![1.0, 3.0, 5.0, 7.0, 8.0], [9.0, 9.0, sum]));
    }

    #[test]
    fn a_read_of_several_pages_is_an_observation_for_each() {
        let histogram = PerPage::of(10);
        histogram.observe_each([0, 15, 30].into_iter());
        assert_eq!(read(&histogram), (vec![1.0, 1.0, 2.0, 3.0, 3.0], [3.0, 3.0, 45.0]));
        histogram.observe_shares(41, 4);
        assert_eq!(read(&histogram), (vec![1.0, 4.0, 6.0, 7.0, 7.0], [7.0, 7.0, 86.0]));
        histogram.observe_shares(0, 2);
        histogram.observe_shares(7, 0);
        assert_eq!(read(&histogram).1, [9.0, 9.0, 86.0]);
    }
}
