//! Patterns, page sizes and enumerators.

use super::*;

#[test]
fn stars_stand_for_any_text() {
    for (pattern, text, expected) in [
        ("dev", "dev", true),
        ("dev", "dev2", false),
        ("*", "", true),
        ("d*", "dev", true),
        ("*v", "dev", true),
        ("*e*", "dev", true),
        ("d*v", "dv", true),
        ("d*v", "d", false),
        ("a*b*c", "a-b-b-c", true),
        ("a*b*c", "acb", false),
        ("ab*ba", "aba", false),
        ("", "", true),
        ("", "x", false),
        ("**", "x", true),
    ] {
        assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
    }
}

#[test]
fn both_forms_of_labels_are_heard() {
    let page =
        asked("labels[env]=dev&label.tier=a%2A&labels%5Bx%5D=1&other=2&enumeratorId=&maxPageSize=7").unwrap();
    let labels = [("env", "dev"), ("tier", "a*"), ("x", "1")].map(|(n, v)| (n.to_owned(), v.to_owned()));
    assert_eq!(page, Page { labels: labels.to_vec(), size: Some(7), enumerator: None });
    for query in ["labels[=1", "labels[]=1", "label.=1"] {
        assert!(asked(query).is_err(), "{query}");
    }
}

#[test]
fn page_sizes_have_limits() {
    let state = Replicated::default();
    let code = |query: &str| {
        asked(query)
            .and_then(|asked| page(&state, Kind::Vpc, &asked).map(|_| ""))
            .unwrap_or_else(|problem| problem.code())
    };
    for (query, expected) in [
        ("", ""),
        ("maxPageSize=1", ""),
        ("maxPageSize=100", ""),
        ("maxPageSize=101", "PageSizeTooBig"),
        ("maxPageSize=99999999999999999999999999", "PageSizeTooBig"),
        ("maxPageSize=0", "BadData"),
        ("maxPageSize=-1", "BadData"),
        ("maxPageSize=", "BadData"),
        ("maxPageSize=ten", "BadData"),
        ("enumeratorId=x", "EnumeratorNotFound"),
    ] {
        assert_eq!(code(query), expected, "{query}");
    }
}
