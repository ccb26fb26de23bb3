//! Which blocks of a file are in the overlay.

/// A set of block numbers; numbers beyond its length are not in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bitmap {
    words: Vec<u64>,
}

impl Bitmap {
    pub(crate) fn contains(&self, block: u32) -> bool {
        self.words.get(block as usize / 64).is_some_and(|word| word >> (block % 64) & 1 == 1)
    }

    pub(crate) fn insert(&mut self, block: u32) {
        let at = block as usize / 64;
        if self.words.len() <= at {
            self.words.resize(at + 1, 0);
        }
        self.words[at] |= 1 << (block % 64);
    }
}
