//! What tiles exchange for a step: operands that lie elsewhere, partial sums, and elements of a recurrent state.
//!
//! It follows from the loops of the step, how they are split, and the parts that values lie in: bytes and separate transfers
//! of the busiest receiver and the busiest sender, and what crosses the middle of the machine.

use super::grid::{Route, busiest_link};
use super::program::{BoundStep, BoundTensor, Source};
use super::split::{
    Layout, PARTIAL, Points, Split, bytes_of_tile, kept_points, layout_of, needed_extents, partial_bytes,
    reduced_parts, tile_extents,
};
use super::step_cost::StepCost;
use super::target::{Style, Target};
use super::units::{Bytes, Cycles};
use crate::ops::AxisKind;

/// What the busiest tiles of a machine receive and send.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Traffic {
    /// Bytes that a tile receives.
    pub received: Bytes,
    /// Of those, bytes that its neighbour receives at the same time.
    pub shared: Bytes,
    /// Separate transfers that it receives.
    pub transfers: f64,
    /// Bytes that a tile sends, to however many at once.
    pub sent: Bytes,
    /// Separate transfers that it sends.
    pub transfers_sent: f64,
    /// Bytes that cross the middle of the machine.
    pub crossing: Bytes,
    /// Bytes over the busiest link between neighbours.
    pub link: Bytes,
    /// Phases in which it happens.
    pub phases: u32,
}

impl Traffic {
    pub(super) fn of(cost: &StepCost) -> Traffic {
        Traffic {
            received: cost.received,
            shared: cost.shared,
            transfers: cost.transfers,
            sent: cost.sent,
            transfers_sent: cost.transfers_sent,
            crossing: cost.crossing,
            link: cost.link,
            phases: cost.phases,
        }
    }

    /// Beside other traffic of the same phase; of what neighbours share only the greatest part counts.
    fn add(&mut self, other: &Traffic) {
        self.received += other.received;
        self.shared = self.shared.max(other.shared);
        self.transfers += other.transfers;
        self.sent += other.sent;
        self.transfers_sent += other.transfers_sent;
        self.crossing += other.crossing;
        self.link += other.link;
        self.phases += other.phases;
    }
}

/// Cycles of an exchange: bytes, control of transfers, the busiest link and what crosses the middle go on side by side, in a
/// schedule that reaches a share of that; each phase adds its fixed cost.
pub fn exchange_cycles(target: &Target, traffic: &Traffic) -> Cycles {
    let exchange = &target.exchange;
    let alone = (traffic.received - traffic.shared) / exchange.receive;
    let received = alone + traffic.shared / exchange.shared.unwrap_or(exchange.receive);
    // Elsewhere values lie in a memory that all tiles read, or pass by in streams.
    let from_tiles = matches!(target.style, Style::Bsp | Style::Packet);
    let sent = if from_tiles { traffic.sent / exchange.receive } else { Cycles(0.0) };
    let transfers = if from_tiles { traffic.transfers.max(traffic.transfers_sent) } else { traffic.transfers };
    let crossing = exchange.bisection.map_or(Cycles(0.0), |rate| traffic.crossing / rate);
    let link = exchange.link.map_or(Cycles(0.0), |rate| traffic.link / rate);
    let moving = received.max(sent).max(exchange.transfer * transfers).max(crossing).max(link);
    moving * (1.0 / exchange.efficiency) + exchange.phase * f64::from(traffic.phases)
}

/// Operands that lie elsewhere are received; everything touched is read from or written to the tiles' memories.
pub(super) fn traffic(target: &Target, step: &BoundStep, split: &Split, layouts: &[Layout], cost: &mut StepCost) {
    let tiles = f64::from(cost.tiles);
    let mut flow = Flow::default();
    for (operand, tensor) in step.operands.iter().enumerate() {
        let Some(tensor) = tensor else { continue };
        let needed = bytes_of_tile(step, split, operand, Points::All);
        let staged = bytes_of_tile(step, split, operand, Points::Staged);
        let from = layouts.get(operand).and_then(Option::as_ref);
        match tensor.source {
            // Of gathered weights only the parts that are picked are there.
            Source::Weight(_) => {
                cost.sram += staged.min(Bytes(step.weight_bytes));
                if !rests_in_place(target, step, split, operand) {
                    flow.add_weight(target, tensor, needed.min(Bytes(step.weight_bytes)), cost.tiles);
                }
            }
            // State stays in the parts that the step which uses it needs, as weights do.
            Source::State(_) if from.is_none() => cost.sram += staged,
            Source::Value(_) | Source::State(_) => {
                cost.sram += staged;
                // What one tile computes alone may have been made there, where nothing says otherwise.
                if !is_local(step, split, operand, from) && (cost.tiles > 1 || from.is_some()) {
                    flow.add_value(target, (step, split, operand), tensor, from, needed);
                }
            }
        }
        let read = match tensor.source {
            Source::Weight(_) if step.weight_bytes > 0.0 => step.read_weight_bytes() / step.weight_bytes,
            Source::Weight(_) | Source::Value(_) | Source::State(_) => 1.0,
        };
        cost.sram_traffic += needed.min(Bytes(tensor.bytes)) * (tiles * read);
    }
    for index in 0..step.results.len() {
        let own = bytes_of_tile(step, split, step.operands.len() + index, Points::All);
        cost.sram += bytes_of_tile(step, split, step.operands.len() + index, Points::Staged);
        cost.sram_traffic += own * tiles;
        if step.moves {
            // Elements that were received in another order are put in place, each on one tile, also where it is not known
            // which.
            let whole = Bytes(step.results[index].bytes);
            let moved = if own < whole { own } else { whole * (1.0 / tiles) };
            let runs = target.tiles.run * (moved / run_bytes(step, split, index).min(moved.max(Bytes(1.0))));
            cost.copies += (moved * 2.0 / target.tiles.bandwidth).max(runs);
        }
    }
    flow.into_cost(target, cost);
}

/// Weights are not taken apart further than this: a run of it moves as one.
const SMALLEST_PART: Bytes = Bytes(64.0);

/// What the operands of a step bring about.
#[derive(Default)]
struct Flow {
    all: Traffic,
    /// Of values that lie in other parts than those that are needed.
    relayout: Traffic,
    /// Copies that bring these into order.
    arranged: Cycles,
}

impl Flow {
    /// A weight lies in even parts in all tiles, and each part goes once to all that need it.
    fn add_weight(&mut self, target: &Target, tensor: &BoundTensor, needed: Bytes, tiles: u32) {
        let share = Bytes(tensor.bytes / f64::from(target.tiles.count.get())).max(SMALLEST_PART);
        let all = Bytes(tensor.bytes).min(needed * f64::from(tiles));
        self.all.add(&Traffic {
            received: needed,
            transfers: (needed / share).ceil(),
            sent: share.min(all),
            transfers_sent: 1.0,
            crossing: all,
            link: busiest_link(
                target,
                Route {
                    sources: f64::from(target.tiles.count.get()),
                    destinations: f64::from(tiles),
                    bytes: all,
                    many: tiles > 1,
                },
            ),
            ..Traffic::default()
        });
    }

    fn add_value(
        &mut self,
        target: &Target,
        (step, split, operand): (&BoundStep, &Split, usize),
        tensor: &BoundTensor,
        from: Option<&Vec<u32>>,
        needed: Bytes,
    ) {
        let together = readers(step, split, operand);
        let groups = f64::from(split.tile_count() / together);
        let transfers = match (from, needed_extents(step, split, operand)) {
            (Some(from), Some(touched)) => pieces(&tensor.extents, from, &touched),
            (Some(_) | None, _) => 1.0,
        };
        let most = target.exchange.block.map_or(f64::INFINITY, |block| (needed / block).ceil().max(1.0));
        let transfers = transfers.min(most);
        let sources = from
            .map_or(f64::from(target.tiles.count.get()), |from| from.iter().map(|&parts| f64::from(parts)).product());
        let own = Traffic {
            received: needed,
            // Of two operands, neighbours have only one in common.
            shared: if together.is_multiple_of(2) { needed } else { Bytes(0.0) },
            transfers,
            sent: needed * (groups / sources),
            transfers_sent: transfers * groups / sources,
            crossing: needed * if together > 1 { groups } else { groups * 0.5 },
            link: busiest_link(
                target,
                Route {
                    sources,
                    destinations: f64::from(split.tile_count()),
                    bytes: needed * groups,
                    many: together > 1,
                },
            ),
            phases: 0,
        };
        self.all.add(&own);
        if from.is_some() {
            self.relayout.add(&own);
            // Each element once, on one of the tiles that have it.
            self.arranged += target.exchange.arrange * (tensor.elements() / sources);
        }
    }

    fn into_cost(self, target: &Target, cost: &mut StepCost) {
        let Flow { all, relayout, arranged } = self;
        cost.copies += arranged;
        if all.received.0 <= 0.0 {
            return;
        }
        cost.phases += 1;
        cost.received += all.received;
        cost.shared = cost.shared.max(all.shared);
        cost.transfers += all.transfers;
        cost.sent += all.sent;
        cost.transfers_sent += all.transfers_sent;
        cost.crossing += all.crossing;
        cost.link += all.link;
        let tiles = f64::from(cost.tiles);
        cost.exchanged += all.received * tiles;
        cost.relayout = exchange_cycles(target, &relayout);
        cost.relayout_bytes = relayout.received * tiles;
        cost.relayout_transfers = relayout.transfers;
    }
}

/// Bytes of the runs in which a tile's part of a result keeps the order that the elements have in operand 0: from the last
/// axis on, as far as both go along the same axes and have all of them.
fn run_bytes(step: &BoundStep, split: &Split, result: usize) -> Bytes {
    let tensor = &step.results[result];
    let count: f64 = tensor.extents.iter().map(|&extent| extent as f64).product();
    let element = if count > 0.0 { tensor.bytes / count } else { 1.0 };
    let (Some(last), Some(Some(operand))) = (step.spaces.len().checked_sub(1), step.operands.first()) else {
        return Bytes(element);
    };
    let own = tile_extents(step, last, split);
    let at = |tensor: usize, axis: usize| {
        let axes = step.spaces[last].axes.iter().enumerate();
        let mut axes = axes.filter(move |(_, own)| {
            own.at.get(tensor).copied().flatten().is_some_and(|index| index.axis as usize == axis && index.stride == 1)
        });
        axes.next().map(|(index, _)| index)
    };
    let mut run = 1.0;
    for (to, from) in (0..tensor.extents.len()).rev().zip((0..operand.extents.len()).rev()) {
        let (Some(axis), read) = (at(step.operands.len() + result, to), at(0, from)) else { break };
        if read != Some(axis) {
            break;
        }
        run *= own[axis] as f64;
        if own[axis] != tensor.extents[to] || own[axis] != operand.extents[from] {
            break;
        }
    }
    Bytes(element * run)
}

/// Whether a weight lies where the points of a step need it: the tiles have room for what each of them needs from run to
/// run, or it comes from elsewhere than from tiles.
pub fn rests_in_place(target: &Target, step: &BoundStep, split: &Split, operand: usize) -> bool {
    let (Some(shares), Some(Some(tensor))) = (step.weight_shares, step.operands.get(operand)) else { return true };
    let share = tensor.bytes / f64::from(target.tiles.count.get());
    bytes_of_tile(step, split, operand, Points::All).0 <= share * shares
}

/// Tiles that need the same part of an operand.
fn readers(step: &BoundStep, split: &Split, operand: usize) -> u32 {
    let is_in = |axis: &crate::ops::Axis| axis.at.get(operand).is_some_and(Option::is_some);
    let reading = step.spaces.iter().zip(&split.tiles).filter(|(space, _)| space.axes.iter().any(is_in));
    let parts = reading.map(|(space, parts)| {
        let own = space.axes.iter().zip(parts).filter(|(axis, _)| is_in(axis));
        own.fold(1u32, |count, (_, &parts)| count.saturating_mul(parts))
    });
    split.tile_count() / parts.max().unwrap_or(1)
}

/// Whether each tile of a step finds its part of an operand where it computes: the operand lies in the same parts, and no
/// two tiles need the same one.
pub fn is_local(step: &BoundStep, split: &Split, operand: usize, from: Option<&Vec<u32>>) -> bool {
    let (Some(from), Some(last)) = (from, step.spaces.len().checked_sub(1)) else { return false };
    let parts = from.iter().fold(1u32, |count, &parts| count.saturating_mul(parts));
    parts == split.tile_count() && layout_of(step, last, split, operand, from.len()) == *from
}

/// Separate runs of bytes that a tile's part of a value comes in, when the value lies in these parts: they end where either
/// the part that it lies in or the one that is needed does. `touched` are the positions that are needed on each axis.
fn pieces(extents: &[i64], from: &[u32], touched: &[f64]) -> f64 {
    let (mut count, mut whole) = (1.0, true);
    for ((&extent, &parts), &needed) in extents.iter().zip(from).zip(touched).rev() {
        let held = (extent.max(1) as f64 / f64::from(parts.max(1))).ceil();
        let needed = needed.max(1.0);
        let own = needed.min(held);
        count *= (needed / held).ceil();
        if !whole {
            count *= own;
        }
        whole &= own == held && own == needed;
    }
    count
}

/// How partial results are combined.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Combined {
    /// Numbers that the busiest tile receives to combine its share.
    there: f64,
    /// Those that it receives where all tiles get all results afterwards.
    back: f64,
    /// Phases of one way.
    phases: u32,
}

/// So many results, each of so many numbers, of so many parts: each tile combines whole results, all parts at once, or first in
/// groups and then over them, whichever is faster.
fn combined(target: &Target, tiles: u32, (results, numbers): (f64, f64), parts: f64) -> Combined {
    let once = |results: f64, parts: f64| {
        let others = (results / parts).ceil() * (parts - 1.0);
        Combined { there: others * numbers, back: results.min(others) * numbers, phases: 1 }
    };
    let groups = parts.sqrt().ceil();
    let direct = once(results, parts);
    let (within, over) = (once(results, groups), once((results / groups).ceil(), (parts / groups).ceil()));
    let grouped = Combined { there: within.there + over.there, back: within.back + over.back, phases: 2 };
    let phase = StepCost { tiles, phases: 1, ..StepCost::default() }.latency(target);
    let phase = phase + target.exchange.phase + target.overhead.sync;
    let cycles = |way: &Combined| Bytes(way.there * PARTIAL) / target.exchange.receive + phase * f64::from(way.phases);
    if cycles(&grouped) < cycles(&direct) { grouped } else { direct }
}

/// Partial sums of axes that are split are combined in one more phase: each tile sums a share of the results. Where a later
/// space needs them, they come back to all tiles that share them in another phase.
pub(super) fn reductions(target: &Target, step: &BoundStep, split: &Split, cost: &mut StepCost) {
    for space in 0..step.spaces.len() {
        let parts = reduced_parts(step, space, split);
        if parts <= 1.0 {
            continue;
        }
        let results = kept_points(step, space, &tile_extents(step, space, split));
        let numbers = f64::from(step.spaces[space].numbers);
        let Combined { there, back, phases } = combined(target, cost.tiles, (results, numbers), parts);
        let writes = step.spaces[space].writes(step.operands.len());
        let (back, ways) = if writes { (0.0, 1) } else { (back, 2) };
        let received = Bytes((there + back) * PARTIAL);
        cost.phases += ways * phases;
        cost.received += received;
        cost.exchanged += received * f64::from(cost.tiles);
        cost.transfers += (parts - 1.0) * f64::from(ways);
        cost.sent += received;
        cost.transfers_sent += (parts - 1.0) * f64::from(ways);
        let moved = received * f64::from(cost.tiles);
        cost.crossing += moved * 0.5;
        // Within each group of tiles that share sums.
        let groups = (f64::from(cost.tiles) / parts).max(1.0);
        cost.link += among_all(target, parts, moved * (1.0 / groups));
        cost.vector += Cycles(there / target.vector.arithmetic);
    }
    cost.sram += partial_bytes(step, split);
}

/// Tiles that share the elements of a recurrent state get those of all others once for each step of the recurrence.
pub(super) fn recurrences(target: &Target, step: &BoundStep, split: &Split, cost: &mut StepCost) {
    let Some(last) = step.spaces.len().checked_sub(1) else { return };
    let axes = || step.spaces[last].axes.iter().zip(&step.extents[last]).zip(&split.tiles[last]);
    let shared = axes().find(|((axis, _), parts)| axis.kind == AxisKind::Recurrent && **parts > 1);
    let Some(((_, &extent), &parts)) = shared else { return };
    let rounds = axes().find(|((axis, _), _)| axis.kind == AxisKind::Serial).map_or(1, |((_, &extent), _)| extent);
    let own = axes().zip(tile_extents(step, last, split));
    let sequences = own.filter(|(((axis, _), _), _)| axis.kind == AxisKind::Parallel).map(|(_, own)| own as f64);
    let others = extent - (extent + i64::from(parts) - 1) / i64::from(parts);
    let Some(result) = step.results.first() else { return };
    let elements = result.extents.iter().map(|&extent| extent as f64).product::<f64>().max(1.0);
    let rounds = u32::try_from(rounds).unwrap_or(u32::MAX);
    let received = Bytes(sequences.product::<f64>() * others as f64 * result.bytes / elements) * f64::from(rounds);
    cost.phases = cost.phases.saturating_add(rounds);
    cost.received += received;
    cost.exchanged += received * f64::from(cost.tiles);
    cost.transfers += f64::from(parts - 1) * f64::from(rounds);
    cost.crossing += received * (f64::from(cost.tiles) * 0.5);
    cost.link += among_all(target, f64::from(cost.tiles), received * f64::from(cost.tiles));
}

/// Bytes over the busiest link where all of so many tiles send to all.
fn among_all(target: &Target, tiles: f64, bytes: Bytes) -> Bytes {
    busiest_link(target, Route { sources: tiles, destinations: tiles, bytes, many: false })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::built_in;

    #[test]
    fn tiles_sum_whole_elements_in_groups_where_there_are_few() {
        let target = built_in("cerebras-wse3", &[]).unwrap().unwrap();
        // 100 results of 10 parts: each tile receives 10 of 9 others.
        let way = |there: f64, back: f64, phases: u32| Combined { there, back, phases };
        assert_eq!(combined(&target, 10, (100.0, 1.0), 10.0), way(90.0, 90.0, 1));
        // A result of two numbers is combined by one tile, and the others get it.
        assert_eq!(combined(&target, 4, (1.0, 2.0), 4.0), way(6.0, 2.0, 1));
        // One result of 400 parts: 20 parts in each of 20 groups, then their 20 sums.
        assert_eq!(combined(&target, 400, (1.0, 1.0), 400.0), way(38.0, 2.0, 2));
        // A phase costs more than the elements that it saves.
        let target = built_in("graphcore-c600", &[]).unwrap().unwrap();
        assert_eq!(combined(&target, 16, (1.0, 1.0), 16.0), way(15.0, 1.0, 1));
    }

    #[test]
    fn pieces_end_where_the_part_that_they_lie_in_or_the_one_that_is_needed_does() {
        // All of 8 x 12, from one tile: one run.
        assert_eq!(pieces(&[8, 12], &[1, 1], &[8.0, 12.0]), 1.0);
        // From four tiles with two rows each, and two tiles with halves of the columns: rows of halves.
        assert_eq!(pieces(&[8, 12], &[4, 1], &[8.0, 12.0]), 4.0);
        assert_eq!(pieces(&[8, 12], &[1, 2], &[8.0, 12.0]), 2.0 * 8.0);
        // A column of each row, and the same where the rows are on tiles of their own.
        assert_eq!(pieces(&[8, 12], &[1, 1], &[8.0, 1.0]), 8.0);
        assert_eq!(pieces(&[8, 12], &[8, 1], &[8.0, 1.0]), 8.0);
        // Two rows of those that one tile has.
        assert_eq!(pieces(&[8, 12], &[2, 1], &[2.0, 12.0]), 1.0);
        // Queries in two parts of the rows and 46 of the keys, needed in whole rows, eight at a time.
        assert_eq!(pieces(&[16, 729, 729], &[16, 2, 46], &[1.0, 8.0, 729.0]), 46.0 * 8.0);
    }

    #[test]
    fn control_and_bytes_go_on_side_by_side_and_hot_senders_are_waited_for() {
        let target = built_in("graphcore-c600", &[]).unwrap().unwrap();
        let base = Traffic { received: Bytes(4000.0), transfers: 10.0, phases: 1, ..Traffic::default() };
        let cycles = |traffic: Traffic| {
            (exchange_cycles(&target, &traffic) - target.exchange.phase) * target.exchange.efficiency
        };
        let close = |found: Cycles, expected: f64| (found.0 - expected).abs() < 1e-6;
        assert!(close(cycles(base), 1000.0), "{:?}", cycles(base));
        let many = Traffic { transfers: 1000.0, ..base };
        assert!(close(cycles(many), 1000.0 * target.exchange.transfer.0), "{:?}", cycles(many));
        assert!(close(cycles(Traffic { transfers: 1.0, transfers_sent: 1000.0, ..base }), cycles(many).0));
        assert!(close(cycles(Traffic { sent: Bytes(8000.0), ..base }), 2000.0));
        assert!(close(cycles(Traffic { shared: Bytes(4000.0), ..base }), 500.0));
    }
}
