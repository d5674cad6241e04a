//! Patterns of names.

/// Whether a pattern is this name: `*` stands for any text, `?` for one character.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut from) = (0, 0);
    // The last `*`, and how much of the name it stands for so far.
    let mut star: Option<(usize, usize)> = None;
    while from < name.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, from));
                at += 1;
            }
            Some(&one) if one == '?' || one == name[from] => (at, from) = (at + 1, from + 1),
            Some(_) | None => match &mut star {
                Some((place, end)) => {
                    *end += 1;
                    (at, from) = (*place + 1, *end);
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|&one| one == '*')
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn stars_and_question_marks() {
        for (pattern, name) in [("a", "a"), ("*", ""), ("*", "a.b"), ("l*.w?", "l.3.w2"), ("*b*b", "abbb"), ("", "")] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("a", "b"), ("a", "aa"), ("?", ""), ("l*.w?", "l.3.w"), ("*b*c", "abbb"), ("", "a")] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }
}
