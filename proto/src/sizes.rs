//! Sizes as an engine's configuration writes them. In: a word like `100mb`. Out: bytes. Who checks parameters and who compares what is in
//! force read it alike.

/// `100mb`, `1g`, `512` as bytes: k is 1000, kb is 1024, whatever the case. None for another word, and for more than 64 bits hold.
pub fn bytes(word: &str) -> Option<u64> {
    let lower = word.to_ascii_lowercase();
    let digits = lower.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &lower[digits.len()..] {
        "" | "b" => 1,
        "k" => 1_000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        _ => return None,
    };
    // A number may begin with a sign, a size does not.
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse::<u64>().ok().filter(|_| plain)?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn a_size_is_digits_with_a_unit_of_the_engine() {
        let rows = [
            ("512", Some(512)),
            ("1b", Some(1)),
            ("1k", Some(1_000)),
            ("1KB", Some(1_024)),
            ("100mb", Some(100 << 20)),
            ("3g", Some(3_000_000_000)),
            ("2Gb", Some(2 << 30)),
            ("+1k", None),
            ("-1", None),
            ("mb", None),
            ("", None),
            ("1 kb", None),
            ("1tb", None),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551615kb", None),
        ];
        for (word, expected) in rows {
            assert_eq!(bytes(word), expected, "{word}");
        }
    }
}
