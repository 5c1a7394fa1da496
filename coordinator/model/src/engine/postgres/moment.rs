//! Moments as users write them. In: RFC 3339 with `Z` or an offset. Out: a [`Timestamp`], or what is wrong with the text, for people.

use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::time::Timestamp;

/// Reads a moment.
///
/// # Errors
/// What is missing or wrong, with an example.
pub fn parse(text: &str) -> Result<Timestamp, String> {
    const EXAMPLE: &str = "for example 2026-01-31T12:00:00Z or 2026-01-31T13:00:00+01:00";
    if text.is_empty() {
        return Err(format!("is required: RFC 3339, {EXAMPLE}"));
    }
    if let Ok(at) = OffsetDateTime::parse(text, &Rfc3339) {
        let millis = at.unix_timestamp_nanos() / 1_000_000;
        return u64::try_from(millis).map(Timestamp).map_err(|_| format!("is {text:?}; it is before 1970"));
    }
    if OffsetDateTime::parse(&format!("{text}Z"), &Rfc3339).is_ok() {
        return Err(format!(
            "is {text:?}, which names no time zone; end it with Z when it is UTC, or with an offset, {EXAMPLE}"
        ));
    }
    Err(format!("is {text:?}; it is RFC 3339, {EXAMPLE}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PG-7.
    #[test]
    fn a_zone_is_needed_and_any_is_converted() {
        let noon = parse("2026-01-31T12:00:00Z").unwrap();
        assert_eq!(parse("2026-01-31T13:00:00+01:00").unwrap(), noon);
        assert_eq!(noon.to_string(), "2026-01-31T12:00:00Z");
        let refused = parse("2026-01-31T12:00:00").unwrap_err();
        assert!(refused.contains("names no time zone"), "{refused}");
        for text in ["", "noon", "2026-01-31", "2026-01-31 12:00:00"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse("1960-01-01T00:00:00Z").unwrap_err().contains("before 1970"));
    }
}
