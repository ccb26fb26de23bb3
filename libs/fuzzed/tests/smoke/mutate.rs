//! Inputs derived from others, the same ones in each run: bits and integers are changed, and parts removed, repeated,
//! or taken from other inputs.

/// Inputs longer than those of `make fuzz` show nothing new.
const LEN_MAX: usize = 20_000;
/// Maximum number of changes combined.
const CHANGES_MAX: usize = 4;
/// Values where counters overflow and comparisons flip.
const EDGES: [u64; 12] =
    [0, 1, 2, 7, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 0x7fff_ffff_ffff_ffff];

/// A short name for bytes (FNV-1a).
pub fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

pub struct Mutator<'a> {
    seeds: &'a [Vec<u8>],
    chance: u64,
    input: Vec<u8>,
}

impl<'a> Mutator<'a> {
    pub fn new(name: &str, seeds: &'a [Vec<u8>]) -> Self {
        Self { seeds, chance: hash(name.as_bytes()), input: vec![] }
    }

    /// Produces the next input.
    pub fn mutate(&mut self) -> &[u8] {
        let seed = self.below(self.seeds.len());
        self.input.clone_from(&self.seeds[seed]);
        for _ in 0..=self.below(CHANGES_MAX) {
            self.change();
        }
        self.input.truncate(LEN_MAX);
        &self.input
    }

    /// Splitmix64.
    fn next(&mut self) -> u64 {
        self.chance = self.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.chance;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 if there is none.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// A position, mostly near the beginning, where headers and lengths are.
    fn place(&mut self) -> usize {
        let end = if self.below(2) == 0 { self.input.len() } else { self.input.len().min(64) };
        self.below(end)
    }

    /// A part of `len` bytes, mostly a short one.
    fn part_of(&mut self, len: usize) -> std::ops::Range<usize> {
        let start = self.below(len);
        let most = if self.below(4) == 0 { len } else { 16 };
        let end = (start + 1 + self.below(most)).min(len);
        start.min(end)..end
    }

    fn change(&mut self) {
        let at = self.place();
        match self.below(8) {
            0 | 1 => {
                let bit = 1 << self.below(8);
                self.input.get_mut(at).into_iter().for_each(|byte| *byte ^= bit);
            }
            2 => {
                let value = self.next() as u8;
                self.input.get_mut(at).into_iter().for_each(|byte| *byte = value);
            }
            3 => self.put_number(at),
            4 => {
                let part = self.part_of(self.input.len());
                self.input.drain(part);
            }
            5 => {
                let len = self.below(self.input.len() + 1);
                self.input.truncate(len);
            }
            6 => {
                let part = self.part_of(self.input.len());
                let repeated = self.input[part].to_vec();
                self.insert(at, &repeated);
            }
            _ => {
                let other = self.below(self.seeds.len());
                let part = self.part_of(self.seeds[other].len());
                let seeds = self.seeds;
                let taken = &seeds[other][part];
                if self.below(2) == 0 { self.insert(at, taken) } else { self.overwrite(at, taken) }
            }
        }
    }

    fn insert(&mut self, at: usize, bytes: &[u8]) {
        let at = at.min(self.input.len());
        self.input.splice(at..at, bytes.iter().copied());
    }

    fn overwrite(&mut self, at: usize, bytes: &[u8]) {
        self.input.iter_mut().skip(at).zip(bytes).for_each(|(to, from)| *to = *from);
    }

    /// Writes an integer of 1 to 8 bytes, at or next to an edge value, in either byte order.
    fn put_number(&mut self, at: usize) {
        let width = 1 << self.below(4);
        let value = EDGES[self.below(EDGES.len())].wrapping_add(self.next() % 3).wrapping_sub(1);
        let bytes = if self.below(3) == 0 { value.to_be_bytes() } else { value.to_le_bytes() };
        let bytes = if self.below(3) == 0 { &bytes[8 - width..] } else { &bytes[..width] };
        self.overwrite(at, bytes);
    }
}
