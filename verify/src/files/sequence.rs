//! Sequences: the WAL is ahead of the page.
//!
//! `nextval` logs the sequence as it will be after the next 32 values, with no values left to fetch, and then writes
//! to the page the value actually handed out and how many of the logged values are left (`SEQ_LOG_VALS`). Replay,
//! including a standby's, has the logged state. The two match if the logged value equals the page's plus the
//! increment for each value left; the increment is in a catalog, so we check only that some increment fits.

use postgres_formats::page::{PageBytes, PageRef};

/// Offsets within the tuple, whose header has 24 bytes: `last_value` i64, `log_cnt` i64, `is_called` bool.
const LAST_VALUE: usize = 24;
const LOG_CNT: usize = 32;
const IS_CALLED: usize = 40;
const END: usize = 41;

/// If the server handed out `theirs` from the logged state `ours`, makes that part of the pages equal.
pub(super) fn reconcile(ours: &mut PageBytes, theirs: &PageBytes) {
    let place = |page: &PageBytes| PageRef::new(page).item_id(1).ok().map(|item| usize::from(item.offset()));
    let (Some(at), true) = (place(theirs), place(ours) == place(theirs)) else { return };
    let (Some(logged), Some(used)) = (State::read(ours, at), State::read(theirs, at)) else { return };
    if !used.is_handed_out_of(&logged) {
        return;
    }
    let range = at + LAST_VALUE..at + END;
    if let (Some(target), Some(source)) = (ours.get_mut(range.clone()), theirs.get(range)) {
        target.copy_from_slice(source);
    }
}

#[derive(Clone, Copy, Debug)]
struct State {
    last_value: i64,
    log_cnt: i64,
    is_called: bool,
}

impl State {
    fn read(page: &PageBytes, at: usize) -> Option<Self> {
        let number = |offset: usize| Some(i64::from_le_bytes(*page.get(at + offset..)?.first_chunk()?));
        let is_called = *page.get(at + IS_CALLED)? != 0;
        Some(Self { last_value: number(LAST_VALUE)?, log_cnt: number(LOG_CNT)?, is_called })
    }

    fn is_handed_out_of(&self, logged: &Self) -> bool {
        let ahead = i128::from(logged.last_value) - i128::from(self.last_value);
        let left = i128::from(self.log_cnt);
        self.is_called && logged.is_called && logged.log_cnt == 0 && left > 0 && ahead != 0 && ahead % left == 0
    }
}

#[cfg(test)]
mod tests {
    use postgres_formats::page::Page;

    use super::*;

    fn sequence(last_value: i64, log_cnt: i64, is_called: bool) -> PageBytes {
        let mut page = Page::new([0; 8192]);
        page.init(8);
        let mut tuple = [0; END];
        tuple[LAST_VALUE..LOG_CNT].copy_from_slice(&last_value.to_le_bytes());
        tuple[LOG_CNT..IS_CALLED].copy_from_slice(&log_cnt.to_le_bytes());
        tuple[IS_CALLED] = u8::from(is_called);
        page.insert_item(&tuple, 1).unwrap();
        page.into_inner()
    }

    fn same(logged: PageBytes, used: PageBytes) -> bool {
        let mut ours = logged;
        reconcile(&mut ours, &used);
        ours == used
    }

    #[test]
    fn only_a_state_that_was_logged_ahead_is_taken_for_equal() {
        assert!(same(sequence(1033, 0, true), sequence(1001, 32, true)));
        assert!(same(sequence(-90, 0, true), sequence(-30, 12, true)), "an increment of -5");
        assert!(!same(sequence(1034, 0, true), sequence(1001, 32, true)), "no increment leads there");
        assert!(!same(sequence(1001, 0, true), sequence(1001, 32, true)), "nothing was handed out");
        assert!(!same(sequence(1033, 0, true), sequence(1001, 0, true)));
        assert!(!same(sequence(1033, 1, true), sequence(1001, 32, true)));
        assert!(!same(sequence(1033, 0, true), sequence(1001, 32, false)));
    }
}
