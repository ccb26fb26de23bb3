//! Fixed layouts: structs with fields at given offsets, read and written from one table.

use utils::lsn::Lsn;

use crate::cursor::{Truncated, array_at};

/// A type that can be a field of a fixed layout.
pub(crate) trait Field: Sized {
    /// Reads the value at `offset`.
    fn get(bytes: &[u8], offset: usize) -> Result<Self, Truncated>;

    /// Writes the value at `offset`.
    fn put(&self, bytes: &mut [u8], offset: usize) -> Result<(), Truncated>;
}

/// Writes `value` at `offset`.
pub(crate) fn put_at(bytes: &mut [u8], offset: usize, value: &[u8]) -> Result<(), Truncated> {
    let (len, needed) = (bytes.len(), value.len());
    let place = bytes.get_mut(offset..offset.saturating_add(needed));
    place.ok_or(Truncated { offset, needed, len })?.copy_from_slice(value);
    Ok(())
}

macro_rules! number_fields {
    ($($type:ty),*) => {$(
        impl Field for $type {
            fn get(bytes: &[u8], offset: usize) -> Result<Self, Truncated> {
                Ok(Self::from_le_bytes(array_at(bytes, offset)?))
            }

            fn put(&self, bytes: &mut [u8], offset: usize) -> Result<(), Truncated> {
                put_at(bytes, offset, &self.to_le_bytes())
            }
        }
    )*};
}

number_fields!(u8, u16, u32, u64, i32, i64, f64);

impl Field for bool {
    fn get(bytes: &[u8], offset: usize) -> Result<Self, Truncated> {
        Ok(u8::get(bytes, offset)? != 0)
    }

    fn put(&self, bytes: &mut [u8], offset: usize) -> Result<(), Truncated> {
        u8::from(*self).put(bytes, offset)
    }
}

impl Field for Lsn {
    fn get(bytes: &[u8], offset: usize) -> Result<Self, Truncated> {
        u64::get(bytes, offset).map(Lsn)
    }

    fn put(&self, bytes: &mut [u8], offset: usize) -> Result<(), Truncated> {
        self.0.put(bytes, offset)
    }
}

/// Defines a struct and its conversion from and to bytes. Bytes between fields are not touched.
macro_rules! fixed_layout {
    (
        $(#[$meta:meta])*
        pub struct $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty = $offset:literal,)* }
    ) => {
        $(#[$meta])*
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl $crate::fields::Field for $name {
            fn get(bytes: &[u8], offset: usize) -> Result<Self, $crate::cursor::Truncated> {
                Ok(Self { $($field: <$type as $crate::fields::Field>::get(bytes, offset + $offset)?,)* })
            }

            fn put(&self, bytes: &mut [u8], offset: usize) -> Result<(), $crate::cursor::Truncated> {
                $($crate::fields::Field::put(&self.$field, bytes, offset + $offset)?;)*
                Ok(())
            }
        }
    };
}

pub(crate) use fixed_layout;
