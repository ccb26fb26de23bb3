//! External text in messages: complete if it is short, otherwise its beginning and its length. So a sender of long
//! text cannot fill logs or answers with it.

use std::fmt;

/// Maximum number of bytes shown.
const SHOWN: usize = 200;

/// Text for a message: `{}` prints it verbatim, `{:?}` quoted and escaped.
#[derive(Clone, Copy)]
pub struct Excerpt<'a>(pub &'a str);

impl Excerpt<'_> {
    /// The part to show, and the full length if it was shortened.
    fn parts(&self) -> (&str, Option<usize>) {
        if self.0.len() <= SHOWN {
            return (self.0, None);
        }
        let (shown, _) = self.0.split_at(self.0.floor_char_boundary(SHOWN));
        (shown, Some(self.0.len()))
    }
}

impl fmt::Display for Excerpt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shown, length) = self.parts();
        f.write_str(shown)?;
        length.map_or(Ok(()), |length| write!(f, "... ({length} bytes)"))
    }
}

impl fmt::Debug for Excerpt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shown, length) = self.parts();
        fmt::Debug::fmt(shown, f)?;
        length.map_or(Ok(()), |length| write!(f, "... ({length} bytes)"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_long_is_cut_off() {
        let short = "x\ny".repeat(66);
        assert_eq!(Excerpt(&short).to_string(), short);
        assert_eq!(format!("{:?}", Excerpt(&short)), format!("{short:?}"));
        let long = format!("{}\u{e4}{}", "a".repeat(199), "b".repeat(1 << 20));
        let shown = format!("{}... (1048777 bytes)", "a".repeat(199));
        assert_eq!(Excerpt(&long).to_string(), shown, "no character is cut in two");
        assert_eq!(format!("{:?}", Excerpt(&long)), format!("\"{}\"... (1048777 bytes)", "a".repeat(199)));
    }
}
