//! Steps over f32 that follow each other, as one loop: values of a few vectors stay in the nearest cache from the operands of
//! the first step to the result of the last one.
//!
//! Each step has the bits that it has alone. A step is part of a chain where nothing outside reads it but for the last one;
//! dequantized integers are read as such, and quantizing may end a chain.

use super::compiled::{Compiled, Kind, Step};
use super::operations::{Arithmetic, Compute, Operation};
use super::registers::{Direct, Register};
use ipuc_kernels::simd::{Instructions, LANES, Routine, Simd};
use std::ops::Range;

/// The most registers that a chain reads: the first slots.
const MOST_FEEDS: usize = 8;

/// Slots of what is read and of the results of steps.
const SLOTS: usize = 24;

/// Vectors that go through all steps together.
const VECTORS: usize = 4;

/// Elements that do.
const TOGETHER: usize = VECTORS * LANES;

/// Steps of f32 as one.
#[derive(Clone, Default)]
pub(super) struct Chain {
    /// What it reads: the first slots.
    feeds: Vec<Feed>,
    /// Steps: their slots begin at [`MOST_FEEDS`].
    links: Vec<Link>,
    /// The slot of the result, or of what is quantized.
    result: usize,
    quantized: Option<Quantized>,
}

/// A register that a chain reads.
#[derive(Clone, Copy, PartialEq)]
struct Feed {
    register: usize,
    /// What makes f32 of its integers.
    widened: Option<Widened>,
}

/// `(x - zero) * scale`; without a scale x itself.
#[derive(Clone, Copy, PartialEq)]
struct Widened {
    zero: i32,
    scale: Option<f32>,
}

/// A step: its arguments are slots.
#[derive(Clone, Copy)]
enum Link {
    Add(usize, usize),
    Sub(usize, usize),
    Mul(usize, usize),
    Div(usize, usize),
    /// Not below the first number, then not above the second.
    Clamp(usize, f32, f32),
}

/// The nearest integer of `x / scale`, within bounds, plus `zero`.
#[derive(Clone, Copy)]
struct Quantized {
    scale: f32,
    zero: i32,
    least: i32,
    greatest: i32,
}

/// The result of a step of a chain.
struct Known {
    register: usize,
    slot: usize,
    /// How often later steps of the chain read it.
    reads: usize,
}

impl<'a> Compiled<'a> {
    /// Makes chains of steps.
    pub(super) fn chain(&mut self) {
        let uses = self.uses();
        let mut first = 0;
        while first < self.steps.len() {
            if let Some((chain, count)) = self.longest_chain(first, &uses) {
                let arguments = chain.feeds.iter().map(|feed| feed.register).collect();
                let last = &self.steps[first + count - 1];
                let operation = Operation::new(Compute::Chain(chain), last.operation.to());
                self.steps[first] = Step { function: last.function, operation, arguments, result: last.result };
                self.steps.drain(first + 1..first + count);
            }
            first += 1;
        }
    }

    /// Whether something else than a chain reads a register.
    pub(super) fn is_read_alone(&self, register: usize) -> bool {
        let reads = |step: &Step<'_>| step.operation.chain().is_none() && step.arguments.contains(&register);
        self.steps.iter().any(reads) || self.results.contains(&register)
    }

    /// The longest chain that begins at a step, and how many steps it has: several.
    fn longest_chain(&self, first: usize, uses: &[usize]) -> Option<(Chain, usize)> {
        let (mut chain, mut known) = (Chain::default(), Vec::new());
        let mut best = None;
        for (index, step) in self.steps[first..].iter().enumerate() {
            if chain.quantized.is_some() || self.append(&mut chain, &mut known, step).is_none() {
                break;
            }
            let is_inner = |known: &Known| uses[known.register] == known.reads;
            let is_whole = known.split_last().is_some_and(|(_, others)| others.iter().all(is_inner));
            if index > 0 && is_whole && (chain.result >= MOST_FEEDS || chain.quantized.is_some()) {
                best = Some((chain.clone(), index + 1));
            }
        }
        best
    }

    /// Adds a step; `None` where it cannot be part of the chain, which is of no use then.
    fn append(&self, chain: &mut Chain, known: &mut Vec<Known>, step: &Step<'a>) -> Option<()> {
        if let Some(function) = step.operation.float_pair() {
            let &[left, right] = step.arguments.as_slice() else { return None };
            let (left, right) = (self.slot(chain, known, left)?, self.slot(chain, known, right)?);
            chain.link(match function {
                Arithmetic::Add => Link::Add(left, right),
                Arithmetic::Sub => Link::Sub(left, right),
                Arithmetic::Mul => Link::Mul(left, right),
                Arithmetic::Div => Link::Div(left, right),
                Arithmetic::Min | Arithmetic::Max | Arithmetic::Prelu => return None,
            })?;
        } else if step.operation.clamps_floats() {
            let &[x, least, greatest] = step.arguments.as_slice() else { return None };
            let (least, greatest) = (self.float(least)?, self.float(greatest)?);
            let x = self.slot(chain, known, x)?;
            (!least.is_nan() && !greatest.is_nan()).then_some(())?;
            chain.link(Link::Clamp(x, least, greatest))?;
        } else if let Some((zero, scale)) = step.operation.widening() {
            let &[register] = step.arguments.as_slice() else { return None };
            known.iter().all(|known| known.register != register).then_some(())?;
            chain.result = chain.feed(Feed { register, widened: Some(Widened { zero, scale }) })?;
        } else {
            let (scale, zero, least, greatest) = step.operation.quantizing()?;
            let &[x] = step.arguments.as_slice() else { return None };
            chain.result = self.slot(chain, known, x)?;
            chain.quantized = Some(Quantized { scale, zero, least, greatest });
        }
        known.push(Known { register: step.result, slot: chain.result, reads: 0 });
        Some(())
    }

    /// The slot of a register of f32.
    fn slot(&self, chain: &mut Chain, known: &mut [Known], register: usize) -> Option<usize> {
        if let Some(known) = known.iter_mut().find(|known| known.register == register) {
            known.reads += 1;
            return Some(known.slot);
        }
        chain.feed(Feed { register, widened: None })
    }
}

impl Chain {
    fn feed(&mut self, feed: Feed) -> Option<usize> {
        if let Some(slot) = self.feeds.iter().position(|other| *other == feed) {
            return Some(slot);
        }
        (self.feeds.len() < MOST_FEEDS).then(|| self.feeds.push(feed))?;
        Some(self.feeds.len() - 1)
    }

    fn link(&mut self, link: Link) -> Option<()> {
        (MOST_FEEDS + self.links.len() < SLOTS).then(|| self.links.push(link))?;
        self.result = MOST_FEEDS + self.links.len() - 1;
        Some(())
    }

    /// About how many operations an element costs.
    pub(super) fn cost(&self) -> usize {
        self.feeds.len() + self.links.len() + if self.quantized.is_some() { 6 } else { 0 }
    }

    /// Computes the elements `range`, of which operands that lie side by side are read where they are.
    pub(super) fn run(&self, kinds: &[Kind<'_>], registers: &[Register], range: Range<usize>, result: &mut Register) {
        let mut inputs = [Input::One(0.0); MOST_FEEDS];
        for (input, feed) in inputs.iter_mut().zip(&self.feeds) {
            *input = match &kinds[feed.register] {
                Kind::Operand(_, source) => source.direct(&range).map(Input::of_operand),
                Kind::Constant(Register::Float(values)) => values.first().copied().map(Input::One),
                Kind::Input(_) | Kind::Constant(_) | Kind::Step(_) => None,
            }
            .unwrap_or_else(|| Input::of_register(&registers[feed.register], range.len()));
        }
        let count = range.len();
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
        Instructions::best().run(Loop { chain: self, inputs, count, out });
    }
}

/// The elements of a feed.
#[derive(Clone, Copy)]
enum Input<'a> {
    One(f32),
    OneInteger(i32),
    Floats(&'a [f32]),
    Integers(&'a [i32]),
    Unsigned(&'a [u8]),
    Signed(&'a [i8]),
}

impl<'a> Input<'a> {
    fn of_operand(direct: Direct<'a>) -> Input<'a> {
        match direct {
            Direct::Floats([one], false) => Input::One(*one),
            Direct::Floats(values, _) => Input::Floats(values),
            Direct::Integers([one], false) => Input::OneInteger(*one),
            Direct::Integers(values, _) => Input::Integers(values),
            Direct::Unsigned([one], false) => Input::OneInteger(i32::from(*one)),
            Direct::Unsigned(values, _) => Input::Unsigned(values),
            Direct::Signed([one], false) => Input::OneInteger(i32::from(*one)),
            Direct::Signed(values, _) => Input::Signed(values),
        }
    }

    fn of_register(register: &'a Register, count: usize) -> Input<'a> {
        match register {
            Register::Float(values) => Input::Floats(&values[..count]),
            Register::Integer(values) => Input::Integers(&values[..count]),
            // Feeds are f32 or integers that an i32 holds.
            Register::General(_) => Input::One(0.0),
        }
    }
}

/// Where results go.
enum Out<'a> {
    Floats(&'a mut [f32]),
    Integers(&'a mut [i32]),
}

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
        let mut slots = [[simd.splat(0.0); VECTORS]; SLOTS];
        for start in (0..self.count).step_by(TOGETHER) {
            let count = TOGETHER.min(self.count - start);
            let vectors = count.div_ceil(LANES);
            for (slot, feed) in self.chain.feeds.iter().enumerate() {
                for vector in 0..vectors {
                    let first = vector * LANES;
                    let own = start + first..start + count.min(first + LANES);
                    slots[slot][vector] = widened(simd, self.inputs[slot], own, feed.widened);
                }
            }
            for (index, link) in self.chain.links.iter().enumerate() {
                slots[MOST_FEEDS + index] = linked(simd, &slots, *link);
            }
            let result = &slots[self.chain.result];
            match (&mut self.out, self.chain.quantized) {
                (Out::Floats(out), _) => {
                    for (vector, out) in out[start..start + count].chunks_mut(LANES).enumerate() {
                        simd.store_partial(result[vector], out);
                    }
                }
                (Out::Integers(out), Some(quantized)) => {
                    for (vector, out) in out[start..start + count].chunks_mut(LANES).enumerate() {
                        store_quantized(simd, result[vector], quantized, out);
                    }
                }
                // Only quantizing gives integers.
                (Out::Integers(_), None) => {}
            }
        }
    }
}

/// A vector of the elements `range` of a feed.
#[inline(always)]
fn widened<S: Simd>(simd: S, input: Input<'_>, range: Range<usize>, widened: Option<Widened>) -> S::Vector {
    let mut lanes = [0; LANES];
    match input {
        Input::One(value) => return simd.splat(value),
        Input::Floats(values) => return simd.load_partial(&values[range]),
        Input::OneInteger(value) => lanes = [value; LANES],
        Input::Integers(values) => match values[range.clone()].first_chunk() {
            Some(values) => lanes = *values,
            None => lanes[..range.len()].copy_from_slice(&values[range]),
        },
        Input::Unsigned(values) => widen(&values[range], &mut lanes),
        Input::Signed(values) => widen(&values[range], &mut lanes),
    }
    let Widened { zero, scale } = widened.unwrap_or(Widened { zero: 0, scale: None });
    let values = simd.convert(simd.subtract_integers(simd.load_integers(&lanes), simd.splat_integer(zero)));
    match scale {
        Some(scale) => simd.multiply(values, simd.splat(scale)),
        None => values,
    }
}

#[inline(always)]
fn widen<T: Copy + Into<i32>>(values: &[T], lanes: &mut [i32; LANES]) {
    if let Some(values) = values.first_chunk::<LANES>() {
        for lane in 0..LANES {
            lanes[lane] = values[lane].into();
        }
        return;
    }
    for (lane, &value) in lanes.iter_mut().zip(values) {
        *lane = value.into();
    }
}

#[inline(always)]
fn linked<S: Simd>(simd: S, slots: &[[S::Vector; VECTORS]; SLOTS], link: Link) -> [S::Vector; VECTORS] {
    let mut result = [simd.splat(0.0); VECTORS];
    match link {
        Link::Add(x, y) => {
            for vector in 0..VECTORS {
                result[vector] = simd.add(slots[x][vector], slots[y][vector]);
            }
        }
        Link::Sub(x, y) => {
            for vector in 0..VECTORS {
                result[vector] = simd.subtract(slots[x][vector], slots[y][vector]);
            }
        }
        Link::Mul(x, y) => {
            for vector in 0..VECTORS {
                result[vector] = simd.multiply(slots[x][vector], slots[y][vector]);
            }
        }
        Link::Div(x, y) => {
            for vector in 0..VECTORS {
                result[vector] = simd.divide(slots[x][vector], slots[y][vector]);
            }
        }
        Link::Clamp(x, least, greatest) => {
            let (least, greatest) = (simd.splat(least), simd.splat(greatest));
            for vector in 0..VECTORS {
                let x = slots[x][vector];
                let above = simd.select_less(x, least, least, x);
                result[vector] = simd.select_less(greatest, above, greatest, above);
            }
        }
    }
    result
}

#[inline(always)]
fn store_quantized<S: Simd>(simd: S, x: S::Vector, quantized: Quantized, out: &mut [i32]) {
    let Quantized { scale, zero, least, greatest } = quantized;
    let mut lanes = [0; LANES];
    simd.store_integers(simd.nearest_integers(simd.divide(x, simd.splat(scale))), &mut lanes);
    for lane in 0..LANES {
        lanes[lane] = lanes[lane].max(least).min(greatest) + zero;
    }
    match out.first_chunk_mut() {
        Some(out) => *out = lanes,
        None => out.copy_from_slice(&lanes[..out.len()]),
    }
}
