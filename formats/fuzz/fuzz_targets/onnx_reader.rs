//! Bytes as an ONNX file, plain or in a place of a model where they are read with care. The first byte
//! chooses the place, so that the fuzzer need not find the way there by itself.
#![no_main]

mod exercise_onnx;

use libfuzzer_sys::fuzz_target;

/// `content` as the delimited field of each number in turn, the innermost first.
fn wrapped(content: &[u8], numbers: &[u32]) -> Vec<u8> {
    let mut message = content.to_vec();
    for number in numbers {
        let mut outer = Vec::new();
        prost::encoding::bytes::encode(*number, &message, &mut outer);
        message = outer;
    }
    // The IR version.
    message.splice(0..0, [8, 10]);
    message
}

/// A tensor of type, extent and field by the first bytes, the rest its data.
fn tensor(bytes: &[u8]) -> Vec<u8> {
    let Some((&[data_type, low, high, field], data)) = bytes.split_first_chunk() else {
        return Vec::new();
    };
    let mut tensor = vec![8, low | 0x80, high & 0x7f, 16, data_type % 32];
    prost::encoding::bytes::encode(u32::from(field % 12).max(1), &data.to_vec(), &mut tensor);
    tensor
}

fuzz_target!(|bytes: &[u8]| {
    let Some((place, content)) = bytes.split_first() else {
        return;
    };
    let model = match place % 8 {
        0 => content.to_vec(),
        // graph, graph.initializer, graph.node.attribute, and its tensor, graph and sparse tensor
        1 => wrapped(content, &[7]),
        2 => wrapped(content, &[5, 7]),
        3 => wrapped(content, &[5, 1, 7]),
        4 => wrapped(content, &[22, 5, 1, 7]),
        5 => wrapped(&tensor(content), &[5, 7]),
        6 => wrapped(&tensor(content), &[5, 5, 1, 7]),
        _ => return exercise_onnx::value(content),
    };
    // Whether it is a model is not the question.
    let _ = exercise_onnx::model(&model);
});
