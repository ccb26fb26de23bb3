//! From WAL bytes in pieces of any size to whole records (`xlogreader.c`).
//!
//! The decoder is fed consecutive bytes of the WAL as they lie in segment files and as replication sends them: with
//! page headers, padding, and the unused rest of switched segments. It gives records one by one with every check that
//! the server makes: page headers, continuation rules, previous-record links, CRCs.
//!
//! **LSNs.** `start` is where the record's header begins. `end` is where the next record's space begins: the start
//! plus the length rounded up to 8, page headers in between counted; if that is a page boundary it is the boundary
//! itself, not the place behind the next header. Pages changed by the record get exactly `end` as their LSN. A segment
//! switch ends at the end of its segment.
//!
//! **Memory.** A record that lies within one page and one fed piece is a slice of that piece (which it keeps alive);
//! only others are copied. Take all records after each piece, or the pieces pile up.

mod batch;
mod decoder;
mod error;
mod input;

pub use batch::{RecordBatch, RecordRef};
pub use decoder::{WalRecord, WalStart, WalStreamConfig, WalStreamDecoder};
pub use error::{EndReason, Misuse, WalError};
