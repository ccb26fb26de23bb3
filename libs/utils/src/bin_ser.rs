//! Fixed-width binary encoding of serde types, big- or little-endian.
//!
//! Integers take their own width; lengths of byte strings, strings, sequences and maps are `u64`; enum variants are
//! `u32` tags in order of declaration; `Option` is one byte, 0 or 1; structs and tuples are their fields back to
//! back.

mod de;
mod endian;
mod error;
mod ser;

use std::io::{Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

use endian::{Big, Little};
pub use error::{DeserializeError, SerializeError};

struct Counter(u64);
impl Write for Counter {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        self.0 += buf.len() as u64;
        Ok(buf.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

macro_rules! encoding {
    ($(#[$doc:meta])* $name:ident, $endian:ty) => {
        $(#[$doc])*
        pub trait $name {
            /// Encodes into a new vector.
            fn ser(&self) -> Result<Vec<u8>, SerializeError>
            where
                Self: Serialize,
            {
                let mut out = Vec::new();
                self.ser_into(&mut out)?;
                Ok(out)
            }

            /// Encodes a value of a fixed-width type into memory, which cannot fail.
            fn to_bytes(&self) -> Vec<u8>
            where
                Self: Serialize,
            {
                self.ser().expect("the type has a fixed-width form, and memory takes it")
            }

            /// Encodes into `writer`.
            fn ser_into<W: Write>(&self, writer: &mut W) -> Result<(), SerializeError>
            where
                Self: Serialize,
            {
                self.serialize(&mut ser::Serializer::<W, $endian>::new(writer))
            }

            /// Length of the encoded form in bytes.
            fn serialized_size(&self) -> Result<u64, SerializeError>
            where
                Self: Serialize,
            {
                let mut counter = Counter(0);
                self.ser_into(&mut counter)?;
                Ok(counter.0)
            }

            /// Decodes a value that must take up all of `bytes`.
            fn des(bytes: &[u8]) -> Result<Self, DeserializeError>
            where
                Self: DeserializeOwned,
            {
                let mut rest = bytes;
                let value = Self::deserialize(&mut de::Deserializer::<&[u8], $endian>::new(&mut rest))?;
                if rest.is_empty() { Ok(value) } else { Err(DeserializeError::Trailing(rest.len())) }
            }

            /// Decodes a value from the front of `reader`.
            fn des_from<R: Read>(reader: &mut R) -> Result<Self, DeserializeError>
            where
                Self: DeserializeOwned,
            {
                Self::deserialize(&mut de::Deserializer::<R, $endian>::new(reader))
            }
        }

        impl<T> $name for T {}
    };
}

encoding! {
    /// Big-endian encoding.
    BeSer, Big
}
encoding! {
    /// Little-endian encoding.
    LeSer, Little
}

#[cfg(test)]
mod tests;
