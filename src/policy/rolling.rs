//! Hashes of any stretch of the sequence in constant time, and where a stretch occurred before.

/// Hashes are numbers below this prime.
const PRIME: u64 = (1 << 61) - 1;
const BASE: u64 = 0x0a3c_59ac_2f3d_71b5;
/// Stretches are compared in steps of 1 to 2^14 items.
pub(crate) const POWERS: u32 = 15;
/// Stretches that are found again: 2^this many items.
pub(crate) const GRAMS: [u32; 2] = [4, 7];
/// Entries of a table of chains, and links kept.
const SLOTS: usize = 1 << 15;
/// BASE to the power of 2^n.
const RAISED: [u64; POWERS as usize] = {
    let mut raised = [BASE; POWERS as usize];
    let mut power = 1;
    while power < raised.len() {
        raised[power] = multiply(raised[power - 1], raised[power - 1]);
        power += 1;
    }
    raised
};

const fn multiply(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    reduce((product as u64 & PRIME) + (product >> 61) as u64)
}

/// Into the range of hashes.
pub(crate) const fn reduce(value: u64) -> u64 {
    let value = (value & PRIME) + (value >> 61);
    if value >= PRIME { value - PRIME } else { value }
}

/// Spreads the bits of a number (the finish of splitmix64).
pub(crate) const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The hash of everything up to a key, from that of everything before it.
pub(crate) const fn append(prefix: u64, key: u64) -> u64 {
    reduce(multiply(prefix, BASE) + key)
}

/// The hash of the last 2^power keys, from those of everything and of everything before them.
pub(crate) fn window(prefix: u64, before: u64, power: u32) -> u64 {
    reduce(prefix + PRIME - multiply(before, RAISED[power as usize]))
}

/// Positions whose stretches have the same hash, newest first. Positions of different hashes may be among
/// them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chains {
    heads: [Vec<u64>; GRAMS.len()],
    links: [Vec<u64>; GRAMS.len()],
}

impl Chains {
    /// Adds the stretches that end at a position.
    pub(crate) fn add(&mut self, position: u64, grams: [Option<u64>; GRAMS.len()]) {
        for (which, gram) in grams.into_iter().enumerate() {
            let Some(gram) = gram else { continue };
            let (heads, links) = (&mut self.heads[which], &mut self.links[which]);
            if heads.is_empty() {
                *heads = vec![0; SLOTS];
                *links = vec![0; SLOTS];
            }
            let head = &mut heads[slot(mix(gram))];
            links[slot(position)] = *head;
            *head = position;
        }
    }

    /// The positions before one that was added, in its chain, newest first, down to `first`.
    pub(crate) fn before(&self, which: usize, position: u64, first: u64) -> impl Iterator<Item = u64> {
        let links = &self.links[which];
        let back = move |at: &u64| links.get(slot(*at)).copied().filter(|link| *link >= first && link < at);
        std::iter::successors(back(&position), back)
    }
}

fn slot(number: u64) -> usize {
    number as usize % SLOTS
}
