//! 16-byte random identifiers, written as 32 hexadecimal digits.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::excerpt::Excerpt;

/// The text is not 32 hexadecimal digits.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone)]
#[error("invalid id {:?}: expected 32 hexadecimal digits", Excerpt(.0))]
pub struct IdParseError(pub String);

macro_rules! id_newtype {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; 16]);

        impl $name {
            /// A new random identifier.
            pub fn generate() -> Self {
                Self(env::random::bytes())
            }

            /// The identifier's bytes.
            pub fn as_bytes(&self) -> &[u8; 16] {
                &self.0
            }
        }

        impl From<[u8; 16]> for $name {
            fn from(bytes: [u8; 16]) -> Self {
                Self(bytes)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = IdParseError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let mut bytes = [0; 16];
                hex::decode_to_slice(text, &mut bytes).map_err(|_| IdParseError(text.to_owned()))?;
                Ok(Self(bytes))
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                if serializer.is_human_readable() {
                    serializer.collect_str(self)
                } else {
                    self.0.serialize(serializer)
                }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                if deserializer.is_human_readable() {
                    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
                } else {
                    <[u8; 16]>::deserialize(deserializer).map(Self)
                }
            }
        }
    };
}

id_newtype! {
    /// One Postgres cluster with its whole history.
    TenantId
}
id_newtype! {
    /// One branch of a tenant's history.
    TimelineId
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bin_ser::BeSer;

    #[test]
    fn text_and_binary_round_trip() {
        let id = TenantId::generate();
        assert_ne!(id, TenantId::generate());
        assert_eq!(id.to_string().parse::<TenantId>(), Ok(id));
        assert_eq!(id.ser().unwrap(), id.as_bytes());
        assert_eq!(TenantId::des(id.as_bytes()).unwrap(), id);
        assert!("12".parse::<TimelineId>().is_err());
    }
}
