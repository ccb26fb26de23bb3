//! Failed attempts: which of them are worth retrying, and how they are reported.

use std::time::Duration;

use object_store::Error;

use super::options::RemoteOptions;
use errors::RemoteFailure;
use metrics::StoreFault;

/// Maximum number of attempts if responses do not match the request.
const MAX_MALFORMED: u32 = 3;
/// Pauses grow up to this multiple of the first.
const MAX_PAUSE: u32 = 50;
/// Minimum multiple of the first pause after denied access: somebody must fix the credentials, so there is no hurry.
const DENIED_PAUSE: u32 = 10;
/// Maximum number of characters of a reason.
const MAX_REASON: usize = 300;

/// Why an attempt failed.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) kind: Kind,
    pub(super) reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// There is no such object.
    NotFound,
    /// The precondition of a conditional write failed.
    Exists,
    /// No attempt can succeed.
    Never,
    /// A possibly transient fault.
    Fault(StoreFault),
}

impl Failed {
    pub(super) fn new(kind: Kind, reason: impl Into<String>) -> Self {
        Self { kind, reason: reason.into() }
    }

    pub(super) fn malformed(reason: String) -> Self {
        Self::new(Kind::Fault(StoreFault::Malformed), reason)
    }

    pub(super) fn timeout(after: Duration) -> Self {
        Self::new(Kind::Fault(StoreFault::Timeout), format!("no answer within {after:?}"))
    }

    /// The failure of a conditional request.
    pub(super) fn conditional(error: Error) -> Self {
        let refused = matches!(error, Error::AlreadyExists { .. } | Error::Precondition { .. });
        let failed = Self::from(error);
        if refused { Self { kind: Kind::Exists, ..failed } } else { failed }
    }

    /// The failure of a listing: a prefix without objects is an empty listing, so "not found" is a fault.
    pub(super) fn of_list(error: Error) -> Self {
        match Self::from(error) {
            Self { kind: Kind::NotFound, reason } => Self::new(Kind::Fault(StoreFault::Unavailable), reason),
            failed => failed,
        }
    }

    /// Whether trying again is pointless after `attempts` attempts.
    pub(super) fn is_final(&self, attempts: u32, options: &RemoteOptions) -> bool {
        match self.kind {
            Kind::NotFound | Kind::Exists | Kind::Never => true,
            Kind::Fault(StoreFault::Malformed) => attempts >= MAX_MALFORMED,
            Kind::Fault(_) => attempts >= options.max_attempts,
        }
    }

    /// How long to wait after the first `attempts` attempts, with jitter so that clients do not all retry at once.
    pub(super) fn pause(&self, attempts: u32, options: &RemoteOptions) -> Duration {
        let denied = self.kind == Kind::Fault(StoreFault::Denied);
        let least = if denied { DENIED_PAUSE } else { 1 };
        let times = 1_u32.checked_shl(attempts.saturating_sub(1)).unwrap_or(u32::MAX).clamp(least, MAX_PAUSE);
        let whole = options.first_pause * times;
        let share = (env::random::u64() % 1024) as u32;
        whole / 2 + whole / 2 * share / 1024
    }

    /// The failure as reported to callers.
    pub(super) fn failure(&self) -> RemoteFailure {
        match self.kind {
            Kind::NotFound => RemoteFailure::NotFound,
            Kind::Fault(StoreFault::Denied) => RemoteFailure::Denied,
            Kind::Fault(StoreFault::Malformed) => RemoteFailure::Malformed,
            _ => RemoteFailure::Unavailable,
        }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        let text = full_text(&error);
        let kind = match &error {
            // A missing bucket is not the same as a missing object.
            Error::NotFound { .. } if text.contains("NoSuchBucket") => Kind::Fault(StoreFault::Unavailable),
            Error::NotFound { .. } => Kind::NotFound,
            // Either the request had no condition, or the caller maps the error itself: the object is in contention
            // (409, 412).
            Error::AlreadyExists { .. } | Error::Precondition { .. } => Kind::Fault(StoreFault::Unavailable),
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => Kind::Fault(StoreFault::Denied),
            Error::NotSupported { .. } | Error::NotImplemented { .. } | Error::InvalidPath { .. } => Kind::Never,
            _ => Kind::Fault(fault_of(&text)),
        };
        Self { kind, reason: without_secrets(&text) }
    }
}

/// The messages of an error and its causes, without repetitions.
fn full_text(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let more = cause.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = cause.source();
    }
    text
}

/// Classifies by text, since the crate does not distinguish these errors otherwise.
fn fault_of(text: &str) -> StoreFault {
    let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if has(&["ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "TokenRefreshRequired"]) {
        StoreFault::Denied
    } else if has(&["503 ", "429 ", "SlowDown"]) {
        StoreFault::Throttled
    } else if has(&["416 ", "InvalidRange", "range was invalid", "non-partial response", "Content-Range", "Requested "])
        || has(&["Out of range"])
    {
        StoreFault::Malformed
    } else if has(&["timed out", "timeout"]) {
        StoreFault::Timeout
    } else {
        StoreFault::Unavailable
    }
}

/// Reduces an XML response to code and message: the rest repeats headers, including key ids and tokens.
fn without_secrets(text: &str) -> String {
    let element = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        rest.split_once(&format!("</{name}>")).map(|(value, _)| value)
    };
    let plain = text.split('<').next().unwrap_or_default().trim_end_matches([' ', ':']);
    let told = [element("Code"), element("Message")].into_iter().flatten();
    let all = told.fold(plain.to_owned(), |all, part| format!("{all}: {part}"));
    all.chars().take(MAX_REASON).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(text: &str) -> Failed {
        Failed::from(Error::Generic { store: "S3", source: text.to_owned().into() })
    }

    #[test]
    fn what_may_pass_by_itself_is_told_from_what_may_not() {
        for (text, fault) in [
            (
                "Server returned non-2xx status code: 503 Service Unavailable: <Code>SlowDown</Code>",
                StoreFault::Throttled,
            ),
            ("Server returned non-2xx status code: 500 Internal Server Error: ", StoreFault::Unavailable),
            ("Server returned non-2xx status code: 400 Bad Request: <Code>ExpiredToken</Code>", StoreFault::Denied),
            ("Server returned non-2xx status code: 416 Range Not Satisfiable: ", StoreFault::Malformed),
            ("Requested 0..8, got 4..12", StoreFault::Malformed),
            ("HTTP error: operation timed out", StoreFault::Timeout),
            ("HTTP error: error sending request: connection refused", StoreFault::Unavailable),
        ] {
            assert_eq!(generic(text).kind, Kind::Fault(fault), "{text}");
        }
        let missing = |text: &str| Error::NotFound { path: "x".to_owned(), source: text.to_owned().into() };
        assert_eq!(Failed::from(missing("<Code>NoSuchKey</Code>")).kind, Kind::NotFound);
        assert_eq!(Failed::from(missing("<Code>NoSuchBucket</Code>")).kind, Kind::Fault(StoreFault::Unavailable));
    }

    #[test]
    fn no_tokens_are_repeated() {
        let text = "status 403: <Error><Code>SignatureDoesNotMatch</Code><Message>no</Message>\
                    <AWSAccessKeyId>AKIA</AWSAccessKeyId><StringToSign>secret</StringToSign></Error>";
        assert_eq!(generic(text).reason, "Generic S3 error: status 403: SignatureDoesNotMatch: no");
    }

    #[test]
    fn pauses_grow_and_are_bounded() {
        let options = RemoteOptions::default();
        for (attempts, least, most) in [(1, 50, 100), (2, 100, 200), (4, 400, 800), (90, 2500, 5000)] {
            for _ in 0..100 {
                let pause = generic("x").pause(attempts, &options).as_millis();
                assert!((least..=most).contains(&pause), "{attempts}: {pause}");
                let denied = Failed::new(Kind::Fault(StoreFault::Denied), "").pause(attempts, &options).as_millis();
                assert!((500..=5000).contains(&denied), "{attempts}: {denied}");
            }
        }
    }
}
