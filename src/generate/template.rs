//! The prompt that a chat becomes.

use super::error::GenerateError;
use crate::generation::{CHAT_TEMPLATE, GenerationSettings};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, Value, context};
use serde::{Deserialize, Serialize};

/// What one side of a chat says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who says it: `system`, `user` or `assistant`.
    pub role: String,
    /// The text.
    pub content: String,
}

/// Steps that a template may take: many times what a long chat needs, and an end for one that has none.
const FUEL: u64 = 5_000_000;

/// A chat template, as `transformers` understands it.
pub(super) struct Template {
    environment: Environment<'static>,
    bos_token: Option<String>,
    eos_token: Option<String>,
}

impl Template {
    /// # Errors
    /// [`GenerateError::Attachment`] where it is no template.
    pub(super) fn new(source: &[u8], settings: &GenerationSettings) -> Result<Template, GenerateError> {
        let failure = |reason: String| GenerateError::Attachment { attachment: CHAT_TEMPLATE, reason };
        let source = String::from_utf8(source.to_vec()).map_err(|error| failure(error.to_string()))?;
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| failure(error.to_string()))?);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> Result<String, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        let added = environment.add_template_owned(CHAT_TEMPLATE, source);
        added.map_err(|error| failure(error.to_string()))?;
        let (bos_token, eos_token) = (settings.bos_token.clone(), settings.eos_token.clone());
        Ok(Template { environment, bos_token, eos_token })
    }

    /// The text of a chat and of the beginning of its next answer.
    ///
    /// # Errors
    /// [`GenerateError::Template`] where the template does not take these messages.
    pub(super) fn render(&self, messages: &[Message]) -> Result<String, GenerateError> {
        let failure = |error: minijinja::Error| GenerateError::Template { reason: error.to_string() };
        let template = self.environment.get_template(CHAT_TEMPLATE).map_err(failure)?;
        let message = |message: &Message| {
            let Message { role, content } = message.clone();
            context! { role, content }
        };
        let messages: Vec<Value> = messages.iter().map(message).collect();
        let (bos_token, eos_token) = (self.bos_token.clone(), self.eos_token.clone());
        let rendered = template.render(context! { messages, bos_token, eos_token, add_generation_prompt => true });
        rendered.map_err(failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(source: &str) -> Result<Template, GenerateError> {
        let settings = GenerationSettings {
            tokens: "input_ids".to_string(),
            attention_mask: None,
            position_ids: None,
            logits: "logits".to_string(),
            encoder: None,
            prefill: None,
            decode: "decode".to_string(),
            start_tokens: Vec::new(),
            context: None,
            end_tokens: Vec::new(),
            bos_token: Some("<s>".to_string()),
            eos_token: None,
            temperature: None,
            top_k: None,
            top_p: None,
            repetition_penalty: None,
        };
        Template::new(source.as_bytes(), &settings)
    }

    fn render(source: &str) -> Result<String, GenerateError> {
        let message = Message { role: "user".to_string(), content: " Hi ".to_string() };
        template(source)?.render(&[message])
    }

    #[test]
    fn blocks_and_methods_are_as_in_transformers() {
        let source = "{{ bos_token }}{% for message in messages %}\n  {% if message['role'] == 'user' %}\n\
            [{{ message.content.strip() }}]{% endif %}\n{% endfor %}\n{% if add_generation_prompt %}>{% endif %}";
        assert_eq!(render(source).unwrap(), "<s>[Hi]>");
    }

    #[test]
    fn what_a_template_refuses_is_told() {
        let error = render("{{ raise_exception('roles must alternate') }}").unwrap_err();
        assert!(error.to_string().contains("roles must alternate"), "{error}");
        assert!(matches!(error, GenerateError::Template { .. }), "{error}");
    }

    #[test]
    fn malformed_and_endless_templates_are_errors() {
        let Err(GenerateError::Attachment { attachment: CHAT_TEMPLATE, .. }) = template("{% for %}") else {
            panic!("a template without an end is taken")
        };
        let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{{ a }}{% endfor %}{% endfor %}";
        assert!(matches!(render(endless).unwrap_err(), GenerateError::Template { .. }));
    }
}
