//! Whether a weight is stored without its zeros, and why.
//!
//! Panels without zeros are spread out before they are multiplied: that takes time, and saves bytes that come from memory or from
//! the disk. So they pay where the model is larger than a cache and few bytes are left. Products of one row on two threads, by
//! `cargo bench -p ipuc-kernels --bench sparse`:
//!
//! - f32 of 512 MiB, spread out in a near cache: 26 % of the bytes take 73 % of the time, 36 % take 93 %, 46 % take 103 %.
//! - Codes of 8 bits of 385 MiB, rounded activations, no planes of blocks, spread out in registers (AVX-512 with VBMI2): 36 % of the
//!   bytes take 62 % of the time, 45 % take 72 %, 63 % (2:4) take 71 to 83 %, 77 % take 95 %, 86 % take 104 %; in whole lines 72 %
//!   take 92 %, 80 % take 102 %.
//! - Other elements of 8 and of 16 bits take longer without zeros element by element at every share.
//!
//! The choice for codes is made for processors with VBMI2 and for products of one row, wherever the file will run: others spread codes
//! out in a near cache, where a product of one row beyond caches takes 1.8 to 2.7 times as long as the dense one with AVX2.

use super::counts::Counts;
use crate::ir::{ChosenEncoding, ConstantId, Graph, Operand, Uses};
use crate::options::{ActivationSparsity, Options, Sparsity};
use ipuc_formats::encodings::{Coded, Logical, Panels, SparsePanels, Zeros};
use ipuc_formats::ops::Op;
use std::collections::BTreeSet;

/// Weights of matrix products that together take fewer bytes are read from a cache, where zeros cost little.
pub const CACHED_BYTES: u64 = 64 << 20;

/// Above this share of the bytes with zeros, leaving those of elements of 32 bits out takes more time than it saves.
pub const BREAK_EVEN: f64 = 0.36;

/// As [`BREAK_EVEN`] for zeros that are left out in whole lines, of elements of any type.
pub const LINES_BREAK_EVEN: f64 = 0.6;

/// As [`BREAK_EVEN`] and [`LINES_BREAK_EVEN`] for codes of 8 bits that are multiplied with rounded activations and whose planes are all
/// over all inputs.
pub const CODES_BREAK_EVEN: f64 = 0.75;

/// What the choice depends on beside the weight.
pub(super) struct Model {
    pub(super) sparsity: Sparsity,
    pub(super) activations: ActivationSparsity,
    /// Bytes that the weights of all matrix products take with zeros.
    pub(super) product_bytes: u64,
    /// Weights that other steps than matrix products read.
    pub(super) others: BTreeSet<ConstantId>,
    /// Weights that a product with activations as they are reads, or with such as have blocks.
    unrounded: BTreeSet<ConstantId>,
}

impl Model {
    pub(super) fn new(graph: &Graph, options: &Options) -> Model {
        let (mut products, mut others, mut unrounded) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for index in graph.reachable_blocks() {
            for step in &graph.block(index).steps {
                let constants = step.operands.iter().enumerate().filter_map(|(at, operand)| match operand {
                    Operand::Constant(id) => Some((at, *id)),
                    Operand::Value(_) | Operand::Absent => None,
                });
                for (at, id) in constants {
                    if let (Op::Matmul(product), 1) = (&step.op, at) {
                        products.insert(id);
                        if product.arithmetic.dynamic_block() != Some(0) {
                            unrounded.insert(id);
                        }
                    } else {
                        others.insert(id);
                    }
                }
            }
        }
        let uses = graph.uses();
        let bytes = |id: &ConstantId| {
            let encoding = current(graph, *id, uses.get(id)?).encoding;
            encoding.stored_bytes(Logical { dtype: graph.constant(*id).dtype, shape: &extents(graph, *id) }).ok()?
        };
        let product_bytes = products.iter().filter_map(bytes).sum();
        let (sparsity, activations) = (options.sparsity, options.activation_sparsity);
        Model { sparsity, activations, product_bytes, others, unrounded }
    }

    /// The encoding without zeros, or why they stay.
    pub(super) fn choose(
        &self,
        graph: &Graph,
        id: ConstantId,
        uses: &Uses,
        (zeros, counts): (&Zeros, &Counts),
    ) -> Result<ChosenEncoding, String> {
        if zeros.zeros == 0 {
            return Err("it has no zeros".to_string());
        }
        let ChosenEncoding { encoding, by_budget, reason } = current(graph, id, uses);
        let Some(panels) = encoding.as_panels().filter(|_| !zeros.groups.is_empty()) else {
            return Err("steps read it as it is, or rows of it".to_string());
        };
        if zeros.not_finite > 0 {
            return Err(format!("{} of its elements are NaN or infinite", zeros.not_finite));
        }
        let found = 100.0 * zeros.share();
        if zeros.elements < graph.constant(id).shape.iter().product::<usize>() as u64 {
            return Err(format!("a sample has {found:.1} % zeros, which are too few"));
        }
        let shape = extents(graph, id);
        let logical = Logical { dtype: graph.constant(id).dtype, shape: &shape };
        let bytes = |encoding: &Coded| {
            let bytes = encoding.stored_bytes(logical).ok().flatten();
            bytes.ok_or_else(|| "no encoding takes its values".to_string())
        };
        let dense_bytes = bytes(&encoding)?;
        let share = |encoding: &Coded| Ok::<f64, String>(bytes(encoding)? as f64 / dense_bytes as f64);
        let elements = without_zeros(panels, zeros)?;
        let lines = counts.record_lines(panels.interleave).and_then(|lines| SparsePanels::in_lines_of(panels, lines));
        let (elements, lines) = ((share(&elements)?, elements), lines.map(Coded::from));
        let lines = lines.map(|lines| Ok::<_, String>((share(&lines)?, lines))).transpose()?;
        let bits = panels.dtype.bits();
        let chosen = |(share, sparse): &(f64, Coded), why: &str| {
            let share = 100.0 * share;
            let reason = format!("{reason}; without zeros: {share:.0} % of the bytes, {why}");
            Ok(ChosenEncoding { encoding: sparse.clone(), by_budget, reason })
        };
        let fewest = lines.as_ref().filter(|lines| lines.0 <= elements.0).unwrap_or(&elements);
        if fewest.0 >= 1.0 {
            return Err(format!("a mask of its {found:.1} % zeros would take more bytes than they do"));
        }
        let percent = |share: f64| 100.0 * share;
        match self.sparsity {
            Sparsity::Never => Err("zeros are kept as asked for".to_string()),
            Sparsity::Always => chosen(fewest, "as asked for"),
            Sparsity::Measured if self.others.contains(&id) => {
                Err("its reader (a convolution, a recurrent layer) computes for longer than it reads it".to_string())
            }
            Sparsity::Measured if self.product_bytes < CACHED_BYTES => {
                Err(format!("all weights of products take {} bytes, which a cache holds", self.product_bytes))
            }
            Sparsity::Measured => {
                let (of_elements, of_lines) = self.break_evens(id, panels);
                // Shares of what would take as long as all bytes: the smaller one is faster, and both pay up to 1.
                let by_element = of_elements.map(|most| elements.0 / most).filter(|share| *share <= 1.0);
                let by_line =
                    lines.as_ref().map(|lines| (lines.0 / of_lines, lines)).filter(|(share, _)| *share <= 1.0);
                if let Some((share, lines)) = by_line
                    && by_element.is_none_or(|element| share <= element)
                {
                    return chosen(lines, &format!("in whole lines, where {:.0} % are as fast", percent(of_lines)));
                }
                let left = percent(elements.0);
                let Some(least) = of_elements.map(percent) else {
                    return Err(format!(
                        "{found:.1} % zeros leave {left:.0} % of the bytes, and elements of {bits} bits are faster with zeros"
                    ));
                };
                if by_element.is_some() {
                    return chosen(&elements, &format!("where {least:.0} % are as fast"));
                }
                Err(format!("{found:.1} % zeros leave {left:.0} % of the bytes, and it is faster from {least:.0} % on"))
            }
        }
    }

    /// The greatest shares of the bytes that are as fast without zeros as all with them: element by element, if there is one, and in
    /// whole lines.
    fn break_evens(&self, id: ConstantId, panels: &Panels) -> (Option<f64>, f64) {
        let planes = &panels.planes.0;
        let are_codes = panels.dtype.is_integer()
            && panels.dtype.bits() == 8
            && !planes.is_empty()
            && planes.iter().all(|plane| plane.block == 0);
        if are_codes && !self.unrounded.contains(&id) {
            return (Some(CODES_BREAK_EVEN), CODES_BREAK_EVEN);
        }
        ((panels.dtype.bits() == 32).then_some(BREAK_EVEN), LINES_BREAK_EVEN)
    }
}

/// How a weight is stored without this pass.
pub(super) fn current(graph: &Graph, id: ConstantId, uses: &Uses) -> ChosenEncoding {
    graph.constant(id).encoding.clone().unwrap_or_else(|| graph.default_encoding(id, uses))
}

fn extents(graph: &Graph, id: ConstantId) -> Vec<u64> {
    graph.constant(id).shape.iter().map(|&extent| extent as u64).collect()
}

/// The same panels without zeros.
fn without_zeros(panels: &Panels, zeros: &Zeros) -> Result<Coded, String> {
    if !matches!(panels.dtype.bits(), 8 | 16 | 32) {
        return Err(format!("panels without zeros hold no elements of type {}", panels.dtype));
    }
    Ok(SparsePanels::of(panels, zeros.record_elements).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::text::parse;

    /// What becomes of a weight of f32 or f16 with a share of zeros in percent, the values of which are spread evenly.
    fn chosen(dtype: &str, percent: u64, product_bytes: u64, sparsity: Sparsity) -> Result<String, String> {
        encoded((dtype, "", ""), (percent, 0), product_bytes, sparsity)
    }

    /// The same of one of f32 in codes of 8 bits with a scale for each `block` inputs, which rows with a scale for each `of_rows` inputs
    /// are multiplied with.
    fn chosen_codes(block: u32, of_rows: u32, percent: u64) -> Result<String, String> {
        let encoding = format!(
            " as panels dtype=i8 groups=1 outputs=1024 inputs=1024 output_axis=1 interleave=4 cut=256 \
             planes=[\"scale f32 {block}\"] because \"rounded\""
        );
        let arithmetic = format!(" arithmetic=[\"dynamic i8 {of_rows}\", \"f32\", \"nearest_even\"]");
        encoded(("f32", &encoding, &arithmetic), (percent, 0), CACHED_BYTES, Sparsity::Measured)
    }

    /// With so many lines that have values in each record, or values at random where there are none.
    fn encoded(
        (dtype, encoding, arithmetic): (&str, &str, &str),
        (percent, lines): (u64, u64),
        product_bytes: u64,
        sparsity: Sparsity,
    ) -> Result<String, String> {
        let hash = "0".repeat(64);
        let text = format!(
            "constant @w : {dtype}[1024, 1024] = hash {hash}{encoding}\n\
             entry \"main\"(\"x\") -> (\"y\") = block 0\n\
             block 0(%x : {dtype}[2, 1024]) {{\n  %y : {dtype}[2, 1024] = matmul{arithmetic} %x, @w\n  return %y\n}}\n"
        );
        let graph = parse(&text).unwrap();
        let (id, uses) = graph.uses().pop_first().unwrap();
        let elements = 1 << 20;
        let zeros = Zeros {
            elements,
            zeros: elements * percent / 100,
            groups: vec![0; Zeros::GROUP_CLASSES],
            record_elements: SparsePanels::RECORD_ELEMENTS * (100 - percent) / 100,
            ..Zeros::default()
        };
        let model = Model { product_bytes, ..Model::new(&graph, &Options { sparsity, ..Options::default() }) };
        model.choose(&graph, id, &uses, (&zeros, &Counts::with_record_lines(lines))).map(|chosen| {
            assert!(chosen.encoding.as_sparse_panels().is_some());
            chosen.reason
        })
    }

    #[test]
    fn zeros_of_codes_are_left_out_where_registers_spread_them() {
        assert_eq!(
            chosen_codes(0, 0, 50),
            Ok("rounded; without zeros: 63 % of the bytes, where 75 % are as fast".to_string())
        );
        assert_eq!(
            chosen_codes(0, 0, 30),
            Err("30.0 % zeros leave 83 % of the bytes, and it is faster from 75 % on".to_string())
        );
        let slower = "50.0 % zeros leave 67 % of the bytes, and elements of 8 bits are faster with zeros";
        assert_eq!(chosen_codes(32, 0, 50), Err(slower.to_string()));
        assert_eq!(chosen_codes(0, 32, 50), Err(slower.replace("67", "63")));
    }

    #[test]
    fn what_is_faster_is_chosen_of_elements_and_lines() {
        // 36 % of the bytes by elements would take .93 of the time, and lines of 16 values of f32 are as fast up to 60 %.
        let both = |percent, lines| encoded(("f32", "", ""), (percent, lines), CACHED_BYTES, Sparsity::Measured);
        let reason = |bytes, why| {
            Ok(format!("only products read it, as the same matrix; without zeros: {bytes} % of the bytes, {why}"))
        };
        assert_eq!(both(70, 90), reason(36, "in whole lines, where 60 % are as fast"));
        assert_eq!(both(90, 150), reason(16, "where 36 % are as fast"));
        assert_eq!(both(50, 90), reason(36, "in whole lines, where 60 % are as fast"));
    }

    #[test]
    fn zeros_are_left_out_where_bytes_and_time_win() {
        let large = CACHED_BYTES;
        let product = "only products read it, as the same matrix";
        assert_eq!(
            chosen("f32", 80, large, Sparsity::Measured),
            Ok(format!("{product}; without zeros: 23 % of the bytes, where 36 % are as fast"))
        );
        assert_eq!(
            chosen("f32", 50, large, Sparsity::Measured),
            Err("50.0 % zeros leave 53 % of the bytes, and it is faster from 36 % on".to_string())
        );
        assert_eq!(
            chosen("f32", 80, large - 1, Sparsity::Measured),
            Err(format!("all weights of products take {} bytes, which a cache holds", large - 1))
        );
        assert_eq!(
            chosen("f16", 80, large, Sparsity::Measured),
            Err("80.0 % zeros leave 27 % of the bytes, and elements of 16 bits are faster with zeros".to_string())
        );
        assert_eq!(
            chosen("f16", 50, 0, Sparsity::Always),
            Ok(format!("{product}; without zeros: 56 % of the bytes, as asked for"))
        );
        assert_eq!(chosen("f32", 80, large, Sparsity::Never), Err("zeros are kept as asked for".to_string()));
    }
}
