//! Names of layer files, which encode key range and LSN range.
//!
//! Delta: `<key start>-<key end>__<LSN start>-<LSN end>`, image: `<key start>-<key end>__<LSN>`; keys as 36, LSNs as
//! 16 upper-case hexadecimal digits, ends exclusive.
//!
//! On disk and in the bucket the generation and the file's id follow, in hexadecimal digits: `-v2-<8 digits>-<16
//! digits>`. The id is drawn for each file, so a name never comes again, even if a layer is rewritten with the same
//! ranges. Up to version 1 there was none: `-v1-<8 digits>`.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::str::FromStr;

use pageserver_api::key::Key;
use utils::lsn::Lsn;

/// The name of a layer, without generation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LayerName {
    /// Values of keys over a range of LSNs.
    Delta {
        /// Keys covered.
        key_range: Range<Key>,
        /// LSNs covered.
        lsn_range: Range<Lsn>,
    },
    /// Images of keys at one LSN.
    Image {
        /// Keys covered.
        key_range: Range<Key>,
        /// The LSN.
        lsn: Lsn,
    },
}

/// The name of a layer's file, and of its object in the bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerFileName {
    /// What the layer covers.
    pub name: LayerName,
    /// The generation that wrote it.
    pub generation: u32,
    /// The id in its header; `None` in a name of version 1.
    pub file_id: Option<u64>,
}

/// The id, drawn at random, is hash enough: a timeline that is opened has sets of ten thousand names made.
impl Hash for LayerFileName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self.file_id {
            Some(file_id) => file_id.hash(state),
            None => self.name.hash(state),
        }
    }
}

/// The text is not the name of a layer file.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a layer file name")]
pub struct LayerNameParseError(pub String);

impl LayerName {
    /// The name of the file of generation `generation` whose header has `file_id`.
    pub fn file_name(self, generation: u32, file_id: u64) -> LayerFileName {
        LayerFileName { name: self, generation, file_id: Some(file_id) }
    }
}

impl fmt::Display for LayerFileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, generation, file_id } = self;
        match file_id {
            Some(file_id) => write!(f, "{name}-v2-{generation:08x}-{file_id:016x}"),
            None => write!(f, "{name}-v1-{generation:08x}"),
        }
    }
}

impl FromStr for LayerFileName {
    type Err = LayerNameParseError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_file(text).filter(|name| name.to_string() == text).ok_or_else(|| LayerNameParseError(text.to_owned()))
    }
}

fn parse_file(text: &str) -> Option<LayerFileName> {
    let (name, generation, file_id) = match text.split_once("-v2-") {
        Some((name, rest)) => {
            let (generation, file_id) = rest.split_once('-')?;
            (name, generation, Some(u64::from_str_radix(file_id, 16).ok()?))
        }
        None => {
            let (name, generation) = text.split_once("-v1-")?;
            (name, generation, None)
        }
    };
    let generation = u32::from_str_radix(generation, 16).ok()?;
    // Compared with the text by whoever asks.
    Some(LayerFileName { name: parse(name)?, generation, file_id })
}

impl fmt::Display for LayerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LayerName::Delta { key_range, lsn_range } => {
                write!(f, "{}-{}__{:016X}-{:016X}", key_range.start, key_range.end, lsn_range.start.0, lsn_range.end.0)
            }
            LayerName::Image { key_range, lsn } => write!(f, "{}-{}__{:016X}", key_range.start, key_range.end, lsn.0),
        }
    }
}

impl FromStr for LayerName {
    type Err = LayerNameParseError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).filter(|name| name.to_string() == text).ok_or_else(|| LayerNameParseError(text.to_owned()))
    }
}

fn parse_lsn(text: &str) -> Option<Lsn> {
    u64::from_str_radix(text, 16).ok().map(Lsn)
}

fn parse(text: &str) -> Option<LayerName> {
    let (keys, lsns) = text.split_once("__")?;
    let (start, end) = keys.split_once('-')?;
    let key_range = start.parse().ok()?..end.parse().ok()?;
    match lsns.split_once('-') {
        Some((start, end)) => Some(LayerName::Delta { key_range, lsn_range: parse_lsn(start)?..parse_lsn(end)? }),
        None => Some(LayerName::Image { key_range, lsn: parse_lsn(lsns)? }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        let key_range = Key { field6: 5, ..Key::MIN }..Key::MAX;
        let delta = LayerName::Delta { key_range: key_range.clone(), lsn_range: Lsn(0x1234)..Lsn(0xABCD_0000_0000) };
        let image = LayerName::Image { key_range, lsn: Lsn(0x1_0000_0000) };
        for name in [delta, image] {
            assert_eq!(name.to_string().parse(), Ok(name.clone()));
            assert!(name.to_string().to_lowercase().parse::<LayerName>().is_err());
            let old = LayerFileName { name: name.clone(), generation: 0x1f, file_id: None };
            let new = name.clone().file_name(0x1f, 0xabc);
            assert_eq!(old.to_string(), format!("{name}-v1-0000001f"));
            assert_eq!(new.to_string(), format!("{name}-v2-0000001f-0000000000000abc"));
            for file in [old, new] {
                let text = file.to_string();
                assert_eq!(text.parse(), Ok(file));
                let bad = [text.to_uppercase(), text.replace("-v", "-v1"), text.replacen("001f", "1f", 1), text + "0"];
                assert!(bad.iter().all(|text| text.parse::<LayerFileName>().is_err()), "{bad:?}");
            }
        }
        for text in ["", "manifest", "0-1__2", "ephemeral-1"] {
            assert!(text.parse::<LayerName>().is_err() && text.parse::<LayerFileName>().is_err());
        }
    }
}
