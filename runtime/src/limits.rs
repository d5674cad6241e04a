//! What the machine gives at most, on the threads of a session: the measure of what a benchmark finds.

use crate::threads::Threads;
use ipuc_kernels::limits::Limits;
use ipuc_kernels::simd::Instructions;
use ipuc_pages::Pages;

/// Rounds, of which the best counts.
const ROUNDS: usize = 5;

impl Threads {
    /// Measures the machine on these threads, some tenths of a second long. Memory is read from as many bytes, which should be
    /// several times those of its caches; `None` where the system has no memory for them.
    #[must_use]
    pub fn measure(&self, bytes: usize) -> Option<Limits> {
        let mut pages = Pages::zeroed(bytes).ok()?;
        // Memory that nobody has written is one page of zeros.
        let values: &mut [f32] = bytemuck::try_cast_slice_mut(&mut pages).ok()?;
        let part = values.len().div_ceil(self.count()).max(1);
        let instructions = Instructions::best();
        Some(self.team().run(|| {
            ipuc_kernels::threads::chunks(values, part, |_, values| values.fill(1.0));
            Limits::measure(instructions, values, ROUNDS)
        }))
    }
}
