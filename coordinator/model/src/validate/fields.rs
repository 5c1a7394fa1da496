//! Single fields. In: what the message holds. Out: a typed value, or a violation with the field's path. Used by the parsers of specs.

use std::{ops::RangeInclusive, str::FromStr};

use shardplane_proto::ids::NotAnId;

use crate::refusal::Violation;

/// The value of a field that has no default.
pub fn required<T>(path: &str, value: Option<T>, wrong: &mut Vec<Violation>) -> Option<T> {
    if value.is_none() {
        wrong.push(Violation::new(path, "is required"));
    }
    value
}

/// An id; an empty text is a missing one. Zero is refused: it stands for an id that could not be read.
pub fn id_field<T: FromStr<Err = NotAnId>>(
    path: &str,
    value: Option<&String>,
    wrong: &mut Vec<Violation>,
) -> Option<T> {
    let text = required(path, value.filter(|text| !text.is_empty()), wrong)?;
    if text.bytes().all(|byte| byte == b'0') {
        wrong.push(Violation::new(path, format!("{text:?} is no id that a client could have made")));
        return None;
    }
    match text.parse() {
        Ok(id) => Some(id),
        Err(error) => {
            wrong.push(Violation::new(path, error.to_string()));
            None
        }
    }
}

/// A short printable word; empty is missing.
pub fn text_field(path: &str, value: Option<&str>, longest: usize, wrong: &mut Vec<Violation>) -> String {
    let text = required(path, value.filter(|text| !text.is_empty()), wrong).unwrap_or_default();
    if text.len() > longest || text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        wrong.push(Violation::new(path, format!("has 1 to {longest} bytes without spaces")));
    }
    text.to_owned()
}

/// A whole number in a range that has no default; what is out of it counts as it is, or as 0 below that.
pub fn count(
    path: &str,
    value: Option<i32>,
    allowed: RangeInclusive<i32>,
    wrong: &mut Vec<Violation>,
) -> u32 {
    let Some(value) = required(path, value, wrong) else { return 0 };
    if !allowed.contains(&value) {
        let range = format!("is {value}; allowed is {} to {}", allowed.start(), allowed.end());
        wrong.push(Violation::new(path, range));
    }
    u32::try_from(value).unwrap_or(0)
}
