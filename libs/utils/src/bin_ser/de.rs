//! The decoder. Never allocates more than it has read: a huge length in damaged input fails at the end of the bytes.

use std::fmt::Display;
use std::io::Read;
use std::marker::PhantomData;

use serde::de::{self, DeserializeSeed, IntoDeserializer, Visitor};

use super::endian::Endian;
use super::error::DeserializeError;

pub(super) struct Deserializer<'r, R, E> {
    reader: &'r mut R,
    endian: PhantomData<E>,
}

impl<'r, R: Read, E: Endian> Deserializer<'r, R, E> {
    pub(super) fn new(reader: &'r mut R) -> Self {
        Self { reader, endian: PhantomData }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], DeserializeError> {
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn take_u32(&mut self) -> Result<u32, DeserializeError> {
        let bytes = self.take()?;
        Ok(if E::BIG { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    fn take_len(&mut self) -> Result<u64, DeserializeError> {
        let bytes = self.take()?;
        Ok(if E::BIG { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) })
    }

    fn take_bytes(&mut self) -> Result<Vec<u8>, DeserializeError> {
        let len = self.take_len()?;
        let mut bytes = Vec::new();
        let got = self.reader.by_ref().take(len).read_to_end(&mut bytes)?;
        if got as u64 == len { Ok(bytes) } else { Err(bad(format!("{len} bytes announced, {got} there"))) }
    }
}

fn bad(message: impl Display) -> DeserializeError {
    DeserializeError::BadInput(message.to_string())
}

impl de::Error for DeserializeError {
    fn custom<T: Display>(message: T) -> Self {
        bad(message)
    }
}

macro_rules! number {
    ($($method:ident $visit:ident $type:ty),*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
            let bytes = self.take()?;
            visitor.$visit(if E::BIG { <$type>::from_be_bytes(bytes) } else { <$type>::from_le_bytes(bytes) })
        }
    )*};
}

impl<'de, R: Read, E: Endian> de::Deserializer<'de> for &mut Deserializer<'_, R, E> {
    type Error = DeserializeError;

    number!(deserialize_u8 visit_u8 u8, deserialize_u16 visit_u16 u16, deserialize_u32 visit_u32 u32,
            deserialize_u64 visit_u64 u64, deserialize_u128 visit_u128 u128, deserialize_i8 visit_i8 i8,
            deserialize_i16 visit_i16 i16, deserialize_i32 visit_i32 i32, deserialize_i64 visit_i64 i64,
            deserialize_i128 visit_i128 i128, deserialize_f32 visit_f32 f32, deserialize_f64 visit_f64 f64);

    fn is_human_readable(&self) -> bool {
        false
    }
    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, DeserializeError> {
        Err(bad("the encoding does not describe itself"))
    }
    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
        self.deserialize_any(visitor)
    }
    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
        self.deserialize_any(visitor)
    }
    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
        match self.take::<1>()? {
            [0] => visitor.visit_bool(false),
            [1] => visitor.visit_bool(true),
            [other] => Err(bad(format!("bool is {other}"))),
        }
    }
    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
        visitor.visit_char(char::from_u32(self.take_u32()?).ok_or_else(|| bad("not a character"))?)
    }
    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
        self.deserialize_string(visitor)
    }
    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
        visitor.visit_string(String::from_utf8(self.take_bytes()?).map_err(bad)?)
    }
    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
        self.deserialize_byte_buf(visitor)
    }
    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
        visitor.visit_byte_buf(self.take_bytes()?)
    }
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
        match self.take::<1>()? {
            [0] => visitor.visit_none(),
            [1] => visitor.visit_some(self),
            [other] => Err(bad(format!("option tag is {other}"))),
        }
    }
    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
        visitor.visit_unit()
    }
    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DeserializeError> {
        visitor.visit_unit()
    }
    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DeserializeError> {
        visitor.visit_newtype_struct(self)
    }
    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
        let left = self.take_len()?;
        visitor.visit_seq(Elements { de: self, left })
    }
    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, DeserializeError> {
        visitor.visit_seq(Elements { de: self, left: len as u64 })
    }
    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, DeserializeError> {
        self.deserialize_tuple(len, visitor)
    }
    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
        let left = self.take_len()?;
        visitor.visit_map(Elements { de: self, left })
    }
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DeserializeError> {
        self.deserialize_tuple(fields.len(), visitor)
    }
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DeserializeError> {
        visitor.visit_enum(self)
    }
}

impl<'de, R: Read, E: Endian> de::EnumAccess<'de> for &mut Deserializer<'_, R, E> {
    type Error = DeserializeError;
    type Variant = Self;
    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), DeserializeError> {
        let index = self.take_u32()?;
        let value = seed.deserialize(IntoDeserializer::<DeserializeError>::into_deserializer(index))?;
        Ok((value, self))
    }
}

impl<'de, R: Read, E: Endian> de::VariantAccess<'de> for &mut Deserializer<'_, R, E> {
    type Error = DeserializeError;
    fn unit_variant(self) -> Result<(), DeserializeError> {
        Ok(())
    }
    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, DeserializeError> {
        seed.deserialize(self)
    }
    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, DeserializeError> {
        de::Deserializer::deserialize_tuple(self, len, visitor)
    }
    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DeserializeError> {
        de::Deserializer::deserialize_tuple(self, fields.len(), visitor)
    }
}

struct Elements<'a, 'r, R, E> {
    de: &'a mut Deserializer<'r, R, E>,
    left: u64,
}

impl<'de, R: Read, E: Endian> de::SeqAccess<'de> for Elements<'_, '_, R, E> {
    type Error = DeserializeError;
    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, DeserializeError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        seed.deserialize(&mut *self.de).map(Some)
    }
    fn size_hint(&self) -> Option<usize> {
        // Bounded, so that a damaged length does not reserve memory.
        Some(self.left.min(4096) as usize)
    }
}

impl<'de, R: Read, E: Endian> de::MapAccess<'de> for Elements<'_, '_, R, E> {
    type Error = DeserializeError;
    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, DeserializeError> {
        de::SeqAccess::next_element_seed(self, seed)
    }
    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, DeserializeError> {
        seed.deserialize(&mut *self.de)
    }
}
