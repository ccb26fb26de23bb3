//! Size and checksum of every file, as lines of text. The last line holds the checksum of the others.

use super::error::BootImageError;

const WHAT: &str = "list of sums";
const END: &str = "end";

/// A file of the archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sum {
    /// Path in the archive.
    pub path: String,
    /// Its size in bytes.
    pub size: u64,
    /// CRC-32C of its bytes.
    pub crc: u32,
}

/// All files except the list itself, in archive order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums(pub Vec<Sum>);

impl Sums {
    /// Encodes the file.
    pub fn encode(&self) -> String {
        let lines = self.0.iter().map(|sum| format!("{:08x} {} {}\n", sum.crc, sum.size, sum.path));
        let lines: String = lines.collect();
        format!("{lines}{:08x} {END}\n", utils::crc32c::crc32c(lines.as_bytes()))
    }

    /// Decodes the file.
    pub fn decode(bytes: &[u8]) -> Result<Self, BootImageError> {
        let damaged = |problem| BootImageError::Damaged { what: WHAT, problem };
        let text = std::str::from_utf8(bytes).map_err(|_| damaged("it is no text"))?;
        let text = text.strip_suffix('\n').ok_or(damaged("it is cut short"))?;
        let (lines, last) = text.rsplit_once('\n').map_or(("", text), |(lines, last)| (lines, last));
        let content = bytes.get(..bytes.len() - last.len() - 1).unwrap_or_default();
        if last != format!("{:08x} {END}", utils::crc32c::crc32c(content)) {
            return Err(damaged("its checksum is wrong"));
        }
        let sums = lines.lines().map(|line| parse(line).ok_or(damaged("a line makes no sense")));
        Ok(Self(sums.collect::<Result<_, _>>()?))
    }
}

fn parse(line: &str) -> Option<Sum> {
    let (crc, rest) = line.split_once(' ')?;
    let (size, path) = rest.split_once(' ')?;
    Some(Sum { path: path.to_owned(), size: size.parse().ok()?, crc: u32::from_str_radix(crc, 16).ok()? })
}
