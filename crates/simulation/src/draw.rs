//! Random numbers by purpose. The numbers of one purpose do not depend on other draws, so leaving out a fault does not move the
//! others.

/// Random numbers for one purpose.
pub struct Draws {
    state: u64,
}

impl Draws {
    /// Returns the numbers for a seed and a purpose.
    pub fn new(seed: u64, purpose: &str) -> Self {
        // FNV-1a, then a mixer, because neighbouring seeds must differ in every bit.
        let fnv = |state: u64, byte: u8| (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let state = purpose.bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
        Self {
            state: mix(state ^ mix(seed)),
        }
    }

    /// Returns the next number (splitmix64).
    pub fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// Returns a number less than `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end.max(1)
    }

    /// Returns a number in `from..end`.
    pub fn between(&mut self, from: u64, end: u64) -> u64 {
        from + self.below(end.saturating_sub(from))
    }

    /// Returns true with a probability of 1 in `times`.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Returns a random element.
    pub fn of<T: Clone>(&mut self, choices: &[T]) -> T {
        let last = choices.len() as u64;
        choices[usize::try_from(self.below(last)).unwrap_or_default()].clone()
    }

    /// Returns a number in `from..=to`. Each doubling is equally likely: 1 to 2 as much as 10 to 20.
    pub fn log_uniform(&mut self, from: u64, to: u64) -> u64 {
        let (from, to) = (from.max(1), to.max(from.max(1)));
        // Integers only, so that every machine rounds alike: first a power of two, then a uniform number within it.
        let steps = u64::from((to / from).ilog2()) + 1;
        let low = from << self.below(steps);
        self.between(low, (low * 2).min(to + 1).max(low + 1))
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
