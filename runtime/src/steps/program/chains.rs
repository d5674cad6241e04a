//! Steps over f32 that follow each other, as one loop: values of a few vectors stay in the nearest cache from the operands of
//! the first step to the result of the last one.
//!
//! Each step has the bits that it has alone, but for those of a gate (`gates`). A step is part of a chain where nothing outside reads it
//! but for the last one; dequantized integers are read as such, and quantizing may end a chain.

use super::feeds::{Feed, Input, MOST_FEEDS, SLOTS, widened};
use super::links::{Link, linked};
use super::quarters::{Quantized, TOGETHER, VECTORS, store_quarters, widened_quarters};
use super::registers::Register;
use super::single::Single;
use super::wide::Wide;
use ipuc_kernels::scratch::scratch;
use ipuc_kernels::simd::{Instructions, LANES, Routine, Simd};
use std::ops::Range;

/// Vectors that do on others.
const FEW_VECTORS: usize = 2;

/// Steps of f32 as one.
#[derive(Clone, Default)]
pub(super) struct Chain {
    /// What it reads: the first slots.
    pub(super) feeds: Vec<Feed>,
    /// Steps: their slots begin at [`MOST_FEEDS`].
    pub(super) links: Vec<Link>,
    /// A bit for each step that is read by another than the one behind it: its values are written to its slot.
    kept: u32,
    /// The slot of the result, or of what is quantized.
    pub(super) result: usize,
    pub(super) quantized: Option<Quantized>,
}

impl Chain {
    pub(super) fn feed(&mut self, feed: Feed) -> Option<usize> {
        if let Some(slot) = self.feeds.iter().position(|other| *other == feed) {
            return Some(slot);
        }
        (self.feeds.len() < MOST_FEEDS).then(|| self.feeds.push(feed))?;
        Some(self.feeds.len() - 1)
    }

    pub(super) fn link(&mut self, link: Link) -> Option<()> {
        let own = MOST_FEEDS + self.links.len();
        (own < SLOTS).then(|| self.links.push(link))?;
        let (x, y) = link.slots();
        [Some(x), y].into_iter().flatten().for_each(|slot| self.keep(slot, own));
        self.result = own;
        Some(())
    }

    /// Removes links from `count` on.
    pub(super) fn shorten(&mut self, count: usize) {
        self.links.truncate(count);
        self.kept &= (1 << count) - 1;
    }

    /// What is in a slot becomes integers.
    pub(super) fn quantize(&mut self, slot: usize, quantized: Quantized) {
        self.keep(slot, MOST_FEEDS + self.links.len());
        (self.result, self.quantized) = (slot, Some(quantized));
    }

    /// Takes note that what has slot `reader` reads a slot.
    fn keep(&mut self, slot: usize, reader: usize) {
        if slot >= MOST_FEEDS && slot + 1 < reader {
            self.kept |= 1 << (slot - MOST_FEEDS);
        }
    }

    /// About how many operations an element costs.
    pub(super) fn cost(&self) -> usize {
        let links: usize = self.links.iter().map(|link| link.cost()).sum();
        self.feeds.len() + links + if self.quantized.is_some() { 6 } else { 0 }
    }

    /// Computes `count` elements of what `input` gives for a register.
    pub(super) fn run<'r>(&self, count: usize, input: impl Fn(usize) -> Input<'r>, result: &mut Register) {
        let inputs = self.inputs(input);
        let out = match result {
            Register::Float(out) => {
                out.resize(count, 0.0);
                Out::Floats(out)
            }
            Register::Integer(out) => {
                out.resize(count, 0);
                Out::Integers(out)
            }
            // Results of chains are f32 or integers of at most 16 bits.
            Register::General(_) => return,
        };
        self.run_loop(inputs, count, out);
    }

    /// Bytes as where its results go, which are integers of 8 bits or f32; `None` where f32 cannot lie there.
    pub(super) fn direct<'o>(&self, out: &'o mut [u8]) -> Option<Out<'o>> {
        match self.quantized {
            Some(_) => Some(Out::Bytes(out)),
            None => bytemuck::try_cast_slice_mut(out).ok().map(Out::Floats),
        }
    }

    /// As [`Chain::run`], straight to where the results go.
    pub(super) fn run_to<'r>(&self, input: impl Fn(usize) -> Input<'r>, count: usize, out: Out<'r>) {
        self.run_loop(self.inputs(input), count, out);
    }

    /// As [`Chain::run`], over what it is to change: of the register `own` it reads the elements of `values`. Only for results in f32.
    pub(super) fn change<'r>(&self, own: usize, input: impl Fn(usize) -> Input<'r>, values: &mut [f32]) {
        let given = |register: usize| if register == own { Input::Own } else { input(register) };
        let (count, inputs) = (values.len(), self.inputs(given));
        self.run_loop(inputs, count, Out::Floats(values));
    }

    fn run_loop<'r>(&self, inputs: [Input<'r>; MOST_FEEDS], count: usize, out: Out<'r>) {
        let are_floats = inputs.iter().all(|input| match input {
            Input::Own | Input::One(_) | Input::Line(_) | Input::Floats(_) => true,
            Input::OneInteger(_) | Input::Integers(_) | Input::Unsigned(_) | Input::Signed(_) => false,
        });
        match out {
            Out::Floats(out) if self.gives_last() && are_floats => {
                let feeds = &inputs[..self.feeds.len()];
                Instructions::best().run(Wide { links: &self.links, feeds, out });
            }
            out => Instructions::best().run(Loop { chain: self, inputs, count, out }),
        }
    }

    /// Whether the result is that of the last step.
    fn gives_last(&self) -> bool {
        !self.links.is_empty() && self.result == MOST_FEEDS + self.links.len() - 1
    }

    fn inputs<'r>(&self, input: impl Fn(usize) -> Input<'r>) -> [Input<'r>; MOST_FEEDS] {
        let mut inputs = [Input::One(0.0); MOST_FEEDS];
        for (own, feed) in inputs.iter_mut().zip(&self.feeds) {
            *own = input(feed.register);
        }
        inputs
    }
}

/// Where results go.
pub(super) enum Out<'a> {
    Floats(&'a mut [f32]),
    Integers(&'a mut [i32]),
    /// The low byte of each integer.
    Bytes(&'a mut [u8]),
}

/// Vectors of a slot in memory, where steps find those of any slot.
type Slot = [[f32; LANES]; VECTORS];

/// A chain over some elements.
struct Loop<'a> {
    chain: &'a Chain,
    inputs: [Input<'a>; MOST_FEEDS],
    count: usize,
    out: Out<'a>,
}

impl Routine for Loop<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        // Kept memory: to fill all slots with zeros would take longer than short runs.
        let mut slots = scratch(SLOTS * TOGETHER);
        let slots: &mut [Slot] = slots.as_chunks_mut::<LANES>().0.as_chunks_mut().0;
        // Values that are the same for all elements stay in their slots.
        for (slot, input) in slots.iter_mut().zip(&self.inputs) {
            if let Some(repeated) = input.repeated(simd) {
                for value in slot {
                    simd.store(repeated, value);
                }
            }
        }
        let is_bytes = |input: &Input<'_>| match input {
            Input::One(_) | Input::OneInteger(_) | Input::Unsigned(_) | Input::Signed(_) => true,
            Input::Own | Input::Line(_) | Input::Floats(_) | Input::Integers(_) => false,
        };
        // Where all elements come and go as bytes, a vector may have every fourth of them, which takes no moves between lanes.
        let by_quarters = matches!(self.out, Out::Bytes(_)) && self.inputs.iter().all(is_bytes);
        // A single step needs no slots.
        let done = match (&mut self.out, self.chain.links.as_slice(), self.chain.quantized) {
            (Out::Bytes(out), &[link], Some(quantized)) if by_quarters && self.chain.result == MOST_FEEDS => {
                Single { link, feeds: &self.chain.feeds, inputs: &self.inputs, quantized }.run(simd, out)
            }
            (_, _, _) => 0,
        };
        for start in (done..self.count).step_by(TOGETHER) {
            let count = TOGETHER.min(self.count - start);
            let by_quarters = by_quarters && count == TOGETHER;
            self.fill(simd, slots, start..start + count, by_quarters);
            let range = start..start + count;
            let result = if const { S::TILE_VECTORS == 1 } {
                let [a, b] = self.compute::<S, FEW_VECTORS>(simd, slots, range.clone(), 0);
                let [c, d] = self.compute::<S, FEW_VECTORS>(simd, slots, range, FEW_VECTORS);
                [a, b, c, d]
            } else {
                self.compute(simd, slots, range, 0)
            };
            self.write(simd, &result, start..start + count, by_quarters);
        }
    }
}

impl Loop<'_> {
    /// Writes the elements `range` of feeds to their slots, but f32 that steps read where they lie.
    #[inline(always)]
    fn fill<S: Simd>(&self, simd: S, slots: &mut [Slot], range: Range<usize>, by_quarters: bool) {
        for (slot, feed) in self.chain.feeds.iter().enumerate() {
            let input = match (self.inputs[slot], &self.out) {
                (Input::One(_) | Input::Line(_), _) => continue,
                (Input::Own, Out::Floats(out)) => Input::Floats(out),
                (input, _) => input,
            };
            let bytes = if by_quarters { input.bytes(range.start) } else { None };
            if let Some((bytes, signed)) = bytes {
                store(simd, widened_quarters(simd, bytes, signed, feed.widened), &mut slots[slot]);
                continue;
            }
            if let (Input::Floats(_), TOGETHER) = (input, range.len()) {
                continue;
            }
            for (first, value) in range.clone().step_by(LANES).zip(&mut slots[slot]) {
                simd.store(widened(simd, input, first..range.end.min(first + LANES), feed.widened), value);
            }
        }
    }

    /// The results of the elements `range`, `COUNT` of their vectors from one on.
    #[inline(always)]
    fn compute<S: Simd, const COUNT: usize>(
        &self,
        simd: S,
        slots: &mut [Slot],
        range: Range<usize>,
        first: usize,
    ) -> [S::Vector; COUNT] {
        let own: &[f32] = if let Out::Floats(out) = &self.out { out } else { &[] };
        let feeds = Feeds { inputs: &self.inputs, own, start: range.start, first, is_whole: range.len() == TOGETHER };
        let mut last = [simd.splat(0.0); COUNT];
        let mut before = None;
        for (index, link) in self.chain.links.iter().enumerate() {
            let (x, y) = link.slots();
            let x = if Some(x) == before { last } else { feeds.read(simd, x, slots) };
            let y = match y {
                Some(y) if Some(y) != before => feeds.read(simd, y, slots),
                Some(_) | None => last,
            };
            last = linked(simd, *link, x, y);
            let slot = MOST_FEEDS + index;
            if self.chain.kept & 1 << index != 0 {
                store(simd, last, &mut slots[slot][first..]);
            }
            before = Some(slot);
        }
        if before == Some(self.chain.result) { last } else { feeds.read(simd, self.chain.result, slots) }
    }

    /// Writes results as the elements `range`.
    #[inline(always)]
    fn write<S: Simd>(&mut self, simd: S, result: &[S::Vector; VECTORS], range: Range<usize>, by_quarters: bool) {
        match (&mut self.out, self.chain.quantized) {
            (Out::Floats(out), _) => {
                let out = &mut out[range];
                if let Some(whole) = out.first_chunk_mut::<TOGETHER>() {
                    store(simd, *result, whole.as_chunks_mut().0);
                    return;
                }
                for (out, vector) in out.chunks_mut(LANES).zip(result) {
                    simd.store_partial(*vector, out);
                }
            }
            (Out::Integers(out), Some(quantized)) => {
                for (vector, out) in out[range].chunks_mut(LANES).enumerate() {
                    store_quantized(simd, result[vector], quantized, out);
                }
            }
            (Out::Bytes(out), Some(quantized)) if by_quarters => {
                if let Some(out) = out[range.start..].first_chunk_mut() {
                    store_quarters(simd, result, quantized, out);
                }
            }
            (Out::Bytes(out), Some(quantized)) => {
                if let (Some(signed), Some(out)) = (quantized.bytes(), out[range.clone()].first_chunk_mut()) {
                    *out = simd.narrow(quantized.nearest(simd, result), quantized.zero, signed);
                    return;
                }
                for (vector, out) in out[range].chunks_mut(LANES).enumerate() {
                    let mut lanes = [0; LANES];
                    store_quantized(simd, result[vector], quantized, &mut lanes);
                    out.iter_mut().zip(lanes).for_each(|(out, lane)| *out = lane as u8);
                }
            }
            // Only quantizing gives integers.
            (Out::Integers(_) | Out::Bytes(_), None) => {}
        }
    }
}

/// What a chain reads from an element on.
struct Feeds<'a> {
    inputs: &'a [Input<'a>; MOST_FEEDS],
    /// What is written over.
    own: &'a [f32],
    start: usize,
    /// The first of the vectors that are read.
    first: usize,
    /// Whether all vectors are whole: f32 are read where they lie then.
    is_whole: bool,
}

impl Feeds<'_> {
    /// The values of a slot.
    #[inline(always)]
    fn read<S: Simd, const COUNT: usize>(&self, simd: S, slot: usize, slots: &[Slot]) -> [S::Vector; COUNT] {
        let values = match self.inputs.get(slot) {
            Some(Input::Floats(values)) if self.is_whole => values,
            Some(Input::Own) if self.is_whole => self.own,
            Some(
                Input::Own
                | Input::One(_)
                | Input::OneInteger(_)
                | Input::Line(_)
                | Input::Floats(_)
                | Input::Integers(_)
                | Input::Unsigned(_)
                | Input::Signed(_),
            )
            | None => return load(simd, &slots[slot][self.first..]),
        };
        let values = &values[self.start..][..TOGETHER];
        load(simd, &values.as_chunks().0[self.first..])
    }
}

#[inline(always)]
fn load<S: Simd, const COUNT: usize>(simd: S, values: &[[f32; LANES]]) -> [S::Vector; COUNT] {
    let values = &values[..COUNT];
    let mut vectors = [simd.splat(0.0); COUNT];
    for vector in 0..COUNT {
        vectors[vector] = simd.load(&values[vector]);
    }
    vectors
}

#[inline(always)]
fn store<S: Simd, const COUNT: usize>(simd: S, vectors: [S::Vector; COUNT], values: &mut [[f32; LANES]]) {
    let values = &mut values[..COUNT];
    for vector in 0..COUNT {
        simd.store(vectors[vector], &mut values[vector]);
    }
}

#[inline(always)]
fn store_quantized<S: Simd>(simd: S, x: S::Vector, quantized: Quantized, out: &mut [i32]) {
    let Quantized { scale, zero, least, greatest } = quantized;
    let mut lanes = [0; LANES];
    simd.store_integers(simd.nearest_integers(scale.quotients(simd, x)), &mut lanes);
    for lane in &mut lanes {
        *lane = (*lane).max(least).min(greatest) + zero;
    }
    match out.first_chunk_mut() {
        Some(out) => *out = lanes,
        None => out.copy_from_slice(&lanes[..out.len()]),
    }
}
