//! Texts of a form that is asked for: of each token it is known whether it may come next.

use super::error::GenerateError;
use crate::generation::TOKENIZER;
use llguidance::api::TopLevelGrammar;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory, token_bytes_from_tokenizer_json};
use serde_json::Value as Json;
use std::sync::Arc;

/// The form that a text must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grammar {
    /// A JSON value that a JSON schema describes.
    JsonSchema(Json),
    /// A text that a grammar of Lark's syntax describes, as the crate `llguidance` understands it.
    Lark(String),
}

/// Most tokens of a vocabulary: many times the largest that there are.
const VOCABULARY_TOKENS: u64 = 1 << 22;

/// What grammars are compiled with: the bytes of all tokens.
pub(super) struct Vocabulary {
    factory: ParserFactory,
    end_tokens: Vec<u32>,
}

impl Vocabulary {
    /// Of a tokenizer, with the tokens that end a text.
    ///
    /// # Errors
    /// [`GenerateError::Attachment`] where it does not say which bytes its tokens stand for, [`GenerateError::Grammar`] where
    /// no token ends a text.
    pub(super) fn new(tokenizer: &[u8], end_tokens: &[u32]) -> Result<Vocabulary, GenerateError> {
        let malformed = |reason: String| GenerateError::Attachment { attachment: TOKENIZER, reason };
        let tokenizer: Json = serde_json::from_slice(tokenizer).map_err(|error| malformed(error.to_string()))?;
        check_tokens(&tokenizer).map_err(malformed)?;
        let tokens = token_bytes_from_tokenizer_json(&tokenizer);
        let tokens = tokens.map_err(|error| malformed(format!("its tokens are not known as bytes: {error}")))?;
        let known = |end: &&u32| (**end as usize) < tokens.len();
        let &end = end_tokens
            .iter()
            .find(known)
            .ok_or_else(|| GenerateError::Grammar { reason: "the model has no token that ends a text".to_string() })?;
        let trie = TokTrie::from(&TokRxInfo::new(tokens.len() as u32, end), &tokens);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::general_slices();
        let factory = ParserFactory::new(&environment, InferenceCapabilities::default(), &slices);
        let mut factory = factory.map_err(|error| malformed(error.to_string()))?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        Ok(Vocabulary { factory, end_tokens: end_tokens.to_vec() })
    }

    /// The beginning of a text of this form.
    ///
    /// # Errors
    /// [`GenerateError::Grammar`] where it is malformed, or is more than may be compiled.
    pub(super) fn follow(&self, grammar: &Grammar) -> Result<Followed, GenerateError> {
        let grammar = match grammar {
            Grammar::JsonSchema(schema) => TopLevelGrammar::from_json_schema(schema.clone()),
            Grammar::Lark(grammar) => TopLevelGrammar::from_lark(grammar.clone()),
        };
        let matcher = Matcher::new(self.factory.create_parser(grammar));
        match matcher.get_error() {
            Some(reason) => Err(GenerateError::Grammar { reason }),
            None => Ok(Followed { matcher, end_tokens: self.end_tokens.clone() }),
        }
    }
}

/// Tokens have numbers of a size that vocabularies have, and those that stand for bytes name one.
fn check_tokens(tokenizer: &Json) -> Result<(), String> {
    let added = tokenizer["added_tokens"].as_array().into_iter().flatten();
    let added = added.map(|token| (token["content"].as_str().unwrap_or_default(), &token["id"]));
    let vocabulary = tokenizer["model"]["vocab"].as_object().into_iter().flatten();
    for (text, number) in added.chain(vocabulary.map(|(text, number)| (text.as_str(), number))) {
        if number.as_u64().is_none_or(|number| number >= VOCABULARY_TOKENS) {
            return Err(format!("the token `{text}` has the number {number}"));
        }
        let digits = text.strip_prefix("<0x").map(|rest| rest.strip_suffix('>').unwrap_or_default());
        if digits.is_some_and(|digits| digits.len() != 2 || u8::from_str_radix(digits, 16).is_err()) {
            return Err(format!("the token `{text}` stands for no byte"));
        }
    }
    Ok(())
}

/// A text on its way to the form that is asked for.
pub(super) struct Followed {
    matcher: Matcher,
    end_tokens: Vec<u32>,
}

impl Followed {
    /// The scores of tokens that may come next; that of any other is negative infinity.
    ///
    /// # Errors
    /// [`GenerateError::Grammar`] where it takes more steps than it may.
    pub(super) fn allowed(&mut self, scores: &[f32]) -> Result<Vec<f32>, GenerateError> {
        let mask = self.matcher.compute_mask_or_eos().map_err(failure)?;
        let ends = self.end_tokens.iter().any(|&end| (end as usize) < mask.len() && mask.is_allowed(end));
        let allowed = |(token, &score): (usize, &f32)| {
            let is_end = self.end_tokens.contains(&(token as u32));
            let may_come = if is_end { ends } else { token < mask.len() && mask.get(token) };
            if may_come { score } else { f32::NEG_INFINITY }
        };
        Ok(scores.iter().enumerate().map(allowed).collect())
    }

    /// The text goes on with a token that ends no text; whether nothing can follow it.
    ///
    /// # Errors
    /// [`GenerateError::Grammar`] where the token may not come.
    pub(super) fn took(&mut self, token: u32) -> Result<bool, GenerateError> {
        self.matcher.consume_token(token).map_err(failure)?;
        Ok(self.matcher.is_stopped())
    }
}

fn failure(error: impl ToString) -> GenerateError {
    GenerateError::Grammar { reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// `{`, `}`, `[`, `]`, `1`, `,`, and the end of a text.
    fn tokenizer() -> Json {
        json!({
            "decoder": {"type": "ByteLevel"},
            "added_tokens": [{"id": 0, "content": "<end>", "special": true}],
            "model": {"vocab": {"{": 1, "}": 2, "[": 3, "]": 4, "1": 5, ",": 6, "[1": 7}},
        })
    }

    fn vocabulary(tokenizer: &Json) -> Result<Vocabulary, GenerateError> {
        Vocabulary::new(tokenizer.to_string().as_bytes(), &[0, 9])
    }

    fn allowed(followed: &mut Followed) -> Vec<usize> {
        let scores = followed.allowed(&[0.0; 10]).unwrap();
        (0..scores.len()).filter(|&token| scores[token] == 0.0).collect()
    }

    #[test]
    fn only_what_the_schema_describes_may_come() {
        let vocabulary = vocabulary(&tokenizer()).unwrap();
        let schema = json!({"type": "array", "items": {"const": 1}, "maxItems": 2, "minItems": 1});
        let mut followed = vocabulary.follow(&Grammar::JsonSchema(schema)).unwrap();
        assert_eq!(allowed(&mut followed), [3, 7]);
        assert!(!followed.took(7).unwrap());
        assert_eq!(allowed(&mut followed), [4, 6]);
        assert!(!followed.took(6).unwrap());
        assert_eq!(allowed(&mut followed), [5]);
        assert!(!followed.took(5).unwrap());
        assert_eq!(allowed(&mut followed), [4]);
        // Nothing can follow the end of the array; all tokens that end a text may.
        assert!(followed.took(4).unwrap());
        assert_eq!(allowed(&mut followed), [0, 9]);
    }

    #[test]
    fn a_text_may_end_where_the_grammar_does() {
        let vocabulary = vocabulary(&tokenizer()).unwrap();
        let mut followed = vocabulary.follow(&Grammar::Lark("start: \"1\"+".to_string())).unwrap();
        assert_eq!(allowed(&mut followed), [5]);
        assert!(!followed.took(5).unwrap());
        assert_eq!(allowed(&mut followed), [0, 5, 9]);
        let Err(GenerateError::Grammar { .. }) = followed.took(1) else { panic!("`{{` is no `1`") };
    }

    #[test]
    fn what_cannot_be_followed_is_refused() {
        let words = vocabulary(&tokenizer()).unwrap();
        for grammar in [Grammar::JsonSchema(json!({"type": "nothing"})), Grammar::Lark("start: (".to_string())] {
            let Err(GenerateError::Grammar { reason }) = words.follow(&grammar) else { panic!("{grammar:?}") };
            assert!(!reason.is_empty());
        }
        let Err(GenerateError::Grammar { reason }) = Vocabulary::new(tokenizer().to_string().as_bytes(), &[]) else {
            panic!("no token ends a text")
        };
        assert_eq!(reason, "the model has no token that ends a text");
        let mut changed = tokenizer();
        changed["decoder"]["type"] = json!("WordPiece");
        let refused = |tokenizer: &Json| match vocabulary(tokenizer) {
            Err(GenerateError::Attachment { reason, .. }) => reason,
            _ => panic!("{tokenizer}"),
        };
        assert!(refused(&changed).starts_with("its tokens are not known as bytes: "));
        for (token, number, expected) in [
            ("x", json!(1u64 << 40), "the token `x` has the number 1099511627776"),
            ("x", json!(-1), "the token `x` has the number -1"),
            ("<0x7>", json!(8), "the token `<0x7>` stands for no byte"),
            ("<0xzz>", json!(8), "the token `<0xzz>` stands for no byte"),
        ] {
            let mut changed = tokenizer();
            changed["model"]["vocab"][token] = number;
            assert_eq!(refused(&changed), expected);
        }
    }
}
