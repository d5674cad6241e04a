//! A graph with channels in blocks gives what the graph gives that has none, for random graphs of convolutions and what stands between
//! them; results have the same bits for any number of threads.
#![allow(clippy::unwrap_used, reason = "tests panic")]

use crate::support::memory::{after, emitted};
use ipuc::{Session, SessionOptions, Tensor};
use ipuc_formats::ops::Op;
use ipuc_passes::ir::Graph;

/// Numbers that look random, the same for each seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % end as u64) as usize
    }

    fn tensor(&mut self, shape: &[usize], scale: f32) -> Tensor {
        let count = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|_| (self.below(2001) as f32 - 1000.0) / 1000.0 * scale).collect();
        Tensor::from_elements(shape, &values).unwrap()
    }
}

/// A graph as it grows.
struct Case {
    numbers: Numbers,
    inputs: Vec<(String, Tensor)>,
    steps: String,
    /// Names and shapes of values.
    values: Vec<(String, [usize; 4])>,
}

impl Case {
    fn new(seed: u64) -> Case {
        let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            numbers.below(2);
        }
        let channels = [3, 8, 16, 24][numbers.below(4)];
        let shape = [1 + numbers.below(2), channels, 3 + numbers.below(9), 3 + numbers.below(9)];
        let x = numbers.tensor(&shape, 1.0);
        let inputs = vec![("x".to_string(), x)];
        Case { numbers, inputs, steps: String::new(), values: vec![("x".to_string(), shape)] }
    }

    fn input(&mut self, shape: &[usize], scale: f32) -> String {
        let name = format!("i{}", self.inputs.len());
        let tensor = self.numbers.tensor(shape, scale);
        self.inputs.push((name.clone(), tensor));
        name
    }

    /// A step; gives the name of its result.
    fn step(&mut self, shape: [usize; 4], step: &str) -> String {
        let name = format!("v{}", self.steps.lines().count());
        self.steps.push_str(&format!("  %{name} : f32{shape:?} = {step} from \"{name}\"\n"));
        name
    }

    /// A step whose result further ones read.
    fn push(&mut self, shape: [usize; 4], step: &str) {
        let name = self.step(shape, step);
        self.values.push((name, shape));
    }

    fn grow(&mut self) {
        let last = self.values.len() - 1;
        let at = if self.numbers.below(3) == 0 { self.numbers.below(last + 1) } else { last };
        let (x, [n, c, h, w]) = self.values[at].clone();
        match self.numbers.below(11) {
            0..3 => {
                let (m, kernel) = (8 * (1 + self.numbers.below(4)), 1 + 2 * self.numbers.below(2));
                let weight = self.input(&[m, c, kernel, kernel], 1.0 / (c * kernel) as f32);
                let pads = kernel / 2;
                self.push(
                    [n, m, h, w],
                    &format!("convolution groups=1 pads=[{pads}, {pads}, {pads}, {pads}] %{x}, %{weight}"),
                );
            }
            3 => {
                let weight = self.input(&[c, 1, 3, 3], 0.4);
                let (rows, columns) = ((h - 1) / 2 + 1, (w - 1) / 2 + 1);
                let step = format!("convolution groups={c} strides=[2, 2] pads=[1, 1, 1, 1] %{x}, %{weight}");
                self.push([n, c, rows, columns], &step);
            }
            4 => {
                let function = ["max", "average"][self.numbers.below(2)];
                let rest = "ceil_mode=0 count_include_pad=0 indices=0 column_major=0";
                self.push(
                    [n, c, h, w],
                    &format!("pool function={function} kernel=[3, 3] pads=[1, 1, 1, 1] {rest} %{x}"),
                );
            }
            5 => {
                let same: Vec<String> = self
                    .values
                    .iter()
                    .filter(|(_, shape)| *shape == [n, c, h, w])
                    .map(|(name, _)| name.clone())
                    .collect();
                let other = &same[self.numbers.below(same.len())];
                self.push([n, c, h, w], &format!("binary function=add %{x}, %{other}"));
            }
            6 => {
                let shape = [[1, c, 1, 1], [n, c, 1, 1], [1, 1, h, w], [1, 1, 1, 1]][self.numbers.below(4)];
                let factor = self.input(&shape, 1.0);
                self.push([n, c, h, w], &format!("binary function=mul %{factor}, %{x}"));
            }
            7 => self.push([n, c, h, w], &format!("unary function=tanh %{x}")),
            8 => {
                let near: Vec<(String, usize)> = self
                    .values
                    .iter()
                    .filter(|(_, shape)| [shape[0], shape[2], shape[3]] == [n, h, w])
                    .map(|(name, shape)| (name.clone(), shape[1]))
                    .collect();
                let (other, channels) = near[self.numbers.below(near.len())].clone();
                if c + channels <= 64 {
                    self.push([n, c + channels, h, w], &format!("concat axis=1 %{x}, %{other}"));
                }
            }
            9 => {
                let groups: Vec<usize> = (1..=c).filter(|&groups| c.is_multiple_of(groups)).collect();
                let groups = groups[self.numbers.below(groups.len())];
                let (scale, bias) = (self.input(&[c], 1.0), self.input(&[c], 1.0));
                let rest = "epsilon=0.5 scale_per_group=0 stash=f32 in_blocks=0";
                self.push([n, c, h, w], &format!("group_normalization groups={groups} {rest} %{x}, %{scale}, %{bias}"));
            }
            _ => {
                let last = self.step([n, h, w, c], &format!("transpose permutation=[0, 2, 3, 1] %{x}"));
                let last = self.step([n, h, w, c], &format!("unary function=tanh %{last}"));
                self.push([n, c, h, w], &format!("transpose permutation=[0, 3, 1, 2] %{last}"));
            }
        }
    }

    fn text(&self) -> String {
        let names: Vec<String> = self.inputs.iter().map(|(name, _)| format!("{name:?}")).collect();
        let parameters: Vec<String> =
            self.inputs.iter().map(|(name, tensor)| format!("%{name} : f32{:?}", tensor.shape())).collect();
        let (last, _) = self.values.last().unwrap();
        let middle = &self.values[self.values.len() / 2].0;
        format!(
            "entry \"main\"({}) -> (\"y\", \"m\") = block 0\nblock 0({}) {{\n{}  return %{last}, %{middle}\n}}\n",
            names.join(", "),
            parameters.join(", "),
            self.steps,
        )
    }
}

fn run(graph: &Graph, inputs: &[(String, Tensor)], threads: usize) -> Vec<Vec<f32>> {
    let model = emitted(graph).unwrap();
    let mut session = Session::new(&model, &SessionOptions { threads, ..SessionOptions::default() }).unwrap();
    let given = inputs.iter().map(|(name, tensor)| (name.clone(), tensor.clone().into())).collect();
    let outputs = session.run(None, given).unwrap();
    outputs.iter().map(|(_, value)| value.as_tensor().unwrap().elements::<f32>().unwrap().to_vec()).collect()
}

#[test]
fn channels_in_blocks_give_what_channels_give() {
    let (mut in_blocks, mut normalized) = (0, 0);
    for seed in 0..120 {
        let mut case = Case::new(seed);
        let steps = 2 + case.numbers.below(10);
        (0..steps).for_each(|_| case.grow());
        let text = case.text();
        let plain = after(&text, &["infer", "remove_dead_code", "order"]);
        let blocked = after(&text, &["infer", "block_channels", "remove_dead_code", "order"]);
        let is_blocked = |graph: &Graph| {
            graph.blocks[0].steps.iter().filter(|step| matches!(step.op, Op::BlockedConvolution(_))).count()
        };
        in_blocks += is_blocked(&blocked);
        let is_normalized = |op: &Op| matches!(op, Op::GroupNormalization(own) if own.in_blocks);
        normalized += blocked.blocks[0].steps.iter().filter(|step| is_normalized(&step.op)).count();
        let expected = run(&plain, &case.inputs, 1);
        let found = run(&blocked, &case.inputs, 1);
        for (expected, found) in expected.iter().zip(&found) {
            assert_eq!(expected.len(), found.len(), "{text}");
            let near = expected
                .iter()
                .zip(found)
                .all(|(expected, found)| (expected - found).abs() <= 2e-4 * (1.0 + expected.abs()));
            assert!(near, "seed {seed}: {found:?} for {expected:?} of\n{text}");
        }
        assert_eq!(run(&blocked, &case.inputs, 3), found, "three threads, seed {seed} of\n{text}");
    }
    assert!(in_blocks > 100, "{in_blocks} convolutions of all graphs are in blocks");
    assert!(normalized > 10, "{normalized} normalizations of all graphs are in blocks");
}
