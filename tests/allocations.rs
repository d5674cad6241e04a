//! What a step costs in requests for memory, counted: a run of many steps asks no more for each than a run of few.
#![allow(unsafe_code, reason = "an allocator that counts")]
#![allow(clippy::unwrap_used, reason = "tests panic")]

use ipuc::{Session, SessionOptions, Tensor, open_bytes};
use ipuc_passes::emit::{EmitOptions, NoProgress, Output, emit};
use ipuc_passes::ir::text::parse;
use ipuc_passes::options::Options;
use ipuc_passes::pipeline;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fmt::Write as _;
use std::io;
use std::sync::Mutex;

thread_local! {
    static REQUESTS: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, which counts what this thread asks for.
struct Counting;

// SAFETY: everything is the system's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that ends has no count any more.
        let _ = REQUESTS.try_with(|requests| requests.set(requests.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[derive(Default)]
struct Memory(Mutex<Vec<u8>>);

impl Output for Memory {
    fn write_at(&self, offset: u64, written: &[u8]) -> io::Result<()> {
        let mut bytes = self.0.lock().unwrap();
        let end = offset as usize + written.len();
        let length = bytes.len().max(end);
        bytes.resize(length, 0);
        bytes[offset as usize..end].copy_from_slice(written);
        Ok(())
    }
}

/// Requests of a run, of the third one, of as many additions that are not joined.
fn requests(additions: usize) -> usize {
    let mut text =
        "entry \"main\"(\"x\", \"b\") -> (\"y\") = block 0\nblock 0(%x : f32[2, 8], %b : f32[2, 8]) {\n".to_string();
    let mut last = "x".to_string();
    for at in 0..additions {
        let _ = writeln!(text, "  %v{at} : f32[2, 8] = binary function=add %{last}, %b from \"{at}\"");
        last = format!("v{at}");
    }
    let _ = writeln!(text, "  return %{last}\n}}");
    let mut graph = parse(&text).unwrap();
    pipeline::run_one(pipeline::find("order").unwrap(), &mut graph, &Options::default()).unwrap();
    let file = Memory::default();
    emit(&graph, &EmitOptions::default(), &file, &NoProgress).unwrap();
    let model = open_bytes(&file.0.into_inner().unwrap()).unwrap();
    let mut session = Session::new(&model, &SessionOptions { threads: 1, ..SessionOptions::default() }).unwrap();
    let tensor = || Tensor::from_elements(&[2, 8], &[0.5f32; 16]).unwrap();
    let mut counted = 0;
    for _ in 0..3 {
        let inputs = vec![("x".to_string(), tensor().into()), ("b".to_string(), tensor().into())];
        let before = REQUESTS.get();
        let outputs = session.run(None, inputs).unwrap();
        counted = REQUESTS.get() - before;
        assert_eq!(outputs.len(), 1);
    }
    counted
}

#[test]
fn a_small_step_asks_for_its_lists_only() {
    let (few, many) = (requests(20), requests(220));
    // The list of its operands, two of its results, and a block of what it writes over; nothing for shapes and places.
    assert_eq!(many - few, 200 * 4, "{few} for 20 additions, {many} for 220");
}
