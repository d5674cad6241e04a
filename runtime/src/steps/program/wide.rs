//! Chains with functions that take many operations: each step goes over several vectors before the next one, so that those of
//! a function overlap, and values lie in the first-level cache between steps.

use super::chains::{Chain, Input, MOST_FEEDS, SLOTS};
use super::links::{Link, LinkFunction};
use ipuc_kernels::elementwise::{VectorFunction, functions};
use ipuc_kernels::scratch::scratch;
use ipuc_kernels::simd::{LANES, Routine, Simd};

/// Vectors of a slot.
const VECTORS: usize = 16;

/// Elements that go through a step together.
const TOGETHER: usize = VECTORS * LANES;

/// The values of what is read or of a step.
type Slot = [[f32; LANES]; VECTORS];

/// A chain over f32 that gives f32.
pub(super) struct Wide<'a> {
    pub(super) chain: &'a Chain,
    pub(super) inputs: [Input<'a>; MOST_FEEDS],
    pub(super) out: &'a mut [f32],
}

impl Routine for Wide<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let mut slots = scratch(SLOTS * TOGETHER);
        let slots: &mut [Slot] = slots.as_chunks_mut::<LANES>().0.as_chunks_mut().0;
        let used = self.out.len().min(TOGETHER).div_ceil(LANES);
        let feeds = &self.inputs[..self.chain.feeds.len()];
        for (slot, input) in slots.iter_mut().zip(feeds) {
            if let Input::One(value) = input {
                slot[..used].fill([*value; LANES]);
            }
        }
        for (block, out) in self.out.chunks_mut(TOGETHER).enumerate() {
            let vectors = out.len().div_ceil(LANES);
            for (slot, input) in slots.iter_mut().zip(feeds) {
                let values = match input {
                    Input::Own => &*out,
                    Input::Floats(values) => &values[block * TOGETHER..][..out.len()],
                    Input::One(_)
                    | Input::OneInteger(_)
                    | Input::Integers(_)
                    | Input::Unsigned(_)
                    | Input::Signed(_) => continue,
                };
                for (slot, values) in slot.iter_mut().zip(values.chunks(LANES)) {
                    simd.store(simd.load_partial(values), slot);
                }
            }
            for (index, &link) in self.chain.links.iter().enumerate() {
                let (known, own) = slots.split_at_mut(MOST_FEEDS + index);
                link_all(simd, link, known, &mut own[0][..vectors]);
            }
            for (out, result) in out.chunks_mut(LANES).zip(&slots[self.chain.result]) {
                simd.store_partial(simd.load(result), out);
            }
        }
    }
}

/// A step over some vectors.
#[inline(always)]
fn link_all<S: Simd>(simd: S, link: Link, known: &[Slot], own: &mut [[f32; LANES]]) {
    match link {
        Link::Add(x, y) => {
            for (own, (x, y)) in own.iter_mut().zip(known[x].iter().zip(&known[y])) {
                simd.store(simd.add(simd.load(x), simd.load(y)), own);
            }
        }
        Link::Sub(x, y) => {
            for (own, (x, y)) in own.iter_mut().zip(known[x].iter().zip(&known[y])) {
                simd.store(simd.subtract(simd.load(x), simd.load(y)), own);
            }
        }
        Link::Mul(x, y) => {
            for (own, (x, y)) in own.iter_mut().zip(known[x].iter().zip(&known[y])) {
                simd.store(simd.multiply(simd.load(x), simd.load(y)), own);
            }
        }
        Link::Div(x, y) => {
            for (own, (x, y)) in own.iter_mut().zip(known[x].iter().zip(&known[y])) {
                simd.store(simd.divide(simd.load(x), simd.load(y)), own);
            }
        }
        Link::Clamp(x, least, greatest) => {
            let (least, greatest) = (simd.splat(least), simd.splat(greatest));
            for (own, x) in own.iter_mut().zip(&known[x]) {
                simd.store(simd.at_most(simd.at_least(simd.load(x), least), greatest), own);
            }
        }
        Link::Change(x, function) => change_all(simd, function, &known[x], own),
    }
}

/// A function over some vectors.
#[inline(always)]
fn change_all<S: Simd>(simd: S, function: LinkFunction, x: &Slot, own: &mut [[f32; LANES]]) {
    match function {
        LinkFunction::Erf => each(simd, functions::ErrorFunction {}, x, own),
        LinkFunction::Exp => each(simd, functions::Exponential {}, x, own),
        LinkFunction::Gelu => each(simd, functions::Gelu {}, x, own),
        LinkFunction::GeluTanh => each(simd, functions::GeluTanh {}, x, own),
        LinkFunction::HardSigmoid { alpha, beta } => each(simd, functions::HardSigmoid { alpha, beta }, x, own),
        LinkFunction::HardSwish => each(simd, functions::HardSwish {}, x, own),
        LinkFunction::Sigmoid => each(simd, functions::Logistic {}, x, own),
        LinkFunction::Swish { alpha } => each(simd, functions::Swish { alpha }, x, own),
        LinkFunction::Tanh => each(simd, functions::HyperbolicTangent {}, x, own),
    }
}

#[inline(always)]
fn each<S: Simd>(simd: S, function: impl VectorFunction, x: &Slot, own: &mut [[f32; LANES]]) {
    for (own, x) in own.iter_mut().zip(x) {
        simd.store(function.apply(simd, simd.load(x)), own);
    }
}
