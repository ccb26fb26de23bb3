//! Changes that a record makes besides the pages of its block references.

use postgres_formats::clog::{self, ClogRecord};
use postgres_formats::commit_ts::{self, CommitTsRecord};
use postgres_formats::dbase::{self, DbaseRecord};
use postgres_formats::heap::{VmClear, implicit_vm_clears};
use postgres_formats::main_data::MainDataError;
use postgres_formats::multixact::{self, MultiXactRecord};
use postgres_formats::record::DecodedRecord;
use postgres_formats::relmap::{self, RelMapUpdate};
use postgres_formats::replorigin::{self, ReplOriginRecord};
use postgres_formats::rmgr::RmgrId;
use postgres_formats::smgr::{self, SmgrRecord};
use postgres_formats::standby::{self, RunningXacts, StandbyRecord};
use postgres_formats::tblspc::{self, TblspcRecord};
use postgres_formats::xact::{self, XactEnd, XactOp};
use postgres_formats::xlog::{self, XlogRecord};
use smallvec::SmallVec;

/// A change that needs state beyond one page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetadataRecord<'a> {
    /// Checkpoints, counters, parameters.
    Xlog(XlogRecord<'a>),
    /// A transaction committed, whether it was prepared or not.
    Commit(XactEnd<'a>),
    /// A transaction aborted, whether it was prepared or not.
    Abort(XactEnd<'a>),
    /// A transaction was prepared; the bytes are its state file without the CRC.
    Prepare(&'a [u8]),
    /// A relation fork was created, or forks truncated.
    Smgr(SmgrRecord),
    /// A commit log page was zeroed, or the log truncated.
    Clog(ClogRecord),
    /// A database was created or dropped.
    Dbase(DbaseRecord),
    /// A tablespace was created or dropped.
    Tblspc(TblspcRecord<'a>),
    /// A multixact was created, a page zeroed, or the logs truncated.
    MultiXact(MultiXactRecord),
    /// A relation map was replaced.
    RelMap(RelMapUpdate<'a>),
    /// The set of running transactions.
    RunningXacts(RunningXacts),
    /// Visibility map bits that a heap record clears without referencing the map page.
    VmClear(SmallVec<[VmClear; 2]>),
    /// A commit timestamp page was zeroed, or the log truncated.
    CommitTs(CommitTsRecord),
    /// A replication origin's progress changed.
    ReplOrigin(ReplOriginRecord),
}

/// What `rec` changes besides pages; `None` if nothing.
pub(super) fn parse<'a>(rec: &DecodedRecord<'a>) -> Result<Option<MetadataRecord<'a>>, MainDataError> {
    let (version, info, data) = (rec.version, rec.header.info, rec.main_data);
    Ok(Some(match rec.header.rmgr() {
        RmgrId::XLOG => return Ok(stateful(xlog::parse(version, info, data)?)),
        RmgrId::XACT => return transaction(rec),
        RmgrId::SMGR => MetadataRecord::Smgr(smgr::parse(info, data)?),
        RmgrId::CLOG => MetadataRecord::Clog(clog::parse(version, info, data)?),
        RmgrId::DBASE => MetadataRecord::Dbase(dbase::parse(version, info, data)?),
        RmgrId::TBLSPC => MetadataRecord::Tblspc(tblspc::parse(info, data)?),
        RmgrId::MULTIXACT => MetadataRecord::MultiXact(multixact::parse(version, info, data)?),
        RmgrId::RELMAP => MetadataRecord::RelMap(relmap::parse(info, data)?),
        RmgrId::STANDBY => match standby::parse(info, data)? {
            StandbyRecord::RunningXacts(running) => MetadataRecord::RunningXacts(running),
            StandbyRecord::Locks(_) | StandbyRecord::Invalidations => return Ok(None),
        },
        RmgrId::HEAP | RmgrId::HEAP2 => {
            let clears = implicit_vm_clears(rec)?;
            return Ok((!clears.is_empty()).then_some(MetadataRecord::VmClear(clears)));
        }
        RmgrId::COMMIT_TS => MetadataRecord::CommitTs(commit_ts::parse(version, info, data)?),
        RmgrId::REPLORIGIN => MetadataRecord::ReplOrigin(replorigin::parse(info, data)?),
        _ => return Ok(None),
    }))
}

/// Drops records that consist of block images, and those that carry no state that we keep.
fn stateful(record: XlogRecord<'_>) -> Option<MetadataRecord<'_>> {
    match record {
        XlogRecord::CheckpointShutdown(_)
        | XlogRecord::CheckpointOnline(_)
        | XlogRecord::NextOid(_)
        | XlogRecord::ParameterChange(_)
        | XlogRecord::FullPageWrites(_)
        | XlogRecord::EndOfRecovery(_)
        | XlogRecord::CheckpointRedo(_) => Some(MetadataRecord::Xlog(record)),
        XlogRecord::Noop
        | XlogRecord::Switch
        | XlogRecord::BackupEnd(_)
        | XlogRecord::RestorePoint { .. }
        | XlogRecord::FullPageImages { .. }
        | XlogRecord::OverwriteContrecord(_) => None,
    }
}

fn transaction<'a>(rec: &DecodedRecord<'a>) -> Result<Option<MetadataRecord<'a>>, MainDataError> {
    let (version, info, data) = (rec.version, rec.header.info, rec.main_data);
    Ok(match XactOp::from_info(info)? {
        XactOp::Commit | XactOp::CommitPrepared => {
            Some(MetadataRecord::Commit(xact::parse_commit(version, info, data)?))
        }
        XactOp::Abort | XactOp::AbortPrepared => Some(MetadataRecord::Abort(xact::parse_abort(version, info, data)?)),
        XactOp::Prepare => Some(MetadataRecord::Prepare(data)),
        XactOp::Assignment | XactOp::Invalidations => None,
    })
}
