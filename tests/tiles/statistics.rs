//! Steps whose tiles share what they find in their elements (the mean of a row, the greatest of the scores of a query): each
//! tile has its own elements and no others, what they combine moves between their memories, and the bytes that a tile gets so
//! are those that the cost of the step counts.

use super::*;

/// ONNX element type.
const F32: i32 = 1;

/// What a tile of the placement has.
struct Memory {
    /// Its points of each space.
    parts: Vec<Tile>,
    /// The elements of each operand; those that it has not are no numbers.
    operands: Vec<Vec<f32>>,
}

/// A step as a machine places it, on operands that are made up.
struct Placed {
    step: BoundStep,
    split: Split,
    received: f64,
    phases: u32,
    operands: Vec<Tensor>,
    whole: Vec<f32>,
    /// Bytes that a tile gets of the operands.
    given: f64,
}

/// The only step of a model on these tiles, whose exchange costs little besides its bytes.
fn placed(model: &[u8], tiles: &str) -> Placed {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, model).unwrap();
    let manifest = describe(&[Model { entry: "main".to_string(), path }], &CompileOptions::default()).unwrap();
    let set = [("tiles.count", tiles), ("exchange.hop", "0 cycles"), ("exchange.phase", "50 cycles")];
    let set = set.map(|(key, value)| (key.to_string(), value.to_string()));
    let target = built_in("cerebras-wse3", &set).unwrap().unwrap();
    let simulated = simulate(&manifest, &target, &SimulateOptions::default()).unwrap();
    let [step] = simulated.program.steps.as_slice() else { panic!("{:?}", simulated.program.steps) };
    let known = KnownStep::new(&manifest, step.block as usize, step.step as usize).unwrap();
    let mut numbers = Numbers(5);
    let operands: Vec<Option<Tensor>> =
        (step.operands.iter()).map(|bound| Some(numbers.tensor(DType::F32, &bound.as_ref()?.extents))).collect();
    let whole = reference(known.op(), &operands)[0].elements::<f32>().unwrap().to_vec();
    let (split, cost) = (simulated.placed[0].split.clone(), &simulated.placed[0].cost);
    let present = (0..operands.len()).filter(|&operand| operands[operand].is_some());
    let given = present.map(|operand| bytes_needed(step, &split, operand).0).sum();
    let (received, phases) = (cost.received.0, cost.phases);
    let operands = operands.into_iter().flatten().collect();
    Placed { step: step.clone(), split, received, phases, operands, whole, given }
}

impl Placed {
    /// The memories of all tiles, those together that share what they find along axes of the last space with these indices.
    fn groups(&self, shared: &[usize]) -> Vec<Vec<Memory>> {
        let last = self.step.spaces.len() - 1;
        let mut groups: Vec<(Tile, Vec<Memory>)> = Vec::new();
        for tile in tiles(&self.step, &self.split, last, |_| false) {
            let alike = tile.iter().enumerate().filter(|(axis, _)| !shared.contains(axis));
            let alike: Tile = alike.map(|(_, range)| range.clone()).collect();
            let memory = self.memory(&tile);
            match groups.iter_mut().find(|(own, _)| *own == alike) {
                Some((_, group)) => group.push(memory),
                None => groups.push((alike, vec![memory])),
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }

    fn memory(&self, tile: &[Range<i64>]) -> Memory {
        let step = &self.step;
        let last = &step.spaces[step.spaces.len() - 1];
        let part = |space: usize| -> Tile {
            let axes = 0..step.spaces[space].axes.len();
            let whole = |axis: usize| 0..step.extents[space][axis];
            let of = |axis| step.spaces[space].linked(axis, last).map_or_else(|| whole(axis), |own| tile[own].clone());
            axes.map(of).collect()
        };
        let parts: Vec<Tile> = (0..step.spaces.len()).map(part).collect();
        let elements = |(operand, tensor): (usize, &Tensor)| {
            let extents: Vec<i64> = tensor.shape().iter().map(|&extent| extent as i64).collect();
            let spaces = step.spaces.iter().zip(&parts);
            let kept: Vec<Touched> =
                spaces.filter_map(|(space, part)| touched(space, part, operand, &extents)).collect();
            let at = indices(tensor.shape()).into_iter().zip(tensor.elements::<f32>().unwrap());
            at.map(|(at, &own)| if kept.iter().any(|kept| inside(&at, kept)) { own } else { f32::NAN }).collect()
        };
        let operands = self.operands.iter().enumerate().map(elements).collect();
        Memory { parts, operands }
    }

    /// The result that tiles have written is that of the whole step, and a tile got so many bytes in so many phases.
    fn check(&self, result: &[Option<f32>], combined: f64, phases: u32) {
        for (found, expected) in result.iter().zip(&self.whole) {
            let found = found.unwrap_or(f32::NAN);
            assert!((found - expected).abs() <= 1e-5 * expected.abs().max(1.0), "{found} {expected}");
        }
        assert_eq!((self.received, self.phases), (self.given + combined, 1 + phases), "{:?}", self.split.tiles);
    }
}

/// Combine what the tiles of a group have found, results of several numbers each: a tile gets its share of the results from
/// all others and combines them; where all go on with them, each gets the shares of the others. Gives the results and the
/// bytes that the busiest tile got.
fn combine<const N: usize>(
    found: &[Vec<[f32; N]>],
    of_two: impl Fn([f32; N], [f32; N]) -> [f32; N],
    all_need_them: bool,
) -> (Vec<[f32; N]>, f64) {
    let (tiles, results) = (found.len(), found[0].len());
    let share = results.div_ceil(tiles);
    let (mut there, mut back) = (vec![0; tiles], vec![0; tiles]);
    let mut combine = |result: usize| {
        let owner = result / share;
        let others = (0..tiles).filter(|&tile| tile != owner);
        let sum = others.clone().fold(found[owner][result], |sum, tile| {
            there[owner] += N;
            of_two(sum, found[tile][result])
        });
        others.filter(|_| all_need_them).for_each(|tile| back[tile] += N);
        sum
    };
    let combined = (0..results).map(&mut combine).collect();
    // The two ways are phases of their own, in which the busiest tile may be another one.
    let busiest = |received: Vec<usize>| received.into_iter().max().unwrap_or(0);
    (combined, ((busiest(there) + busiest(back)) * size_of::<f32>()) as f64)
}

/// A normalization of two rows of 512 elements on eight tiles, of which several have parts of a row.
#[test]
fn rows_are_normalized_by_tiles_that_share_them() {
    const EPSILON: f32 = 1e-5;
    for center in [true, false] {
        let mut builder = Builder::new(F32);
        let (x, scale) = (builder.input("x", &[2, 512]), builder.input("scale", &[512]));
        let operator = if center { "LayerNormalization" } else { "RMSNormalization" };
        let y = builder.node(operator, &[&x, &scale], vec![float("epsilon", EPSILON)]);
        let placed = placed(&builder.finish(&[(&y, vec![2, 512])]), "8");
        let mut result = vec![None; 2 * 512];
        let mut bytes: f64 = 0.0;
        for group in placed.groups(&[1]) {
            assert!(group.len() > 1, "{:?}", placed.split.tiles);
            let rows = group[0].parts[0][0].clone();
            let row = |memory: &Memory, row: i64| -> Vec<f32> {
                memory.parts[0][1].clone().map(|at| memory.operands[0][(row * 512 + at) as usize]).collect()
            };
            let own = |memory: &Memory, at: i64| {
                let elements = row(memory, at);
                [elements.iter().sum::<f32>(), elements.iter().map(|x| x * x).sum::<f32>()]
            };
            let found: Vec<Vec<[f32; 2]>> =
                group.iter().map(|memory| rows.clone().map(|at| own(memory, at)).collect()).collect();
            let (sums, received) = if center {
                combine(&found, |one, other| [one[0] + other[0], one[1] + other[1]], true)
            } else {
                let squares: Vec<Vec<[f32; 1]>> =
                    found.iter().map(|rows| rows.iter().map(|sums| [sums[1]]).collect()).collect();
                let (squares, received) = combine(&squares, |one, other| [one[0] + other[0]], true);
                (squares.into_iter().map(|[square]| [0.0, square]).collect(), received)
            };
            bytes = bytes.max(received);
            for memory in &group {
                for (at, [sum, squares]) in rows.clone().zip(&sums) {
                    let mean = sum / 512.0;
                    let deviation = (squares / 512.0 - mean * mean + EPSILON).sqrt();
                    for (column, x) in memory.parts[1][1].clone().zip(row(memory, at)) {
                        let y = (x - mean) / deviation * memory.operands[1][column as usize];
                        result[(at * 512 + column) as usize] = Some(y);
                    }
                }
            }
        }
        placed.check(&result, bytes, 2);
    }
}

/// A softmax over 1,024 elements on eight tiles: they share the greatest one, then the sum of the exponentials.
#[test]
fn a_softmax_is_computed_by_tiles_that_share_its_row() {
    let mut builder = Builder::new(F32);
    let x = builder.input("x", &[1, 1024]);
    let y = builder.node("Softmax", &[&x], Vec::new());
    let placed = placed(&builder.finish(&[(&y, vec![1, 1024])]), "8");
    let mut result = vec![None; 1024];
    for group in placed.groups(&[1]) {
        assert!(group.len() > 1, "{:?}", placed.split.tiles);
        let row = |memory: &Memory| -> Vec<f32> {
            memory.parts[2][1].clone().map(|at| memory.operands[0][at as usize]).collect()
        };
        let found: Vec<Vec<[f32; 1]>> =
            group.iter().map(|memory| vec![[row(memory).into_iter().fold(f32::NEG_INFINITY, f32::max)]]).collect();
        let (most, first) = combine(&found, |one, other| [one[0].max(other[0])], true);
        let found: Vec<Vec<[f32; 1]>> =
            group.iter().map(|memory| vec![[row(memory).iter().map(|x| (x - most[0][0]).exp()).sum()]]).collect();
        let (sums, second) = combine(&found, |one, other| [one[0] + other[0]], true);
        for memory in &group {
            for (at, x) in memory.parts[2][1].clone().zip(row(memory)) {
                result[at as usize] = Some((x - most[0][0]).exp() / sums[0][0]);
            }
        }
        placed.check(&result, first + second, 4);
    }
}

/// Attention of two heads for a query over 64 keys on sixteen tiles: those of a head share its keys.
#[test]
fn attention_is_computed_by_tiles_that_share_keys() {
    const HEADS: i64 = 2;
    const KEYS: i64 = 64;
    const OF_KEY: i64 = 16;
    const OF_VALUE: i64 = 8;
    let mut builder = Builder::new(F32);
    let q = builder.input("q", &[1, 1, HEADS * OF_KEY]);
    let (k, v) = (builder.input("k", &[1, KEYS, HEADS * OF_KEY]), builder.input("v", &[1, KEYS, HEADS * OF_VALUE]));
    let heads = vec![integer("q_num_heads", HEADS), integer("kv_num_heads", HEADS)];
    let y = builder.node("Attention", &[&q, &k, &v], heads);
    let placed = placed(&builder.finish(&[(&y, vec![1, 1, HEADS * OF_VALUE])]), "16");
    let mut result = vec![None; (HEADS * OF_VALUE) as usize];
    let mut bytes: f64 = 0.0;
    // The batch, heads of keys, heads of queries for each of these, queries, keys, and elements of values.
    for group in placed.groups(&[4]) {
        assert!(group.len() > 1, "{:?}", placed.split.tiles);
        let heads: Vec<i64> = group[0].parts[2][1].clone().collect();
        let score = |memory: &Memory, head: i64, key: i64| -> f32 {
            let element = |at: i64| {
                let own = head * OF_KEY + at;
                memory.operands[0][own as usize] * memory.operands[1][(key * HEADS * OF_KEY + own) as usize]
            };
            (0..OF_KEY).map(element).sum::<f32>() / (OF_KEY as f32).sqrt()
        };
        let greatest = |memory: &Memory, head: i64| {
            let scores: Vec<f32> = memory.parts[0][4].clone().map(|key| score(memory, head, key)).collect();
            let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            [most, scores.iter().map(|score| (score - most).exp()).sum()]
        };
        let found: Vec<Vec<[f32; 2]>> =
            group.iter().map(|memory| heads.iter().map(|&head| greatest(memory, head)).collect()).collect();
        let below = |of: [f32; 2], most: f32| of[1] * (of[0] - most).exp();
        let of_two = |one: [f32; 2], other: [f32; 2]| {
            let most = one[0].max(other[0]);
            [most, below(one, most) + below(other, most)]
        };
        let (scores, first) = combine(&found, of_two, true);
        let values: Vec<i64> = group[0].parts[2][5].clone().collect();
        let sum = |memory: &Memory, (head, [most, sum]): (i64, [f32; 2]), value: i64| {
            let of_key = |key: i64| {
                let own = memory.operands[2][((key * HEADS + head) * OF_VALUE + value) as usize];
                (score(memory, head, key) - most).exp() / sum * own
            };
            [memory.parts[2][4].clone().map(of_key).sum::<f32>()]
        };
        let found: Vec<Vec<[f32; 1]>> = (group.iter())
            .map(|memory| {
                let heads = heads.iter().copied().zip(scores.iter().copied());
                heads.flat_map(|head| values.iter().map(move |&value| sum(memory, head, value))).collect()
            })
            .collect();
        let (sums, second) = combine(&found, |one, other| [one[0] + other[0]], false);
        bytes = bytes.max(first + second);
        let places = heads.iter().flat_map(|head| values.iter().map(move |value| head * OF_VALUE + value));
        places.zip(sums).for_each(|(at, [sum])| result[at as usize] = Some(sum));
    }
    placed.check(&result, bytes, 3);
}
