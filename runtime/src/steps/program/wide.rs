//! Chains of f32 that give f32: each step goes over several vectors before the next one, so that a processor computes several at the
//! same time and a step is chosen once for all of them; values lie in the first-level cache between steps.

use super::feeds::{Input, MOST_FEEDS, SLOTS};
use super::links::{Link, change_all};
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
    /// Steps, one at least: their slots begin at [`MOST_FEEDS`], and the last one gives the result.
    pub(super) links: &'a [Link],
    /// What it reads: the first slots.
    pub(super) feeds: &'a [Input<'a>],
    pub(super) out: &'a mut [f32],
}

impl Routine for Wide<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { links, feeds, out } = self;
        // A single function of what it is written over needs no slots.
        if let (&[Link::Change(0, function)], [Input::Own]) = (links, feeds) {
            return change_all(simd, function, out);
        }
        let mut slots = scratch(SLOTS * WIDE_ELEMENTS);
        let slots: &mut [WideSlot] = slots.as_chunks_mut::<LANES>().0.as_chunks_mut().0;
        let used = out.len().min(WIDE_ELEMENTS).div_ceil(LANES);
        for (slot, input) in slots.iter_mut().zip(feeds) {
            if let Input::Line(line) = input {
                for value in &mut slot[..used] {
                    simd.store(simd.load_halves(line, line), value);
                }
            }
        }
        let count = out.len();
        let (vectors, rest) = out.as_chunks_mut::<LANES>();
        for (block, out) in vectors.chunks_mut(WIDE_VECTORS).enumerate() {
            let block = Block { feeds, start: block * WIDE_ELEMENTS, is_whole: true };
            block.read_own(simd, slots, out);
            block.compute(simd, links, slots, out);
        }
        if !rest.is_empty() {
            let block = Block { feeds, start: count - rest.len(), is_whole: false };
            let mut last = [[0.0; LANES]];
            last[0][..rest.len()].copy_from_slice(rest);
            block.read_own(simd, slots, &last);
            block.read_rest(slots, rest.len());
            block.compute(simd, links, slots, &mut last);
            rest.copy_from_slice(&last[0][..rest.len()]);
        }
    }
}

/// Elements that go through all steps together.
struct Block<'a> {
    feeds: &'a [Input<'a>],
    /// The first of them.
    start: usize,
    /// Whether all vectors are whole: they are read where they lie.
    is_whole: bool,
}

impl Block<'_> {
    /// Copies what the results are written over.
    #[inline(always)]
    fn read_own<S: Simd>(&self, simd: S, slots: &mut [WideSlot], own: &[[f32; LANES]]) {
        for (slot, _) in slots.iter_mut().zip(self.feeds).filter(|(_, input)| matches!(input, Input::Own)) {
            for (to, from) in slot.iter_mut().zip(own) {
                simd.store(simd.load(from), to);
            }
        }
    }

    /// Copies the last elements, which are no whole vector.
    #[inline(always)]
    fn read_rest(&self, slots: &mut [WideSlot], count: usize) {
        for (slot, input) in slots.iter_mut().zip(self.feeds) {
            if let Input::Floats(values) = input {
                slot[0][..count].copy_from_slice(&values[self.start..][..count]);
            }
        }
    }

    /// The values of a slot.
    #[inline(always)]
    fn values<'s>(&'s self, slot: usize, known: &'s [WideSlot], count: usize) -> Values<'s> {
        match self.feeds.get(slot) {
            Some(Input::One(value)) => Values::One(*value),
            Some(Input::Floats(values)) if self.is_whole => {
                Values::Each(values[self.start..][..count * LANES].as_chunks().0)
            }
            Some(_) | None => Values::Each(&known[slot][..count]),
        }
    }

    /// Computes all steps.
    #[inline(always)]
    fn compute<S: Simd>(&self, simd: S, links: &[Link], slots: &mut [WideSlot], out: &mut [[f32; LANES]]) {
        for (index, &link) in links.iter().enumerate() {
            let (known, own) = slots.split_at_mut(MOST_FEEDS + index);
            let (x, y) = link.slots();
            let x = self.values(x, known, out.len());
            let y = y.map_or(x, |y| self.values(y, known, out.len()));
            let own = if index + 1 == links.len() { &mut *out } else { &mut own[0][..out.len()] };
            link_all(simd, link, (x, y), own);
        }
    }
}

/// What a step reads.
#[derive(Clone, Copy)]
enum Values<'a> {
    /// The same everywhere.
    One(f32),
    Each(&'a [[f32; LANES]]),
}

/// A step over some vectors.
#[inline(always)]
fn link_all<S: Simd>(simd: S, link: Link, (x, y): (Values<'_>, Values<'_>), own: &mut [[f32; LANES]]) {
    /// The loop over an expression of vectors.
    macro_rules! each {
        (|$x:ident| $value:expr) => {
            match x {
                Values::One(x) => {
                    let $x = simd.splat(x);
                    for own in own {
                        simd.store($value, own);
                    }
                }
                Values::Each(x) => {
                    for (own, x) in own.iter_mut().zip(x) {
                        let $x = simd.load(x);
                        simd.store($value, own);
                    }
                }
            }
        };
        (|$x:ident, $y:ident| $value:expr) => {
            match (x, y) {
                (Values::Each(x), Values::Each(y)) => {
                    for (own, (x, y)) in own.iter_mut().zip(x.iter().zip(y)) {
                        let ($x, $y) = (simd.load(x), simd.load(y));
                        simd.store($value, own);
                    }
                }
                (Values::Each(x), Values::One(y)) => {
                    let $y = simd.splat(y);
                    for (own, x) in own.iter_mut().zip(x) {
                        let $x = simd.load(x);
                        simd.store($value, own);
                    }
                }
                (Values::One(x), Values::Each(y)) => {
                    let $x = simd.splat(x);
                    for (own, y) in own.iter_mut().zip(y) {
                        let $y = simd.load(y);
                        simd.store($value, own);
                    }
                }
                (Values::One(x), Values::One(y)) => {
                    let ($x, $y) = (simd.splat(x), simd.splat(y));
                    for own in own {
                        simd.store($value, own);
                    }
                }
            }
        };
    }
    match link {
        Link::Add(..) => each!(|x, y| simd.add(x, y)),
        Link::Sub(..) => each!(|x, y| simd.subtract(x, y)),
        Link::Mul(..) => each!(|x, y| simd.multiply(x, y)),
        Link::Div(..) => each!(|x, y| simd.divide(x, y)),
        Link::Clamp(_, least, greatest) => {
            let (least, greatest) = (simd.splat(least), simd.splat(greatest));
            each!(|x| simd.at_most(simd.at_least(x, least), greatest));
        }
        Link::Change(_, function) => match x {
            Values::One(x) => {
                let mut changed = [x; LANES];
                change_all(simd, function, &mut changed);
                own.fill(changed);
            }
            Values::Each(x) => {
                own.copy_from_slice(x);
                change_all(simd, function, own.as_flattened_mut());
            }
        },
    }
}
