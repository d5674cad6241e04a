//! Limits on power and temperature: everything runs slower where they would be exceeded.

use super::report::{Heat, Report};
use ipuc_formats::machine::units::{Celsius, Joules, Seconds, Watts};
use ipuc_formats::machine::{Program, Target, Thermal};

/// Slow a run down to the limits of its machines, and add what they draw whatever happens.
///
/// Power is limited on average over the run. The machine is one body with a heat capacity, which a resistance connects with
/// its surroundings: it grows warm over many runs, of which `warm` have gone before this one, and at its limit it draws
/// what leaves it there. Several machines are taken to be equally warm.
pub fn bound(report: &mut Report, target: &Target, program: &Program, warm: Seconds) {
    let chips = report.chips.len().max(1) as f64;
    let free = report.makespan;
    let dynamic = Joules(report.energy.total().0 / chips);
    let standing = target.energy.static_power;
    let least = |power: Watts| Seconds(dynamic.0 / (power - standing).0.max(f64::MIN_POSITIVE));
    let limited = target.energy.limit.map_or(free, |limit| free.max(least(limit)));
    report.makespan = limited;
    if let Some(thermal) = target.thermal.as_ref().filter(|_| limited.0 > 0.0) {
        let power = dynamic / limited + standing;
        let hot = limited.max(least(thermal.power()));
        let (makespan, heat) = heat(thermal, power, warm, (limited, hot));
        report.makespan = makespan;
        report.heat = Some(heat);
    }
    report.throttled = report.makespan - free;
    report.interval = report.interval * report.slowdown();
    report.cycles = report.makespan * target.tiles.clock;
    report.energy.static_energy = standing * report.makespan * chips;
    let types = program.steps.iter().flat_map(|step| &step.products).map(|product| product.precision.activation);
    let peak = types.filter_map(|dtype| target.peak_macs_per_second(dtype)).fold(0.0, f64::max) * chips;
    report.utilization = (peak > 0.0 && report.makespan.0 > 0.0).then(|| report.macs / (peak * report.makespan.0));
}

/// The time of a run of so much power after so long a time of such runs, and the temperatures. It takes `cool` where the
/// limit is not reached, `hot` where it is all the time.
fn heat(thermal: &Thermal, power: Watts, warm: Seconds, (cool, hot): (Seconds, Seconds)) -> (Seconds, Heat) {
    let constant = thermal.resistance.0 * thermal.capacity.0;
    let rise = power.0 * thermal.resistance.0;
    let most = (thermal.limit - thermal.ambient).0;
    let after = |time: Seconds| Celsius(thermal.ambient.0 + (rise * -(-time.0 / constant).exp_m1()).min(most));
    if rise <= most {
        let steady = Celsius(thermal.ambient.0 + rise);
        let heat = Heat { start: after(warm), end: after(warm + cool), steady, limit_after: None, sustained: cool };
        return (cool, heat);
    }
    let reached = Seconds(-constant * (-most / rise).ln_1p());
    // What is left of the run when the limit is reached.
    let before = (reached - warm).max(Seconds(0.0)).min(cool);
    let makespan = before + hot * (1.0 - before / cool);
    let heat = Heat {
        start: after(warm),
        end: after(warm + before),
        steady: thermal.limit,
        limit_after: Some(reached),
        sustained: hot,
    };
    (makespan, heat)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipuc_formats::machine::units::{JoulesPerKelvin, KelvinPerWatt};

    #[test]
    fn a_machine_slows_down_when_it_is_as_warm_as_it_may_be() {
        // 6 W leave at 85 degrees; it takes 200 s to cover 1 - 1/e of the way.
        let thermal = Thermal {
            ambient: Celsius(25.0),
            limit: Celsius(85.0),
            resistance: KelvinPerWatt(10.0),
            capacity: JoulesPerKelvin(20.0),
        };
        let run = |power: f64, warm: f64| heat(&thermal, Watts(power), Seconds(warm), (Seconds(1.0), Seconds(2.0)));
        let (time, never) = run(5.0, 1e9);
        assert_eq!((time.0, never.limit_after, never.steady.0, never.sustained.0), (1.0, None, 75.0, 1.0));
        assert!((never.start.0 - 75.0).abs() < 1e-9);
        // 120 degrees above: half of that after 200 s times the logarithm of two.
        let reached = 200.0 * 2.0f64.ln();
        let (time, cold) = run(12.0, 0.0);
        assert!((cold.limit_after.unwrap().0 - reached).abs() < 1e-9 && cold.start.0 == 25.0, "{cold:?}");
        assert!(time.0 == 1.0 && (cold.end.0 - 25.0 - 120.0 / 200.0).abs() < 0.01, "{cold:?}");
        assert_eq!(run(12.0, reached + 1.0).0.0, 2.0);
        // Half a run is left when the limit is reached.
        assert!((run(12.0, reached - 0.5).0.0 - 1.5).abs() < 1e-9);
    }
}
