//! Assembles whole records from WAL bytes in pieces of any size (`xlogreader.c`).
//!
//! The decoder is fed consecutive WAL bytes as found in segment files and sent by replication: with page headers,
//! padding, and the unused rest of switched segments. It returns records one by one, with every check that the server
//! makes: page headers, continuation rules, previous-record links, CRCs.
//!
//! **LSNs.** `start` is where the record's header begins. `end` is where the next record's space begins: the start
//! plus the length rounded up to 8, including page headers in between; at a page boundary it is the boundary itself,
//! not the position after the next header. Pages changed by the record get exactly `end` as their LSN. A segment
//! switch ends at the end of its segment.
//!
//! **Memory.** A record that lies within one page and one fed piece is a slice of that piece (which it keeps alive);
//! only others are copied. Take all records after each piece, or the pieces accumulate.

mod batch;
mod decoder;
mod error;
mod input;

pub use batch::{RecordBatch, RecordRef};
pub use decoder::{WalRecord, WalStart, WalStreamConfig, WalStreamDecoder};
pub use error::{EndReason, Misuse, WalError};
