//! Several machines one after another: each runs some of the steps, and hands what later ones need on to the next.

use super::report::{Chip, EnergyParts, Report, TierReport};
use ipuc_formats::machine::units::{Bytes, Joules, Seconds};
use ipuc_formats::machine::{Links, Target};

/// The runs of several machines as one: `received` are the bytes that each gets from the one before. Its first step waits
/// for all of them.
pub fn join(target: &Target, links: &Links, parts: Vec<Report>, received: &[Bytes]) -> Report {
    let none = EnergyParts { tiers: vec![Joules(0.0); target.tiers.len()], ..EnergyParts::default() };
    let mut whole = Report {
        steps: Vec::new(),
        makespan: Seconds(0.0),
        cycles: Seconds(0.0) * target.tiles.clock,
        throttled: Seconds(0.0),
        busy: Seconds(0.0),
        stall: Seconds(0.0),
        engines: Vec::new(),
        tiers: vec![TierReport::default(); target.tiers.len()],
        transfers: Vec::new(),
        energy: none,
        macs: 0.0,
        left_out_macs: 0.0,
        utilization: None,
        chips: Vec::new(),
        interval: Seconds(0.0),
        heat: None,
    };
    for (index, part) in parts.into_iter().enumerate() {
        let bytes = if index == 0 { Bytes(0.0) } else { received.get(index).copied().unwrap_or(Bytes(0.0)) };
        let moving = bytes / links.bandwidth;
        let link = if bytes.0 > 0.0 { moving + links.latency } else { Seconds(0.0) };
        whole.energy.links += links.energy * bytes;
        // Sending to the next overlaps with the next run; both chips are taken up by it.
        whole.interval = whole.interval.max(part.makespan + moving);
        add(&mut whole, part, bytes, link);
    }
    whole.cycles = whole.makespan * target.tiles.clock;
    whole
}

fn add(whole: &mut Report, part: Report, received: Bytes, link: Seconds) {
    let (before, first) = (whole.makespan, whole.steps.len());
    let start = before + link;
    whole.chips.push(Chip { first, start, end: start + part.makespan, received, link });
    let mut waits = link;
    for mut step in part.steps {
        let idle = step.busy.0 == 0.0 && step.stall.0 == 0.0;
        step.start += start;
        step.end += start;
        if !idle {
            step.start = step.start - waits;
            step.stall += waits;
            waits = Seconds(0.0);
        }
        whole.steps.push(step);
    }
    for mut transfer in part.transfers {
        transfer.step += first;
        transfer.start += start;
        transfer.end += start;
        whole.transfers.push(transfer);
    }
    whole.busy += part.busy;
    whole.stall += part.stall + (link - waits);
    whole.makespan = start + part.makespan;
    for (sum, own) in whole.tiers.iter_mut().zip(part.tiers) {
        sum.read += own.read;
        sum.written += own.written;
        sum.busy += own.busy;
        sum.stall += own.stall;
    }
    let (sum, own) = (&mut whole.energy, part.energy);
    sum.matrix += own.matrix;
    sum.vector += own.vector;
    sum.sram += own.sram;
    sum.exchange += own.exchange;
    sum.links += own.links;
    sum.tiers.iter_mut().zip(own.tiers).for_each(|(sum, own)| *sum += own);
    whole.macs += part.macs;
    whole.left_out_macs += part.left_out_macs;
}
