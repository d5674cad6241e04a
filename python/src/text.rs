//! Text from language models.

use crate::model::Model;
use crate::raised;
use ipuc::generate::{Generator, GeneratorOptions, Limits, Message, Sampling};
use pyo3::prelude::*;

/// A language model with its tokenizer.
#[pyclass(frozen, module = "ipuc._native")]
pub struct TextModel {
    model: ipuc::generate::TextModel,
}

#[pymethods]
impl TextModel {
    /// The language model in a file that was compiled from a folder with a tokenizer.
    #[new]
    fn new(model: &Model) -> PyResult<TextModel> {
        ipuc::generate::TextModel::new(model.model.clone()).map(|model| TextModel { model }).map_err(raised)
    }

    /// Numbers of the tokens of a text.
    fn encode(&self, text: &str) -> PyResult<Vec<u32>> {
        self.model.encode(text).map_err(raised)
    }

    /// Numbers of the tokens of a chat: pairs of role and content.
    fn encode_chat(&self, messages: Vec<(String, String)>) -> PyResult<Vec<u32>> {
        let messages: Vec<Message> = messages.into_iter().map(|(role, content)| Message { role, content }).collect();
        self.model.encode_chat(&messages).map_err(raised)
    }

    /// The text of tokens.
    fn decode(&self, tokens: Vec<u32>) -> PyResult<String> {
        self.model.decode(&tokens).map_err(raised)
    }

    /// Continue a prompt; each piece is given to `show` as it comes. What the caller leaves out is as the model says.
    #[pyo3(signature = (prompt, *, max_tokens, stop, temperature, top_k, top_p, seed, threads, show))]
    #[allow(clippy::too_many_arguments, reason = "they are named in Python")]
    fn generate(
        &self,
        py: Python<'_>,
        prompt: Vec<u32>,
        max_tokens: Option<usize>,
        stop: Vec<String>,
        temperature: Option<f32>,
        top_k: Option<usize>,
        top_p: Option<f32>,
        seed: u64,
        threads: usize,
        show: Option<Bound<'_, PyAny>>,
    ) -> PyResult<String> {
        let mut sampling = Sampling { seed, ..Sampling::of_model(self.model.settings()) };
        sampling.temperature = temperature.unwrap_or(sampling.temperature);
        sampling.top_k = top_k.unwrap_or(sampling.top_k);
        sampling.top_p = top_p.unwrap_or(sampling.top_p);
        let limits = Limits { tokens: max_tokens, stop, ..Limits::default() };
        let options = GeneratorOptions { threads, ..GeneratorOptions::default() };
        let mut generator = Generator::new(&self.model, &options).map_err(raised)?;
        let mut tokens = py.detach(|| generator.generate(&prompt, &sampling, &limits)).map_err(raised)?;
        let mut text = String::new();
        while let Some(token) = py.detach(|| tokens.next()) {
            // Ctrl-C ends the text between two tokens.
            py.check_signals()?;
            let token = token.map_err(raised)?;
            if let Some(show) = &show {
                show.call1((token.text.as_str(),))?;
            }
            text.push_str(&token.text);
        }
        Ok(text)
    }
}
