//! Functions against f64, blocks against one thread.

use super::{functions::*, *};
use crate::{
    simd::{Instructions, Routine, Simd},
    testing::{numbers, with_threads},
};

/// f32 of all magnitudes and both signs, and those where formulas change.
fn samples() -> Vec<f32> {
    let mut samples: Vec<f32> = (0..u32::MAX / 40_009).map(|step| f32::from_bits(step * 40_009)).collect();
    samples.extend((0..20_000).map(|step| (step as f32 - 10_000.0) / 500.0));
    samples.extend([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 88.72283, 88.72284, -103.97, -104.0]);
    samples.retain(|sample| !sample.is_nan() || sample.to_bits() == f32::NAN.to_bits());
    samples
}

/// Error in units in the last place of `exact`.
fn units(value: f32, exact: f64) -> f64 {
    if exact.is_nan() || value.is_nan() {
        return if exact.is_nan() && value.is_nan() { 0.0 } else { f64::INFINITY };
    }
    let nearest = exact as f32;
    if value == nearest {
        return 0.0;
    }
    let unit = 2.0_f64.powi((exact.abs().log2().floor() as i32 - 23).max(-149));
    (f64::from(value) - exact).abs() / unit
}

/// `out = function(x)`.
fn map(instructions: Instructions, function: impl VectorFunction, x: &[f32], out: &mut [f32]) {
    out.copy_from_slice(x);
    map_in_place(instructions, function, out);
}

fn check(name: &str, function: impl VectorFunction, exact: impl Fn(f64) -> f64, bound: f64) {
    let samples = samples();
    for instructions in Instructions::available() {
        let mut out = vec![0.0; samples.len()];
        map(instructions, function, &samples, &mut out);
        let portable = f64::from(u8::from(instructions.name() == "portable"));
        for (&sample, &value) in samples.iter().zip(&out) {
            let exact = exact(f64::from(sample));
            let error = units(value, exact);
            let on = instructions.name();
            assert!(error <= bound + portable, "{name}({sample:e}) = {value:e}, not {exact:e}: {error} ULP on {on}");
        }
    }
}

#[test]
fn transcendental_functions_are_within_their_bounds() {
    check("exponential", Exponential {}, f64::exp, 1.0);
    check("logarithm", Logarithm {}, f64::ln, 1.0);
    check("tanh", HyperbolicTangent {}, f64::tanh, 2.0);
    check("logistic", Logistic {}, |x| 1.0 / (1.0 + (-x).exp()), 3.0);
    check("erf", ErrorFunction {}, libm::erf, 2.0);
    check("soft plus", SoftPlus {}, |x| if x.is_nan() { x } else { x.max(0.0) + (-x.abs()).exp().ln_1p() }, 3.0);
    check("elu", Elu { alpha: 1.0 }, |x| if x < 0.0 { x.exp_m1() } else { x }, 2.0);
}

/// Units in the last place of f64 that lanes are off by at most.
struct Off<'a, F> {
    function: F,
    x: &'a [f32],
}

impl<F: RoundedFunction> Routine for Off<'_, F> {
    type Output = u64;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> u64 {
        let mut most = 0;
        for x in self.x.iter().map(|&x| f64::from(x)).filter(|&x| self.function.is_usual(x)) {
            let (near, exact) = (self.function.near(simd, x), self.function.exact(x));
            if !exact.is_nan() {
                most = most.max(near.to_bits().abs_diff(exact.to_bits()));
            }
        }
        most
    }
}

fn check_rounded(name: &str, function: impl RoundedFunction) {
    let mut samples = samples();
    // Near multiples of quarter turns differences cancel.
    samples.extend((0..42_000).map(|turns| (f64::from(turns) * std::f64::consts::FRAC_PI_2) as f32));
    samples.extend([65_536.0, 65_540.0, -1.0, -0.5, 0.5, 40.0, -87.0, 1.0_f32.next_up()]);
    let wide: Vec<f64> = samples.iter().map(|&sample| sample.into()).collect();
    for instructions in Instructions::available() {
        let on = instructions.name();
        let off = instructions.run(Off { function, x: &samples });
        assert!(off < rounded::MARGIN / 2, "{name}: lanes are off by {off} on {on}");
        let (mut out, mut other) = (samples.clone(), vec![9.0; samples.len()]);
        apply_rounded(instructions, function, &mut out);
        round_each(instructions, function, &wide, &mut other);
        for (&x, values) in wide.iter().zip(out.iter().zip(&other)) {
            let expected = function.exact(x) as f32;
            for value in [values.0, values.1] {
                let same = value.to_bits() == expected.to_bits() || value.is_nan() && expected.is_nan();
                assert!(same, "{name}({x:e}) = {value:e}, not {expected:e} on {on}");
            }
        }
    }
}

#[test]
fn rounded_functions_have_the_bits_of_exact_ones() {
    check_rounded("sine", angles::Sine {});
    check_rounded("cosine", angles::Cosine {});
    check_rounded("tangent", angles::Tangent {});
    check_rounded("arc sine", arcs::ArcSine {});
    check_rounded("arc cosine", arcs::ArcCosine {});
    check_rounded("arc tangent", arcs::ArcTangent {});
    check_rounded("self-gated", gates::SelfGated {});
}

#[test]
fn exact_functions_are_exact() {
    check("absolute", Absolute {}, f64::abs, 0.0);
    check("negate", Negate {}, |x| -x, 0.0);
    check("floor", Floor {}, f64::floor, 0.0);
    check("ceil", Ceil {}, f64::ceil, 0.0);
    check("round", Round {}, f64::round_ties_even, 0.0);
    check("square", Square {}, |x| x * x, 0.0);
    check("cube", Cube {}, |x| x * x * x, 2.0);
    check("root", SquareRoot {}, f64::sqrt, 0.0);
    check("reciprocal", Reciprocal {}, |x| 1.0 / x, 0.0);
    check("relu", Relu {}, |x| if x < 0.0 { 0.0 } else { x }, 0.0);
    check("leaky", LeakyRelu { slope: 0.25 }, |x| if x < 0.0 { x / 4.0 } else { x }, 0.0);
    check("kept", KeepAbove { most: 1.0 }, |x| if x > 1.0 { x } else { 0.0 }, 0.0);
    check("sign", Sign {}, |x| if x == 0.0 || x.is_nan() { x } else { 1f64.copysign(x) }, 0.0);
    check("cut", CutBelow { least: 1.0 }, |x| if x < 1.0 { 0.0 } else { x }, 0.0);
    let clamp = |x: f64| if x.is_nan() { x } else { x.clamp(-1.0, 6.0) };
    check("clamp", Clamp { least: -1.0, greatest: 6.0 }, clamp, 0.0);
}

/// One function over a slice.
type Run<'a> = &'a dyn Fn(Instructions, &[f32], &mut [f32]);

/// Functions whose result may cancel: bound relative to the magnitude of x.
#[test]
fn gates_are_close() {
    let close = |name: &str, function: Run<'_>, exact: &dyn Fn(f64) -> f64| {
        let samples: Vec<f32> = samples().into_iter().filter(|x| x.abs() < 1e10).collect();
        for instructions in Instructions::available() {
            let mut out = vec![0.0; samples.len()];
            function(instructions, &samples, &mut out);
            for (&x, &value) in samples.iter().zip(&out) {
                let exact = exact(f64::from(x));
                let error = (f64::from(value) - exact).abs();
                let bound = 4e-7 * (f64::from(x).abs() + exact.abs()) + 1e-37;
                assert!(error <= bound, "{name}({x:e}) = {value:e}, not {exact:e} on {}", instructions.name());
            }
        }
    };
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    close("gelu", &|i, x, out| map(i, Gelu {}, x, out), &|x| x * (1.0 + libm::erf(x / 2.0_f64.sqrt())) / 2.0);
    close("gelu tanh", &|i, x, out| map(i, GeluTanh {}, x, out), &|x| {
        x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh()) / 2.0
    });
    close("swish", &|i, x, out| map(i, Swish { alpha: 1.0 }, x, out), &|x| x * sigmoid(x));
    close("mish", &|i, x, out| map(i, Mish {}, x, out), &|x| x * (x.max(0.0) + (-x.abs()).exp().ln_1p()).tanh());
    close("hard swish", &|i, x, out| map(i, HardSwish {}, x, out), &|x| x * (x / 6.0 + 0.5).clamp(0.0, 1.0));
    close("soft sign", &|i, x, out| map(i, SoftSign {}, x, out), &|x| x / (1.0 + x.abs()));
    close("swish of twice", &|i, x, out| map(i, Swish { alpha: 2.0 }, x, out), &|x| x * sigmoid(2.0 * x));
    let scaled = ScaledTanh { alpha: 1.5, beta: 0.5 };
    close("scaled tanh", &|i, x, out| map(i, scaled, x, out), &|x| 1.5 * (0.5 * x).tanh());
    let shrink = Shrink { alpha: 0.5, beta: 0.25 };
    close("shrink", &|i, x, out| map(i, shrink, x, out), &|x| {
        if x < -0.5 {
            x + 0.25
        } else if x > 0.5 {
            x - 0.25
        } else {
            0.0
        }
    });
    let selu = Selu { alpha: 1.5, gamma: 1.25 };
    close("selu", &|i, x, out| map(i, selu, x, out), &|x| 1.25 * if x > 0.0 { x } else { 1.5 * x.exp_m1() });
    close("celu", &|i, x, out| map(i, Celu { alpha: 2.0 }, x, out), &|x| {
        x.max(0.0) + (2.0 * (x / 2.0).exp_m1()).min(0.0)
    });
}

#[test]
fn gates_are_open_or_closed_far_from_zero() {
    fn check(name: &str, gate: impl VectorFunction) {
        for instructions in Instructions::available() {
            let mut out = [0.0; 7];
            map(instructions, gate, &[1e30, 30.0, f32::INFINITY, -1e30, -30.0, -0.0, f32::NAN], &mut out);
            let on = instructions.name();
            assert_eq!(out[..3], [1e30, 30.0, f32::INFINITY], "{name} on {on}");
            assert_eq!(
                out[3..6].iter().map(|value| value.to_bits()).collect::<Vec<_>>(),
                [1 << 31; 3],
                "{name} on {on}"
            );
            assert!(out[6].is_nan(), "{name} on {on}");
        }
    }
    check("gelu", Gelu {});
    check("gelu tanh", GeluTanh {});
    check("swish", Swish { alpha: 1.0 });
}

#[test]
fn blocks_do_not_change_bits() {
    let x = numbers(5, 100_003);
    for instructions in Instructions::available() {
        let run = || {
            let mut out = vec![0.0; x.len()];
            map(instructions, Gelu {}, &x, &mut out);
            out
        };
        assert_eq!(with_threads(1, run), with_threads(3, run));
        let mut short = vec![0.0; 5];
        map(instructions, Gelu {}, &x[7..12], &mut short);
        assert_eq!(short, run()[7..12]);
    }
}

/// The functions of vectors are exported for other kernels: one call each.
struct Calls;

impl Routine for Calls {
    type Output = [f32; 3];

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Self::Output {
        let mut results = [0.0; 3];
        let x = simd.splat(0.5);
        for (result, vector) in
            results.iter_mut().zip([exponential(simd, x), logarithm(simd, x), error_function(simd, x)])
        {
            simd.store_partial(vector, std::slice::from_mut(result));
        }
        results
    }
}

#[test]
fn functions_are_there_for_kernels() {
    for instructions in Instructions::available() {
        let [exponential, logarithm, error] = instructions.run(Calls);
        assert!((exponential - 0.5_f32.exp()).abs() < 1e-6 && (logarithm - 0.5_f32.ln()).abs() < 1e-6);
        assert!((f64::from(error) - libm::erf(0.5)).abs() < 1e-6);
    }
}
