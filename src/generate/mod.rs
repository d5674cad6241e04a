//! Text from a compiled language model: a prompt in, tokens out one by one.
//!
//! [`TextModel`] is a model with its tokenizer and chat template, shared by any number of [`Generator`]s. A generator has a
//! context of its own: the tokens so far and their cache. What a new prompt has in common with it is not read again.
//!
//! ```no_run
//! use ipuc::generate::{Generator, Limits, Sampling, TextModel};
//!
//! let model = TextModel::new(ipuc::open("smollm.ipu")?)?;
//! let mut generator = Generator::new(&model, &Default::default())?;
//! let prompt = model.encode("The capital of France is")?;
//! let limits = Limits { tokens: Some(20), ..Limits::default() };
//! for token in generator.generate(&prompt, &Sampling::greedy(), &limits)? {
//!     print!("{}", token?.text);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Batch`] generates several texts side by side: each pass reads the weights once for all of them.
//!
//! `model` is what is shared, `generator` the context and its passes, `batch` several of them,
//! `continuation` the text that grows, `scores` what passes say of the next token, `sampling` the choice of it, `lookup` guesses tokens that a pass may verify, `text` cuts text into pieces as tokens come, `template` makes a prompt of a chat, and
//! `context` stores what was read.

mod batch;
mod context;
mod continuation;
mod error;
mod generator;
mod grammar;
mod lookup;
mod model;
mod sampling;
mod scores;
mod template;
mod text;

pub use batch::{Batch, Progress};
pub use context::ContextError;
pub use continuation::{Ended, Limits, Token, Usage};
pub use error::GenerateError;
pub use generator::{Generator, GeneratorOptions, Tokens};
pub use grammar::Grammar;
pub use model::TextModel;
pub use sampling::Sampling;
pub use template::Message;
