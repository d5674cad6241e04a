//! What a run shows of the values that it computes.

use ipuc_formats::value::Value;

/// Sees the values of a run as steps compute them.
pub trait Observer: Send {
    /// A run begins.
    fn begin(&mut self);

    /// The run begins anew, within a budget that it had not fitted into: what it has shown so far does not count.
    fn restart(&mut self);

    /// A block begins: the entry's own, or a body once more. How often bodies run is what the work of a file leaves open.
    fn block(&mut self, block: u32);

    /// A step has computed a value. Its number is the compiler's: the same in every file made from the model.
    fn value(&mut self, number: u32, value: &Value);

    /// What the steps that follow read in place of a value that was shown, for trying what a change of it does to others: a
    /// tensor of the same type and shape, or `None` for the value itself. Another kind ends the run with an error.
    fn replaced(&mut self, _number: u32, _value: &Value) -> Option<Value> {
        None
    }
}
