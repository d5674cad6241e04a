//! Products that leave inputs out: activations that are zero cost neither multiplications nor reads of the weight.
//!
//! The inputs whose activation is not zero in some row are listed first; memory is asked for along the list. Sums of codes are
//! integers, so that leaving zeros out changes nothing; sums of floats are made run of inputs by run of inputs as those of
//! panels are, and adding a product with zero to a sum that began at +0 does not change the sum that comes of it. So a weight
//! without NaN and infinities gives the bits of the product with panels ([`super::dynamic_product`],
//! [`super::panels_product`], [`super::coded_product`]); these also take what [`panels_of_runs`] copies.

mod active;
mod codes;
mod floats;
mod layout;

use std::ops::{Add, AddAssign, Range};

use super::{
    CodeType, CodedLayout, DynamicRows, Epilogue, PANEL_OUTPUTS,
    coded::{integers, load_floats},
    shares::{Shares, outputs_of},
    task::FEW_ROWS,
};
use crate::{
    matrix::{Matrix, MatrixMut},
    simd::{Instructions, LANES, Routine, Simd},
    threads,
};
use active::Active;
use codes::CodesTask;
use floats::FloatsTask;
pub use layout::{InputMajorLayout, RunElements, RunPiece};
use layout::{LINE, Places, ToPanels};

/// The most inputs of a sum of products of codes: 255 · 127 · 65,536 is less than 2^31.
const LONGEST_SUM: usize = 1 << 16;

/// The fewest lines of a run that a task has, where runs are cut.
const LEAST_LINES: usize = 4;

/// Rows of activations.
#[derive(Clone, Copy, Debug)]
pub enum RunRows<'a> {
    /// As they are.
    Floats(Matrix<'a>),
    /// In codes, with one scale a row.
    Codes(&'a DynamicRows),
}

impl RunRows<'_> {
    fn rows(&self) -> usize {
        match self {
            Self::Floats(matrix) => matrix.rows(),
            Self::Codes(rows) => rows.rows(),
        }
    }

    fn inputs(&self) -> usize {
        match self {
            Self::Floats(matrix) => matrix.columns(),
            Self::Codes(rows) => rows.inputs(),
        }
    }
}

impl InputMajorLayout {
    /// Whether [`InputMajorProduct`] takes such a weight with such activations, `dynamic` where these are codes.
    #[must_use]
    pub fn skips(&self, dynamic: bool) -> bool {
        match self.codes() {
            None => !dynamic,
            Some(codes) => {
                let known = match codes.code() {
                    CodeType::I8 | CodeType::U8 | CodeType::I4 | CodeType::U4 => true,
                    CodeType::I2 | CodeType::U2 | CodeType::E4m3 | CodeType::E5m2 | CodeType::E2m1 => false,
                };
                known && codes.sums_exactly() && codes.inputs() == self.inputs()
            }
        }
    }
}

/// Inputs of one run of outputs that were read one by one.
#[derive(Clone, Debug)]
pub struct RunInputs<'a> {
    /// Which run.
    pub run: usize,
    /// The first input: that of a record.
    pub first: usize,
    /// The planes over all inputs, where the first input is the weight's; there are no others.
    pub planes: &'a [u8],
    /// The elements of each input from the first one on, up to a record or the last one; empty for inputs that were not read.
    pub inputs: Vec<&'a [u8]>,
}

/// Where what a task reads lies.
#[derive(Clone, Copy)]
enum Bytes<'a> {
    /// A run of outputs as it is stored.
    Whole(&'a [u8]),
    /// Inputs on their own, from this one on.
    Inputs(usize, &'a [&'a [u8]]),
}

/// What a product has left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Products of an activation with a weight.
    pub multiplications: u64,
    /// Bytes of the weight.
    pub bytes: u64,
}

impl Add for Skipped {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { multiplications: self.multiplications + other.multiplications, bytes: self.bytes + other.bytes }
    }
}

impl AddAssign for Skipped {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// What codes of a panel stand for: `(code - zero) * scale`.
#[derive(Clone, Copy, Debug)]
struct Parameters {
    scale: [f32; LANES],
    zero: [i32; LANES],
}

/// Reads what planes over all inputs, or those of the block of an input, say of a panel.
struct ReadParameters<'a> {
    layout: &'a InputMajorLayout,
    places: &'a Places,
    /// Of the run.
    bytes: &'a [u8],
    /// In the run.
    panel: usize,
    /// An input of the block; `None` for planes over all inputs.
    input: Option<usize>,
    before: Parameters,
}

impl Routine for ReadParameters<'_> {
    type Output = Parameters;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Parameters {
        let Self { layout, places, bytes, panel, input, before } = self;
        let Some(codes) = layout.codes() else { return before };
        let mut parameters = before;
        for &index in codes.scales() {
            let plane = codes.planes()[index];
            if (plane.block == 0) != input.is_none() {
                continue;
            }
            let Some(place) = places.plane(layout, index, input.unwrap_or(0)) else { continue };
            let scale = load_floats(simd, plane.element, &bytes[place..], panel);
            simd.store(simd.multiply(simd.load(&parameters.scale), scale), &mut parameters.scale);
        }
        if let Some(index) = codes.zero_point() {
            let plane = codes.planes()[index];
            let place = places.plane(layout, index, input.unwrap_or(0));
            if let Some(place) = place.filter(|_| (plane.block == 0) == input.is_none()) {
                parameters.zero = integers(plane.element, &bytes[place..], panel);
            }
        }
        parameters
    }
}

/// A product of some rows with a weight that lies input by input, whose pieces come one after another.
#[derive(Debug)]
pub struct InputMajorProduct<'a> {
    instructions: Instructions,
    layout: &'a InputMajorLayout,
    /// The inputs that are not zero, of the inputs of pieces that have come, for each [`FEW_ROWS`] rows.
    active: Vec<(Range<usize>, Vec<Active>)>,
    /// Sums of codes that go on: of each line of all runs and row.
    sums: Vec<[i32; LANES]>,
    /// What planes over all inputs say of each panel.
    whole: Vec<Parameters>,
    skipped: Skipped,
}

impl<'a> InputMajorProduct<'a> {
    /// A product that has not begun.
    ///
    /// # Panics
    /// If the layout is not one that [`InputMajorLayout::skips`].
    #[must_use]
    pub fn new(instructions: Instructions, layout: &'a InputMajorLayout) -> Self {
        assert!(layout.skips(false) || layout.skips(true), "a weight whose inputs are not left out");
        let (active, sums, whole) = (Vec::new(), Vec::new(), Vec::new());
        Self { instructions, layout, active, sums, whole, skipped: Skipped::default() }
    }

    /// What has been left out of the pieces that have come.
    #[must_use]
    pub fn skipped(&self) -> Skipped {
        self.skipped
    }

    /// Inputs that share parameters and are summed before these are used.
    fn segment(&self, rows: RunRows<'_>) -> usize {
        match rows {
            RunRows::Floats(_) => super::RUN,
            RunRows::Codes(_) => self.layout.codes().and_then(CodedLayout::finest).unwrap_or(LONGEST_SUM),
        }
    }

    /// Finds the inputs that are not zero, if these have not come before; gives where they are.
    fn find_active(&mut self, x: RunRows<'_>, inputs: &Range<usize>) -> usize {
        if let Some(index) = self.active.iter().position(|(found, _)| found == inputs) {
            return index;
        }
        let segment = self.segment(x);
        let of = |first: usize| {
            let rows = first..x.rows().min(first + FEW_ROWS);
            match x {
                RunRows::Floats(x) => Active::of_floats(x, rows, inputs.clone(), segment),
                RunRows::Codes(x) => Active::of_codes(x, rows, inputs.clone(), segment),
            }
        };
        let found = (0..x.rows()).step_by(FEW_ROWS).map(of).collect();
        self.active.push((inputs.clone(), found));
        self.active.len() - 1
    }

    /// The inputs that are not zero in some row of `x`, in order.
    pub fn inputs(&mut self, x: RunRows<'_>) -> Vec<usize> {
        let place = self.find_active(x, &(0..self.layout.inputs()));
        let mut inputs: Vec<usize> =
            self.active[place].1.iter().flat_map(Active::groups).flatten().map(|&input| input as usize).collect();
        inputs.sort_unstable();
        inputs.dedup();
        inputs
    }

    /// As [`InputMajorProduct::add`] with pieces of runs of which only the inputs were read that [`InputMajorProduct::inputs`] gives.
    ///
    /// # Panics
    /// If shapes disagree, an input is missing, or the weight has planes of blocks.
    pub fn add_inputs(&mut self, x: RunRows<'_>, runs: &[RunInputs<'_>], out: MatrixMut<'_>, epilogue: Epilogue<'_>) {
        assert!(self.layout.codes().is_none_or(|codes| codes.finest().is_none()), "planes of blocks");
        for run in runs {
            let inputs = run.first..run.first + run.inputs.len();
            let planes = self.layout.run_bytes(&inputs) - inputs.len() * self.layout.row_bytes();
            assert_eq!(run.planes.len(), planes, "planes of a run");
        }
        let given: Vec<Given<'_>> = runs
            .iter()
            .map(|run| {
                let inputs = run.first..run.first + run.inputs.len();
                Given { run: run.run, inputs, planes: run.planes, bytes: Bytes::Inputs(run.first, &run.inputs) }
            })
            .collect();
        self.add_runs(x, &given, out, epilogue);
    }

    /// Adds what pieces give for `x`, which is the same in all calls: they are in order of runs, none has a run twice, and
    /// pieces of the same run come in separate calls, in order of inputs. The first one overwrites `out`, the last one is
    /// followed by the epilogue.
    ///
    /// # Panics
    /// If shapes disagree, or activations in codes have several scales a row.
    pub fn add(&mut self, x: RunRows<'_>, pieces: &[RunPiece<'_>], out: MatrixMut<'_>, epilogue: Epilogue<'_>) {
        let mut given = Vec::new();
        for piece in pieces {
            self.layout.check(piece);
            let length = self.layout.run_bytes(&piece.inputs);
            for (index, run) in piece.runs.clone().enumerate() {
                let bytes = &piece.bytes[index * length..][..length];
                given.push(Given { run, inputs: piece.inputs.clone(), planes: bytes, bytes: Bytes::Whole(bytes) });
            }
        }
        self.add_runs(x, &given, out, epilogue);
    }

    fn add_runs(&mut self, x: RunRows<'_>, given: &[Given<'_>], out: MatrixMut<'_>, epilogue: Epilogue<'_>) {
        let (rows, columns) = (x.rows(), out.columns());
        assert_eq!(rows, out.rows(), "a product's rows");
        assert_eq!(x.inputs(), self.layout.inputs(), "a product's inputs");
        if let RunRows::Codes(codes) = x {
            assert!(self.layout.skips(true) && codes.block() == 0, "codes of activations");
        }
        if let Some(bias) = epilogue.bias {
            assert_eq!(bias.len(), columns, "a bias is one value for each output");
        }
        if rows == 0 || columns == 0 {
            return;
        }
        let places: Vec<usize> = given.iter().map(|given| self.find_active(x, &given.inputs)).collect();
        for (given, &place) in given.iter().zip(&places) {
            let outputs = columns.saturating_sub(given.run * self.layout.run()).min(self.layout.run());
            for active in &self.active[place].1 {
                let left = (given.inputs.len() - active.count()) as u64;
                self.skipped.multiplications += left * active.rows() as u64 * outputs as u64;
            }
            let read = self.active[place].1.iter().map(Active::count).max().unwrap_or(0);
            self.skipped.bytes += ((given.inputs.len() - read) * self.layout.row_bytes()) as u64;
        }
        self.read_whole(given, columns);
        let parts = self.parts(given, &places, columns);
        let panels: Vec<(usize, usize)> = parts.iter().map(|part| part.panels(self.layout)).collect();
        let mut shares =
            Shares::new(FEW_ROWS, panels.iter().map(|&(first, panels)| outputs_of(first, panels)), out.into_rows());
        let mut sums = self.take_sums(x, given, columns);
        let mut rest = sums.as_mut_slice();
        let mut of_parts: Vec<Option<std::slice::ChunksMut<'_, [i32; LANES]>>> = Vec::new();
        let mut next = 0;
        for part in &parts {
            if rest.is_empty() {
                of_parts.push(None);
                continue;
            }
            // Of each four rows the sums of a line lie together.
            let vectors = self.layout.line_outputs() / LANES * rows;
            let first = part.run * self.layout.lines() + part.lines.start;
            let (_, own) = rest.split_at_mut((first - next) * vectors);
            let (own, after) = own.split_at_mut(part.lines.len() * vectors);
            next = first + part.lines.len();
            rest = after;
            of_parts.push(Some(own.chunks_mut(part.lines.len() * self.layout.line_outputs() / LANES * FEW_ROWS)));
        }
        let mut tasks = Vec::new();
        for (index, out) in shares.iter_mut().enumerate() {
            let (rows, part) = (index / parts.len(), index % parts.len());
            tasks.push(Task {
                product: self,
                x,
                part: &parts[part],
                bytes: given[parts[part].given].bytes,
                active: &self.active[parts[part].active].1[rows],
                first_row: rows * FEW_ROWS,
                out: out.iter_mut().map(|outputs| &mut **outputs).collect(),
                sums: of_parts[part].as_mut().and_then(Iterator::next),
                epilogue,
            });
        }
        threads::each(tasks, Task::run);
        self.sums = sums;
    }

    /// Reads what planes over all inputs say, where they come with these pieces.
    fn read_whole(&mut self, given: &[Given<'_>], columns: usize) {
        if self.layout.codes().is_none() {
            return;
        }
        let panels = self.layout.run_panels();
        let neutral = Parameters { scale: [1.0; LANES], zero: [0; LANES] };
        self.whole.resize(columns.div_ceil(self.layout.run()) * panels, neutral);
        for given in given.iter().filter(|given| given.inputs.start == 0 && !given.inputs.is_empty()) {
            let places = Places::new(self.layout, &given.inputs);
            for panel in 0..panels {
                let (layout, places, bytes) = (self.layout, &places, given.planes);
                let read = ReadParameters { layout, places, bytes, panel, input: None, before: neutral };
                self.whole[given.run * panels + panel] = self.instructions.run(read);
            }
        }
    }

    /// The sums that go on, as far as there are any.
    fn take_sums(&mut self, x: RunRows<'_>, given: &[Given<'_>], columns: usize) -> Vec<[i32; LANES]> {
        let mut sums = std::mem::take(&mut self.sums);
        let whole = given.iter().all(|given| given.inputs == (0..self.layout.inputs()));
        let goes_on = matches!(x, RunRows::Codes(_)) && !whole;
        if goes_on && sums.is_empty() {
            let runs = columns.div_ceil(self.layout.run());
            sums = vec![[0; LANES]; runs * self.layout.lines() * (self.layout.line_outputs() / LANES) * x.rows()];
        }
        sums
    }

    /// Cuts runs into parts that threads take.
    fn parts(&self, given: &[Given<'_>], places: &[usize], columns: usize) -> Vec<RunPart> {
        let lines = self.layout.lines();
        let active = |place: &usize| self.active[*place].1.iter().map(Active::count).sum::<usize>();
        let operations = places.iter().map(active).sum::<usize>() * self.layout.run();
        let wanted = threads::parts(operations, usize::MAX).div_ceil(given.len().max(1));
        let each = lines.div_ceil(wanted.max(1)).max(LEAST_LINES.min(lines)).max(1);
        let mut parts = Vec::new();
        for (index, (given, &active)) in given.iter().zip(places).enumerate() {
            // The last run is filled up with outputs that there are none of.
            let outputs = columns.saturating_sub(given.run * self.layout.run());
            let own = lines.min(outputs.div_ceil(self.layout.line_outputs()));
            for first in (0..own).step_by(each) {
                let lines = first..own.min(first + each);
                parts.push(RunPart { given: index, run: given.run, lines, inputs: given.inputs.clone(), active });
            }
        }
        parts
    }
}

/// A run of outputs, or some inputs of one.
struct Given<'a> {
    run: usize,
    inputs: Range<usize>,
    /// Begins with the planes of the first record.
    planes: &'a [u8],
    bytes: Bytes<'a>,
}

/// Some lines of the outputs of a run.
struct RunPart {
    /// Which of what is given.
    given: usize,
    run: usize,
    lines: Range<usize>,
    inputs: Range<usize>,
    /// Which of the lists of inputs.
    active: usize,
}

impl RunPart {
    /// The first output, and how many panels its outputs are.
    fn panels(&self, layout: &InputMajorLayout) -> (usize, usize) {
        let first = self.run * layout.run() + self.lines.start * layout.line_outputs();
        (first, self.lines.len() * layout.line_outputs() / PANEL_OUTPUTS)
    }
}

/// A part of the outputs of up to [`FEW_ROWS`] rows.
struct Task<'a> {
    product: &'a InputMajorProduct<'a>,
    x: RunRows<'a>,
    part: &'a RunPart,
    bytes: Bytes<'a>,
    active: &'a Active,
    first_row: usize,
    out: Vec<&'a mut [f32]>,
    sums: Option<&'a mut [[i32; LANES]]>,
    epilogue: Epilogue<'a>,
}

impl Task<'_> {
    fn run(self) {
        let instructions = self.product.instructions;
        match (self.x, self.out.len()) {
            (RunRows::Codes(rows), 1) => instructions.run(CodesTask::<1> { task: self, rows }),
            (RunRows::Codes(rows), 2) => instructions.run(CodesTask::<2> { task: self, rows }),
            (RunRows::Codes(rows), 3) => instructions.run(CodesTask::<3> { task: self, rows }),
            (RunRows::Codes(rows), _) => instructions.run(CodesTask::<4> { task: self, rows }),
            (RunRows::Floats(_), 1) => instructions.run(FloatsTask::<1>(self)),
            (RunRows::Floats(_), 2) => instructions.run(FloatsTask::<2>(self)),
            (RunRows::Floats(_), 3) => instructions.run(FloatsTask::<3>(self)),
            (RunRows::Floats(_), _) => instructions.run(FloatsTask::<4>(self)),
        }
    }

    /// What the codes of panel `panel` of the run stand for at an input.
    #[inline(always)]
    fn parameters<S: Simd>(&self, simd: S, places: &Places, panel: usize, input: usize) -> Parameters {
        let layout = self.product.layout;
        let before = self.product.whole[self.part.run * layout.run_panels() + panel];
        let in_blocks = layout.codes().is_some_and(|codes| codes.finest().is_some());
        if !in_blocks {
            return before;
        }
        // Only whole runs have planes of blocks.
        let Bytes::Whole(bytes) = self.bytes else { return before };
        ReadParameters { layout, places, bytes, panel, input: Some(input), before }.run(simd)
    }

    /// The bytes of the part's lines of an input.
    #[inline(always)]
    fn lines(&self, places: &Places, input: u32) -> &[[u8; LINE]] {
        let row = match self.bytes {
            Bytes::Whole(bytes) => &bytes[places.row(input as usize)..],
            Bytes::Inputs(first, inputs) => inputs[input as usize - first],
        };
        &row[self.part.lines.start * LINE..].as_chunks().0[..self.part.lines.len()]
    }
}

/// Panels `panels` of one run of outputs, of some of its inputs, as kernels for panels take them: in whole f32, of which the
/// bytes are the first.
///
/// # Panics
/// If the piece is not one run, or does not have these panels.
#[must_use]
pub fn panels_of_runs(layout: &InputMajorLayout, piece: &RunPiece<'_>, panels: Range<usize>) -> (Vec<f32>, usize) {
    layout.check(piece);
    assert!(piece.runs.len() == 1 && panels.end <= layout.run_panels(), "panels {panels:?} of runs {:?}", piece.runs);
    let source = ToPanels { layout, inputs: piece.inputs.clone(), bytes: piece.bytes };
    let length = source.panel_bytes();
    let mut values = vec![0.0; (length * panels.len()).div_ceil(size_of::<f32>())];
    if length > 0 {
        let bytes = &mut bytemuck::cast_slice_mut(&mut values)[..length * panels.len()];
        threads::each(bytes.chunks_exact_mut(length).zip(panels.clone()).collect(), |(to, panel)| {
            source.panel(panel, to)
        });
    }
    (values, length * panels.len())
}
