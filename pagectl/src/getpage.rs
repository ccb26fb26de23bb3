//! `pagectl getpage`: prints one page or writes it to a file.

use anyhow::bail;
use bytes::Bytes;
use camino::Utf8PathBuf;
use pageserver_api::key::rel_block_key;
use pgdata::listing::Listing;
use serde_json::json;
use utils::lsn::Lsn;
use virtual_file::write_file_durably;

use crate::args::PageArgs;
use crate::output;
use crate::store::{Opened, Store, find_relation, lsn_to_read};

/// Bytes per line of the dump.
const LINE: usize = 32;

/// Runs the command.
pub(crate) async fn run(store: &Store, args: PageArgs, out: Option<Utf8PathBuf>) -> anyhow::Result<()> {
    let opened = store.open().await?;
    let (page, lsn) = read(&opened, args).await?;
    let mut result = json!({ "rel": args.rel.to_string(), "block": args.block, "lsn": lsn.to_string() });
    let mut summary = format!("page {} block {} as of LSN {lsn}: {} bytes", args.rel, args.block, page.len());
    match &out {
        Some(path) => {
            write_file_durably(path, &page).await?;
            result["out"] = json!(path);
            summary += &format!(" written to {path}");
        }
        None if store.common.json => result["page"] = json!(hex(&page)),
        None => dump(&page),
    }
    output::finish(store.common.json, &result, summary);
    Ok(())
}

/// Reads the page, and returns it with the LSN that it was read at.
pub(crate) async fn read(opened: &Opened, args: PageArgs) -> anyhow::Result<(Bytes, Lsn)> {
    let lsn = lsn_to_read(opened, args.lsn)?;
    let (rel, size) = find_relation(opened, args.rel, lsn).await?;
    if args.block >= size {
        bail!("block {} is beyond the end of relation {} at LSN {lsn}: it has {size} blocks", args.block, args.rel);
    }
    let page = Listing::new(opened, lsn).required(rel_block_key(rel, args.block)).await?;
    Ok((page, lsn))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Prints hexadecimal lines; repeated lines are collapsed.
fn dump(page: &[u8]) {
    let mut last: Option<&[u8]> = None;
    let mut skipped = false;
    for (number, line) in page.chunks(LINE).enumerate() {
        if last == Some(line) {
            skipped = true;
            continue;
        }
        if std::mem::take(&mut skipped) {
            output::line("*");
        }
        let words: Vec<String> = line.chunks(4).map(hex).collect();
        output::line(format_args!("{:04x}  {}", number * LINE, words.join(" ")));
        last = Some(line);
    }
    if skipped {
        output::line("*");
    }
}
