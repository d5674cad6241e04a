//! Chains of f32 with functions that take many operations: each step goes over several vectors before the next one, so that a
//! processor computes those of a function at the same time; values lie in the first-level cache between steps.

use super::feeds::{Input, MOST_FEEDS, SLOTS};
use super::links::{Link, linked};
use ipuc_kernels::scratch::scratch;
use ipuc_kernels::simd::{LANES, Routine, Simd};

/// Vectors of a slot.
const WIDE_VECTORS: usize = 16;

/// Elements that go through a step together.
const WIDE_ELEMENTS: usize = WIDE_VECTORS * LANES;

/// The values of what is read or of a step.
type WideSlot = [[f32; LANES]; WIDE_VECTORS];

/// A chain over f32 that gives f32.
pub(super) struct Wide<'a> {
    /// Steps: their slots begin at [`MOST_FEEDS`].
    pub(super) links: &'a [Link],
    /// The slot of the result.
    pub(super) result: usize,
    /// What it reads: the first slots.
    pub(super) feeds: &'a [Input<'a>],
    pub(super) out: &'a mut [f32],
}

impl Routine for Wide<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let mut slots = scratch(SLOTS * WIDE_ELEMENTS);
        let slots: &mut [WideSlot] = slots.as_chunks_mut::<LANES>().0.as_chunks_mut().0;
        let used = self.out.len().min(WIDE_ELEMENTS).div_ceil(LANES);
        for (slot, input) in slots.iter_mut().zip(self.feeds) {
            if let Some(repeated) = input.repeated(simd) {
                for value in &mut slot[..used] {
                    simd.store(repeated, value);
                }
            }
        }
        for (block, out) in self.out.chunks_mut(WIDE_ELEMENTS).enumerate() {
            let vectors = out.len().div_ceil(LANES);
            for (slot, input) in slots.iter_mut().zip(self.feeds) {
                let values = match input {
                    Input::Own => &*out,
                    Input::Floats(values) => &values[block * WIDE_ELEMENTS..][..out.len()],
                    Input::One(_)
                    | Input::OneInteger(_)
                    | Input::Line(_)
                    | Input::Integers(_)
                    | Input::Unsigned(_)
                    | Input::Signed(_) => continue,
                };
                for (slot, values) in slot.iter_mut().zip(values.chunks(LANES)) {
                    simd.store(simd.load_partial(values), slot);
                }
            }
            for (index, &link) in self.links.iter().enumerate() {
                let (known, own) = slots.split_at_mut(MOST_FEEDS + index);
                link_all(simd, link, known, &mut own[0][..vectors]);
            }
            for (out, result) in out.chunks_mut(LANES).zip(&slots[self.result]) {
                simd.store_partial(simd.load(result), out);
            }
        }
    }
}

/// A step over some vectors.
#[inline(always)]
fn link_all<S: Simd>(simd: S, link: Link, known: &[WideSlot], own: &mut [[f32; LANES]]) {
    let (x, y) = link.slots();
    if let Link::Change(_, function) = link {
        for (own, x) in own.iter_mut().zip(&known[x]) {
            simd.store(function.apply(simd, simd.load(x)), own);
        }
        return;
    }
    let y = y.unwrap_or(x);
    for (own, (x, y)) in own.iter_mut().zip(known[x].iter().zip(&known[y])) {
        let [result] = linked(simd, link, [simd.load(x)], [simd.load(y)]);
        simd.store(result, own);
    }
}
