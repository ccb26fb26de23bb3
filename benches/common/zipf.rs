//! Which pages a load takes: pseudorandom numbers, and Zipf's law.

/// A pseudorandom number (splitmix64).
pub fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Draws ranks by Zipf's law (Gray et al., "Quickly generating billion-record synthetic databases"), scattered over
/// the pages.
#[derive(Clone, Debug)]
pub struct Zipf {
    pages: u32,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    const THETA: f64 = 0.99;

    pub fn new(pages: u32) -> Self {
        let zeta = |n: u32| (1..=n).map(|i| 1.0 / f64::from(i).powf(Self::THETA)).sum::<f64>();
        let (all, two) = (zeta(pages), zeta(2));
        let eta = (1.0 - (2.0 / f64::from(pages)).powf(1.0 - Self::THETA)) / (1.0 - two / all);
        Self { pages, zeta: all, eta }
    }

    /// A page, by a pseudorandom number.
    pub fn draw(&self, chance: u64) -> u32 {
        let u = (chance >> 11) as f64 / (1u64 << 53) as f64;
        let scaled = u * self.zeta;
        let rank = match scaled {
            ..1.0 => 0.0,
            _ if scaled < 1.0 + 0.5f64.powf(Self::THETA) => 1.0,
            _ => f64::from(self.pages) * (self.eta * u - self.eta + 1.0).powf(1.0 / (1.0 - Self::THETA)),
        };
        // An odd factor permutes the pages, whose number is a power of two.
        (rank as u32).wrapping_mul(2_654_435_761) & (self.pages - 1)
    }
}
