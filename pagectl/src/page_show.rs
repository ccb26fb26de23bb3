//! `pagectl page show`: a page's header and line pointers.

use std::os::unix::fs::FileExt;

use anyhow::Context;
use postgres_formats::BLCKSZ;
use postgres_formats::page::{
    LpFlags, PD_ALL_VISIBLE, PD_HAS_FREE_LINES, PD_PAGE_FULL, PageBytes, PageRef, data_checksum,
};
use serde_json::json;
use utils::lsn::Lsn;

use crate::args::{PageArgs, ShowArgs};
use crate::store::Store;
use crate::{getpage, output};

/// Runs the command.
pub(crate) async fn run(store: &Store, args: ShowArgs) -> anyhow::Result<()> {
    let (bytes, from) = match (&args.file, args.rel) {
        (Some(path), _) => {
            let file = std::fs::File::open(path).with_context(|| format!("cannot open {path}"))?;
            let mut bytes = vec![0; BLCKSZ];
            let offset = u64::from(args.block) * BLCKSZ as u64;
            let read = file.read_exact_at(&mut bytes, offset);
            read.with_context(|| format!("cannot read a page of {path} at offset {offset}"))?;
            (bytes, path.to_string())
        }
        (None, Some(rel)) => {
            let opened = store.open().await?;
            let page = PageArgs { rel, block: args.block, lsn: args.lsn };
            let (bytes, lsn) = getpage::read(&opened, page).await?;
            (bytes.to_vec(), format!("{rel} as of LSN {lsn}"))
        }
        (None, None) => anyhow::bail!("neither --rel nor --file"),
    };
    let page = PageBytes::try_from(bytes.as_slice()).context("a page has 8192 bytes")?;
    if store.common.json {
        output::line(to_json(&page, &from, args.block));
        return Ok(());
    }
    let items = show(&page, args.block);
    output::line(format_args!("page {} of {from}: {items} line pointers", args.block));
    Ok(())
}

fn to_json(bytes: &PageBytes, from: &str, blkno: u32) -> serde_json::Value {
    let page = PageRef::new(bytes);
    let items: Vec<_> = (1..=page.max_offset())
        .filter_map(|offset| page.item_id(offset).ok())
        .map(|item| json!({ "state": state(item.flags()), "offset": item.offset(), "length": item.len() }))
        .collect();
    json!({
        "from": from, "block": blkno, "new": page.is_new(), "lsn": Lsn(page.lsn()).to_string(),
        "checksum": page.checksum(), "flags": page.flags(), "lower": page.lower(), "upper": page.upper(),
        "special": page.special(), "prune_xid": page.prune_xid(), "items": items,
    })
}

/// Prints the page and returns its number of line pointers.
fn show(bytes: &PageBytes, blkno: u32) -> u16 {
    let page = PageRef::new(bytes);
    if page.is_new() {
        let zero = bytes.iter().all(|byte| *byte == 0);
        output::line(if zero { "new page: all zeros" } else { "new page: pd_upper is 0, but not all bytes are" });
        return 0;
    }
    output::line(format_args!("pd_lsn      {}", Lsn(page.lsn())));
    output::line(format_args!("pd_checksum {:#06x} (computed {:#06x})", page.checksum(), data_checksum(bytes, blkno)));
    output::line(format_args!("pd_flags    {:#06x}{}", page.flags(), flag_names(page.flags())));
    output::line(format_args!("pd_lower    {}", page.lower()));
    output::line(format_args!("pd_upper    {}", page.upper()));
    output::line(format_args!("pd_special  {}", page.special()));
    output::line(format_args!("pd_pagesize_version {:#06x}", page.size_version()));
    output::line(format_args!("pd_prune_xid {}", page.prune_xid()));
    if let Err(error) = page.layout() {
        output::line(format_args!("{error}"));
        return 0;
    }
    for offset in 1..=page.max_offset() {
        match page.item_id(offset) {
            Ok(item) => output::line(format_args!(
                "item {offset:4} {:8} offset {:4} length {:4}",
                state(item.flags()),
                item.offset(),
                item.len()
            )),
            Err(error) => output::line(format_args!("item {offset:4} {error}")),
        }
    }
    page.max_offset()
}

fn state(flags: LpFlags) -> &'static str {
    match flags {
        LpFlags::Unused => "unused",
        LpFlags::Normal => "normal",
        LpFlags::Redirect => "redirect",
        LpFlags::Dead => "dead",
    }
}

fn flag_names(flags: u16) -> String {
    let names =
        [(PD_HAS_FREE_LINES, " HAS_FREE_LINES"), (PD_PAGE_FULL, " PAGE_FULL"), (PD_ALL_VISIBLE, " ALL_VISIBLE")];
    names.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, name)| *name).collect()
}
