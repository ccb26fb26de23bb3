//! Names of layer files, which encode key range and LSN range.
//!
//! Delta: `<key start>-<key end>__<LSN start>-<LSN end>`, image: `<key start>-<key end>__<LSN>`; keys as 36, LSNs as
//! 16 upper-case hexadecimal digits, ends exclusive. On disk the generation follows: `-v1-<8 hexadecimal digits>`.

use std::fmt;
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

/// The text is not the name of a layer file.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a layer file name")]
pub struct LayerNameParseError(pub String);

impl LayerName {
    /// The name of the local file of generation `generation`.
    pub fn file_name(&self, generation: u32) -> String {
        format!("{self}-v1-{generation:08x}")
    }

    /// Parses the name of a local file into layer name and generation.
    pub fn parse_file_name(text: &str) -> Result<(Self, u32), LayerNameParseError> {
        let error = || LayerNameParseError(text.to_owned());
        let (name, generation) = text.split_once("-v1-").ok_or_else(error)?;
        let well_formed = generation.len() == 8 && generation.bytes().all(|b| b.is_ascii_hexdigit());
        let generation = well_formed.then(|| u32::from_str_radix(generation, 16).ok()).flatten().ok_or_else(error)?;
        Ok((name.parse().map_err(|_| error())?, generation))
    }
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
            assert_eq!(LayerName::parse_file_name(&name.file_name(0x1f)), Ok((name.clone(), 0x1f)));
            assert!(name.to_string().to_lowercase().parse::<LayerName>().is_err());
        }
        for text in ["", "manifest", "0-1__2", "ephemeral-1"] {
            assert!(text.parse::<LayerName>().is_err() && LayerName::parse_file_name(text).is_err());
        }
    }
}
