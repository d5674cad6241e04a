use super::*;
use crate::steps::elementwise::vectors;
use crate::steps::testing::Heap;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::scalar::{Scalar, from_scalars, scalars};
use ipuc_formats::ops::{
    Activation, ActivationFunction, Argument, BinaryFunction, CompareRelation, Function, NoBlocks, ScalarStep,
    TypeError, UnaryFunction,
};
use ipuc_kernels::testing::with_threads;
use proptest::prelude::*;

fn run(
    program: &Program,
    accumulators: Accumulators<'_>,
    shape: &[usize],
    inputs: &[Option<Value>],
) -> Result<Vec<Tensor>, KernelError> {
    let (mut blocks, mut memory) = (NoBlocks, Heap::default());
    let mut context =
        Context { blocks: &mut blocks, memory: &mut memory, random_state: 0, skipped: Default::default() };
    apply(program, accumulators, shape, inputs, &mut context)
}

const RELU: Function = Function::Activation(Activation { function: ActivationFunction::Relu, alpha: None, beta: None });

/// Functions with exact results, so that kernels have the bits of the reference.
const FUNCTIONS: &[Function] = &[
    Function::Cast,
    Function::Clamp,
    Function::Select,
    Function::Unary(UnaryFunction::Round),
    Function::Unary(UnaryFunction::Abs),
    Function::Unary(UnaryFunction::Neg),
    Function::Unary(UnaryFunction::Floor),
    Function::Unary(UnaryFunction::Sqrt),
    RELU,
    Function::Binary(BinaryFunction::Add),
    Function::Binary(BinaryFunction::Sub),
    Function::Binary(BinaryFunction::Mul),
    Function::Binary(BinaryFunction::Min),
    Function::Binary(BinaryFunction::Max),
    Function::Compare(CompareRelation::Less),
];

const TYPES: &[DType] = &[
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::F64,
    DType::I32,
    DType::I64,
    DType::U32,
    DType::I16,
    DType::U16,
    DType::I8,
    DType::U8,
    DType::I4,
    DType::Bool,
];

/// A program of the proposed steps that its check takes, which gives all of their results.
fn program(proposals: &[(usize, usize, [usize; 3])], accumulator: DType, inputs: &[Option<Value>]) -> Program {
    let operand = |operand: usize| inputs.get(operand)?.as_ref()?.as_tensor().map(Tensor::dtype);
    let mut known = vec![Argument::Input, Argument::f32(0.75), Argument::i32(-100), Argument::Constant(DType::U8, 200)];
    known.extend((0..inputs.len()).map(|operand| Argument::Operand(operand as u16)));
    let mut program = Program::default();
    for (function, to, arguments) in proposals {
        let function = FUNCTIONS[function % FUNCTIONS.len()].clone();
        let to = TYPES[to % TYPES.len()];
        // Types agree more often among what comes after the first argument.
        for shift in 0..known.len() {
            let arguments = arguments.iter().enumerate().map(|(at, &argument)| match at {
                0 => known[argument % known.len()],
                _ => known[(argument + shift * at) % known.len()],
            });
            let mut longer = program.clone();
            let arguments = arguments.take(function.arity()).collect();
            let step = ScalarStep { function: function.clone(), arguments, to };
            longer.steps.push(step);
            if longer.check(Some(accumulator), operand).is_ok() {
                known.push(Argument::Step(program.steps.len() as u16));
                longer.results.push(Argument::Step(program.steps.len() as u16));
                program = longer;
                break;
            }
        }
    }
    program
}

/// The elements with one kind of NaN, and one kind of zero, whose sign a minimum may choose.
fn comparable(tensor: &Tensor) -> Vec<String> {
    let print = |value: Scalar| match value {
        Scalar::Float(0.0) => "0.0".to_string(),
        value => format!("{value:?}"),
    };
    scalars(tensor).unwrap().into_iter().map(print).collect()
}

/// A factor for each channel of blocks of 8 channels: a line of 8 for all positions of a block.
#[test]
fn a_single_step_reads_lines_where_they_lie() {
    let steps = vec![ScalarStep {
        function: Function::Binary(BinaryFunction::Mul),
        arguments: vec![Argument::Operand(0), Argument::Operand(1)],
        to: DType::F32,
    }];
    let program = Program { steps, results: vec![Argument::Step(0)] };
    // Blocks of elements end within runs of positions, and at their ends.
    for positions in [3, 40, 200] {
        let shape = [1, 3, positions, 8];
        let factors: Vec<f32> = (0..24u8).map(|channel| f32::from(channel) - 11.5).collect();
        let values: Vec<f32> = (0..24 * positions).map(|index| (index % 37) as f32 - 18.0).collect();
        let expected: Vec<f32> = values
            .iter()
            .enumerate()
            .map(|(index, value)| factors[index / (positions * 8) * 8 + index % 8] * value)
            .collect();
        let inputs: Vec<Option<Value>> = vec![
            Some(Tensor::from_elements(&[1, 3, 1, 8], &factors).unwrap().into()),
            Some(Tensor::from_elements(&shape, &values).unwrap().into()),
        ];
        for threads in [1, 3] {
            let results =
                with_threads(threads, || run(&program, Accumulators::None, &shape, &inputs).map_err(|_| ()).unwrap());
            assert_eq!(results[0].elements::<f32>().unwrap(), expected, "{positions} positions");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn blocks_have_the_bits_of_the_reference(
        proposals in proptest::collection::vec((any::<usize>(), any::<usize>(), any::<[usize; 3]>()), 1..12),
        rows in 1usize..4,
        columns in prop_oneof![1usize..40, 700usize..1500],
        seed in any::<u32>(),
        integers in any::<bool>(),
    ) {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state as i32
        };
        let shape = [rows, columns];
        let numbers = |count: usize, next: &mut dyn FnMut() -> i32| -> Vec<f32> {
            (0..count).map(|at| match at % 13 {
                0 => f32::from_bits(next() as u32),
                1 => (next() >> 24) as f32 + 0.5,
                _ => (next() >> 8) as f32 / 65536.0,
            }).collect()
        };
        let floats = numbers(rows * columns, &mut next);
        let sums: Vec<i32> = (0..rows * columns).map(|at| next() >> (at % 32)).collect();
        let values = |dtype: DType, shape: &[usize], next: &mut dyn FnMut() -> i32| {
            let count = shape.iter().product();
            let elements: Vec<Scalar> =
                (0..count).map(|_| Scalar::Float(f64::from(next() >> 20))).collect();
            Some(Value::from(from_scalars(dtype, shape, &elements).unwrap()))
        };
        let inputs = [
            values(DType::F32, &[columns], &mut next),
            values(DType::F16, &[rows, 1], &mut next),
            values(DType::BF16, &shape, &mut next),
            values(DType::I32, &[rows, 1], &mut next),
            values(DType::U8, &shape, &mut next),
            values(DType::I8, &[], &mut next),
            values(DType::I64, &[1, columns], &mut next),
            values(DType::Bool, &shape, &mut next),
        ];
        let accumulators = if integers { Accumulators::Integer(&sums) } else { Accumulators::Float(&floats) };
        let (dtype, elements) = accumulators.scalars().unwrap();
        let program = program(&proposals, dtype, &inputs);
        let expected = program.evaluate(Some((dtype, &elements)), &shape, &inputs).unwrap();
        for threads in [1, 3] {
            let found = with_threads(threads, || run(&program, accumulators, &shape, &inputs)).unwrap();
            for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
                prop_assert_eq!(found.dtype(), expected.dtype());
                prop_assert_eq!(comparable(found), comparable(expected), "step {} of {:?}", index, program);
            }
        }
        // With one result, steps whose results nobody asks for are chains.
        for (index, &result) in program.results.iter().enumerate() {
            let alone = Program { results: vec![result], ..program.clone() };
            let found = run(&alone, accumulators, &shape, &inputs).unwrap();
            prop_assert_eq!(comparable(&found[0]), comparable(&expected[index]), "step {} of {:?}", index, program);
        }
    }
}

/// `relu(x * clamp(x + 3, 0, 6) / 6 * y + z)`, with y for each channel and z for each element, is one loop.
#[test]
fn a_chain_reads_operands_where_they_lie() {
    let step =
        |function, arguments: &[Argument]| ScalarStep { function, arguments: arguments.to_vec(), to: DType::F32 };
    let binary = |function, left, right| step(Function::Binary(function), &[left, right]);
    let (float, result) = (Argument::f32, Argument::Step);
    let program = Program::of_steps(vec![
        binary(BinaryFunction::Add, Argument::Input, float(3.0)),
        step(Function::Clamp, &[result(0), float(0.0), float(6.0)]),
        binary(BinaryFunction::Mul, Argument::Input, result(1)),
        binary(BinaryFunction::Div, result(2), float(6.0)),
        binary(BinaryFunction::Mul, result(3), Argument::Operand(0)),
        binary(BinaryFunction::Add, result(4), Argument::Operand(1)),
        step(RELU, &[result(5)]),
    ])
    .unwrap();
    for columns in [1, 15, 64, 700, 1100] {
        let shape = [3, columns];
        let numbers = |count: usize, seed: usize| -> Vec<f32> {
            (0..count).map(|at| ((at * 7919 + seed) % 1000) as f32 / 50.0 - 10.0).collect()
        };
        let tensor = |shape: &[usize], seed| {
            let elements = numbers(shape.iter().product(), seed);
            Some(Value::from(Tensor::from_elements(shape, &elements).unwrap()))
        };
        let inputs = [tensor(&[3, 1], 5), tensor(&shape, 11)];
        let mut x = numbers(3 * columns, 0);
        x[0] = f32::NAN;
        let compiled = Compiled::new(&program, Some(DType::F32), &shape, &inputs).unwrap().unwrap();
        assert_eq!(compiled.steps.len(), 1);
        if columns == 1100 {
            // Blocks end where a channel does.
            let ends = [0, 576, 1024, 1100, 1676].map(|start| compiled.block_end(start, 2000));
            assert_eq!(ends, [576, 1100, 1100, 1676, 2000]);
            let alone = Program::of_steps(vec![binary(BinaryFunction::Max, Argument::Input, Argument::Operand(0))]);
            let alone = alone.unwrap();
            let without_chain = Compiled::new(&alone, Some(DType::F32), &shape, &inputs).unwrap().unwrap();
            assert_eq!(without_chain.block_end(0, 2000), 1024, "no chain reads the operand where it lies");
        }
        let elements: Vec<Scalar> = x.iter().map(|&x| Scalar::Float(x.into())).collect();
        let expected = program.evaluate(Some((DType::F32, &elements)), &shape, &inputs).unwrap();
        let found = run(&program, Accumulators::Float(&x), &shape, &inputs).unwrap();
        assert_eq!(comparable(&found[0]), comparable(&expected[0]), "{columns} columns");
        // Sums of two tasks, changed where they lie.
        let within = WithinTasks::new(&program, DType::F32, &shape, &inputs).unwrap().unwrap();
        let middle = columns + columns / 3;
        let (first, second) = x.split_at_mut(middle);
        within.change(0, first);
        within.change(middle, second);
        let changed = Tensor::from_elements(&shape, &x).unwrap();
        assert_eq!(comparable(&changed), comparable(&expected[0]), "{columns} columns in place");
    }
}

#[test]
fn relu_within_a_chain_keeps_the_sign_of_zero() {
    let step =
        |function, arguments: &[Argument]| ScalarStep { function, arguments: arguments.to_vec(), to: DType::F32 };
    let multiply = Function::Binary(BinaryFunction::Mul);
    let steps = vec![step(multiply, &[Argument::Input, Argument::f32(1.0)]), step(RELU, &[Argument::Step(0)])];
    let program = Program::of_steps(steps).unwrap();
    let x = [-0.0, 0.0, -2.0, f32::NEG_INFINITY, f32::INFINITY, 3.5];
    assert_eq!(Compiled::new(&program, Some(DType::F32), &[6], &[]).unwrap().unwrap().steps.len(), 1);
    let found = run(&program, Accumulators::Float(&x), &[6], &[]).unwrap();
    let bits: Vec<u32> = found[0].elements::<f32>().unwrap().iter().map(|value| value.to_bits()).collect();
    assert_eq!(bits, [-0.0, 0.0, 0.0, 0.0, f32::INFINITY, 3.5].map(f32::to_bits));
}

/// The first step of a chain may read the last of the feeds, and what is quantized need not be the last step.
#[test]
fn chains_read_every_slot() {
    let step = |function, arguments: &[Argument], to| ScalarStep { function, arguments: arguments.to_vec(), to };
    let binary = |function, left, right| step(Function::Binary(function), &[left, right], DType::F32);
    let (operand, result) = (Argument::Operand, Argument::Step);
    let mut of_feeds: Vec<ScalarStep> = (0..8).map(|at| step(Function::Cast, &[operand(at)], DType::F32)).collect();
    of_feeds.push(binary(BinaryFunction::Add, result(6), result(7)));
    (0..6).for_each(|at| of_feeds.push(binary(BinaryFunction::Add, result(at), result(8 + at))));
    let unread = vec![
        binary(BinaryFunction::Add, Argument::Input, Argument::f32(3.0)),
        binary(BinaryFunction::Mul, Argument::Input, Argument::f32(2.0)),
        binary(BinaryFunction::Div, result(0), Argument::f32(0.5)),
        binary(BinaryFunction::Mul, Argument::Input, Argument::f32(7.0)),
        step(Function::Unary(UnaryFunction::Round), &[result(2)], DType::I32),
        step(Function::Binary(BinaryFunction::Add), &[result(4), Argument::i32(3)], DType::U8),
    ];
    for columns in [5, 64, 100] {
        let shape = [2, columns];
        let integers = |seed: usize| {
            let elements: Vec<i32> = (0..2 * columns).map(|at| ((at * 31 + seed * 17) % 101) as i32 - 50).collect();
            Some(Value::from(Tensor::from_elements(&shape, &elements).unwrap()))
        };
        let inputs: Vec<Option<Value>> = (0..8).map(integers).collect();
        let x: Vec<f32> = (0..2 * columns).map(|at| (at % 90) as f32).collect();
        let elements: Vec<Scalar> = x.iter().map(|&x| Scalar::Float(x.into())).collect();
        for steps in [&of_feeds, &unread] {
            let program = Program::of_steps(steps.clone()).unwrap();
            let expected = program.evaluate(Some((DType::F32, &elements)), &shape, &inputs).unwrap();
            let found = run(&program, Accumulators::Float(&x), &shape, &inputs).unwrap();
            assert_eq!(comparable(&found[0]), comparable(&expected[0]), "{columns} columns of {program:?}");
        }
    }
}

#[test]
fn what_is_wrong_is_an_error() {
    let step = |function, arguments: &[Argument], to| ScalarStep { function, arguments: arguments.to_vec(), to };
    let zero = Argument::i32(0);
    let divided = step(Function::Binary(BinaryFunction::Div), &[Argument::Input, zero], DType::I32);
    let divided = Program::of_steps(vec![divided]).unwrap();
    let found = run(&divided, Accumulators::Integer(&[1, 2]), &[2], &[]).unwrap_err();
    assert!(matches!(found, KernelError::Reference(ReferenceError::OutOfRange { .. })), "{found:?}");
    let added = step(Function::Binary(BinaryFunction::Add), &[Argument::Input, Argument::Operand(0)], DType::F32);
    let added = Program::of_steps(vec![added]).unwrap();
    let long = [Some(Value::from(Tensor::zeros(DType::F32, &[3]).unwrap()))];
    let found = run(&added, Accumulators::Float(&[1.0, 2.0]), &[2], &long).unwrap_err();
    assert!(found.to_string().contains("operand of the program"), "{found}");
    let found = run(&added, Accumulators::Integer(&[1, 2]), &[2], &long).unwrap_err();
    assert!(found.to_string().contains("step 0"), "{found}");
    let none = run(&added, Accumulators::None, &[2], &long).unwrap_err();
    assert_eq!(
        none.to_string(),
        KernelError::from(TypeError::from(ipuc_formats::ops::ProgramError::NoAccumulator)).to_string()
    );
}

#[test]
fn functions_of_networks_are_near() {
    let x: Vec<f32> = (-40..40).map(|at| at as f32 / 8.0).collect();
    for name in ["sigmoid", "gelu", "swish"] {
        let activation = ipuc_formats::ops::Activation::new(name.parse().unwrap());
        let step =
            ScalarStep { function: Function::Activation(activation), arguments: vec![Argument::Input], to: DType::F32 };
        let program = Program::of_steps(vec![step]).unwrap();
        let found = run(&program, Accumulators::Float(&x), &[80], &[]).unwrap().remove(0);
        let elements: Vec<Scalar> = x.iter().map(|&x| Scalar::Float(x.into())).collect();
        let expected = program.evaluate(Some((DType::F32, &elements)), &[80], &[]).unwrap().remove(0);
        for (found, expected) in found.elements::<f32>().unwrap().iter().zip(expected.elements::<f32>().unwrap()) {
            assert!((found - expected).abs() <= 1e-6 * (1.0 + expected.abs()), "{name}: {found} for {expected}");
        }
    }
}

#[test]
fn functions_within_a_chain_have_the_bits_that_they_have_alone() {
    let activation = |name: &str| Function::Activation(ipuc_formats::ops::Activation::new(name.parse().unwrap()));
    let names = ["gelu", "gelu_tanh", "hard_sigmoid", "hard_swish", "sigmoid", "swish"];
    let mut functions: Vec<Function> = names.map(activation).to_vec();
    functions.extend([UnaryFunction::Erf, UnaryFunction::Exp, UnaryFunction::Tanh].map(Function::Unary));
    let mut x: Vec<f32> = (0..333).map(|at| (at - 166) as f32 / 9.0).collect();
    x.extend([f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 1e-40, -104.0, 89.5]);
    for function in functions {
        let step =
            |function, arguments: &[Argument]| ScalarStep { function, arguments: arguments.to_vec(), to: DType::F32 };
        // Not by its operand, with which a sigmoid is a gate.
        let multiply = Function::Binary(BinaryFunction::Mul);
        let steps = vec![
            step(function.clone(), &[Argument::Input]),
            step(multiply.clone(), &[Argument::Step(0), Argument::f32(0.7)]),
        ];
        let program = Program::of_steps(steps).unwrap();
        let shape = [x.len()];
        assert_eq!(Compiled::new(&program, Some(DType::F32), &shape, &[]).unwrap().unwrap().steps.len(), 1);
        let found = run(&program, Accumulators::Float(&x), &shape, &[]).unwrap().remove(0);
        let mut alone = x.clone();
        let change = match &function {
            Function::Unary(function) => vectors::unary(*function).unwrap(),
            Function::Activation(activation) => vectors::activation(activation),
            other => panic!("{other:?} has one argument"),
        };
        (change.apply)(&mut alone);
        let bits = |values: &[f32]| -> Vec<u32> {
            // Which NaN comes out is not defined.
            values.iter().map(|value| if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() }).collect()
        };
        let expected: Vec<f32> = alone.iter().map(|alone| alone * 0.7).collect();
        assert_eq!(bits(found.elements::<f32>().unwrap()), bits(&expected), "{function:?}");
        let mut changed = x.clone();
        let within = WithinTasks::new(&program, DType::F32, &shape, &[]).unwrap().unwrap();
        let (first, second) = changed.split_at_mut(301);
        within.change(0, first);
        within.change(301, second);
        assert_eq!(bits(&changed), bits(&expected), "{function:?} in place");
        // Of integers, and back to some.
        let codes: Vec<i32> = (0..333).map(|at| at - 166).collect();
        let inputs = [Some(Value::from(Tensor::from_elements(&[333], &codes).unwrap()))];
        let steps = vec![
            step(Function::Cast, &[Argument::Operand(0)]),
            step(multiply.clone(), &[Argument::Step(0), Argument::f32(0.125)]),
            step(function.clone(), &[Argument::Step(1)]),
            step(Function::Binary(BinaryFunction::Div), &[Argument::Step(2), Argument::f32(0.5)]),
            ScalarStep { to: DType::I32, ..step(Function::Unary(UnaryFunction::Round), &[Argument::Step(3)]) },
            ScalarStep {
                to: DType::I8,
                ..step(Function::Binary(BinaryFunction::Add), &[Argument::Step(4), Argument::i32(3)])
            },
        ];
        let program = Program::of_steps(steps).unwrap();
        assert_eq!(Compiled::new(&program, None, &[333], &inputs).unwrap().unwrap().steps.len(), 1);
        let found = run(&program, Accumulators::None, &[333], &inputs).unwrap().remove(0);
        let mut alone: Vec<f32> = codes.iter().map(|&code| code as f32 * 0.125).collect();
        (change.apply)(&mut alone);
        let expected: Vec<i8> =
            alone.iter().map(|value| (((value / 0.5).round_ties_even() as i32).clamp(-131, 124) + 3) as i8).collect();
        assert_eq!(found.elements::<i8>().unwrap(), expected, "{function:?} of integers");
    }
}

/// An activation of a number alone.
fn activated(function: ActivationFunction, x: f32) -> f32 {
    let mut value = [x];
    (vectors::activation(&Activation::new(function)).apply)(&mut value);
    value[0]
}

#[test]
fn a_sigmoid_that_is_read_again_is_kept_beside_the_product_with_it() {
    let step =
        |function, arguments: &[Argument]| ScalarStep { function, arguments: arguments.to_vec(), to: DType::F32 };
    let sigmoid = Function::Activation(Activation::new(ActivationFunction::Sigmoid));
    let binary = Function::Binary;
    let steps = vec![
        step(Function::Unary(UnaryFunction::Neg), &[Argument::Input]),
        step(sigmoid.clone(), &[Argument::Step(0)]),
        step(binary(BinaryFunction::Mul), &[Argument::Step(1), Argument::Step(0)]),
        step(binary(BinaryFunction::Add), &[Argument::Step(2), Argument::Step(1)]),
        step(sigmoid, &[Argument::Step(3)]),
        step(binary(BinaryFunction::Mul), &[Argument::Step(4), Argument::Step(3)]),
        step(binary(BinaryFunction::Sub), &[Argument::Step(5), Argument::Step(3)]),
    ];
    let program = Program::of_steps(steps).unwrap();
    let x: Vec<f32> = (0..70).map(|at| (at - 35) as f32 / 8.0).collect();
    let sigmoid = |x: f32| activated(ActivationFunction::Sigmoid, x);
    let expected = x.iter().map(|x| {
        // The first sigmoid is read again, the second one is part of a gate.
        let sum = sigmoid(-x) * -x + sigmoid(-x);
        activated(ActivationFunction::Swish, sum) - sum
    });
    let found = run(&program, Accumulators::Float(&x), &[70], &[]).unwrap().remove(0);
    assert_eq!(found.elements::<f32>().unwrap(), expected.collect::<Vec<f32>>());
}

/// A link that takes the slot of one that a gate replaced is none that is read once.
#[test]
fn what_follows_a_gate_is_computed_beside_it() {
    let step =
        |function, arguments: &[Argument]| ScalarStep { function, arguments: arguments.to_vec(), to: DType::F32 };
    let (erf, sigmoid) =
        (Function::Unary(UnaryFunction::Erf), Function::Activation(Activation::new(ActivationFunction::Sigmoid)));
    let (add, mul) = (Function::Binary(BinaryFunction::Add), Function::Binary(BinaryFunction::Mul));
    let steps = vec![
        step(Function::Binary(BinaryFunction::Sub), &[Argument::f32(0.0), Argument::Input]),
        step(Function::Binary(BinaryFunction::Div), &[Argument::Step(0), Argument::f32(std::f32::consts::SQRT_2)]),
        step(erf, &[Argument::Step(1)]),
        step(add.clone(), &[Argument::Step(2), Argument::f32(1.0)]),
        step(mul.clone(), &[Argument::f32(0.5), Argument::Step(3)]),
        step(mul.clone(), &[Argument::Step(0), Argument::Step(4)]),
        step(sigmoid, &[Argument::Step(5)]),
        step(mul, &[Argument::Step(6), Argument::Step(5)]),
        step(add, &[Argument::Step(7), Argument::Step(6)]),
    ];
    let program = Program::of_steps(steps).unwrap();
    let x: Vec<f32> = (0..70).map(|at| (at - 35) as f32 / 8.0).collect();
    let found = run(&program, Accumulators::Float(&x), &[70], &[]).unwrap().remove(0);
    let expected = x.iter().map(|x| {
        let gelu = activated(ActivationFunction::Gelu, 0.0 - x);
        let sigmoid = activated(ActivationFunction::Sigmoid, gelu);
        sigmoid * gelu + sigmoid
    });
    assert_eq!(found.elements::<f32>().unwrap(), expected.collect::<Vec<f32>>());
}

/// As GPT-2 writes it; powers with constant exponents are links of chains, too.
#[test]
fn gelu_by_tanh_and_what_follows_is_one_loop() {
    let step =
        |function, arguments: &[Argument]| ScalarStep { function, arguments: arguments.to_vec(), to: DType::F32 };
    let [add, mul, power] = [BinaryFunction::Add, BinaryFunction::Mul, BinaryFunction::Pow].map(Function::Binary);
    let steps = vec![
        step(power.clone(), &[Argument::Input, Argument::f32(3.0)]),
        step(mul.clone(), &[Argument::Step(0), Argument::f32(0.044_715)]),
        step(add.clone(), &[Argument::Input, Argument::Step(1)]),
        step(mul.clone(), &[Argument::Step(2), Argument::f32(0.797_884_6)]),
        step(Function::Unary(UnaryFunction::Tanh), &[Argument::Step(3)]),
        step(add.clone(), &[Argument::Step(4), Argument::f32(1.0)]),
        step(mul.clone(), &[Argument::Input, Argument::f32(0.5)]),
        step(mul, &[Argument::Step(6), Argument::Step(5)]),
        step(power.clone(), &[Argument::Step(7), Argument::f32(2.0)]),
        step(power, &[Argument::Step(7), Argument::f32(3.0)]),
        step(add, &[Argument::Step(8), Argument::Step(9)]),
    ];
    let program = Program::of_steps(steps).unwrap();
    let x: Vec<f32> = (0..70).map(|at| (at - 35) as f32 / 8.0).collect();
    assert_eq!(Compiled::new(&program, Some(DType::F32), &[70], &[]).unwrap().unwrap().steps.len(), 1);
    let found = run(&program, Accumulators::Float(&x), &[70], &[]).unwrap().remove(0);
    let expected = x.iter().map(|&x| {
        let gelu = activated(ActivationFunction::GeluTanh, x);
        gelu * gelu + gelu * gelu * gelu
    });
    assert_eq!(found.elements::<f32>().unwrap(), expected.collect::<Vec<f32>>());
}

/// As CLIP writes it; factors of any sign, and what is no number.
#[test]
fn a_scaled_sigmoid_times_its_operand_is_near() {
    let step =
        |function, arguments: &[Argument]| ScalarStep { function, arguments: arguments.to_vec(), to: DType::F32 };
    let mul = Function::Binary(BinaryFunction::Mul);
    let mut x: Vec<f32> = (0..70).map(|at| (at - 35) as f32 / 4.0).collect();
    x.extend([f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -0.0, 1e-40, 1e30, -1e30]);
    for alpha in [1.702, 1.0, -0.5, 0.0, 1e20, f32::INFINITY, f32::NAN] {
        let steps = vec![
            step(mul.clone(), &[Argument::Input, Argument::f32(alpha)]),
            step(Function::Activation(Activation::new(ActivationFunction::Sigmoid)), &[Argument::Step(0)]),
            step(mul.clone(), &[Argument::Input, Argument::Step(1)]),
        ];
        let program = Program::of_steps(steps).unwrap();
        let found = run(&program, Accumulators::Float(&x), &[x.len()], &[]).unwrap().remove(0);
        for (&x, &found) in x.iter().zip(found.elements::<f32>().unwrap()) {
            let expected = x * activated(ActivationFunction::Sigmoid, alpha * x);
            let is_near = (found - expected).abs() <= 8e-7 * x.abs();
            let is_same = found == expected || found.is_nan() && expected.is_nan();
            assert!(is_near || is_same, "{x} * sigmoid({alpha} * {x}) = {found}, not {expected}");
        }
    }
}

/// An addend of sums that wraps around as they do (`QGemm`) is one loop.
#[test]
fn sums_in_i64_of_i32_are_added_in_i32() {
    let step = |function, arguments: &[Argument], to| ScalarStep { function, arguments: arguments.to_vec(), to };
    let steps = vec![
        step(Function::Cast, &[Argument::Input], DType::I64),
        step(Function::Cast, &[Argument::Operand(0)], DType::I64),
        step(Function::Binary(BinaryFunction::Add), &[Argument::Step(1), Argument::Step(0)], DType::I64),
        step(Function::Cast, &[Argument::Step(2)], DType::I32),
    ];
    let program = Program::of_steps(steps).unwrap();
    let inputs = [Some(Value::from(Tensor::from_elements(&[3], &[i32::MIN, 5, 1]).unwrap()))];
    let compiled = Compiled::new(&program, Some(DType::I32), &[2, 3], &inputs).unwrap().unwrap();
    assert_eq!((compiled.steps.len(), compiled.cost()), (1, 2));
    let sums = [-1, 7, i32::MAX, i32::MIN, i32::MAX, -1];
    let found = run(&program, Accumulators::Integer(&sums), &[2, 3], &inputs).unwrap().remove(0);
    assert_eq!(found.elements::<i32>().unwrap(), [i32::MAX, 12, i32::MIN, 0, i32::MIN + 4, 0]);
}

/// The sum of two tensors of codes, in codes: what an addition between two quantized convolutions is. Zero points are
/// subtracted from integers, as in integer operators, or from f32, as in `DequantizeLinear`.
fn sum_of_codes(dtype: DType, in_floats: bool) -> Program {
    let step = |function, arguments: &[Argument], to| ScalarStep { function, arguments: arguments.to_vec(), to };
    let binary = |function, left, right, to| step(Function::Binary(function), &[left, right], to);
    let cast = |argument, to| step(Function::Cast, &[argument], to);
    let (operand, result) = (Argument::Operand, Argument::Step);
    let mut steps = Vec::new();
    let mut push = |step| {
        steps.push(step);
        result(steps.len() as u16 - 1)
    };
    let mut dequantized = |code, zero, scale, scale_first: bool| {
        let wide = if in_floats { DType::F32 } else { DType::I32 };
        let (code, zero) = (push(cast(code, wide)), push(cast(zero, wide)));
        let difference = push(binary(BinaryFunction::Sub, code, zero, wide));
        let difference = if in_floats { difference } else { push(cast(difference, DType::F32)) };
        let (left, right) = if scale_first { (scale, difference) } else { (difference, scale) };
        push(binary(BinaryFunction::Mul, left, right, DType::F32))
    };
    let left = dequantized(operand(0), operand(1), operand(2), false);
    let right = dequantized(operand(3), operand(4), operand(5), true);
    let sum = push(binary(BinaryFunction::Add, left, right, DType::F32));
    let quotient = push(binary(BinaryFunction::Div, sum, operand(6), DType::F32));
    let rounded = push(step(Function::Unary(UnaryFunction::Round), &[quotient], DType::I32));
    let zero = push(cast(operand(7), DType::I32));
    push(binary(BinaryFunction::Add, rounded, zero, dtype));
    Program::of_steps(steps).unwrap()
}

proptest! {
    #[test]
    fn sums_of_codes_are_one_loop_with_the_bits_of_the_steps(
        codes in proptest::collection::vec(any::<(i16, i16)>(), 2..200),
        zeros in any::<[i16; 3]>(),
        scales in (
            -2.0f32..2.0,
            1e-3f32..1e3,
            prop_oneof![1e-3f32..10.0, Just(0.0), Just(f32::NAN), Just(f32::MIN_POSITIVE)],
        ),
        dtype in prop_oneof![Just(DType::U8), Just(DType::I8), Just(DType::I16), Just(DType::U16)],
        in_floats in any::<bool>(),
    ) {
        // The low bits of each, as a type of few bits has them.
        let integers = |values: Vec<i16>, shape: &[usize]| {
            let unused = 64 - dtype.bits() as u32;
            let low = |value: i16| match dtype.is_signed_integer() {
                true => i128::from(i64::from(value) << unused >> unused),
                false => i128::from((i64::from(value) as u64) << unused >> unused),
            };
            let elements: Vec<Scalar> = values.into_iter().map(|value| Scalar::Integer(low(value))).collect();
            Some(Value::from(from_scalars(dtype, shape, &elements).unwrap()))
        };
        let scale = |value: f32| Some(Value::from(Tensor::from_elements(&[], &[value]).unwrap()));
        let shape = [codes.len()];
        let inputs = [
            integers(codes.iter().map(|code| code.0).collect(), &shape),
            integers(vec![zeros[0]], &[]),
            scale(scales.0),
            integers(codes.iter().map(|code| code.1).collect(), &shape),
            integers(vec![zeros[1]], &[1]),
            scale(scales.1),
            scale(scales.2),
            integers(vec![zeros[2]], &[]),
        ];
        let program = sum_of_codes(dtype, in_floats);
        let compiled = Compiled::new(&program, None, &shape, &inputs).unwrap().unwrap();
        prop_assert_eq!(compiled.steps.len(), 1, "two dequantizations, a sum and a quantization");
        let expected = program.evaluate(None, &shape, &inputs).unwrap();
        let found = run(&program, Accumulators::None, &shape, &inputs).unwrap();
        prop_assert_eq!(comparable(&found[0]), comparable(&expected[0]));
    }
}

#[test]
fn sums_of_many_codes_go_in_long_blocks() {
    let (count, scalar) = (40_000, |value: f32| Some(Value::from(Tensor::from_elements(&[], &[value]).unwrap())));
    let code = |value: u8| Some(Value::from(Tensor::from_elements(&[], &[value]).unwrap()));
    let codes = |factor: usize| {
        let codes: Vec<u8> = (0..count).map(|at| (at * factor % 251) as u8).collect();
        Some(Value::from(Tensor::from_elements(&[count], &codes).unwrap()))
    };
    let inputs = [codes(7), code(120), scalar(0.5), codes(13), code(3), scalar(0.25), scalar(0.75), code(100)];
    let program = sum_of_codes(DType::U8, false);
    let compiled = Compiled::new(&program, None, &[count], &inputs).unwrap().unwrap();
    assert_eq!(compiled.block_end(0, count), 13_376, "three blocks of whole vectors");
    let expected = program.evaluate(None, &[count], &inputs).unwrap();
    let found = run(&program, Accumulators::None, &[count], &inputs).unwrap();
    assert!(found[0].bytes() == expected[0].bytes());
}

#[test]
fn zero_points_beyond_bytes_have_the_bits_of_the_steps() {
    let codes: Vec<i8> = (0..200).map(|code| (code - 100) as i8).collect();
    let inputs = [Some(Value::from(Tensor::from_elements(&[200], &codes).unwrap()))];
    for zero in [-255, 255, 256, -256, 40_000, -40_000] {
        let step = |function, arguments: &[Argument], to| ScalarStep { function, arguments: arguments.to_vec(), to };
        let (binary, result) = (|function| Function::Binary(function), Argument::Step);
        let program = Program::of_steps(vec![
            step(Function::Cast, &[Argument::Operand(0)], DType::F32),
            step(binary(BinaryFunction::Sub), &[result(0), Argument::f32(zero as f32)], DType::F32),
            step(binary(BinaryFunction::Div), &[result(1), Argument::f32(1.0)], DType::F32),
            step(Function::Unary(UnaryFunction::Round), &[result(2)], DType::I32),
            step(binary(BinaryFunction::Add), &[result(3), Argument::i32(zero)], DType::U8),
        ])
        .unwrap();
        let expected: Vec<u8> = codes.iter().map(|&code| code.max(0).cast_unsigned()).collect();
        let found = run(&program, Accumulators::None, &[200], &inputs).unwrap().remove(0);
        assert_eq!(found.elements::<u8>().unwrap(), expected, "{zero}");
    }
}
