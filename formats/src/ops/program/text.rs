//! Programs as texts: how they are stored, and printed.

use crate::attribute::{Attribute, AttributeValue};
use crate::dtype::DType;
use crate::ops::program::function::{Function, is_element};
use crate::ops::program::steps::{Argument, Program, ScalarStep};
use crate::ops::scalar::{Scalar, bits_of_scalar, round_scalar, scalar_of_bits};
use crate::ops::{Activation, ActivationFunction};

const RESULTS: &str = "return";

impl Attribute for Program {
    fn to_value(&self) -> Option<AttributeValue> {
        if self.is_empty() {
            return None;
        }
        let mut texts: Vec<String> = self.steps.iter().map(print_step).collect();
        let results = self.results.iter().map(|&result| print_argument(result));
        texts.push(std::iter::once(RESULTS.to_string()).chain(results).collect::<Vec<_>>().join(" "));
        Some(AttributeValue::Texts(texts))
    }

    fn from_value(value: &AttributeValue) -> Option<Self> {
        let AttributeValue::Texts(texts) = value else { return None };
        let (results, steps) = texts.split_last()?;
        let results = match results.split(' ').collect::<Vec<_>>().as_slice() {
            [RESULTS, results @ ..] => results.iter().map(|text| parse_argument(text)).collect::<Option<_>>()?,
            _ => return None,
        };
        let steps = steps.iter().map(|text| parse_step(text)).collect::<Option<_>>()?;
        Some(Program { steps, results })
    }

    fn absent() -> Option<Self> {
        Some(Program::default())
    }
}

fn print_step(step: &ScalarStep) -> String {
    let mut text = step.function.name().to_string();
    if let Function::Activation(activation) = &step.function {
        for (name, parameter) in [("alpha", activation.alpha), ("beta", activation.beta)] {
            if let Some(value) = parameter {
                text.push_str(&format!(" {name}={value:?}"));
            }
        }
    }
    for &argument in &step.arguments {
        text.push(' ');
        text.push_str(&print_argument(argument));
    }
    text.push_str(&format!(" : {}", step.to.name()));
    text
}

fn parse_step(text: &str) -> Option<ScalarStep> {
    let words: Vec<&str> = text.split(' ').collect();
    let [name, words @ .., ":", to] = words.as_slice() else { return None };
    let parameters = words.iter().take_while(|word| word.contains('=')).count();
    let (parameters, arguments) = words.split_at(parameters);
    let function = parse_function(name, parameters)?;
    let arguments = arguments.iter().map(|text| parse_argument(text)).collect::<Option<_>>()?;
    Some(ScalarStep { function, arguments, to: crate::dtype::parse(to)? })
}

fn parse_function(name: &str, parameters: &[&str]) -> Option<Function> {
    if let Ok(function) = name.parse::<ActivationFunction>() {
        let mut activation = Activation::new(function);
        for parameter in parameters {
            let (name, value) = parameter.split_once('=')?;
            let slot = match name {
                "alpha" => &mut activation.alpha,
                "beta" => &mut activation.beta,
                _ => return None,
            };
            if slot.replace(value.parse().ok()?).is_some() {
                return None;
            }
        }
        return Some(Function::Activation(activation));
    }
    let plain = match name {
        "select" => Some(Function::Select),
        "clamp" => Some(Function::Clamp),
        "cast" => Some(Function::Cast),
        other => (other.parse().ok().map(Function::Unary))
            .or_else(|| other.parse().ok().map(Function::Binary))
            .or_else(|| other.parse().ok().map(Function::Compare)),
    };
    plain.filter(|_| parameters.is_empty())
}

fn print_argument(argument: Argument) -> String {
    match argument {
        Argument::Input => "x".to_string(),
        Argument::Step(step) => format!("%{step}"),
        Argument::Operand(operand) => format!("${operand}"),
        Argument::Constant(dtype, bits) => {
            let number = match scalar_of_bits(dtype, bits) {
                Some(Scalar::Integer(integer)) => integer.to_string(),
                // The sign and the bits of NaN are in no decimal text.
                Some(Scalar::Float(float)) if float.is_finite() => format!("{float:?}"),
                Some(Scalar::Float(_)) | None => format!("{bits:#x}"),
            };
            format!("{}({number})", dtype.name())
        }
    }
}

fn parse_argument(text: &str) -> Option<Argument> {
    if text == "x" {
        return Some(Argument::Input);
    }
    if let Some(step) = text.strip_prefix('%') {
        return step.parse().ok().map(Argument::Step);
    }
    if let Some(operand) = text.strip_prefix('$') {
        return operand.parse().ok().map(Argument::Operand);
    }
    let (dtype, number) = text.strip_suffix(')')?.split_once('(')?;
    let dtype = crate::dtype::parse(dtype)?;
    Some(Argument::Constant(dtype, parse_bits(dtype, number)?))
}

fn parse_bits(dtype: DType, number: &str) -> Option<u64> {
    if let Some(bits) = number.strip_prefix("0x") {
        return u64::from_str_radix(bits, 16).ok();
    }
    if !is_element(dtype) {
        return None;
    }
    if dtype.is_float() {
        return bits_of_scalar(dtype, round_scalar(dtype, Scalar::Float(number.parse().ok()?)));
    }
    let bits = bits_of_scalar(dtype, Scalar::Integer(number.parse().ok()?))?;
    // What does not fit would read back as something else.
    (scalar_of_bits(dtype, bits) == Some(Scalar::Integer(number.parse().ok()?))).then_some(bits)
}
