//! Examples made from a text, with the tokenizer that belongs to the model.

use super::{CalibrateError, Calibrator};
use crate::generation::{GENERATION, GenerationSettings, TOKENIZER, TokenInputs};
use ipuc_formats::dim::Bindings;
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::{Shape, Type, tensor_of_integers};
use ipuc_formats::model::AttachmentRecord;
use ipuc_formats::ops::{Obligation, Relation};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_runtime::{Port, Session};
use std::collections::BTreeMap;
use std::path::Path;
use tokenizers::Tokenizer;

/// Tokens of a text that a language model reads at a time.
const WINDOW_TOKENS: usize = 512;

/// Tokens of a window whose outputs are kept where a budget is measured.
const KEPT_TOKENS: usize = 64;

/// Names of inputs of models that no settings describe, as transformers and its exporters have them.
const TOKENS: &str = "input_ids";
const MASK: &str = "attention_mask";
const POSITIONS: &str = "position_ids";
/// Which of two texts a token belongs to: all to the first.
const SEGMENTS: &str = "token_type_ids";

/// How names of caches begin.
const PAST: &str = "past";

/// What makes tokens of a text.
pub(super) struct TextInputs {
    tokenizer: Tokenizer,
    /// How inputs are called, for a language model.
    settings: Option<GenerationSettings>,
}

impl TextInputs {
    /// From what is attached to the model, else from the tokenizer in its folder.
    fn new(attachments: &[AttachmentRecord], folder: &Path) -> Result<TextInputs, CalibrateError> {
        let attached = |name: &str| attachments.iter().find(|attachment| attachment.name == name);
        let path = folder.join(TOKENIZER);
        let refused = |reason: String| CalibrateError::Tokenizer { path: path.clone(), reason };
        let tokenizer = match attached(TOKENIZER) {
            Some(attachment) => Tokenizer::from_bytes(&attachment.data),
            None if path.is_file() => Tokenizer::from_file(&path),
            None => return Err(CalibrateError::NoTokenizer { folder: folder.to_owned() }),
        };
        let mut tokenizer = tokenizer.map_err(|error| refused(error.to_string()))?;
        // Examples have the length that they have.
        tokenizer.with_padding(None);
        let settings = match attached(GENERATION) {
            Some(attachment) => {
                let settings = serde_json::from_slice(&attachment.data);
                Some(settings.map_err(|error| refused(error.to_string()))?)
            }
            None => None,
        };
        Ok(TextInputs { tokenizer, settings })
    }

    /// The tokens of examples, no more than `most` together: windows of the text for a language model, else its lines.
    fn examples(&self, text: &str, most: usize) -> Result<Vec<Vec<u32>>, String> {
        let encode = |text: &str| -> Result<Vec<u32>, String> {
            let encoding = self.tokenizer.encode_fast(text, true).map_err(|error| error.to_string())?;
            Ok(encoding.get_ids().to_vec())
        };
        if self.settings.is_some() {
            let tokens = encode(text)?;
            let tokens = &tokens[..tokens.len().min(most)];
            return Ok(tokens.chunks(WINDOW_TOKENS).map(<[u32]>::to_vec).collect());
        }
        let (mut examples, mut count) = (Vec::new(), 0);
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            if count >= most {
                break;
            }
            let mut tokens = encode(line)?;
            tokens.truncate(WINDOW_TOKENS.min(most - count));
            count += tokens.len();
            examples.push(tokens);
        }
        Ok(examples)
    }

    /// The inputs of one pass over tokens with an empty cache.
    fn inputs(
        &self,
        ports: &[Port],
        obligations: &[Obligation],
        tokens: &[u32],
    ) -> Result<Vec<(String, Value)>, CalibrateError> {
        let settings = self.settings.as_ref();
        let usual = TokenInputs { tokens: TOKENS, attention_mask: Some(MASK), position_ids: Some(POSITIONS) };
        let names = settings.map_or(usual, GenerationSettings::token_inputs);
        let mut rows: BTreeMap<&str, Vec<i64>> = names.rows(0, tokens).collect();
        rows.entry(SEGMENTS).or_insert_with(|| vec![0; tokens.len()]);
        let batch = ports.iter().find(|port| port.name == names.tokens).and_then(|port| first_symbol(&port.kind));
        let mut known = sizes(obligations);
        known.extend(batch.map(|batch| (batch, 1)));
        let input = |port: &Port| -> Result<(String, Value), CalibrateError> {
            let name = port.name.as_str();
            let value = match rows.get(name) {
                Some(row) => row_of_integers(&port.kind, row),
                // The folder of a language model has no inputs beside these.
                None if settings.is_some() || name.starts_with(PAST) => empty_cache(&port.kind, &known),
                None => None,
            };
            let value = value.ok_or_else(|| CalibrateError::Input { name: name.to_string() })?;
            Ok((port.name.clone(), value.into()))
        };
        ports.iter().map(input).collect()
    }
}

/// The symbol of the first extent.
fn first_symbol(kind: &Type) -> Option<String> {
    let (_, shape) = kind.as_tensor()?;
    shape.dims()?.first()?.as_symbol().map(str::to_string)
}

/// `[1, count]` of the element type of an input.
fn row_of_integers(kind: &Type, row: &[i64]) -> Option<Tensor> {
    let (dtype, _) = kind.as_tensor()?;
    match dtype {
        DType::F32 => {
            let floats: Vec<f32> = row.iter().map(|&number| number as f32).collect();
            Tensor::from_elements(&[1, row.len()], &floats).ok()
        }
        dtype => tensor_of_integers(dtype, &[1, row.len()], row),
    }
}

/// Sizes of symbols that steps of the model name: those of heads, where its inputs leave them open.
fn sizes(obligations: &[Obligation]) -> BTreeMap<String, i64> {
    let size = |obligation: &Obligation| {
        let (left, right) = (&obligation.left, &obligation.right);
        let (symbol, size) = match (left.as_symbol(), right.as_symbol()) {
            (Some(symbol), None) => (symbol, right.as_known()?),
            (None, Some(symbol)) => (symbol, left.as_known()?),
            (_, _) => return None,
        };
        (obligation.relation == Relation::Equal).then(|| (symbol.to_string(), size))
    };
    obligations.iter().filter_map(size).collect()
}

/// The cache of no token: extents that are open are 0, but for those that are known.
fn empty_cache(kind: &Type, known: &BTreeMap<String, i64>) -> Option<Tensor> {
    let (dtype, shape) = kind.as_tensor()?;
    let Shape::Ranked(dims) = shape else { return None };
    let mut bindings = Bindings::new();
    for symbol in kind.symbols() {
        bindings.insert(&*symbol, known.get(&*symbol).copied().unwrap_or(0));
    }
    let extents: Option<Vec<usize>> =
        dims.iter().map(|dim| usize::try_from(dim.evaluate(&bindings).ok()?).ok()).collect();
    let extents = extents?;
    extents.contains(&0).then(|| Tensor::zeros(dtype, &extents).ok())?
}

impl Calibrator {
    /// Run the first tokens of a text, about `most` of them: in windows of 512 for a language model, line by line for
    /// others, whose inputs are named as transformers does. The tokenizer is that of the language model, or the
    /// `tokenizer.json` in the folder of the model. Gives how many tokens were run.
    ///
    /// # Errors
    /// [`CalibrateError::NoTokenizer`] and [`CalibrateError::Tokenizer`] where there is none of use,
    /// [`CalibrateError::Input`] for an input that no text gives, [`CalibrateError::NoExample`] for an empty text, and as
    /// [`Calibrator::run`].
    pub fn run_text(&mut self, entry: Option<&str>, text: &str, most: usize) -> Result<usize, CalibrateError> {
        let inputs = TextInputs::new(&self.attachments, &self.source_folder)?;
        let refused = |reason: String| CalibrateError::Tokenizer { path: self.source_folder.join(TOKENIZER), reason };
        let examples = inputs.examples(text, most).map_err(refused)?;
        self.run_tokens(entry, &inputs, &examples)
    }

    /// Run `count` tokens that are drawn evenly from all that the tokenizer has, in windows of 512. They say less of what
    /// products read than a text does. Gives how many were run.
    ///
    /// # Errors
    /// As [`Calibrator::run_text`].
    pub fn run_random_tokens(&mut self, entry: Option<&str>, seed: u64, count: usize) -> Result<usize, CalibrateError> {
        let inputs = TextInputs::new(&self.attachments, &self.source_folder)?;
        let vocabulary = inputs.tokenizer.get_vocab_size(true).max(1) as u64;
        let mut state = seed;
        let mut token = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % vocabulary) as u32
        };
        if count == 0 {
            return Err(CalibrateError::NoExample);
        }
        let mut run = 0;
        while run < count {
            let window: Vec<u32> = (0..WINDOW_TOKENS.min(count - run)).map(|_| token()).collect();
            run += self.run_tokens(entry, &inputs, &[window])?;
        }
        Ok(run)
    }

    /// Whether the model is one of language, with its tokenizer.
    pub fn is_language_model(&self) -> bool {
        self.attachments.iter().any(|attachment| attachment.name == TOKENIZER)
    }

    fn run_tokens(
        &mut self,
        entry: Option<&str>,
        inputs: &TextInputs,
        examples: &[Vec<u32>],
    ) -> Result<usize, CalibrateError> {
        if examples.is_empty() {
            return Err(CalibrateError::NoExample);
        }
        let record = self.model.entry(entry)?;
        let (name, ports) = (record.name.clone(), self.model.inputs(record));
        let mut count = 0;
        for tokens in examples {
            let given = |tokens| inputs.inputs(&ports, &self.model.manifest().obligations, tokens);
            let (all, first) = (given(tokens)?, given(&tokens[..tokens.len().min(KEPT_TOKENS)])?);
            self.observe(entry, all)?;
            // Outputs of whole windows would take much room.
            if self.keeps(&name) {
                let mut session = Session::new(&self.model, &self.session)?;
                let outputs = session.run(entry, first.clone())?;
                self.keep(entry, first, outputs)?;
            }
            count += tokens.len();
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipuc_formats::dim::Dim;

    /// A cache whose width only an operator states, as onnxruntime-genai's builder writes it.
    #[test]
    fn open_extents_of_a_cache_are_empty_but_for_those_that_steps_state() {
        let cache = |dims: &[&str]| {
            let dims: Vec<Dim> =
                dims.iter().map(|name| name.parse::<i64>().map_or_else(|_| Dim::symbol(name), Dim::from)).collect();
            Type::tensor(DType::F32, Shape::Ranked(dims))
        };
        let stated =
            |relation, left, right| Obligation { relation, left, right, subject: "rows of a cache".to_string() };
        let mut known = sizes(&[
            stated(Relation::Equal, Dim::symbol("width"), Dim::from(64i64)),
            stated(Relation::AtMost, Dim::symbol("past"), Dim::from(128i64)),
            stated(Relation::Equal, Dim::symbol("past"), Dim::symbol("total")),
        ]);
        assert_eq!(known, BTreeMap::from([("width".to_string(), 64)]));
        known.insert("batch".to_string(), 1);
        let empty = empty_cache(&cache(&["batch", "3", "past", "width"]), &known).unwrap();
        assert_eq!(empty.shape(), [1, 3, 0, 64]);
        assert!(empty_cache(&cache(&["batch", "3", "128", "width"]), &known).is_none());
    }
}
