//! A graph whose convolutions of codes have their channels side by side gives the bits of the graph that has them in planes, for random
//! graphs and any number of threads.
#![allow(clippy::unwrap_used, reason = "tests panic")]

use crate::support::memory::{after, emitted};
use crate::support::numbers::Numbers;
use ipuc::{Session, SessionOptions, Tensor};
use ipuc_formats::ops::Op;
use ipuc_passes::ir::Graph;
use std::fmt::Write as _;

/// A value: its name and its shape.
type Named = (String, [usize; 4]);

/// A graph of codes of one type as it grows.
struct Case {
    numbers: Numbers,
    dtype: &'static str,
    constants: String,
    steps: String,
    values: Vec<Named>,
}

impl Case {
    fn new(seed: u64) -> Case {
        let mut numbers = Numbers(seed);
        let channels = [3, 4, 8, 20][numbers.below(4)];
        let shape = [1 + numbers.below(2), channels, 3 + numbers.below(9), 3 + numbers.below(9)];
        let dtype = ["u8", "i8"][numbers.below(2)];
        Case { numbers, dtype, constants: String::new(), steps: String::new(), values: vec![("x".to_string(), shape)] }
    }

    /// A constant whose bytes `byte` gives.
    fn constant(&mut self, dtype: &str, shape: &[usize], mut byte: impl FnMut(&mut Numbers) -> Vec<u8>) -> String {
        let name = format!("c{}", self.constants.lines().count());
        let count = shape.iter().product();
        let bytes: Vec<u8> = (0..count).flat_map(|_: usize| byte(&mut self.numbers)).collect();
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let _ = writeln!(self.constants, "constant @{name} : {dtype}{shape:?} = {dtype}{shape:?}:{digits}");
        format!("@{name}")
    }

    fn push(&mut self, shape: [usize; 4], step: &str) -> String {
        let name = format!("v{}", self.steps.lines().count());
        let _ = writeln!(self.steps, "  %{name} : {}{shape:?} = {step} from \"{name}\"", self.dtype);
        self.values.push((name.clone(), shape));
        name
    }

    fn grow(&mut self) {
        let last = self.values.len() - 1;
        let at = if self.numbers.below(3) == 0 { self.numbers.below(last + 1) } else { last };
        let (x, [n, c, h, w]) = self.values[at].clone();
        match self.numbers.below(10) {
            0..4 => self.convolution(&x, [n, c, h, w]),
            4 => {
                let rest = "ceil_mode=0 count_include_pad=0 indices=0 column_major=0";
                let (rows, columns) = ((h - 1) / 2 + 1, (w - 1) / 2 + 1);
                let windows = "kernel=[3, 3] strides=[2, 2] pads=[1, 1, 1, 1]";
                self.push([n, c, rows, columns], &format!("pool function=max {windows} {rest} %{x}"));
            }
            5 => {
                let own = |(name, shape): &Named| (*shape == [n, c, h, w]).then(|| name.clone());
                let same: Vec<String> = self.values.iter().filter_map(own).collect();
                let other = &same[self.numbers.below(same.len())];
                self.push([n, c, h, w], &format!("binary function=max %{x}, %{other}"));
            }
            6 => {
                let near: Vec<Named> =
                    self.values.iter().filter(|(_, own)| [own[0], own[2], own[3]] == [n, h, w]).cloned().collect();
                let (other, [_, channels, ..]) = near[self.numbers.below(near.len())].clone();
                if c + channels <= 64 {
                    self.push([n, c + channels, h, w], &format!("concat axis=1 %{x}, %{other}"));
                }
            }
            7 if c % 2 == 0 => {
                let own = [n, c / 2, h, w];
                let parts = ["a", "b"].map(|part| format!("s{}{part}", self.steps.lines().count()));
                let [a, b] = &parts;
                let fact = format!("{}{own:?}", self.dtype);
                let _ =
                    writeln!(self.steps, "  %{a} : {fact}, %{b} : {fact} = split axis=1 parts=2 %{x}, _ from \"{a}\"");
                self.values.extend(parts.map(|name| (name, own)));
            }
            8 => {
                let mut axis = 1_i64;
                let axes = self.constant("i64", &[2], |_| {
                    axis += 1;
                    axis.to_le_bytes().to_vec()
                });
                let step = format!("reduce function=max keep_axes=1 %{x}, {axes}");
                let largest = self.push([n, c, 1, 1], &step);
                self.values.pop();
                self.push([n, c, h, w], &format!("binary function=max %{x}, %{largest}"));
            }
            _ => {
                let factors = self.constant(self.dtype, &[c, 1, 1], |numbers| vec![numbers.below(256) as u8]);
                let moved = self.push([n, c, h, w], &format!("binary function=max %{x}, {factors}"));
                let last = self.push([n, h, w, c], &format!("transpose permutation=[0, 2, 3, 1] %{moved}"));
                self.values.pop();
                self.push([n, c, h, w], &format!("transpose permutation=[0, 3, 1, 2] %{last}"));
            }
        }
    }

    fn convolution(&mut self, x: &str, [n, c, h, w]: [usize; 4]) {
        let (m, kernel) = (4 + self.numbers.below(70), 1 + 2 * self.numbers.below(2));
        let (stride, pads, own) =
            (1 + self.numbers.below(2), self.numbers.below(kernel), self.numbers.below(256) as u8);
        let of_filters = ["u8", "i8"][self.numbers.below(2)];
        let filters = self.constant(of_filters, &[m, c, kernel, kernel], |numbers| vec![numbers.below(256) as u8]);
        let zero = self.constant(self.dtype, &[], |_| vec![own]);
        let zeros = match self.numbers.below(3) {
            0 => "_".to_string(),
            1 => self.constant(of_filters, &[], |numbers| vec![numbers.below(256) as u8]),
            _ => self.constant(of_filters, &[m], |numbers| vec![numbers.below(256) as u8]),
        };
        let bias =
            self.constant("i32", &[m], |numbers| ((numbers.below(1 << 17) as i32) - (1 << 16)).to_le_bytes().to_vec());
        let each = self.numbers.below(2) == 0;
        let shape = if each { vec![m, 1, 1] } else { vec![] };
        let scale =
            self.constant("f32", &shape, |numbers| (0.001 + numbers.below(100) as f32 / 1e5).to_le_bytes().to_vec());
        // The second is no scale and zero point alone.
        let program = match self.numbers.below(3) {
            0 => format!(
                r#"["cast x : f32", "mul %0 $5 : f32", "tanh %1 : f32", "mul %2 f32(80.0) : f32", "round %3 : {0}", "return %4"]"#,
                self.dtype
            ),
            _ => format!(
                r#"["cast x : f32", "mul %0 $5 : f32", "round %1 : i32", "add %2 i32(3) : {0}", "return %3"]"#,
                self.dtype
            ),
        };
        let output = |extent: usize| (extent + 2 * pads).checked_sub(kernel).map(|rest| rest / stride + 1);
        let (Some(rows), Some(columns)) = (output(h), output(w)) else { return };
        let windows = format!("strides=[{stride}, {stride}] pads=[{pads}, {pads}, {pads}, {pads}] groups=1");
        let operands = format!("%{x}, {filters}, {zero}, {zeros}, {bias}, {scale}");
        self.push([n, m, rows, columns], &format!("integer_convolution {windows} program={program} {operands}"));
    }

    fn text(&self) -> String {
        let shape = self.values[0].1;
        let (last, _) = self.values.last().unwrap();
        let middle = &self.values[self.values.len() / 2].0;
        format!(
            "{}entry \"main\"(\"x\") -> (\"y\", \"m\") = block 0\nblock 0(%x : {}{shape:?}) {{\n{}  return %{last}, %{middle}\n}}\n",
            self.constants, self.dtype, self.steps,
        )
    }

    fn input(&mut self) -> Tensor {
        let shape = self.values[0].1;
        let bytes: Vec<u8> = (0..shape.iter().product()).map(|_: usize| self.numbers.below(256) as u8).collect();
        match self.dtype {
            "u8" => Tensor::from_elements(&shape, &bytes).unwrap(),
            _ => Tensor::from_elements(&shape, &bytes.iter().map(|byte| byte.cast_signed()).collect::<Vec<i8>>())
                .unwrap(),
        }
    }
}

fn run(graph: &Graph, x: &Tensor, threads: usize) -> Vec<Vec<u8>> {
    let model = emitted(graph).unwrap();
    let mut session = Session::new(&model, &SessionOptions { threads, ..SessionOptions::default() }).unwrap();
    let outputs = session.run(None, vec![("x".to_string(), x.clone().into())]).unwrap();
    outputs.iter().map(|(_, value)| value.as_tensor().unwrap().bytes().to_vec()).collect()
}

#[test]
fn channels_side_by_side_give_the_bits_of_planes() {
    let (mut side_by_side, mut of_planes) = (0, 0);
    for seed in 0..150 {
        let mut case = Case::new(seed);
        let steps = 2 + case.numbers.below(8);
        (0..steps).for_each(|_| case.grow());
        let (text, x) = (case.text(), case.input());
        let plain = after(&text, &["infer", "remove_dead_code", "order"]);
        let last = after(&text, &["infer", "block_channels", "remove_dead_code", "order"]);
        for step in &last.blocks[0].steps {
            let Op::IntegerConvolution(convolution) = &step.op else { continue };
            side_by_side += usize::from(convolution.channels_last && !convolution.plain_inputs);
            of_planes += usize::from(convolution.plain_inputs);
        }
        let expected = run(&plain, &x, 1);
        assert_eq!(run(&last, &x, 1), expected, "seed {seed} of\n{text}");
        assert_eq!(run(&last, &x, 3), expected, "three threads, seed {seed} of\n{text}");
    }
    assert!(side_by_side > 60 && of_planes > 5, "{side_by_side} and {of_planes} convolutions");
}
