//! Shards of a tenant: numbers, counts and their text forms.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::id::{IdParseError, TenantId};

/// Number of a shard, less than its tenant's count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ShardNumber(pub u8);

/// Number of shards of a tenant; 0 means unsharded, which is written without a suffix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ShardCount(pub u8);

impl ShardCount {
    /// Whether the tenant was never sharded.
    pub fn is_unsharded(self) -> bool {
        self.0 == 0
    }
}

/// A tenant, or one shard of it. Text form: 32 hexadecimal digits, with `-NNCC` (number, count) when sharded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantShardId {
    /// The tenant.
    pub tenant_id: TenantId,
    /// The shard's number.
    pub shard_number: ShardNumber,
    /// The tenant's number of shards.
    pub shard_count: ShardCount,
}

impl TenantShardId {
    /// The only shard of an unsharded tenant.
    pub fn unsharded(tenant_id: TenantId) -> Self {
        Self { tenant_id, shard_number: ShardNumber(0), shard_count: ShardCount(0) }
    }

    /// Whether this shard stores everything other than relation blocks (SLRUs and the like).
    pub fn is_shard_zero(&self) -> bool {
        self.shard_number.0 == 0
    }
}

impl fmt::Display for TenantShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.tenant_id)?;
        if self.shard_count.is_unsharded() {
            return Ok(());
        }
        write!(f, "-{:02x}{:02x}", self.shard_number.0, self.shard_count.0)
    }
}

impl fmt::Debug for TenantShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for TenantShardId {
    type Err = IdParseError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || IdParseError(text.to_owned());
        let Some((tenant, suffix)) = text.split_once('-') else {
            return Ok(Self::unsharded(text.parse()?));
        };
        let mut index = [0; 2];
        hex::decode_to_slice(suffix, &mut index).map_err(|_| error())?;
        let [number, count] = index;
        if number >= count {
            return Err(error());
        }
        let tenant_id = tenant.parse().map_err(|_| error())?;
        Ok(Self { tenant_id, shard_number: ShardNumber(number), shard_count: ShardCount(count) })
    }
}

impl Serialize for TenantShardId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            (self.tenant_id, self.shard_number, self.shard_count).serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for TenantShardId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            return String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom);
        }
        let (tenant_id, shard_number, shard_count) = Deserialize::deserialize(deserializer)?;
        Ok(Self { tenant_id, shard_number, shard_count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bin_ser::BeSer;

    #[test]
    fn text_forms() {
        let tenant = TenantId::generate();
        let whole = TenantShardId::unsharded(tenant);
        assert_eq!(whole.to_string(), tenant.to_string());
        assert_eq!(whole.to_string().parse(), Ok(whole));
        let shard: TenantShardId = format!("{tenant}-070a").parse().unwrap();
        assert_eq!((shard.shard_number.0, shard.shard_count.0), (7, 10));
        assert_eq!(shard.to_string(), format!("{tenant}-070a"));
        assert!(format!("{tenant}-0a0a").parse::<TenantShardId>().is_err());
        assert_eq!(shard.ser().unwrap().len(), 18);
        assert_eq!(TenantShardId::des(&shard.ser().unwrap()).unwrap(), shard);
    }
}
