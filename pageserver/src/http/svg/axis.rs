//! An axis that is divided at given values into pieces of equal length.

/// Sorted values, and the total length.
#[derive(Clone, Debug)]
pub(super) struct Axis<T> {
    values: Vec<T>,
    length: f64,
}

impl<T: Ord + Copy> Axis<T> {
    pub(super) fn new(values: impl Iterator<Item = T>, length: f64) -> Self {
        let mut values: Vec<T> = values.collect();
        values.sort();
        values.dedup();
        Self { values, length }
    }

    /// The same pieces on an axis of another length.
    pub(super) fn stretched(&self, length: f64) -> Self {
        Self { values: self.values.clone(), length }
    }

    pub(super) fn length(&self) -> f64 {
        self.length
    }

    /// Number of pieces.
    pub(super) fn pieces(&self) -> usize {
        self.values.len().saturating_sub(1)
    }

    /// Position of `value`, or of the next larger value if it is not on the axis.
    pub(super) fn place(&self, value: T) -> f64 {
        self.at(self.values.partition_point(|known| *known < value))
    }

    /// Like [`Axis::place`]; `None` unless the value is between the first and the last.
    pub(super) fn place_within(&self, value: T) -> Option<f64> {
        let (first, last) = (self.values.first()?, self.values.last()?);
        (*first <= value && value <= *last).then(|| self.place(value))
    }

    fn at(&self, number: usize) -> f64 {
        number.min(self.pieces()) as f64 * self.length / self.pieces().max(1) as f64
    }

    /// Values and their positions, at least `step` apart.
    pub(super) fn ticks(&self, step: f64) -> impl Iterator<Item = (T, f64)> {
        let piece = self.length / self.pieces().max(1) as f64;
        let every = ((step / piece).ceil() as usize).max(1);
        self.values.iter().enumerate().step_by(every).map(|(number, value)| (*value, self.at(number)))
    }
}
