//! Text in pieces, as tokens come: whole characters, and nothing of what ends the text.

use super::error::GenerateError;
use super::model::TextModel;

/// Turns tokens into pieces of text.
pub(super) struct TextPieces {
    model: TextModel,
    tokens: Vec<u32>,
    /// Tokens before this one are only there for what their neighbourhood does to the text of later ones.
    context: usize,
    /// Tokens before this one have become text.
    done: usize,
    stops: StopStrings,
}

impl TextPieces {
    /// For text that ends before one of these.
    pub(super) fn new(model: &TextModel, stops: &[String]) -> TextPieces {
        let stops = StopStrings { stops: stops.to_vec(), held: String::new(), met: false };
        TextPieces { model: model.clone(), tokens: Vec::new(), context: 0, done: 0, stops }
    }

    /// The text that a token adds, as far as it is certain; all that is left where it is the last one.
    ///
    /// # Errors
    /// [`GenerateError::Tokens`] where the tokenizer fails.
    pub(super) fn push(&mut self, token: u32, last: bool) -> Result<String, GenerateError> {
        self.tokens.push(token);
        let before = self.model.decode(&self.tokens[self.context..self.done])?;
        let after = self.model.decode(&self.tokens[self.context..])?;
        // A character that is not whole yet is shown as one that stands for any.
        let whole = last || !after.ends_with(char::REPLACEMENT_CHARACTER);
        let mut piece = "";
        if whole && after.len() >= before.len() && after.is_char_boundary(before.len()) {
            piece = &after[before.len()..];
            // Tokens without a text of their own are no context for what follows.
            if !piece.is_empty() {
                self.context = self.done;
            }
            self.done = self.tokens.len();
        }
        Ok(self.stops.push(piece, last))
    }

    /// Whether text that ends the text was met.
    pub(super) fn stopped(&self) -> bool {
        self.stops.met
    }
}

/// Holds back text that may be the beginning of what ends the text.
struct StopStrings {
    stops: Vec<String>,
    held: String,
    met: bool,
}

impl StopStrings {
    /// What is certain of the text so far; all that is left where it is the last piece.
    fn push(&mut self, piece: &str, last: bool) -> String {
        self.held.push_str(piece);
        let found = self.stops.iter().filter(|stop| !stop.is_empty()).filter_map(|stop| self.held.find(stop)).min();
        if let Some(at) = found {
            self.met = true;
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let starts = self.held.char_indices().map(|(at, _)| at);
        let may_stop = |&at: &usize| self.stops.iter().any(|stop| stop.starts_with(&self.held[at..]));
        let kept = if last { None } else { starts.into_iter().find(may_stop) };
        let held = self.held.split_off(kept.unwrap_or(self.held.len()));
        std::mem::replace(&mut self.held, held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pushed(stops: &[&str], pieces: &[&str]) -> (Vec<String>, bool) {
        let stops = stops.iter().map(ToString::to_string).collect();
        let mut stops = StopStrings { stops, held: String::new(), met: false };
        let last = pieces.len() - 1;
        let pushed = pieces.iter().enumerate().map(|(at, piece)| stops.push(piece, at == last));
        (pushed.collect(), stops.met)
    }

    #[test]
    fn what_may_be_a_stop_is_held_back() {
        assert_eq!(
            pushed(&["END"], &["a E", "N", "x", "!"]),
            (vec!["a ".into(), "".into(), "ENx".into(), "!".into()], false)
        );
        assert_eq!(pushed(&["END"], &["a E", "ND b"]), (vec!["a ".into(), "".into()], true));
        assert_eq!(pushed(&["END"], &["a E"]), (vec!["a E".into()], false));
        assert_eq!(pushed(&["é", "xy"], &["aéb"]), (vec!["a".into()], true));
        assert_eq!(pushed(&[""], &["a"]), (vec!["a".into()], false));
    }

    #[test]
    fn the_first_of_several_stops_counts() {
        assert_eq!(pushed(&["c", "b"], &["abc"]), (vec!["a".into()], true));
    }
}
