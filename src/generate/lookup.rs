//! Guesses of the tokens to come, from what followed the same tokens before.
//!
//! Texts repeat themselves: names, code, a summary of the prompt. A pass over several tokens costs little more than one
//! over a single token, so that guesses pay where some are right; what the model itself chooses decides.

/// Lengths of the ends that are looked for, the longest first.
const LENGTHS: [usize; 3] = [4, 3, 2];

/// Tokens that may follow: at most `count` of those behind the last earlier place where the text has its end.
pub(super) fn guess(tokens: &[u32], count: usize) -> &[u32] {
    for length in LENGTHS {
        let Some(start) = tokens.len().checked_sub(length).filter(|&start| start > 0) else { continue };
        let end = &tokens[start..];
        let found = (0..start).rev().find(|&at| tokens[at..].starts_with(end));
        if let Some(at) = found {
            let following = &tokens[at + length..];
            return &following[..count.min(following.len())];
        }
    }
    &[]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_earlier_place_counts() {
        assert_eq!(guess(&[1, 2, 3, 1, 2, 4, 5, 1, 2], 2), [4, 5]);
        assert_eq!(guess(&[1, 2, 3, 9, 1, 2], 8), [3, 9, 1, 2]);
        assert_eq!(guess(&[7, 7, 7], 4), [7]);
    }

    #[test]
    fn longer_ends_come_first() {
        assert_eq!(guess(&[5, 1, 2, 3, 6, 1, 2, 4, 5, 1, 2], 1), [3]);
    }

    #[test]
    fn a_text_that_repeats_nothing_has_no_guess() {
        assert_eq!(guess(&[1, 2, 3], 4), [0u32; 0]);
        assert_eq!(guess(&[], 4), [0u32; 0]);
        assert_eq!(guess(&[1, 2, 3, 1, 2], 0), [0u32; 0]);
    }
}
