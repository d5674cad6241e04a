//! Values for people and as JSON.

use ipuc_formats::dtype::DType;
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_formats::{fact, narrow, with_number};
use serde_json::{Value as Json, json};

/// Elements of a tensor, items of a sequence and entries of a map that are printed; of larger ones the first are.
const PRINTED_ELEMENTS: usize = 8;
/// Elements of a tensor up to which JSON holds all.
const JSON_ELEMENTS: usize = 4096;

/// The first elements of a tensor, at most so many, as a tensor of one axis. What is printed does not grow with the tensor.
fn first(tensor: &Tensor, limit: usize) -> Tensor {
    let count = tensor.count().min(limit);
    if count == tensor.count() {
        return tensor.clone();
    }
    let part = match (tensor.strings(), tensor.dtype().packed_bytes(count)) {
        (Ok(strings), _) => Tensor::from_strings(&[count], strings[..count].to_vec()),
        (Err(_), bytes) => Tensor::from_bytes(tensor.dtype(), &[count], &tensor.bytes()[..bytes.unwrap_or(0)]),
    };
    // The beginning of a tensor is one.
    part.unwrap_or_else(|_| tensor.clone())
}

/// The real elements of a tensor as f64; `None` for integers, booleans, text and complex numbers.
fn floats(tensor: &Tensor) -> Option<Vec<f64>> {
    let dtype = tensor.dtype();
    if dtype.is_narrow_float() {
        return Some(tensor.codes().iter().map(|&code| f64::from(narrow::decode(dtype, code))).collect());
    }
    if !dtype.is_float() {
        return None;
    }
    use ipuc_formats::element::Number;
    with_number!(
        dtype,
        T => Some(tensor.elements::<T>().ok()?.iter().map(|&element| element.to_f64_lossy()).collect()),
        otherwise None
    )
}

/// The least and the greatest real element; `None` for other types.
fn range(tensor: &Tensor) -> Option<(f64, f64)> {
    use ipuc_formats::element::Number;
    let dtype = tensor.dtype();
    let none = (f64::INFINITY, f64::NEG_INFINITY);
    let wider = |(least, greatest): (f64, f64), element: f64| (least.min(element), greatest.max(element));
    if dtype.is_narrow_float() {
        let values = tensor.codes().into_iter().map(|code| f64::from(narrow::decode(dtype, code)));
        return Some(values.fold(none, wider));
    }
    if !dtype.is_float() {
        return None;
    }
    with_number!(
        dtype,
        T => Some(tensor.elements::<T>().ok()?.iter().map(|&element| element.to_f64_lossy()).fold(none, wider)),
        otherwise None
    )
}

/// `f32[1, 3] 0.25, -1, 3`; with an ellipsis and the range where there are more elements.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Tensor(tensor) => tensor_text(tensor),
        Value::Sequence { element, items } => {
            format!("sequence({element}) of {} [{}]", items.len(), parts(items.iter().map(text)))
        }
        Value::Optional { element, value: None } => format!("optional({element}) none"),
        Value::Optional { value: Some(value), .. } => format!("optional {}", text(value)),
        Value::Map { key, element, entries } => {
            let entry = |(key, value): &(Tensor, Value)| format!("{}: {}", elements(key, 1).concat(), text(value));
            format!("map({key}, {element}) {{{}}}", parts(entries.iter().map(entry)))
        }
    }
}

/// The first parts, with an ellipsis where there are more; the others are not made.
fn parts(mut parts: impl ExactSizeIterator<Item = String>) -> String {
    let mut shown: Vec<String> = parts.by_ref().take(PRINTED_ELEMENTS).collect();
    if parts.len() > 0 {
        shown.push("..".to_string());
    }
    shown.join("; ")
}

fn tensor_text(tensor: &Tensor) -> String {
    let shape: Vec<String> = tensor.shape().iter().map(usize::to_string).collect();
    let mut text = format!("{}[{}]", tensor.dtype(), shape.join(", "));
    let shown = elements(tensor, PRINTED_ELEMENTS);
    if !shown.is_empty() {
        text.push(' ');
        text.push_str(&shown.join(", "));
    }
    if tensor.count() > PRINTED_ELEMENTS {
        text.push_str(", ..");
        if let Some((least, greatest)) = range(tensor) {
            text.push_str(&format!(" (from {} to {})", short(least), short(greatest)));
        }
    }
    text
}

/// Up to `limit` elements in words.
fn elements(tensor: &Tensor, limit: usize) -> Vec<String> {
    let tensor = &first(tensor, limit);
    if let Some(floats) = floats(tensor) {
        return floats.into_iter().take(limit).map(short).collect();
    }
    if let Ok(strings) = tensor.strings() {
        return strings.iter().take(limit).map(|string| format!("{string:?}")).collect();
    }
    if let Ok(bools) = tensor.bools() {
        return bools.iter().take(limit).map(bool::to_string).collect();
    }
    if let Ok(large) = tensor.elements::<u64>() {
        return large.iter().take(limit).map(u64::to_string).collect();
    }
    if let Some(integers) = fact::integers(tensor) {
        return integers.iter().take(limit).map(i64::to_string).collect();
    }
    let parts = complex_parts(tensor);
    parts.chunks_exact(2).take(limit).map(|pair| format!("{}{:+}i", short(pair[0]), pair[1])).collect()
}

fn complex_parts(tensor: &Tensor) -> Vec<f64> {
    match tensor.dtype() {
        DType::C64 => {
            let parts: &[f32] = bytemuck::try_cast_slice(tensor.bytes()).unwrap_or(&[]);
            parts.iter().map(|&part| f64::from(part)).collect()
        }
        _ => bytemuck::try_cast_slice(tensor.bytes()).unwrap_or(&[]).to_vec(),
    }
}

/// Six significant digits, which is what f32 is good for.
pub(super) fn short(number: f64) -> String {
    if number == 0.0 || !number.is_finite() {
        return number.to_string();
    }
    let rounded: f64 = format!("{number:.5e}").parse().unwrap_or(number);
    let magnitude = rounded.abs();
    if (1e-4..1e7).contains(&magnitude) { rounded.to_string() } else { format!("{rounded:e}") }
}

/// `{"dtype", "shape", "values"}` for a tensor; `values` is null for one of many elements, NaN and infinities are text.
pub(super) fn json(value: &Value) -> Json {
    match value {
        Value::Tensor(tensor) => {
            let values = if tensor.count() <= JSON_ELEMENTS { json_elements(tensor) } else { Json::Null };
            json!({"dtype": tensor.dtype().to_string(), "shape": tensor.shape(), "values": values})
        }
        Value::Sequence { items, .. } => json!({"sequence": items.iter().map(json).collect::<Vec<_>>()}),
        Value::Optional { value, .. } => json!({"optional": value.as_deref().map(json)}),
        Value::Map { entries, .. } => {
            let entries =
                entries.iter().map(|(key, value)| json!({"key": json_elements(key)[0], "value": json(value)}));
            json!({"map": entries.collect::<Vec<_>>()})
        }
    }
}

fn json_elements(tensor: &Tensor) -> Json {
    let number = |float: f64| if float.is_finite() { json!(float) } else { json!(float.to_string()) };
    if let Some(floats) = floats(tensor) {
        return floats.into_iter().map(number).collect();
    }
    if let Ok(strings) = tensor.strings() {
        return json!(strings);
    }
    if let Ok(bools) = tensor.bools() {
        return json!(bools);
    }
    if let Ok(large) = tensor.elements::<u64>() {
        return json!(large);
    }
    if let Some(integers) = fact::integers(tensor) {
        return json!(integers);
    }
    complex_parts(tensor).chunks_exact(2).map(|pair| json!([number(pair[0]), number(pair[1])])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_printed() {
        let of = |tensor: Tensor| text(&Value::Tensor(tensor));
        assert_eq!(of(Tensor::from_codes(DType::U4, &[9], &[5; 9]).unwrap()), "u4[9] 5, 5, 5, 5, 5, 5, 5, 5, ..");
        assert_eq!(first(&Tensor::zeros(DType::I8, &[1 << 20]).unwrap(), 8).bytes().len(), 8);
        assert_eq!(of(Tensor::from_elements(&[1, 2], &[0.25f32, -1e-9]).unwrap()), "f32[1, 2] 0.25, -1e-9");
        assert_eq!(of(Tensor::scalar(0.1f32)), "f32[] 0.1");
        assert_eq!(of(Tensor::scalar(u64::MAX)), "u64[] 18446744073709551615");
        assert_eq!(of(Tensor::scalar_bool(true)), "bool[] true");
        assert_eq!(of(Tensor::zeros(DType::F16, &[0]).unwrap()), "f16[0]");
        assert_eq!(of(Tensor::from_strings(&[1], vec!["a\n".into()]).unwrap()), "string[1] \"a\\n\"");
        let many: Vec<f32> = (0..10).map(|index| index as f32).collect();
        let many = Tensor::from_elements(&[10], &many).unwrap();
        assert_eq!(of(many), "f32[10] 0, 1, 2, 3, 4, 5, 6, 7, .. (from 0 to 9)");
        let part = |real: f32, imaginary: f32| [real.to_le_bytes(), imaginary.to_le_bytes()].concat();
        assert_eq!(of(Tensor::from_bytes(DType::C64, &[1], &part(1.5, -2.0)).unwrap()), "c64[1] 1.5-2i");
    }

    #[test]
    fn of_many_items_the_first_are_printed() {
        let scalar = |index: usize| Value::from(Tensor::scalar(index as f32));
        let sequence = |count: usize| {
            let items = (0..count).map(scalar).collect();
            text(&Value::Sequence { element: scalar(0).kind(), items })
        };
        let eight: Vec<String> = (0..8).map(|index| format!("f32[] {index}")).collect();
        let eight = eight.join("; ");
        assert_eq!(sequence(8), format!("sequence(f32[]) of 8 [{eight}]"));
        assert_eq!(sequence(100_000), format!("sequence(f32[]) of 100000 [{eight}; ..]"));
        let entries: Vec<_> = (0..9).map(|index| (Tensor::scalar(index as i64), scalar(index))).collect();
        let map = text(&Value::Map { key: DType::I64, element: scalar(0).kind(), entries });
        assert!(map.ends_with("7: f32[] 7; ..}") && !map.contains("8:"), "{map}");
    }

    #[test]
    fn json_holds_all_values() {
        let tensor = Tensor::from_elements(&[2], &[0.5f32, f32::NAN]).unwrap();
        let sequence = Value::Sequence { element: Value::from(tensor.clone()).kind(), items: vec![tensor.into()] };
        assert_eq!(json(&sequence), json!({"sequence": [{"dtype": "f32", "shape": [2], "values": [0.5, "NaN"]}]}));
    }
}
