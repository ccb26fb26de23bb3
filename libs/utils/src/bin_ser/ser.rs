//! The encoder.

use std::fmt::Display;
use std::io::Write;
use std::marker::PhantomData;

use serde::ser::{self, Serialize};

use super::endian::Endian;
use super::error::SerializeError;

pub(super) struct Serializer<'w, W, E> {
    writer: &'w mut W,
    endian: PhantomData<E>,
}

impl<'w, W: Write, E: Endian> Serializer<'w, W, E> {
    pub(super) fn new(writer: &'w mut W) -> Self {
        Self { writer, endian: PhantomData }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), SerializeError> {
        Ok(self.writer.write_all(bytes)?)
    }

    fn put_len(&mut self, len: Option<usize>) -> Result<(), SerializeError> {
        let len = len.ok_or_else(|| SerializeError::Unsupported("length not known in advance".to_owned()))?;
        ser::Serializer::serialize_u64(self, len as u64)
    }
}

impl ser::Error for SerializeError {
    fn custom<T: Display>(message: T) -> Self {
        SerializeError::Unsupported(message.to_string())
    }
}

macro_rules! number {
    ($($method:ident $type:ty),*) => {$(
        fn $method(self, value: $type) -> Result<(), SerializeError> {
            if E::BIG { self.put(&value.to_be_bytes()) } else { self.put(&value.to_le_bytes()) }
        }
    )*};
}

impl<W: Write, E: Endian> ser::Serializer for &mut Serializer<'_, W, E> {
    type Ok = ();
    type Error = SerializeError;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    number!(serialize_u8 u8, serialize_u16 u16, serialize_u32 u32, serialize_u64 u64, serialize_u128 u128,
            serialize_i8 i8, serialize_i16 i16, serialize_i32 i32, serialize_i64 i64, serialize_i128 i128,
            serialize_f32 f32, serialize_f64 f64);

    fn is_human_readable(&self) -> bool {
        false
    }
    fn serialize_bool(self, value: bool) -> Result<(), SerializeError> {
        self.put(&[u8::from(value)])
    }
    fn serialize_char(self, value: char) -> Result<(), SerializeError> {
        self.serialize_u32(value.into())
    }
    fn serialize_str(self, value: &str) -> Result<(), SerializeError> {
        self.serialize_bytes(value.as_bytes())
    }
    fn serialize_bytes(self, value: &[u8]) -> Result<(), SerializeError> {
        self.put_len(Some(value.len()))?;
        self.put(value)
    }
    fn serialize_none(self) -> Result<(), SerializeError> {
        self.put(&[0])
    }
    fn serialize_some<T: ?Sized + Serialize>(self, value: &T) -> Result<(), SerializeError> {
        self.put(&[1])?;
        value.serialize(self)
    }
    fn serialize_unit(self) -> Result<(), SerializeError> {
        Ok(())
    }
    fn serialize_unit_struct(self, _name: &'static str) -> Result<(), SerializeError> {
        Ok(())
    }
    fn serialize_unit_variant(self, _: &'static str, index: u32, _: &'static str) -> Result<(), SerializeError> {
        self.serialize_u32(index)
    }
    fn serialize_newtype_struct<T: ?Sized + Serialize>(self, _: &'static str, value: &T) -> Result<(), SerializeError> {
        value.serialize(self)
    }
    fn serialize_newtype_variant<T: ?Sized + Serialize>(
        self,
        _name: &'static str,
        index: u32,
        _variant: &'static str,
        value: &T,
    ) -> Result<(), SerializeError> {
        (&mut *self).serialize_u32(index)?;
        value.serialize(self)
    }
    fn serialize_seq(self, len: Option<usize>) -> Result<Self, SerializeError> {
        self.put_len(len)?;
        Ok(self)
    }
    fn serialize_tuple(self, _len: usize) -> Result<Self, SerializeError> {
        Ok(self)
    }
    fn serialize_tuple_struct(self, _name: &'static str, _len: usize) -> Result<Self, SerializeError> {
        Ok(self)
    }
    fn serialize_tuple_variant(
        self,
        _name: &'static str,
        index: u32,
        _variant: &'static str,
        _len: usize,
    ) -> Result<Self, SerializeError> {
        (&mut *self).serialize_u32(index)?;
        Ok(self)
    }
    fn serialize_map(self, len: Option<usize>) -> Result<Self, SerializeError> {
        self.put_len(len)?;
        Ok(self)
    }
    fn serialize_struct(self, _name: &'static str, _len: usize) -> Result<Self, SerializeError> {
        Ok(self)
    }
    fn serialize_struct_variant(
        self,
        _name: &'static str,
        index: u32,
        _variant: &'static str,
        _len: usize,
    ) -> Result<Self, SerializeError> {
        (&mut *self).serialize_u32(index)?;
        Ok(self)
    }
}

macro_rules! compound {
    ($($trait:ident $method:ident),*) => {$(
        impl<W: Write, E: Endian> ser::$trait for &mut Serializer<'_, W, E> {
            type Ok = ();
            type Error = SerializeError;
            fn $method<T: ?Sized + Serialize>(&mut self, value: &T) -> Result<(), SerializeError> {
                value.serialize(&mut **self)
            }
            fn end(self) -> Result<(), SerializeError> {
                Ok(())
            }
        }
    )*};
}
compound!(SerializeSeq serialize_element, SerializeTuple serialize_element,
          SerializeTupleStruct serialize_field, SerializeTupleVariant serialize_field);

macro_rules! named_compound {
    ($($trait:ident),*) => {$(
        impl<W: Write, E: Endian> ser::$trait for &mut Serializer<'_, W, E> {
            type Ok = ();
            type Error = SerializeError;
            fn serialize_field<T: ?Sized + Serialize>(
                &mut self,
                _name: &'static str,
                value: &T,
            ) -> Result<(), SerializeError> {
                value.serialize(&mut **self)
            }
            fn end(self) -> Result<(), SerializeError> {
                Ok(())
            }
        }
    )*};
}
named_compound!(SerializeStruct, SerializeStructVariant);

impl<W: Write, E: Endian> ser::SerializeMap for &mut Serializer<'_, W, E> {
    type Ok = ();
    type Error = SerializeError;
    fn serialize_key<T: ?Sized + Serialize>(&mut self, key: &T) -> Result<(), SerializeError> {
        key.serialize(&mut **self)
    }
    fn serialize_value<T: ?Sized + Serialize>(&mut self, value: &T) -> Result<(), SerializeError> {
        value.serialize(&mut **self)
    }
    fn end(self) -> Result<(), SerializeError> {
        Ok(())
    }
}
