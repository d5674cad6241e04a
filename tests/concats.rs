//! Concats whose operands lie one behind the other already give what copying gives, for random graphs: of values that are read again,
//! that are results of other concats, or that steps would write over.
#![allow(clippy::unwrap_used, reason = "tests panic")]

use crate::support::memory::{after, emitted};
use crate::support::numbers::Numbers;
use ipuc::{Session, SessionOptions, Tensor};
use std::fmt::Write as _;

/// A graph of rows of `width` numbers, with the numbers that its values have.
struct Case {
    numbers: Numbers,
    width: usize,
    steps: String,
    /// The name and the numbers.
    values: Vec<(String, Vec<f32>)>,
}

impl Case {
    fn new(seed: u64) -> Case {
        let mut numbers = Numbers(seed);
        // Rows of 12 numbers are no cache lines: parts behind them have no place in a larger value.
        let width = [16, 16, 32, 12][numbers.below(4)];
        let x = (0..width * (1 + numbers.below(3))).map(|at| at as f32 - 20.0).collect();
        Case { numbers, width, steps: String::new(), values: vec![("x".to_string(), x)] }
    }

    fn push(&mut self, step: &str, numbers: Vec<f32>) {
        let name = format!("v{}", self.steps.lines().count());
        let rows = numbers.len() / self.width;
        let _ = writeln!(self.steps, "  %{name} : f32[1, {rows}, {}] = {step} from \"{name}\"", self.width);
        self.values.push((name, numbers));
    }

    fn any(&mut self) -> (String, Vec<f32>) {
        let count = self.values.len();
        let recent = count.saturating_sub(4);
        let at = if self.numbers.below(4) == 0 {
            self.numbers.below(count)
        } else {
            recent + self.numbers.below(count - recent)
        };
        self.values[at].clone()
    }

    fn grow(&mut self) {
        let (x, numbers) = self.any();
        match self.numbers.below(8) {
            0..2 => self.push(&format!("unary function=neg %{x}"), numbers.iter().map(|number| -number).collect()),
            2..4 => {
                let sums = numbers.iter().map(|number| number + number).collect();
                self.push(&format!("binary function=add %{x}, %{x}"), sums);
            }
            _ => {
                let mut operands = vec![(x, numbers)];
                for _ in 0..1 + self.numbers.below(3) {
                    operands.push(self.any());
                }
                let names: Vec<String> = operands.iter().map(|(name, _)| format!("%{name}")).collect();
                let numbers: Vec<f32> = operands.into_iter().flat_map(|(_, numbers)| numbers).collect();
                if numbers.len() < 2000 {
                    self.push(&format!("concat axis=1 {}", names.join(", ")), numbers);
                }
            }
        }
    }
}

/// Outputs, and bytes of activations.
fn run(text: &str, x: &[f32], shape: &[usize]) -> (Vec<Vec<f32>>, u64) {
    let model = emitted(&after(text, &["infer", "remove_dead_code", "order"])).unwrap();
    let mut session = Session::new(&model, &SessionOptions { threads: 1, ..SessionOptions::default() }).unwrap();
    let mut given = Vec::new();
    // The second run finds the memory of the first.
    for _ in 0..2 {
        let x = Tensor::from_elements(shape, x).unwrap();
        let outputs = session.run(None, vec![("x".to_string(), x.into())]).unwrap();
        given = outputs.iter().map(|(_, value)| value.as_tensor().unwrap().elements().unwrap().to_vec()).collect();
    }
    (given, session.arena_bytes())
}

#[test]
fn concats_give_what_copying_gives() {
    for seed in 0..400 {
        let mut case = Case::new(seed);
        let steps = 3 + case.numbers.below(14);
        (0..steps).for_each(|_| case.grow());
        let shape = [1, case.values[0].1.len() / case.width, case.width];
        let (last, expected) = case.values.last().unwrap().clone();
        let (middle, between) = case.values[case.values.len() / 2].clone();
        // Results of the entry have no place: what is returned is copied.
        let rows = expected.len() / case.width;
        let text = format!(
            "entry \"main\"(\"x\") -> (\"y\", \"m\") = block 0\nblock 0(%x : f32{shape:?}) {{\n{}  %end : f32[1, {rows}, {}] = unary \
             function=neg %{last} from \"end\"\n  return %end, %{middle}\n}}\n",
            case.steps, case.width
        );
        let (given, _) = run(&text, &case.values[0].1, &shape);
        let negated: Vec<f32> = expected.iter().map(|number| -number).collect();
        assert_eq!(given, [negated, between], "seed {seed}:\n{text}");
    }
}

/// Layers of which each reads the results of all before it.
fn dense(layers: usize) -> String {
    let mut text = "entry \"main\"(\"x\") -> (\"y\") = block 0\nblock 0(%x : f32[1, 1, 16]) {\n".to_string();
    let _ = writeln!(text, "  %l0 : f32[1, 1, 16] = unary function=neg %x from \"l0\"");
    for layer in 1..=layers {
        let all: Vec<String> = (0..layer).map(|at| format!("%l{at}")).collect();
        let _ =
            writeln!(text, "  %c{layer} : f32[1, {layer}, 16] = concat axis=1 {} from \"c{layer}\"", all.join(", "));
        let _ = writeln!(
            text,
            "  %l{layer} : f32[1, 1, 16] = reduce function=sum keep_axes=1 %c{layer}, @axes from \"l{layer}\""
        );
    }
    let _ = writeln!(text, "  return %l{layers}\n}}");
    format!("constant @axes : i64[1] = i64[1]:0100000000000000\n{text}")
}

#[test]
fn results_that_all_later_layers_read_are_held_once() {
    let x: Vec<f32> = (0..16).map(|at| at as f32).collect();
    let (given, arena) = run(&dense(6), &x, &[1, 1, 16]);
    // Each layer is the sum of all before it.
    assert_eq!(given, [x.iter().map(|x| x * -32.0).collect::<Vec<f32>>()]);
    assert_eq!(arena, 6 * 64, "the operands of the last concat, and nothing beside them");
}
