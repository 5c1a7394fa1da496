//! Errors as text, where a text is all that goes on: reports, refusals, lines of a log.
//!
//! In: any error. Out: one line. Used by every program.

use std::error::Error;

/// An error and its causes, outermost first, with `: ` in between.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

/// The innermost cause alone: what the system said, without the layers of a library in front of it.
pub fn innermost(error: &dyn Error) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    last.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read the spec")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn causes_are_told_in_order_and_the_innermost_alone() {
        let error = Outer(std::io::Error::other("disk on fire"));
        assert_eq!(with_causes(&error), "cannot read the spec: disk on fire");
        assert_eq!(innermost(&error), "disk on fire");
    }
}
