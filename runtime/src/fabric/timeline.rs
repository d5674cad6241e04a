//! The timeline: one pass over the steps in program order.

use super::report::{Chip, EnergyParts, EngineReport, Limit, Report, StepReport, TierReport, TransferReport};
use super::transfers::{Arrival, Channel, Needs, needs};
use ipuc_formats::machine::units::{Bytes, Joules, Seconds};
use ipuc_formats::machine::{BoundStep, ENGINES, Homes, Place, Program, Source, StepCost, Style, Target};
use std::collections::HashMap;

/// What works off its steps in order.
#[derive(Debug, Clone, Copy, Default)]
struct Engine {
    /// When its last step ends.
    free: Seconds,
    busy: Seconds,
    stall: Seconds,
}

impl Engine {
    /// A step of so much work, which it is through with at `end`.
    fn run(&mut self, busy: Seconds, end: Seconds) {
        self.stall += (end - self.free - busy).max(Seconds(0.0));
        self.busy += busy;
        self.free = end;
    }
}

/// Run a program whose steps cost `costs` on a machine, without limits on power and temperature and without what is drawn
/// whatever happens ([`bound`](super::bound)).
///
/// `costs` has one entry a step; `local` says which steps find all their operands where they compute.
pub fn simulate(target: &Target, program: &Program, homes: &Homes, costs: &[StepCost], local: &[bool]) -> Report {
    let needs: Vec<Needs> =
        program.steps.iter().zip(costs).map(|(step, cost)| needs(target, program, step, homes, cost)).collect();
    let mut run = Run::new(target, program, homes);
    for (index, step) in program.steps.iter().enumerate() {
        let chained = target.overhead.chained && step.products.is_empty() && local.get(index).copied().unwrap_or(false);
        run.step(step, &costs[index], &needs, index, chained);
    }
    run.finish(program)
}

/// Room in the tiles for transfers that are ahead: half of what weights leave there, beside which the other half holds what
/// runs.
pub fn room(target: &Target, program: &Program, homes: &Homes) -> Bytes {
    let resident = match homes.weights {
        Place::Tiles => Bytes(program.weight_bytes),
        Place::Tier(_) => Bytes(program.resident_bytes),
    };
    (target.sram() - resident).max(Bytes(0.0)) * 0.5
}

struct Run<'a> {
    target: &'a Target,
    channels: Vec<Channel>,
    engines: [Engine; ENGINES.len()],
    /// When each value is computed, and by which engines.
    ready: HashMap<Source, (Seconds, Vec<usize>)>,
    /// Room in the tiles for transfers that are ahead.
    room: Bytes,
    steps: Vec<StepReport>,
    /// The first step whose transfers are not issued.
    issued: usize,
    arrivals: Vec<Vec<Arrival>>,
    /// Bytes that were issued ahead and are not used yet.
    ahead: Bytes,
    tiers: Vec<TierReport>,
    transfers: Vec<TransferReport>,
    macs: f64,
}

impl<'a> Run<'a> {
    fn new(target: &'a Target, program: &Program, homes: &Homes) -> Run<'a> {
        Run {
            target,
            channels: vec![Channel::default(); target.tiers.len()],
            engines: [Engine::default(); ENGINES.len()],
            ready: HashMap::new(),
            room: room(target, program, homes),
            steps: Vec::with_capacity(program.steps.len()),
            issued: 0,
            arrivals: Vec::with_capacity(program.steps.len()),
            ahead: Bytes(0.0),
            tiers: vec![TierReport::default(); target.tiers.len()],
            transfers: Vec::new(),
            macs: 0.0,
        }
    }

    /// Move bytes from each tier for a step, not before `from`.
    fn transfer(&mut self, step: usize, bytes: &[Bytes], times: f64, from: Seconds) -> Vec<Arrival> {
        let target = self.target;
        let tiers = target.tiers.iter().zip(bytes).enumerate();
        let moved = tiers.map(|(index, (tier, &bytes))| {
            let bytes = bytes * times;
            self.move_bytes((index, step), bytes, bytes / tier.read, (from, tier.latency), false)
        });
        moved.collect()
    }

    /// Move bytes between a tier and the tiles for a step, from a time on, after a latency.
    fn move_bytes(
        &mut self,
        (tier, step): (usize, usize),
        bytes: Bytes,
        time: Seconds,
        (from, latency): (Seconds, Seconds),
        write: bool,
    ) -> Arrival {
        let chunk = self.target.tiers[tier].chunk;
        let channel = &mut self.channels[tier];
        let arrival = channel.transfer(from, (bytes, chunk), time, latency);
        if bytes.0 > 0.0 {
            let end = channel.free;
            self.transfers.push(TransferReport { tier, step, start: end - time, end, bytes, write });
        }
        arrival
    }

    /// Issue transfers ahead, in order, as long as there is room for all of each.
    fn prefetch(&mut self, program_needs: &[Needs], current: usize, from: Seconds) {
        while self.issued < program_needs.len() {
            let bytes: Bytes = program_needs[self.issued].stored.iter().copied().sum();
            let fits = self.ahead + bytes.min(self.room) <= self.room || self.issued <= current;
            if !fits {
                break;
            }
            self.ahead += bytes.min(self.room);
            let arrivals = self.transfer(self.issued, &program_needs[self.issued].stored, 1.0, from);
            self.arrivals.push(arrivals);
            self.issued += 1;
        }
    }

    fn step(&mut self, step: &BoundStep, cost: &StepCost, needs: &[Needs], index: usize, chained: bool) {
        let own = &needs[index];
        let (gap, work) = self.busy(step, cost, chained);
        let busy = gap + work;
        let parts = self.parts(step, cost, work);
        let used: Vec<usize> = (0..parts.len()).filter(|&engine| parts[engine].0 > 0.0).collect();
        // The engine that it takes longest stands for it in the report.
        let longest = used.iter().rev().copied().max_by(|&left, &right| parts[left].0.total_cmp(&parts[right].0));
        let engine = longest.unwrap_or(0);
        let free = self.engines[engine].free;
        let computed = self.computed(step, &used);
        let earliest = used.iter().fold(free.max(computed), |latest, &engine| latest.max(self.engines[engine].free));
        let arrivals = self.arrivals_of(step, needs, index, (earliest, gap));
        let first = arrivals.iter().map(|arrival| arrival.first).fold(Seconds(0.0), Seconds::max);
        let queues = self.target.style == Style::Queues;
        let start = if queues { (computed + gap).max(first) } else { (earliest + gap).max(first) };
        let mut end = arrivals.iter().fold(start + work, |end, arrival| end.max(arrival.last));
        if queues {
            end = used.iter().fold(end, |end, &engine| end.max(self.engines[engine].free.max(start) + parts[engine]));
        }
        let late = arrivals.iter().map(|arrival| arrival.first.max(arrival.last - work));
        let slowest = late.enumerate().max_by(|(_, left), (_, right)| left.0.total_cmp(&right.0)).map(|(tier, _)| tier);
        // Further runs of a body read their bytes again, and later; results are written when they are computed.
        if self.target.policy.prefetch && step.times > 1.0 {
            let again = self.transfer(index, &own.stored, step.times - 1.0, start);
            end = again.iter().fold(end, |end, arrival| end.max(arrival.last));
        }
        end = self.write(index, own, step.times, (start, end), cost.stages);
        // An engine with a queue goes on to its next instruction; all tiles together wait for the end of a step.
        let before = self.engines[engine].stall;
        if queues {
            for &engine in &used {
                let own = &mut self.engines[engine];
                own.run(parts[engine], own.free.max(start) + parts[engine]);
            }
        } else {
            self.engines[engine].run(busy, end);
        }
        let stall = self.engines[engine].stall - before;
        let waited = (computed - free).max(Seconds(0.0)).min(stall);
        let mut tier_stalls = vec![Seconds(0.0); arrivals.len()];
        if let Some(tier) = slowest {
            tier_stalls[tier] = stall - waited;
            self.tiers[tier].stall += stall - waited;
        }
        self.macs += cost.macs * step.times;
        self.account(step, own);
        self.ahead = (self.ahead - own.stored.iter().copied().sum::<Bytes>().min(self.room)).max(Bytes(0.0));
        for result in &step.results {
            self.ready.insert(result.source, (end, used.clone()));
        }
        let limit = self.limit(cost, busy, stall - waited, slowest);
        self.steps.push(StepReport {
            start: if busy.0 == 0.0 && stall.0 == 0.0 { end } else { free },
            end,
            busy,
            stall,
            tier_stalls,
            read: (0..self.tiers.len()).map(|tier| own.read(tier) * step.times).collect(),
            written: own.written.iter().map(|&bytes| bytes * step.times).collect(),
            energy: self.energy(step, cost, own),
            limit,
        });
    }

    /// When everything is there that a step needs of earlier ones; but for what one engine alone made for itself, engines wait
    /// for it with a semaphore.
    fn computed(&self, step: &BoundStep, used: &[usize]) -> Seconds {
        let semaphore = self.target.overhead.semaphore;
        let operands = step.operands.iter().flatten().filter_map(|tensor| self.ready.get(&tensor.source));
        let times = operands
            .map(|(end, by)| if used.is_empty() || (used.len() == 1 && by == used) { *end } else { *end + semaphore });
        times.fold(Seconds(0.0), Seconds::max)
    }

    /// When the bytes arrive that a step reads from each tier.
    fn arrivals_of(
        &mut self,
        step: &BoundStep,
        needs: &[Needs],
        index: usize,
        (earliest, gap): (Seconds, Seconds),
    ) -> Vec<Arrival> {
        let own = &needs[index];
        if !self.target.policy.prefetch {
            // Operands stream side by side, as the step asks for them.
            let all: Vec<Bytes> = (0..own.stored.len()).map(|tier| own.read(tier)).collect();
            return self.transfer(index, &all, step.times, earliest + gap);
        }
        self.prefetch(needs, index, earliest);
        let mut arrivals = self.arrivals[index].clone();
        // Results of earlier steps are not there before they are computed.
        let of_results = self.transfer(index, &own.computed, step.times, earliest + gap);
        for (arrival, other) in arrivals.iter_mut().zip(of_results) {
            *arrival = Arrival { first: arrival.first.max(other.first), last: arrival.last.max(other.last) };
        }
        arrivals
    }

    /// What a step takes of each engine; all of them are one where there are no queues.
    fn parts(&self, step: &BoundStep, cost: &StepCost, work: Seconds) -> [Seconds; ENGINES.len()] {
        let mut parts = [Seconds(0.0); ENGINES.len()];
        if self.target.style != Style::Queues || work.0 == 0.0 {
            parts[0] = work;
            return parts;
        }
        let overhead = &self.target.overhead;
        for (part, cycles) in parts.iter_mut().zip(cost.engines()) {
            if cycles.0 > 0.0 {
                *part = (cycles / self.target.tiles.clock + overhead.step) * step.times;
            }
        }
        // The host starts all of a step.
        let longest = parts.iter().copied().fold(Seconds(0.0), Seconds::max);
        parts.iter_mut().filter(|part| part.0 > 0.0).for_each(|part| *part += (work - longest).max(Seconds(0.0)));
        if parts.iter().all(|part| part.0 == 0.0) {
            // It is started, and does nothing.
            parts[ENGINES.len() - 1] = work;
        }
        parts
    }

    /// Time before a step and of its work, over all of its runs. A view takes none, but where starting one does; a step that is chained starts with the one before.
    fn busy(&self, step: &BoundStep, cost: &StepCost, chained: bool) -> (Seconds, Seconds) {
        let overhead = &self.target.overhead;
        if step.view && overhead.view.0 > 0.0 {
            return (overhead.gap * step.times, (overhead.view + overhead.host) * step.times);
        }
        if step.view || (step.spaces.is_empty() && step.products.is_empty()) {
            return (Seconds(0.0), Seconds(0.0));
        }
        let duration = cost.duration(self.target);
        let duration = if chained { duration - overhead.step } else { duration };
        let gap = if chained { Seconds(0.0) } else { overhead.gap };
        // What the host has not started reads nothing.
        let waits = !overhead.host_ahead && self.target.style != Style::Queues;
        let started = if waits { overhead.host } else { Seconds(0.0) };
        ((gap + started) * step.times, (duration - started) * step.times)
    }

    /// Results that live in a tier are written while the step makes further ones: the last part follows its end, and all
    /// of them where they are made in one part.
    fn write(
        &mut self,
        step: usize,
        own: &Needs,
        times: f64,
        (start, end): (Seconds, Seconds),
        stages: u32,
    ) -> Seconds {
        let target = self.target;
        let mut last = end;
        for (index, tier) in target.tiers.iter().enumerate() {
            let bytes = own.written[index] * times;
            if bytes.0 > 0.0 {
                let time = bytes / tier.write;
                let first = start.max(end - time * (1.0 - 1.0 / f64::from(stages.max(1))));
                let arrival = self.move_bytes((index, step), bytes, time, (first, Seconds(0.0)), true);
                if !target.policy.prefetch {
                    last = last.max(arrival.last);
                }
            }
        }
        last
    }

    fn account(&mut self, step: &BoundStep, own: &Needs) {
        for (index, tier) in self.tiers.iter_mut().enumerate() {
            tier.read += own.read(index) * step.times;
            tier.written += own.written[index] * step.times;
        }
    }

    fn energy(&self, step: &BoundStep, cost: &StepCost, own: &Needs) -> EnergyParts {
        let energy = &self.target.energy;
        let tiers = self.target.tiers.iter().enumerate();
        EnergyParts {
            matrix: cost.matrix_energy * step.times,
            vector: cost.vector_energy * step.times,
            sram: energy.sram * cost.sram_traffic * step.times,
            exchange: (energy.exchange * cost.exchanged + energy.hop * cost.byte_hops) * step.times,
            tiers: tiers
                .map(|(index, tier)| tier.energy * (own.read(index) + own.written[index]) * step.times)
                .collect(),
            links: Joules(0.0),
            static_energy: Joules(0.0),
        }
    }

    fn limit(&self, cost: &StepCost, busy: Seconds, stall: Seconds, tier: Option<usize>) -> Limit {
        if busy.0 == 0.0 && stall.0 == 0.0 {
            return Limit::Nothing;
        }
        let clock = self.target.tiles.clock;
        let parts = [
            (Limit::Matrix, cost.matrix / clock),
            (Limit::Vector, (cost.vector + cost.copies) / clock),
            (Limit::Exchange, (cost.exchange + cost.sync + cost.latency(self.target)) / clock),
            (Limit::Overhead, self.target.overhead.step + self.target.overhead.gap + self.target.overhead.host),
        ];
        if let Some(tier) = tier.filter(|_| stall > busy) {
            return Limit::Tier(tier);
        }
        let greatest = parts.into_iter().rev().max_by(|left, right| left.1.0.total_cmp(&right.1.0));
        greatest.map_or(Limit::Nothing, |(limit, _)| limit)
    }

    fn finish(mut self, program: &Program) -> Report {
        let target = self.target;
        let ends = self.engines.iter().map(|engine| engine.free).chain(self.steps.iter().map(|step| step.end));
        let mut makespan = ends.fold(Seconds(0.0), Seconds::max);
        // Writes that no step waited for.
        makespan = self.channels.iter().map(|channel| channel.free).fold(makespan, Seconds::max);
        let mut energy = EnergyParts { tiers: vec![Joules(0.0); target.tiers.len()], ..EnergyParts::default() };
        for step in &self.steps {
            energy.matrix += step.energy.matrix;
            energy.vector += step.energy.vector;
            energy.sram += step.energy.sram;
            energy.exchange += step.energy.exchange;
            for (sum, own) in energy.tiers.iter_mut().zip(&step.energy.tiers) {
                *sum += *own;
            }
        }
        if let Some(rate) = target.overhead.results.filter(|_| target.overhead.waits_for_results) {
            makespan += Bytes(program.result_bytes) / rate;
        }
        for (tier, channel) in self.tiers.iter_mut().zip(&self.channels) {
            tier.busy = channel.busy;
        }
        let names: &[&'static str] = if target.style == Style::Queues { &ENGINES } else { &["tiles"] };
        let engines = names.iter().zip(&self.engines).map(|(&name, engine)| EngineReport {
            name,
            busy: engine.busy,
            stall: engine.stall,
            idle: makespan - engine.free,
        });
        let engines: Vec<EngineReport> = engines.collect();
        Report {
            makespan,
            cycles: makespan * target.tiles.clock,
            throttled: Seconds(0.0),
            busy: engines.iter().map(|engine| engine.busy).sum(),
            stall: engines.iter().map(|engine| engine.stall).sum(),
            engines,
            tiers: self.tiers,
            transfers: self.transfers,
            energy,
            macs: self.macs,
            left_out_macs: (program.macs() - self.macs).max(0.0),
            utilization: None,
            chips: vec![Chip {
                first: 0,
                start: Seconds(0.0),
                end: makespan,
                received: Bytes(0.0),
                link: Seconds(0.0),
            }],
            interval: makespan,
            heat: None,
            steps: self.steps,
        }
    }
}
