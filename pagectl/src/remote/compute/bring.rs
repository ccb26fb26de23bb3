//! What a replica has received and its branch has not, as its primary is lost, is brought to the branch before another
//! compute begins there.

use anyhow::bail;
use compute::layout::Layout;
use compute::lifecycle::{self, ComputeConfig};
use utils::lsn::Lsn;

use super::control;
use super::replica;
use crate::remote::client::encoded;
use crate::remote::connection::Remote;
use crate::table::text;

/// At most so much at once.
const PART: usize = 16 << 20;
/// Size of the longest WAL page header: the end of WAL may be this far beyond the end of the last record.
const PAGE_HEADER: u64 = 40;

/// Brings it there, from the WAL files of the replica, which end at `received`. Returns where the branch ends then.
pub(super) fn bring(
    remote: &Remote<'_>,
    compute: &ComputeConfig,
    layout: &Layout,
    received: Lsn,
) -> anyhow::Result<Lsn> {
    let mut end = replica::end(remote, compute)?;
    // Bytes are sent from the page on in which the branch ends, and a record may be longer than a part.
    let mut most = PART;
    while end + PAGE_HEADER < received {
        let from = end.page_start();
        let wal = whole(layout, from, received, most)?;
        let path = format!("{}/journal?from={}", control::path(compute), encoded(&from.to_string()));
        let taken = remote.client.put_bytes(&path, &wal)?;
        let now: Lsn = text(&taken, "last_record_lsn").parse()?;
        if now < end {
            bail!("the branch ended at {end}, and now ends at {now}");
        }
        if now == end {
            if from + wal.len() as u64 >= received {
                // What is left is the beginning of a record.
                break;
            }
            most *= 2;
        }
        end = now;
    }
    Ok(end)
}

/// Bytes from several segments.
fn whole(layout: &Layout, from: Lsn, end: Lsn, most: usize) -> anyhow::Result<Vec<u8>> {
    let mut wal = Vec::new();
    while wal.len() < most && from + (wal.len() as u64) < end {
        wal.extend(lifecycle::wal_between(layout, from + wal.len() as u64, end, most - wal.len())?);
    }
    Ok(wal)
}
