//! Texts for people, cut to what every host and coordinator can afford to keep.
//!
//! In: a text, perhaps an engine's, of any length. Out: at most 1 KiB of it. Called for everything that is sent up.

/// Longest text sent up, in bytes.
pub const MAX_TEXT: usize = 1024;
const GAP: &str = " [...] ";

/// The text; of a longer one the beginning, which says what happened, and the end, which has the last words.
pub fn bounded(text: String) -> String {
    if text.len() <= MAX_TEXT {
        return text;
    }
    let half = (MAX_TEXT - GAP.len()) / 2;
    let (head, tail) = (text.floor_char_boundary(half), text.ceil_char_boundary(text.len() - half));
    [text.get(..head).unwrap_or_default(), GAP, text.get(tail..).unwrap_or_default()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_keeps_its_beginning_and_its_end_in_whole_characters() {
        assert_eq!(bounded("x".repeat(MAX_TEXT)), "x".repeat(MAX_TEXT));
        let cut = bounded(format!("what{}last", "\u{20ac}".repeat(MAX_TEXT)));
        assert!((MAX_TEXT - 10..=MAX_TEXT).contains(&cut.len()), "{}", cut.len());
        assert!(cut.starts_with("what\u{20ac}") && cut.ends_with("\u{20ac}last") && cut.contains(GAP));
    }
}
