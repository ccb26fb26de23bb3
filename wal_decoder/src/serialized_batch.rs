//! Values on their way into a layer: serialized back to back, with the index information of each.

mod meta;

use pageserver_api::key::{CompactKey, Key};
use pageserver_api::value::Value;
use utils::bin_ser::SerializeError;
use utils::lsn::Lsn;

pub use meta::ValueMeta;

/// A batch of values. Readers of a layer see all of it or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SerializedValueBatch {
    raw: Vec<u8>,
    metadata: Vec<ValueMeta>,
    max_lsn: Lsn,
}

impl SerializedValueBatch {
    /// Builds a batch from `(key, LSN, serialized size, value)`. For each key, LSNs must not decrease.
    ///
    /// # Panics
    /// If a given size differs from the value's serialized size.
    pub fn from_values(values: Vec<(CompactKey, Lsn, usize, Value)>) -> Self {
        let bytes = values.iter().map(|(_, _, size, _)| size).sum();
        let mut batch = Self::with_capacity(values.len(), bytes);
        for (key, lsn, size, value) in &values {
            let len = batch.put(*key, *lsn, value);
            assert_eq!(len.ok(), Some(*size), "the size given for {key:?} is not the value's serialized size");
        }
        batch
    }

    /// An empty batch with capacity for `values` values of `bytes` bytes in total.
    pub fn with_capacity(values: usize, bytes: usize) -> Self {
        let (mut raw, mut metadata) = recycle::take();
        raw.reserve(bytes);
        metadata.reserve(values);
        Self { raw, metadata, max_lsn: Lsn(0) }
    }

    /// Returns the batch's memory for reuse by later batches of this thread.
    pub fn recycle(self) {
        recycle::give(self.raw, self.metadata);
    }

    /// Appends a value and returns its serialized length.
    pub fn put(&mut self, key: CompactKey, lsn: Lsn, value: &Value) -> Result<usize, SerializeError> {
        let start = self.raw.len();
        if let Err(error) = value.encode_into(&mut self.raw) {
            self.raw.truncate(start);
            return Err(error);
        }
        let len = self.raw.len() - start;
        self.push_meta(key, lsn, start, len, value.will_init());
        Ok(len)
    }

    /// Appends a WAL record reduced to one block, which `write` appends to the buffer it is given. Equivalent to
    /// [`put`] of a [`WalRecord::Postgres`](pageserver_api::record::WalRecord::Postgres), without building that
    /// first.
    ///
    /// [`put`]: Self::put
    #[allow(clippy::indexing_slicing, reason = "the place of the length was appended just before")]
    pub fn put_postgres(
        &mut self,
        key: CompactKey,
        lsn: Lsn,
        will_init: bool,
        block_id: u8,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> usize {
        let start = self.raw.len();
        self.raw.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 0, u8::from(will_init), block_id]);
        let len_at = self.raw.len();
        self.raw.extend_from_slice(&[0; 8]);
        write(&mut self.raw);
        let record_len = (self.raw.len() - len_at - 8) as u64;
        self.raw[len_at..len_at + 8].copy_from_slice(&record_len.to_be_bytes());
        let len = self.raw.len() - start;
        self.push_meta(key, lsn, start, len, will_init);
        len
    }

    /// Appends a value for an uncompacted key.
    pub fn put_key(&mut self, key: &Key, lsn: Lsn, value: &Value) -> Result<usize, SerializeError> {
        debug_assert!(key.is_compactable(), "key {key} has no compact form");
        self.put(key.to_compact(), lsn, value)
    }

    /// Moves all of `other` to the end of this batch.
    pub fn append(&mut self, other: &mut SerializedValueBatch) {
        let base = self.raw.len();
        self.raw.append(&mut other.raw);
        for meta in other.metadata.drain(..) {
            self.push_meta(meta.key, meta.lsn, base + meta.offset as usize, meta.len as usize, meta.will_init);
        }
        other.max_lsn = Lsn(0);
    }

    /// Removes all values but keeps the memory.
    pub fn clear(&mut self) {
        self.raw.clear();
        self.metadata.clear();
        self.max_lsn = Lsn(0);
    }

    fn push_meta(&mut self, key: CompactKey, lsn: Lsn, start: usize, len: usize, will_init: bool) {
        let [offset, len] = [start, len].map(|n| u32::try_from(n).expect("a batch is smaller than 4 GiB"));
        self.max_lsn = self.max_lsn.max(lsn);
        self.metadata.push(ValueMeta { key, lsn, offset, len, will_init });
    }

    /// The serialized values, back to back.
    pub fn raw(&self) -> &[u8] {
        &self.raw
    }

    /// The positions of the values, in the order of `raw`.
    pub fn metadata(&self) -> &[ValueMeta] {
        &self.metadata
    }

    /// The largest LSN of the batch; 0/0 if it is empty.
    pub fn max_lsn(&self) -> Lsn {
        self.max_lsn
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.metadata.len()
    }

    /// Whether the batch has no values.
    pub fn is_empty(&self) -> bool {
        self.metadata.is_empty()
    }

    /// Length of the serialized values in bytes.
    pub fn buffer_size(&self) -> usize {
        self.raw.len()
    }
}

/// Memory of finished batches, so that a stream of batches allocates only once.
mod recycle {
    use std::cell::RefCell;

    use super::meta::ValueMeta;

    /// Larger buffers are freed, so that one huge batch does not keep its memory forever.
    const BYTES_MAX: usize = 4 << 20;

    type Memory = (Vec<u8>, Vec<ValueMeta>);

    thread_local! {
        static LAST: RefCell<Option<Memory>> = const { RefCell::new(None) };
    }

    pub(super) fn take() -> Memory {
        LAST.with_borrow_mut(Option::take).unwrap_or_default()
    }

    pub(super) fn give(mut raw: Vec<u8>, mut metadata: Vec<ValueMeta>) {
        if raw.capacity() <= BYTES_MAX {
            raw.clear();
            metadata.clear();
            LAST.set(Some((raw, metadata)));
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use utils::bin_ser::BeSer;

    use super::*;

    fn value(byte: u8, len: usize) -> Value {
        Value::Image(Bytes::from(vec![byte; len]))
    }

    #[test]
    fn values_lie_back_to_back() {
        let key = Key { field6: 7, ..Key::MIN }.to_compact();
        let batch =
            SerializedValueBatch::from_values(vec![(key, Lsn(8), 13, value(1, 1)), (key, Lsn(16), 112, value(2, 100))]);
        assert_eq!(batch.max_lsn(), Lsn(16));
        assert_eq!((batch.len(), batch.buffer_size()), (2, 125));
        let second = batch.metadata()[1];
        let stored = &batch.raw()[second.offset as usize..][..second.len as usize];
        assert_eq!(stored, value(2, 100).ser().unwrap());
        assert!(second.will_init);
    }

    #[test]
    fn postgres_records_are_encoded_like_any_value() {
        use pageserver_api::record::WalRecord;
        let key = Key::MIN.to_compact();
        let (mut direct, mut general) = (SerializedValueBatch::default(), SerializedValueBatch::default());
        let record = Bytes::from_static(b"a record");
        direct.put_postgres(key, Lsn(8), true, 3, |out| out.extend_from_slice(&record));
        let value = Value::WalRecord(WalRecord::Postgres { will_init: true, block_id: 3, record });
        general.put(key, Lsn(8), &value).unwrap();
        assert_eq!(direct, general);
    }

    #[test]
    fn append_moves_offsets() {
        let key = Key::MIN.to_compact();
        let mut one = SerializedValueBatch::from_values(vec![(key, Lsn(8), 13, value(1, 1))]);
        let mut two = SerializedValueBatch::from_values(vec![(key, Lsn(16), 14, value(2, 2))]);
        one.append(&mut two);
        assert!(two.is_empty());
        assert_eq!(one.metadata()[1].offset, 13);
        assert_eq!(one.max_lsn(), Lsn(16));
    }

    #[test]
    #[should_panic(expected = "not the value's serialized size")]
    fn wrong_sizes_are_refused() {
        SerializedValueBatch::from_values(vec![(Key::MIN.to_compact(), Lsn(8), 12, value(1, 1))]);
    }
}
