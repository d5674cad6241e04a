//! Runs of tokens, of `com.microsoft`, as ONNX Runtime 1.31 defines them: `NGramHashMapping` and `VarlenNGramHashMapping`, places
//! of runs in tables of embeddings, and `BifurcationDetector`, which follows a text that was guessed.
//!
//! Each is a graph of ONNX operators over integers.

use crate::import::definition::{integer, integers, step};
use crate::import::lowering::{LowerError, Lowering, Row};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::onnx::schema::NodeProto;
use ipuc_formats::ops::{Concat, Expand, ShapeOf};
use ipuc_formats::tensor::Tensor;

type Lowered = Result<Vec<Operand>, LowerError>;

const fn row(name: &'static str, lower: fn(&mut Lowering<'_, '_>) -> Lowered) -> Row {
    Row { domain: "com.microsoft", name, since: 1, lower }
}

/// Runs of tokens.
pub const ROWS: &[Row] = &[
    row("BifurcationDetector", bifurcation),
    row("NGramHashMapping", hashed),
    row("VarlenNGramHashMapping", hashed_packed),
];

/// Lengths of runs beyond which an attribute is wrong.
const MOST_LENGTHS: i64 = 64;

/// What both hashes have in common.
struct Hash {
    /// Tokens of the longest run.
    longest: i64,
    /// Places of each length of runs.
    heads: i64,
    resets: bool,
    /// What stands before the first token.
    fill: Operand,
    /// The token that ends a text; absent where none does.
    end: Operand,
}

fn line(text: &str) -> NodeProto {
    step(text, vec![])
}

impl Hash {
    fn read(node: &mut Lowering<'_, '_>, end: usize) -> Result<Hash, LowerError> {
        let longest = node.positive("max_ngram_size")?;
        if !(2..=MOST_LENGTHS).contains(&longest) {
            return Err(node.refuse(format!("attribute `max_ngram_size` = {longest}")));
        }
        let heads = node.positive("n_head_per_ngram")?;
        let pad = node.int("pad_id")?.ok_or_else(|| LowerError::MissingAttribute("pad_id".to_string()))?;
        let resets = node.flag("reset_on_eos", false)?;
        let tokens = node.required(0)?;
        let dtype = node.dtype(&tokens)?;
        let end = match node.input(end) {
            Operand::Absent => Operand::Absent,
            end => node.reshaped(end, &[])?,
        };
        let fill = match end {
            Operand::Absent => {
                let pad = node.constant(Tensor::scalar(pad));
                node.cast(pad, dtype)?
            }
            end => end,
        };
        Ok(Hash { longest, heads, resets, fill, end })
    }

    /// Places of runs: `[.., (longest - 1) * heads]`, of tokens that stand `k` before each (`tokens_k`), where given of their
    /// segments (`segments_k`).
    fn places(
        &self,
        node: &mut Lowering<'_, '_>,
        tokens: &[Operand],
        segments: &[Operand],
        offsets: usize,
    ) -> Result<Operand, LowerError> {
        let (factors, sizes) = (node.required(1)?, node.required(2)?);
        let mut given = vec![("fill".to_string(), self.fill), ("end".to_string(), self.end)];
        let mut steps = Vec::new();
        for (distance, &tokens) in tokens.iter().enumerate() {
            given.push((format!("tokens_{distance}"), tokens));
            given.push((format!("factor_{distance}"), node.taken(factors, 0, distance as i64)?));
        }
        for (distance, &segments) in segments.iter().enumerate() {
            given.push((format!("segments_{distance}"), segments));
        }
        steps.push(step("Constant -> last", vec![integers("value_ints", -1)]));
        steps.push(line("Mul tokens_0 factor_0 -> mix_0"));
        let mut is_reset = None;
        for distance in 1..self.longest {
            let before = distance - 1;
            let mut reasons = Vec::from_iter(is_reset.take());
            if self.resets && self.end != Operand::Absent {
                steps.push(line(&format!("Equal tokens_{distance} end -> ended_{distance}")));
                reasons.push(format!("ended_{distance}"));
            }
            if !segments.is_empty() {
                steps.push(line(&format!("Equal segments_{before} segments_{distance} -> same_{distance}")));
                steps.push(line(&format!("Not same_{distance} -> other_{distance}")));
                reasons.push(format!("other_{distance}"));
            }
            is_reset = reasons.into_iter().reduce(|left, right| {
                let either = format!("{right}_or_before");
                steps.push(line(&format!("Or {left} {right} -> {either}")));
                either
            });
            let seen = match &is_reset {
                Some(is_reset) => {
                    steps.push(line(&format!("Where {is_reset} fill tokens_{distance} -> seen_{distance}")));
                    format!("seen_{distance}")
                }
                None => format!("tokens_{distance}"),
            };
            let from = before * self.heads;
            given.push((format!("sizes_{distance}"), node.sliced(sizes, 0, [from, from + self.heads, 1])?));
            steps.extend([
                line(&format!("Mul {seen} factor_{distance} -> part_{distance}")),
                line(&format!("BitwiseXor mix_{before} part_{distance} -> mix_{distance}")),
                line(&format!("Unsqueeze mix_{distance} last -> column_{distance}")),
                line(&format!("Mod column_{distance} sizes_{distance} -> places_{distance}")),
            ]);
        }
        let all: Vec<String> = (1..self.longest).map(|distance| format!("places_{distance}")).collect();
        steps.push(step(&format!("Concat {} -> places", all.join(" ")), vec![integer("axis", -1)]));
        // Absent operands have no name in a graph.
        given.retain(|(_, operand)| *operand != Operand::Absent);
        let given: Vec<(&str, Operand)> = given.iter().map(|(name, operand)| (name.as_str(), *operand)).collect();
        let places = node.defined(&given, steps, &["places"], "places")?[0];
        let offsets = node.input(offsets);
        node.plus(places, offsets)
    }
}

fn hashed(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(7)?;
    let hash = Hash::read(node, 5)?;
    let (tokens, past, segments) = (node.required(0)?, node.input(3), node.input(6));
    let before = hash.longest - 1;
    let past = match past {
        Operand::Absent => {
            let batch = node.emit_one(ShapeOf { start: 0, end: Some(1) }, vec![tokens])?;
            let width = node.integers(&[before]);
            let shape = node.emit_one(Concat { axis: 0 }, vec![batch, width])?;
            node.emit_one(Expand {}, vec![hash.fill, shape])?
        }
        past => past,
    };
    let all = node.emit_one(Concat { axis: 1 }, vec![past, tokens])?;
    let all_segments = match segments {
        Operand::Absent => None,
        segments => {
            // What stands before the first token is of its segment.
            let first = node.sliced(segments, 1, [0, 1, 1])?;
            let parts = [vec![first; before as usize], vec![segments]].concat();
            Some(node.emit_one(Concat { axis: 1 }, parts)?)
        }
    };
    let (mut shifted, mut shifted_segments) = (Vec::new(), Vec::new());
    for distance in 0..hash.longest {
        let end = if distance == 0 { i64::MAX } else { -distance };
        let range = [before - distance, end, 1];
        shifted.push(node.sliced(all, 1, range)?);
        if let Some(segments) = all_segments {
            shifted_segments.push(node.sliced(segments, 1, range)?);
        }
    }
    let places = hash.places(node, &shifted, &shifted_segments, 4)?;
    Ok(vec![places, node.sliced(all, 1, [-before, i64::MAX, 1])?])
}

/// Packed texts: `tokens: [t]`, of which text `b` has those from `bounds[b]` up to `bounds[b + 1]`.
struct Packed {
    /// Of each text where it begins and how many tokens it has: `[b]`.
    starts: Operand,
    lengths: Operand,
    /// Of each token its text, and its place in that: `[t]`.
    texts: Operand,
    places: Operand,
}

impl Packed {
    fn read(node: &mut Lowering<'_, '_>) -> Result<Packed, LowerError> {
        let (tokens, bounds) = (node.required(0)?, node.required(3)?);
        let bounds = node.cast(bounds, DType::I64)?;
        let (starts, ends) = (node.sliced(bounds, 0, [0, -1, 1])?, node.sliced(bounds, 0, [1, i64::MAX, 1])?);
        let count = node.emit_one(ShapeOf { start: 0, end: Some(1) }, vec![tokens])?;
        let numbers = node.counted(count)?;
        let steps = vec![
            step("Constant -> column", vec![integers("value_ints", 1)]),
            line("Unsqueeze numbers column -> rows"),
            line("GreaterOrEqual rows ends -> is_behind"),
            step("Cast is_behind -> behind", vec![integer("to", i64::from(DType::I64.onnx_code()))]),
            step("ReduceSum behind column -> texts", vec![integer("keepdims", 0)]),
            step("Gather starts texts -> first", vec![integer("axis", 0)]),
            line("Sub numbers first -> places"),
            line("Sub ends starts -> lengths"),
        ];
        let given = [("numbers", numbers), ("starts", starts), ("ends", ends)];
        match node.defined(&given, steps, &["texts", "places", "lengths"], "texts")?[..] {
            [texts, places, lengths] => Ok(Packed { starts, lengths, texts, places }),
            _ => Err(node.refuse("texts without places")),
        }
    }

    /// What stands at `places: [..]` of `texts: [..]`, of `values: [t]` that are packed; before a text's first that is what
    /// `past: [b, before]` has at its end, or, where there is none, `fill`, or else the first.
    fn at(
        &self,
        node: &mut Lowering<'_, '_>,
        [values, past, fill]: [Operand; 3],
        [texts, places]: [Operand; 2],
        (before, part): (i64, &str),
    ) -> Result<Operand, LowerError> {
        let mut given = vec![("values", values), ("texts", texts), ("places", places), ("starts", self.starts)];
        let mut steps = vec![
            step("Constant -> zero", vec![integer("value_int", 0)]),
            line("Max places zero -> inside"),
            step("Gather starts texts -> first", vec![integer("axis", 0)]),
            line("Add first inside -> at"),
            step("Gather values at -> own", vec![integer("axis", 0)]),
            line("Less places zero -> is_before"),
        ];
        match (past, fill) {
            (Operand::Absent, Operand::Absent) => steps.push(line("Identity own -> found")),
            (Operand::Absent, fill) => {
                given.push(("fill", fill));
                steps.push(line("Where is_before fill own -> found"));
            }
            (past, _) => {
                given.push(("past", past));
                steps.extend([
                    step("Constant -> flat", vec![integers("value_ints", -1)]),
                    line("Reshape past flat -> all_past"),
                    step("Constant -> width", vec![integer("value_int", before)]),
                    line("Min places zero -> back"),
                    step("Constant -> one", vec![integer("value_int", 1)]),
                    // Behind a text's first it is any: the last of the row.
                    line("Mul texts width -> row"),
                    line("Add row width -> row_end"),
                    line("Add row_end back -> from_end"),
                    line("Sub row_end one -> row_last"),
                    line("Min from_end row_last -> at_past"),
                    step("Gather all_past at_past -> older", vec![integer("axis", 0)]),
                    line("Where is_before older own -> found"),
                ]);
            }
        }
        Ok(node.defined(&given, steps, &["found"], part)?[0])
    }

    /// The `before` last of each text behind its first `lengths: [b, ..]` tokens: `[b, .., before]`.
    fn last(
        &self,
        node: &mut Lowering<'_, '_>,
        values: [Operand; 3],
        (lengths, rank): (Operand, i64),
        (before, part): (i64, &str),
    ) -> Result<Operand, LowerError> {
        let back: Vec<i64> = (-before..0).collect();
        let back = node.integers(&back);
        let count = node.emit_one(ShapeOf { start: 0, end: Some(1) }, vec![self.starts])?;
        let texts = node.counted(count)?;
        let texts = node.unsqueezed(texts, &(1..=rank).collect::<Vec<i64>>())?;
        let lengths = node.unsqueezed(lengths, &[rank])?;
        let places = node.plus(lengths, back)?;
        let shape = node.emit_one(ShapeOf { start: 0, end: None }, vec![places])?;
        let texts = node.emit_one(Expand {}, vec![texts, shape])?;
        self.at(node, values, [texts, places], (before, part))
    }
}

fn hashed_packed(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(10)?;
    let hash = Hash::read(node, 6)?;
    let captured = node.int("state_update_capacity")?.unwrap_or(0);
    if !(0..=8).contains(&captured) {
        return Err(node.refuse(format!("attribute `state_update_capacity` = {captured}")));
    }
    let packed = Packed::read(node)?;
    let before = hash.longest - 1;
    let tokens = [node.required(0)?, node.input(4), hash.fill];
    let segments = [node.input(7), node.input(8), Operand::Absent];
    let (mut shifted, mut shifted_segments) = (Vec::new(), Vec::new());
    for distance in 0..hash.longest {
        let back = node.constant(Tensor::scalar(-distance));
        let at = [packed.texts, node.plus(packed.places, back)?];
        shifted.push(packed.at(node, tokens, at, (before, &format!("tokens{distance}")))?);
        if segments[0] != Operand::Absent {
            shifted_segments.push(packed.at(node, segments, at, (before, &format!("segments{distance}")))?);
        }
    }
    let mut results = vec![hash.places(node, &shifted, &shifted_segments, 5)?];
    results.push(packed.last(node, tokens, (packed.lengths, 1), (before, "present"))?);
    if segments[0] != Operand::Absent {
        results.push(packed.last(node, segments, (packed.lengths, 1), (before, "present_segments"))?);
    } else if node.output_used(2) {
        return Err(node.refuse("output `present_segment_ids` without `segment_ids`"));
    } else {
        results.push(Operand::Absent);
    }
    if captured > 0 {
        results.push(captures(node, &hash, &packed, tokens, captured)?);
    } else if node.output_used(3) {
        return Err(node.refuse("output `state_update` without `state_update_capacity`"));
    }
    Ok(results)
}

/// The last tokens behind each of the first of a text, as many as are asked for: `[b, captured, before]`.
fn captures(
    node: &mut Lowering<'_, '_>,
    hash: &Hash,
    packed: &Packed,
    tokens: [Operand; 3],
    captured: i64,
) -> Result<Operand, LowerError> {
    let before = hash.longest - 1;
    let numbers: Vec<i64> = (1..=captured).collect();
    let numbers = node.integers(&numbers);
    let asked = node.required(9)?;
    let asked = node.cast(asked, DType::I64)?;
    let steps = vec![
        step("Constant -> column", vec![integers("value_ints", 1)]),
        line("Min asked lengths -> count"),
        line("Unsqueeze count column -> counts"),
        line("LessOrEqual numbers counts -> is_there"),
        line("Unsqueeze lengths column -> ends"),
        line("Min numbers ends -> prefixes"),
    ];
    let given = [("asked", asked), ("lengths", packed.lengths), ("numbers", numbers)];
    let parts = node.defined(&given, steps, &["is_there", "prefixes"], "captured")?;
    let last = packed.last(node, tokens, (parts[1], 2), (before, "captures"))?;
    let is_there = node.unsqueezed(parts[0], &[2])?;
    // Unused places hold padding, whatever ends a text.
    let pad = node.int("pad_id")?.unwrap_or_default();
    let dtype = node.dtype(&last)?;
    let pad = node.constant(Tensor::scalar(pad));
    let pad = node.cast(pad, dtype)?;
    node.emit_one(ipuc_formats::ops::Select {}, vec![is_there, last, pad])
}

/// The text goes on with the guess up to its first token that the source has not, and from where the end of the text occurs in the
/// source once, the next guess goes on.
fn bifurcation(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(4)?;
    let least = node.int("min_ngram_size")?.unwrap_or(1);
    let most = node.int("max_ngram_size")?.unwrap_or(3);
    if least < 1 || most < least || most > MOST_LENGTHS {
        return Err(node.refuse(format!("runs of {least} to {most} tokens")));
    }
    let (source, text, guess) = (node.required(0)?, node.required(1)?, node.input(3));
    let given_at = node.required(2)?;
    let at = node.reshaped(given_at, &[1])?;
    let mut given = vec![("source", source), ("text", text), ("at", at)];
    let mut steps = vec![
        step("Constant -> none", vec![integers("value_ints", -1)]),
        step("Constant -> zero", vec![integers("value_ints", 0)]),
        step("Constant -> one", vec![integers("value_ints", 1)]),
        line("Shape source -> length"),
    ];
    if guess == Operand::Absent {
        steps.push(line("Identity text -> tokens"));
    } else {
        given.push(("guess", guess));
        steps.extend([
            line("Slice source at length zero -> expected"),
            line("Shape expected -> expected_length"),
            line("Slice guess zero expected_length zero -> begin"),
            line("Equal begin expected -> is_same"),
            step("Cast is_same -> same", vec![integer("to", i64::from(DType::I64.onnx_code()))]),
            // A last one that differs, so that there is a first.
            line("Concat same zero -> with_end"),
            step("ArgMin with_end -> first", vec![integer("axis", 0), integer("keepdims", 1)]),
            line("Add first one -> taken"),
            line("Slice guess zero taken zero -> accepted"),
            line("Concat text accepted -> tokens"),
        ]);
        for step in steps.iter_mut().filter(|step| step.op_type() == "Concat") {
            step.attribute.push(integer("axis", 0));
        }
    }
    steps.push(line("Shape tokens -> tokens_length"));
    steps.extend(matched(least, most));
    let outputs = node.defined(&given, steps, &["tokens", "matched"], "matched")?;
    let place = node.reshaped_like(outputs[1], given_at)?;
    Ok(vec![outputs[0], place])
}

/// `matched: [1]`: the place behind where the shortest run at the end of `tokens` that occurs in `source` once does; -1 where none
/// does.
fn matched(least: i64, most: i64) -> Vec<NodeProto> {
    let mut steps = Vec::new();
    // From the longest run to the shortest: what is found for one decides unless a shorter one has decided.
    let mut behind = "none".to_string();
    for size in (least..=most).rev() {
        let name = |what: &str| format!("{what}_{size}");
        let sized = |text: &str| line(&text.replace('#', &size.to_string()));
        steps.push(step(&format!("Constant -> {}", name("size")), vec![integers("value_ints", size)]));
        steps.extend(
            [
                "GreaterOrEqual tokens_length size_# -> fits_#",
                "Expand none size_# -> before_#",
                "Concat before_# tokens -> padded_#",
                "Add tokens_length size_# -> padded_length_#",
                "Slice padded_# tokens_length padded_length_# zero -> run_#",
                // Windows of the source; where there are none, none agrees.
                "Sub length size_# -> spare_#",
                "Add spare_# one -> windows_#",
                "Max windows_# zero -> count_#",
                "ConstantOfShape count_# -> nothing_#",
                "Cast nothing_# -> differs_#",
                "Not differs_# -> agrees_#_0",
            ]
            .map(sized),
        );
        for place in 0..size {
            let next = place + 1;
            steps.push(step(&format!("Constant -> place_{size}_{place}"), vec![integers("value_ints", place)]));
            steps.extend([
                line(&format!("Add place_{size}_{place} count_{size} -> window_end_{size}_{place}")),
                line(&format!(
                    "Slice source place_{size}_{place} window_end_{size}_{place} zero -> column_{size}_{place}"
                )),
                line(&format!("Add place_{size}_{place} one -> token_end_{size}_{place}")),
                line(&format!(
                    "Slice run_{size} place_{size}_{place} token_end_{size}_{place} zero -> token_{size}_{place}"
                )),
                line(&format!("Equal column_{size}_{place} token_{size}_{place} -> equal_{size}_{place}")),
                line(&format!("And agrees_{size}_{place} equal_{size}_{place} -> agrees_{size}_{next}")),
            ]);
        }
        steps.extend(
            [
                "Cast agrees_#_# -> hits_#",
                "ReduceSum hits_# zero -> found_#",
                // A last one that agrees, so that there is a first.
                "Concat hits_# one -> hits_end_#",
                "ArgMax hits_end_# -> first_#",
                "Add first_# size_# -> place_behind_#",
                // Where it is the end of the source, no other is looked for.
                "GreaterOrEqual place_behind_# length -> at_end_#",
                "Greater found_# one -> several_#",
                "Not at_end_# -> not_at_end_#",
                "And several_# not_at_end_# -> goes_on_#",
                "Greater found_# zero -> any_#",
                "And any_# fits_# -> is_found_#",
            ]
            .map(sized),
        );
        steps.push(sized(&format!("Where goes_on_# {behind} place_behind_# -> if_found_#")));
        steps.push(sized("Where is_found_# if_found_# none -> decided_#"));
        behind = format!("decided_{size}");
    }
    for step in &mut steps {
        let cast = |to: DType| vec![integer("to", i64::from(to.onnx_code()))];
        let attributes = match (step.op_type(), step.input.first().is_some_and(|input| input.starts_with("nothing"))) {
            ("Cast", true) => cast(DType::Bool),
            ("Cast", false) => cast(DType::I64),
            ("Concat", _) => vec![integer("axis", 0)],
            ("ArgMax", _) => vec![integer("axis", 0), integer("keepdims", 1)],
            ("ReduceSum", _) => vec![integer("keepdims", 1)],
            _ => continue,
        };
        step.attribute.extend(attributes);
    }
    steps.push(line(&format!("Identity {behind} -> matched")));
    steps
}
