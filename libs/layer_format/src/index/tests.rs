use proptest::prelude::*;

use super::*;

fn entries() -> impl Strategy<Value = Vec<IndexEntry>> {
    let one = (any::<u16>(), 0u64..1 << 40, 0u64..1 << 40, 0u32..1 << 28, any::<bool>(), any::<bool>());
    prop::collection::vec(one, 1..2000).prop_map(|raw| {
        let mut all: Vec<IndexEntry> = raw
            .into_iter()
            .map(|(key, lsn, position, len, flag, far)| IndexEntry {
                key: CompactKey::from(i128::from(key) << if far { 100 } else { 3 }),
                lsn: Lsn(lsn),
                position,
                len,
                flag,
            })
            .collect();
        all.sort_by_key(|e| (e.key, e.lsn));
        all.dedup_by_key(|e| (e.key, e.lsn));
        all
    })
}

fn pages(entries: &[IndexEntry]) -> Vec<Vec<u8>> {
    let mut builder = IndexPageBuilder::default();
    let mut out = Vec::new();
    for entry in entries {
        if !builder.push(*entry) {
            let mut page = Vec::new();
            builder.finish_into(&mut page);
            out.push(page);
            assert!(builder.push(*entry));
        }
    }
    let mut page = Vec::new();
    builder.finish_into(&mut page);
    out.push(page);
    out
}

proptest! {
    #[test]
    fn pages_hold_what_was_pushed(entries in entries()) {
        let pages = pages(&entries);
        let mut all = Vec::new();
        for bytes in &pages {
            prop_assert!(bytes.len() <= INDEX_PAGE_SIZE);
            let mut padded = bytes.clone();
            padded.resize(INDEX_PAGE_SIZE, 0);
            let page = IndexPage::decode(&padded).unwrap();
            for (at, entry) in page.iter_from(0).enumerate() {
                prop_assert_eq!(page.lower_bound(entry.key, entry.lsn), at);
                all.push(entry);
            }
        }
        prop_assert_eq!(all, entries);
    }

    #[test]
    fn damaged_pages_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..300), count in 0u16..20) {
        if let Some(front) = bytes.get_mut(..6) {
            front.copy_from_slice(&[count as u8, 0, 3, 2, 2, 1]);
        }
        if let Ok(page) = IndexPage::decode(&bytes) {
            let _ = page.iter_from(0).count();
        }
    }
}

#[test]
fn entries_of_small_sequential_values_are_small() {
    let mut builder = IndexPageBuilder::default();
    let mut count = 0u64;
    while builder.push(IndexEntry {
        key: CompactKey::from(i128::from(count)),
        lsn: Lsn(1000 + 100 * count),
        position: 4092 + 112 * count,
        len: 112,
        flag: true,
    }) {
        count += 1;
    }
    assert!(count > 1000, "{count} entries in a page of {INDEX_PAGE_SIZE} bytes");
}
