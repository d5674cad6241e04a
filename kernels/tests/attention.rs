//! Attention over many queries against passes of fewer, bit for bit.

use ipuc_kernels::{
    attention::{Attention, Frontier, HeadElements, Heads, Mask, RowLayout, Stage, attention},
    simd::Instructions,
    testing::{numbers, passes, with_threads},
};
use proptest::prelude::*;
use std::ops::Range;

const BATCH: usize = 2;
const KEY_HEADS: usize = 2;

#[derive(Clone, Copy, Debug)]
struct Case {
    group: usize,
    past: usize,
    rows: usize,
    size: usize,
    width: usize,
    causal: bool,
    left: Option<i64>,
    right: Option<i64>,
    softcap: f32,
    /// Of 10 scores the mask hides this many.
    hidden: Option<u32>,
    /// Keys at the end that are padding in the second of the batch.
    padding: Option<i64>,
    sink: bool,
}

/// 20 queries, each of which sees the keys up to its own position.
const CAUSAL: Case = Case {
    group: 2,
    past: 0,
    rows: 20,
    size: 8,
    width: 5,
    causal: true,
    left: None,
    right: None,
    softcap: 0.0,
    hidden: None,
    padding: None,
    sink: false,
};

fn cases() -> impl Strategy<Value = Case> {
    let window = || prop::option::weighted(0.3, 0_i64..200);
    // Some keys are longer than a run of a product. Most are short: portable kernels compute fused multiply-adds in software.
    let size = prop_oneof![4 => 1_usize..36, 1 => 120_usize..140];
    let extents = (1_usize..4, 0_usize..300, 1_usize..71, size, 1_usize..36);
    let hidden = prop::option::of(0_u32..11);
    let scores = (prop_oneof![Just(0.0), Just(2.0_f32)], hidden, prop::option::of(0_i64..90), any::<bool>());
    (extents, any::<bool>(), window(), window(), scores).prop_map(|(extents, causal, left, right, scores)| {
        let (group, past, rows, size, width) = extents;
        let (softcap, hidden, padding, sink) = scores;
        Case { group, past, rows, size, width, causal, left, right, softcap, hidden, padding, sink }
    })
}

/// The operands of a case.
struct Operands {
    case: Case,
    keys: usize,
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
    /// `[batch, heads, rows, keys]`.
    mask: Option<Vec<f32>>,
}

impl Operands {
    fn new(case: Case) -> Self {
        let Case { group, past, rows, size, width, hidden, .. } = case;
        let (keys, queries) = (past + rows, BATCH * KEY_HEADS * group * rows);
        let mask = hidden.map(|hidden| {
            let mut mask = numbers(11, queries * keys);
            for (index, bias) in mask.iter_mut().enumerate() {
                if (index as u32).wrapping_mul(2_654_435_761) >> 16 >= hidden * 6_554 {
                    continue;
                }
                *bias = f32::NEG_INFINITY;
            }
            mask
        });
        let heads = |seed, size| numbers(seed, BATCH * KEY_HEADS * keys * size);
        Self { case, keys, query: numbers(3, queries * size), key: heads(5, size), value: heads(7, width), mask }
    }

    /// With `extra` keys behind the others, of NaN, that the mask hides.
    fn extended(&self, extra: usize) -> Self {
        let keys = self.keys + extra;
        let spread = |values: &[f32], size: usize, rest: f32| {
            let with_rest = |row: &[f32]| [row, &vec![rest; extra * size]].concat();
            values.chunks(self.keys * size).flat_map(with_rest).collect::<Vec<f32>>()
        };
        let queries = self.query.len() / self.case.size;
        let mask = self.mask.clone().unwrap_or_else(|| vec![0.0; queries * self.keys]);
        Self {
            case: self.case,
            keys,
            query: self.query.clone(),
            key: spread(&self.key, self.case.size, f32::NAN),
            value: spread(&self.value, self.case.width, f32::NAN),
            mask: Some(spread(&mask, 1, f32::NEG_INFINITY)),
        }
    }

    /// Queries `rows` over the first `keys` keys: for each of batch and head, `[rows, width]`.
    fn run(&self, instructions: Instructions, rows: Range<usize>, keys: usize) -> Vec<Vec<f32>> {
        let Case { group, past, size, width, causal, left, right, softcap, padding, .. } = self.case;
        let all_rows = self.case.rows;
        let query: Vec<f32> = self
            .query
            .chunks(all_rows * size)
            .flat_map(|head| &head[rows.start * size..rows.end * size])
            .copied()
            .collect();
        let heads = |values, size| {
            let by_head = self.keys * size;
            Heads { elements: HeadElements::Whole { values, strides: [KEY_HEADS * by_head, by_head, size] }, size }
        };
        let mask = self.mask.as_ref().map(|mask| Mask {
            values: &mask[rows.start * self.keys..],
            strides: [KEY_HEADS * group * all_rows * self.keys, all_rows * self.keys, self.keys, 1],
            keys,
        });
        let seen = (past + all_rows) as i64;
        let valid = padding.map(|padding| [seen, seen - padding]);
        let sinks = numbers(13, KEY_HEADS * group);
        let operands = Attention {
            batch: BATCH,
            key_heads: KEY_HEADS,
            group,
            queries: rows.len(),
            keys,
            query: &query,
            layout: RowLayout::ByHead,
            scale: 1.0,
            key: heads(&self.key, size),
            value: heads(&self.value, width),
            softcap,
            mask,
            frontier: Frontier {
                offsets: &[(past + rows.start) as i64; BATCH],
                valid: valid.as_ref().map(|valid| &valid[..]),
                causal,
                left,
                right,
            },
            sink: self.case.sink.then_some(&sinks),
        };
        let mut out = vec![f32::NAN; BATCH * KEY_HEADS * group * rows.len() * width];
        attention(instructions, &operands, &mut out, None);
        out.chunks(rows.len() * width).map(<[f32]>::to_vec).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn rows_have_the_bits_of_any_pass(case in cases(), cuts in prop::collection::vec(0_usize..71, 0..4)) {
        let operands = Operands::new(case);
        for instructions in Instructions::available() {
            let whole = operands.run(instructions, 0..case.rows, operands.keys);
            for passes in [passes(case.rows, &cuts), (0..case.rows).map(|row| row..row + 1).collect()] {
                for rows in passes {
                    // A pass of a decoder has no keys behind its own.
                    let keys = if case.causal { case.past + rows.end } else { operands.keys };
                    let places = rows.start * case.width..rows.end * case.width;
                    let expected: Vec<&[f32]> = whole.iter().map(|head| &head[places.clone()]).collect();
                    let found = operands.run(instructions, rows.clone(), keys);
                    prop_assert_eq!(&found, &expected, "{:?} on {}", rows, instructions.name());
                }
            }
        }
    }

    #[test]
    fn what_nobody_sees_changes_nothing(case in cases(), extra in 1_usize..300) {
        // From the next block on: a block that is masked in part is multiplied.
        let case = Case { past: 256 - case.rows, ..case };
        let operands = Operands::new(case);
        let extended = operands.extended(extra);
        for instructions in Instructions::available() {
            let expected = operands.run(instructions, 0..case.rows, operands.keys);
            prop_assert_eq!(extended.run(instructions, 0..case.rows, extended.keys), expected, "{}", instructions.name());
        }
    }
}

/// NaN among the keys, of which some queries see nothing else, makes their results NaN, and no others.
#[test]
fn queries_that_see_scores_of_nan_give_nan() {
    let case = Case { group: 1, size: 16, width: 8, left: Some(2), ..CAUSAL };
    let mut operands = Operands::new(case);
    // Keys 4, 5 and 6 of the first head: query 6 sees them alone.
    operands.key[4 * case.size..7 * case.size].fill(f32::NAN);
    for instructions in Instructions::available() {
        let heads = operands.run(instructions, 0..20, 20);
        for (head, values) in heads.iter().enumerate() {
            for (row, values) in values.chunks(case.width).enumerate() {
                let is_nan = head == 0 && (4..9).contains(&row);
                assert!(values.iter().all(|value| value.is_nan() == is_nan), "{} {head} {row}", instructions.name());
            }
        }
    }
}

/// NaN and an infinity among values of keys that only later queries see.
#[test]
fn values_of_later_keys_reach_no_query_before() {
    let case = CAUSAL;
    let mut operands = Operands::new(case);
    operands.value[12 * case.width] = f32::NAN;
    operands.value[(20 + 7) * case.width + 1] = f32::INFINITY;
    for instructions in Instructions::available() {
        let whole = operands.run(instructions, 0..case.rows, operands.keys);
        let of_nan = whole[0].iter().step_by(case.width).map(|value| value.is_nan());
        assert_eq!(of_nan.collect::<Vec<bool>>(), (0..20).map(|row| row >= 12).collect::<Vec<bool>>());
        for row in 0..case.rows {
            let alone = operands.run(instructions, row..row + 1, row + 1);
            for (whole, alone) in whole.iter().zip(&alone) {
                let own = &whole[row * case.width..][..case.width];
                let bits = |values: &[f32]| -> Vec<Option<u32>> {
                    values.iter().map(|value| (!value.is_nan()).then_some(value.to_bits())).collect()
                };
                assert_eq!(bits(own), bits(alone), "query {row} on {}", instructions.name());
            }
        }
    }
}

#[test]
fn threads_do_not_change_bits() {
    for (group, rows) in [(2, 70), (3, 1)] {
        threads_do_not_change_bits_of(group, rows);
    }
}

fn threads_do_not_change_bits_of(group: usize, rows: usize) {
    let case = Case { group, past: 330, rows, size: 64, width: 48, sink: true, ..CAUSAL };
    let operands = Operands::new(case);
    for instructions in Instructions::available() {
        let run = || operands.run(instructions, 0..case.rows, operands.keys);
        assert_eq!(with_threads(1, run), with_threads(3, run), "{}", instructions.name());
    }
}

#[test]
fn blocks_that_the_mask_hides_are_left_out_and_counted() {
    let (group, rows, keys, size, width) = (2, 5, 300, 24, 20);
    let queries = BATCH * KEY_HEADS * group * rows;
    let (query, key, value) = (
        numbers(3, queries * size),
        numbers(5, BATCH * KEY_HEADS * keys * size),
        numbers(7, BATCH * KEY_HEADS * keys * width),
    );
    let heads = |values, size| {
        let by_head = keys * size;
        Heads { elements: HeadElements::Whole { values, strides: [KEY_HEADS * by_head, by_head, size] }, size }
    };
    // One mask for all heads: keys 128 to 256 are hidden, and in the second case one key of them from all but one query.
    for (seen, hidden_blocks) in [(None, 1), (Some(130), 0)] {
        let mut mask = vec![0.0; rows * keys];
        for row in 0..rows {
            mask[row * keys + 128..row * keys + 256].fill(f32::NEG_INFINITY);
        }
        if let Some(key) = seen {
            mask[3 * keys + key] = 0.25;
        }
        let operands = Attention {
            batch: BATCH,
            key_heads: KEY_HEADS,
            group,
            queries: rows,
            keys,
            query: &query,
            layout: RowLayout::ByHead,
            scale: 1.0,
            key: heads(&key, size),
            value: heads(&value, width),
            softcap: 0.0,
            mask: Some(Mask { values: &mask, strides: [0, 0, keys, 1], keys }),
            frontier: Frontier { offsets: &[keys as i64; BATCH], valid: None, causal: false, left: None, right: None },
            sink: None,
        };
        for instructions in Instructions::available() {
            let (mut out, mut expected) = (vec![f32::NAN; queries * width], vec![f32::NAN; queries * width]);
            let left_out = attention(instructions, &operands, &mut out, None);
            assert_eq!(left_out, (hidden_blocks * queries * 128 * (size + width)) as u64);
            // Scores that are shown are all computed.
            let mut scores = vec![f32::NAN; queries * keys];
            let none = attention(instructions, &operands, &mut expected, Some((Stage::Softmax, &mut scores)));
            assert_eq!((none, out), (0, expected), "{}", instructions.name());
        }
    }
}
