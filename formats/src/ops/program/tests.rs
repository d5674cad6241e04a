use super::*;
use crate::attribute::{Attribute, AttributeValue};
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::scalar::Scalar;
use crate::ops::{
    Activation, ActivationFunction, BinaryFunction, CompareRelation, InferContext, ReferenceError, TypeError,
    UnaryFunction,
};
use crate::tensor::Tensor;
use crate::value::Value;
use proptest::prelude::*;
use std::collections::HashSet;
use strum::VariantArray;

fn texts(lines: &[&str]) -> AttributeValue {
    AttributeValue::Texts(lines.iter().map(ToString::to_string).collect())
}

fn program(lines: &[&str]) -> Program {
    Program::from_value(&texts(lines)).unwrap_or_else(|| panic!("{lines:?}"))
}

fn functions() -> Vec<Function> {
    let mut functions = vec![Function::Select, Function::Clamp, Function::Cast];
    functions.extend(UnaryFunction::VARIANTS.iter().map(|&function| Function::Unary(function)));
    functions.extend(BinaryFunction::VARIANTS.iter().map(|&function| Function::Binary(function)));
    functions.extend(ActivationFunction::VARIANTS.iter().map(|&of| Function::Activation(Activation::new(of))));
    functions.extend(CompareRelation::VARIANTS.iter().map(|&relation| Function::Compare(relation)));
    functions
}

fn arguments() -> impl Strategy<Value = Argument> {
    prop_oneof![
        Just(Argument::Input),
        any::<u16>().prop_map(Argument::Step),
        any::<u16>().prop_map(Argument::Operand),
        any::<u32>().prop_map(|bits| Argument::Constant(DType::F32, bits.into())),
        any::<u64>().prop_map(|bits| Argument::Constant(DType::F64, bits)),
        any::<u16>().prop_map(|bits| Argument::Constant(DType::BF16, bits.into())),
        any::<u16>().prop_map(|bits| Argument::Constant(DType::F16, bits.into())),
        any::<u64>().prop_map(|bits| Argument::Constant(DType::I64, bits)),
        any::<u8>().prop_map(|bits| Argument::Constant(DType::I8, bits.into())),
        any::<u64>().prop_map(|bits| Argument::Constant(DType::I4, bits)),
    ]
}

proptest! {
    #[test]
    fn texts_round_trip(
        steps in proptest::collection::vec((0usize..64, proptest::collection::vec(arguments(), 0..4)), 0..5),
        results in proptest::collection::vec(arguments(), 0..3),
        slope in any::<f32>(),
    ) {
        let all = functions();
        let mut program = Program { steps: Vec::new(), results };
        for (function, arguments) in steps {
            let function = match all[function % all.len()].clone() {
                Function::Activation(of) if !slope.is_nan() => {
                    Function::Activation(Activation { alpha: Some(slope), ..of })
                }
                other => other,
            };
            program.push(function, arguments, DType::BF16);
        }
        match program.to_value() {
            Some(value) => prop_assert_eq!(Program::from_value(&value), Some(program)),
            None => prop_assert!(program.is_empty()),
        }
    }
}

#[test]
fn names_are_unique() {
    let functions = functions();
    let names: HashSet<&str> = functions.iter().map(Function::name).collect();
    assert_eq!(names.len(), functions.len());
}

#[test]
fn the_form_in_texts() {
    let lines =
        ["cast x : f32", "mul %0 $2 : f32", "leaky_relu alpha=0.1 %1 : f16", "add %2 f16(1.5) : u8", "return %3 x"];
    let parsed = program(&lines);
    assert_eq!(parsed.to_value(), Some(texts(&lines)));
    assert_eq!(parsed.steps[3].arguments, [Argument::Step(2), Argument::Constant(DType::F16, 0x3e00)]);
    assert_eq!(parsed.operands().collect::<Vec<_>>(), [2]);
    assert_eq!(Program::default().to_value(), None);
    for wrong in [
        "add x $2",
        "add x $2 : f33",
        "nothing x : f32",
        "add x $-1 : f32",
        "add x %70000 : f32",
        "add x u8(256) : f32",
        "add x f32[1] : f32",
        "relu gamma=1 x : f32",
        "add alpha=1 x x : f32",
        "add  x x : f32",
    ] {
        assert_eq!(Program::from_value(&texts(&[wrong, "return %0"])), None, "{wrong}");
    }
    assert_eq!(Program::from_value(&texts(&["neg x : f32"])), None);
    assert_eq!(Program::from_value(&texts(&[])), None);
}

#[test]
fn hostile_programs_are_refused() {
    let operand = |operand: usize| [None, None, Some(DType::F32), Some(DType::String)].get(operand).copied().flatten();
    let check = |lines: &[&str]| program(lines).check(Some(DType::I32), operand);
    assert_eq!(check(&["cast x : f32", "add %0 $2 : u8", "return %1 x"]), Ok(vec![DType::U8, DType::I32]));
    let forward =
        |reader: &str, found, known| Err(ProgramError::ForwardReference { reader: reader.to_string(), found, known });
    assert_eq!(check(&["neg %0 : i32", "return %0"]), forward("step 0", 0, 0));
    assert_eq!(check(&["neg x : i32", "return %1"]), forward("a result", 1, 1));
    assert_eq!(check(&["neg $1 : i32", "return %0"]), Err(ProgramError::Operand { operand: 1 }));
    assert_eq!(check(&["neg $9 : i32", "return %0"]), Err(ProgramError::Operand { operand: 9 }));
    assert_eq!(check(&["cast $3 : i32", "return %0"]), Err(ProgramError::ElementType(DType::String)));
    assert_eq!(check(&["cast x : c64", "return %0"]), Err(ProgramError::ElementType(DType::C64)));
    let arity = ProgramError::Arity { step: 0, function: "add", expected: 2, found: 1 };
    assert_eq!(check(&["add x : i32", "return %0"]), Err(arity));
    assert_eq!(
        check(&["neg i4(0xff) : i32", "return %0"]),
        Err(ProgramError::Constant { dtype: DType::I4, bits: 0xff })
    );
    for types in ["add x $2 : f32", "sqrt x : i32", "equal x x : i32", "add x x : bool", "select x x x : i32"] {
        let found = check(&[types, "return %0"]);
        assert!(matches!(found, Err(ProgramError::Types { step: 0, .. })), "{types}: {found:?}");
    }
    assert_eq!(program(&["return x"]).check(None, operand), Err(ProgramError::NoAccumulator));
    let mut long = Program::default();
    for _ in 0..=MOST_STEPS {
        long.push(Function::Cast, vec![Argument::Input], DType::I32);
    }
    let found = long.check(Some(DType::I32), operand);
    assert_eq!(found, Err(ProgramError::TooManySteps { found: MOST_STEPS + 1, most: MOST_STEPS }));
}

fn finish(
    lines: &[&str],
    accumulator: DType,
    sums: &[Scalar],
    inputs: &[Option<Value>],
) -> Result<Tensor, ReferenceError> {
    program(lines).finish(DType::F32, accumulator, sums, &[sums.len()], inputs)
}

#[test]
fn each_step_rounds_to_its_type() {
    let sums = [1.5, 2.5, 300.0, -1.0, f64::NAN, f64::INFINITY].map(Scalar::Float);
    let rounded = finish(&["neg x : f32", "neg %0 : u8", "return %1"], DType::F32, &sums, &[]).unwrap();
    assert_eq!(rounded.elements::<u8>().unwrap(), [2, 2, 255, 0, 0, 255]);
    // A cast truncates and wraps, as the operator does.
    let cast = finish(&["cast x : u8", "return %0"], DType::F32, &sums[..4], &[]).unwrap();
    assert_eq!(cast.elements::<u8>().unwrap(), [1, 2, 44, 255]);
    // What no f16 holds is rounded on the way, not at the end only.
    let sums = [Scalar::Float(2049.0)];
    let add = |first: &str| {
        let lines = [first, "add %0 f16(0.0) : f32", "return %1"];
        finish(&lines, DType::F32, &sums, &[]).unwrap().elements::<f32>().unwrap()[0]
    };
    assert_eq!(add("cast x : f16"), 2048.0);
    // The accumulator is not rounded before the first step.
    let fine = [Scalar::Float(1.0 + f64::EPSILON)];
    let excess = finish(&["sub x f32(1.0) : f32", "return %0"], DType::F32, &fine, &[]).unwrap();
    assert_eq!(excess.elements::<f32>().unwrap(), [f64::EPSILON as f32]);
}

#[test]
fn sums_of_integers_wrap_first() {
    let sums = [i128::from(i32::MAX) + 2, 40, -129].map(Scalar::Integer);
    let limited = finish(&["clamp x i32(-100) i32(50) : i8", "return %0"], DType::I32, &sums, &[]).unwrap();
    assert_eq!(limited.elements::<i8>().unwrap(), [-100, 40, -100]);
    let bits = finish(&["cast x : u8", "bit_not %0 : u8", "return %1"], DType::I32, &sums[1..], &[]).unwrap();
    assert_eq!(bits.elements::<u8>().unwrap(), [215, 128]);
}

#[test]
fn truths_choose() {
    let sums = [-2.0, 3.0].map(Scalar::Float);
    let lines = ["less x f32(0.0) : bool", "mul x f32(0.5) : f32", "select %0 %1 x : f32", "return %2"];
    let chosen = finish(&lines, DType::F32, &sums, &[]).unwrap();
    assert_eq!(chosen.elements::<f32>().unwrap(), [-1.0, 3.0]);
}

#[test]
fn operands_broadcast_but_do_not_enlarge() {
    let ranges = crate::dim::Ranges::default();
    let mut blocks = crate::ops::NoBlocks;
    let mut context = InferContext::new("matmul", &ranges, &mut blocks);
    let add = program(&["add x $2 : f32", "return %0"]);
    let facts = |extents: &[usize]| [None, None, Some(Fact::tensor(DType::F32, Shape::known(extents)))];
    let shape = Shape::known(&[1, 4]);
    let mut infer = |extents: &[usize]| add.infer(DType::F16, DType::F32, &shape, &facts(extents), &mut context);
    assert_eq!(infer(&[4]).unwrap(), DType::F32);
    assert!(matches!(infer(&[3, 4]), Err(TypeError::Dimension { .. })));
    assert!(matches!(infer(&[1, 1, 4]), Err(TypeError::Rank { operand: 2, .. })));
    let two = program(&["return x x"]);
    let found = two.infer(DType::F16, DType::F32, &shape, &[], &mut context).unwrap_err();
    assert_eq!(found, ProgramError::Results { found: 2, expected: "1" }.into());
    let bias = Tensor::from_elements(&[2], &[10.0f32, -10.0]).unwrap();
    let inputs = [None, None, Some(Value::from(bias))];
    let sums = [1.0, 2.0, 3.0, 4.0].map(Scalar::Float);
    let lines = ["sub $2 x : f32", "clamp %0 f32(-12.5) f32(8.0) : f32", "return %1"];
    let applied = program(&lines).finish(DType::F32, DType::F32, &sums, &[2, 2], &inputs).unwrap();
    assert_eq!(applied.elements::<f32>().unwrap(), [8.0, -12.0, 7.0, -12.5]);
    assert_eq!(
        program(&lines).finish(DType::F32, DType::F32, &sums, &[4], &inputs).unwrap_err().to_string(),
        "operand of the program: [2] does not fit [4]"
    );
}
