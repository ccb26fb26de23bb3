//! The control file and the WAL of a server that was shut down at an LSN.
//!
//! Postgres requires the segment that contains the LSN, with a header on its first page, a header on the page of the
//! LSN, and at the LSN the record of a shutdown checkpoint that points to itself. Everything else may be zero.

use std::collections::BTreeMap;

use pageserver_api::parameters::ClusterParameters;
use postgres_formats::checkpoint::CheckPoint;
use postgres_formats::control_file::ControlFile;
use postgres_formats::record::{HEADER_SIZE, RecordHeader};
use postgres_formats::version::PgVersion;
use postgres_formats::wal_file::WalPosition;
use postgres_formats::wal_page::{FIRST_IS_CONTRECORD, LongHeader, WAL_PAGE_SIZE, WalPageHeader};
use utils::lsn::Lsn;

/// Marks main data of less than 256 bytes in a record (`XLR_BLOCK_ID_DATA_SHORT`).
const MAIN_DATA_SHORT: u8 = 255;
/// Resource manager XLOG, record `XLOG_CHECKPOINT_SHUTDOWN`.
const RMGR_XLOG: u8 = 0;
const CHECKPOINT_SHUTDOWN: u8 = 0x00;

/// A WAL segment that is zero except for some pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SparseSegment {
    /// The file's name.
    pub(super) name: String,
    /// Bytes by offset; they do not overlap.
    pub(super) pieces: BTreeMap<u64, Vec<u8>>,
}

/// Where the checkpoint record goes for data as of `lsn`: where the next record would start.
pub(super) fn checkpoint_lsn(lsn: Lsn, parameters: &ClusterParameters) -> Lsn {
    lsn.normalize(parameters.wal_segment_size.into())
}

/// Builds the server's control file: the imported one, updated with what the WAL has changed since.
pub(super) fn control_file(
    imported: ControlFile,
    parameters: &ClusterParameters,
    checkpoint: CheckPoint,
    lsn: Lsn,
) -> ControlFile {
    let mut control = imported;
    let number = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    let fields = &mut control.fields;
    fields.wal_level = number(parameters.wal_level);
    fields.wal_log_hints = parameters.wal_log_hints;
    fields.max_connections = number(parameters.max_connections);
    fields.max_worker_processes = number(parameters.max_worker_processes);
    fields.max_wal_senders = number(parameters.max_wal_senders);
    fields.max_prepared_xacts = number(parameters.max_prepared_transactions);
    fields.max_locks_per_xact = number(parameters.max_locks_per_transaction);
    fields.track_commit_timestamp = parameters.track_commit_timestamp;
    let wal_level = if control.version >= PgVersion::V17 { number(parameters.wal_level) } else { 0 };
    let checkpoint = CheckPoint { previous_timeline: checkpoint.timeline, wal_level, ..checkpoint };
    control.set_shut_down(lsn, checkpoint);
    control
}

/// The segments that hold the checkpoint record of `control`: one, or two if the record crosses a segment boundary.
/// The record before it starts at `prev`; 0/0 if unknown.
pub(super) fn wal_segments(control: &ControlFile, prev: Lsn) -> Vec<SparseSegment> {
    let (lsn, timeline) = (control.fields.checkpoint, control.fields.checkpoint_copy.timeline);
    let segment_size = control.fields.wal_segment_size;
    let mut segments = BTreeMap::<u64, SparseSegment>::new();
    for (at, piece) in lay_out(control, lsn, checkpoint_record(&control.fields.checkpoint_copy, prev)) {
        let position = WalPosition { timeline, lsn: at, segment_size };
        let segment = segments.entry(at.segment_number(segment_size.into())).or_insert_with(|| {
            let first = page_header(control, at.segment_start(segment_size.into()), 0);
            SparseSegment { name: position.file_name(), pieces: BTreeMap::from([(0, first)]) }
        });
        segment.pieces.insert(position.offset().into(), piece);
    }
    segments.into_values().collect()
}

/// The bytes of the record at `lsn`, and the headers of the pages that it touches, each with its address.
fn lay_out(control: &ControlFile, lsn: Lsn, record: Vec<u8>) -> Vec<(Lsn, Vec<u8>)> {
    let mut pieces = vec![(lsn.page_start(), page_header(control, lsn.page_start(), 0))];
    let (mut at, mut rest) = (lsn, record.as_slice());
    loop {
        let room = usize::try_from(at.remaining_in_page()).map_or(WAL_PAGE_SIZE, |room| room.min(rest.len()));
        let (here, later) = rest.split_at(room);
        pieces.push((at, here.to_vec()));
        if later.is_empty() {
            return pieces;
        }
        let page = at.page_start() + WAL_PAGE_SIZE as u64;
        let header = page_header(control, page, later.len() as u32);
        at = page + header.len() as u64;
        pieces.push((page, header));
        rest = later;
    }
}

/// The header of the page at `address`, which starts with the last `remaining` bytes of a record.
fn page_header(control: &ControlFile, address: Lsn, remaining: u32) -> Vec<u8> {
    let fields = &control.fields;
    let is_first = address.segment_offset(fields.wal_segment_size.into()) == 0;
    let long = is_first.then_some(LongHeader {
        system_identifier: fields.system_identifier,
        segment_size: fields.wal_segment_size,
        page_size: WAL_PAGE_SIZE as u32,
    });
    let header = WalPageHeader {
        magic: control.version.wal_magic(),
        info: if remaining > 0 { FIRST_IS_CONTRECORD } else { 0 },
        timeline: fields.checkpoint_copy.timeline,
        address,
        remaining_len: remaining,
        long,
    };
    header.encode()
}

/// Name and content of the history file that a server on a later timeline needs. The earlier timelines are unknown,
/// so it lists none.
pub(super) fn history_file(control: &ControlFile) -> Option<(String, &'static [u8])> {
    let timeline = control.fields.checkpoint_copy.timeline;
    let content: &[u8] = b"# Copied from a page server: what came before this timeline is not known here.\n";
    (timeline > 1).then(|| (format!("{timeline:08X}.history"), content))
}

/// Builds the record of a shutdown checkpoint. The server itself never follows the link to the previous record, but
/// readers of WAL across it do.
fn checkpoint_record(checkpoint: &CheckPoint, prev: Lsn) -> Vec<u8> {
    let data = checkpoint.encode();
    let total_len = (HEADER_SIZE + 2 + data.len()) as u32;
    let header = RecordHeader { total_len, xid: 0, prev: prev.0, info: CHECKPOINT_SHUTDOWN, rmid: RMGR_XLOG, crc: 0 };
    header.with_body(&[&[MAIN_DATA_SHORT, data.len() as u8], &data[..]].concat())
}
