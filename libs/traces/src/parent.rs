//! What a request is part of, as its caller says: the header `traceparent` of W3C's Trace Context.

use std::fmt;

/// The span of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    pub(crate) trace_id: u128,
    pub(crate) span_id: u64,
    /// Whether the caller's trace is sent.
    pub(crate) is_sampled: bool,
}

impl Parent {
    /// Parses `traceparent`. What is none is ignored, as the standard asks: the request begins a trace of its own.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let (version, trace_id, span_id, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let has_more = parts.next().is_some();
        if hex(version, 2)? == 0xff || (version == "00" && has_more) {
            return None;
        }
        let trace_id = hex(trace_id, 32)?;
        let span_id = u64::try_from(hex(span_id, 16)?).ok()?;
        let is_sampled = hex(flags, 2)? & 1 == 1;
        (trace_id != 0 && span_id != 0).then_some(Self { trace_id, span_id, is_sampled })
    }
}

/// A number of so many lower-case hexadecimal digits.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let is_good = text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_good.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

impl fmt::Display for Parent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, u8::from(self.is_sampled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn callers_say_what_a_request_is_part_of() {
        let parent = Parent::parse(GOOD).unwrap();
        assert_eq!(parent.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!(
            (parent.span_id, parent.is_sampled, parent.to_string()),
            (0x00f0_67aa_0ba9_02b7, true, GOOD.to_owned())
        );
        let later = GOOD.replacen("00", "01", 1) + "-more";
        assert_eq!(Parent::parse(&later), Some(parent));
        assert!(!Parent::parse(&GOOD.replace("-01", "-00")).unwrap().is_sampled);
    }

    #[test]
    fn what_is_no_parent_is_ignored() {
        for bad in [
            "",
            "00",
            "x",
            "00-0-0-01",
            &GOOD.to_uppercase(),
            &GOOD.replacen("00", "ff", 1),
            &format!("{GOOD}-more"),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            &GOOD.replace("-01", "-1"),
            &GOOD.replace('b', "+"),
        ] {
            assert_eq!(Parent::parse(bad), None, "{bad}");
        }
    }
}
