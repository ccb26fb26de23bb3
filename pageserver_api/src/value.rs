//! One version of a key: a whole image, or a change to the previous version.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use utils::bin_ser::{BeSer, DeserializeError, SerializeError};

use crate::record::WalRecord;

/// Length of an encoded image's header: variant tag (u32) and length (u64), big-endian.
const IMAGE_HEADER: usize = 12;

/// One version of a key. Stored in the encoding of [`utils::bin_ser::BeSer`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Value {
    /// The whole page or metadata value.
    Image(Bytes),
    /// A change to be applied to the previous version.
    WalRecord(WalRecord),
}

impl Value {
    /// Whether rebuilding the page needs no earlier version.
    pub fn will_init(&self) -> bool {
        match self {
            Value::Image(_) => true,
            Value::WalRecord(record) => record.will_init(),
        }
    }

    /// Appends the encoded form to `out`; images, the frequent case, bypass serde.
    pub fn encode_into(&self, out: &mut Vec<u8>) -> Result<(), SerializeError> {
        match self {
            Value::Image(image) => {
                let mut header = [0; IMAGE_HEADER];
                header[4..].copy_from_slice(&(image.len() as u64).to_be_bytes());
                out.extend_from_slice(&header);
                out.extend_from_slice(image);
                Ok(())
            }
            Value::WalRecord(_) => self.ser_into(out),
        }
    }

    /// Decodes a stored value. An image shares the memory of `bytes`.
    pub fn decode(bytes: &Bytes) -> Result<Self, DeserializeError> {
        match bytes.split_at_checked(IMAGE_HEADER) {
            Some(([0, 0, 0, 0, len @ ..], image)) if len == (image.len() as u64).to_be_bytes() => {
                Ok(Value::Image(bytes.slice(IMAGE_HEADER..)))
            }
            _ => Value::des(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Value> {
        vec![
            Value::Image(Bytes::new()),
            Value::Image(Bytes::from(vec![7; 8192])),
            Value::WalRecord(WalRecord::Postgres { will_init: true, block_id: 1, record: Bytes::from_static(b"rec") }),
            Value::WalRecord(WalRecord::ClogSetCommitted { xids: vec![1, 2], timestamp: -5 }),
            Value::WalRecord(WalRecord::MultiXactMembers { offset: 9, members: vec![(1, 2), (3, 4)] }),
        ]
    }

    #[test]
    fn the_short_cut_encodes_what_serde_does() {
        for value in samples() {
            let mut encoded = Vec::new();
            value.encode_into(&mut encoded).unwrap();
            assert_eq!(encoded, value.ser().unwrap());
            assert_eq!(encoded.len() as u64, value.serialized_size().unwrap());
            assert_eq!(Value::decode(&Bytes::from(encoded)).unwrap(), value);
        }
    }

    #[test]
    fn contract_sizes() {
        assert_eq!(Value::Image(Bytes::from(vec![0; 100])).serialized_size().unwrap(), 112);
        assert_eq!(Value::Image(Bytes::from(vec![0; 8192])).serialized_size().unwrap(), 8204);
    }

    #[test]
    fn damaged_values_are_refused() {
        for value in samples() {
            let encoded = value.ser().unwrap();
            let cut = Bytes::copy_from_slice(&encoded[..encoded.len() - 1]);
            assert!(Value::decode(&cut).is_err());
        }
    }
}
