//! Records of the WAL itself (resource manager 0; `xlog_internal.h`).

use utils::lsn::Lsn;

use crate::{
    checkpoint::CheckPoint,
    cursor::{Cursor, Truncated, u32_at},
    fields::{Field, fixed_layout},
    main_data::MainDataError,
    rmgr::RmgrId,
    version::PgVersion,
};

/// Opcodes.
pub mod op {
    /// Shutdown checkpoint.
    pub const CHECKPOINT_SHUTDOWN: u8 = 0x00;
    /// Online checkpoint.
    pub const CHECKPOINT_ONLINE: u8 = 0x10;
    /// Never written.
    pub const NOOP: u8 = 0x20;
    /// OIDs were reserved up to a limit.
    pub const NEXTOID: u8 = 0x30;
    /// The rest of the segment is unused.
    pub const SWITCH: u8 = 0x40;
    /// End of a base backup.
    pub const BACKUP_END: u8 = 0x50;
    /// Settings that a standby must match have changed.
    pub const PARAMETER_CHANGE: u8 = 0x60;
    /// A named restore point.
    pub const RESTORE_POINT: u8 = 0x70;
    /// `full_page_writes` changed.
    pub const FPW_CHANGE: u8 = 0x80;
    /// End of recovery without a checkpoint.
    pub const END_OF_RECOVERY: u8 = 0x90;
    /// Full-page images for changes of hint bits.
    pub const FPI_FOR_HINT: u8 = 0xA0;
    /// Full-page images.
    pub const FPI: u8 = 0xB0;
    /// Follows a record that was cut short by a crash.
    pub const OVERWRITE_CONTRECORD: u8 = 0xD0;
    /// Start of an online checkpoint's replay (17 and later).
    pub const CHECKPOINT_REDO: u8 = 0xE0;
}

fixed_layout! {
    /// Settings that a standby must match.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ParameterChange {
        /// `max_connections`
        max_connections: i32 = 0,
        /// `max_worker_processes`
        max_worker_processes: i32 = 4,
        /// `max_wal_senders`
        max_wal_senders: i32 = 8,
        /// `max_prepared_transactions`
        max_prepared_xacts: i32 = 12,
        /// `max_locks_per_transaction`
        max_locks_per_xact: i32 = 16,
        /// `wal_level`: 0 minimal, 1 replica, 2 logical.
        wal_level: i32 = 20,
        /// `wal_log_hints`
        wal_log_hints: bool = 24,
        /// `track_commit_timestamp`
        track_commit_timestamp: bool = 25,
    }
}

fixed_layout! {
    /// End of recovery: a new timeline may begin.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct EndOfRecovery {
        /// Time of the end, in microseconds since 2000-01-01.
        time: i64 = 0,
        /// Timeline from here on.
        timeline: u32 = 8,
        /// Previous timeline.
        previous_timeline: u32 = 12,
    }
}

fixed_layout! {
    /// Follows a record that was cut short.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct OverwriteContrecord {
        /// Start of the record that was cut short.
        overwritten_lsn: Lsn = 0,
        /// Time of the record, in microseconds since 2000-01-01.
        time: i64 = 8,
    }
}

/// A record of the WAL itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XlogRecord<'a> {
    /// A shutdown checkpoint: all its values are exact.
    CheckpointShutdown(CheckPoint),
    /// An online checkpoint: its next ids are lower bounds.
    CheckpointOnline(CheckPoint),
    /// No effect.
    Noop,
    /// The next OID.
    NextOid(u32),
    /// The rest of the segment is unused.
    Switch,
    /// A base backup whose replay starts at this LSN has ended.
    BackupEnd(Lsn),
    /// Settings changed.
    ParameterChange(ParameterChange),
    /// A named restore point.
    RestorePoint {
        /// Time of the restore point, in microseconds since 2000-01-01.
        time: i64,
        /// Name.
        name: &'a [u8],
    },
    /// `full_page_writes` changed to this value.
    FullPageWrites(bool),
    /// Recovery ended.
    EndOfRecovery(EndOfRecovery),
    /// Full-page images, which are the record's only content.
    FullPageImages {
        /// Whether only hint bits were changed.
        for_hint: bool,
    },
    /// A record was cut short by a crash.
    OverwriteContrecord(OverwriteContrecord),
    /// Start of an online checkpoint's replay, with `wal_level`.
    CheckpointRedo(i32),
}

/// Parses a record of the WAL itself; `info` is the record's `xl_info`.
pub fn parse(version: PgVersion, info: u8, main_data: &[u8]) -> Result<XlogRecord<'_>, MainDataError> {
    let mut cursor = Cursor::new(main_data);
    Ok(match info & 0xF0 {
        op::CHECKPOINT_SHUTDOWN => XlogRecord::CheckpointShutdown(CheckPoint::decode(main_data)?),
        op::CHECKPOINT_ONLINE => XlogRecord::CheckpointOnline(CheckPoint::decode(main_data)?),
        op::NOOP => XlogRecord::Noop,
        op::NEXTOID => XlogRecord::NextOid(u32_at(main_data, 0)?),
        op::SWITCH => XlogRecord::Switch,
        op::BACKUP_END => XlogRecord::BackupEnd(Lsn(cursor.u64()?)),
        op::PARAMETER_CHANGE => XlogRecord::ParameterChange(ParameterChange::get(main_data, 0)?),
        op::RESTORE_POINT => restore_point(&mut cursor)?,
        op::FPW_CHANGE => XlogRecord::FullPageWrites(cursor.u8()? != 0),
        op::END_OF_RECOVERY => XlogRecord::EndOfRecovery(EndOfRecovery::get(main_data, 0)?),
        op::FPI_FOR_HINT => XlogRecord::FullPageImages { for_hint: true },
        op::FPI => XlogRecord::FullPageImages { for_hint: false },
        op::OVERWRITE_CONTRECORD => XlogRecord::OverwriteContrecord(OverwriteContrecord::get(main_data, 0)?),
        op::CHECKPOINT_REDO if version >= PgVersion::V17 => XlogRecord::CheckpointRedo(cursor.i32()?),
        opcode => return Err(MainDataError::Opcode { rmgr: RmgrId::XLOG, opcode }),
    })
}

fn restore_point<'a>(cursor: &mut Cursor<'a>) -> Result<XlogRecord<'a>, Truncated> {
    const NAME_SIZE: usize = 64;
    let (time, name) = (cursor.i64()?, cursor.take(NAME_SIZE)?);
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(XlogRecord::RestorePoint { time, name })
}
