//! GET of a list. In: label patterns, a page size and where the last page ended. Out: a page of resources in the order of their ids,
//! and where the next one begins. The enumerator is the end of the last page itself, so nothing is kept for it and it never expires.

use std::{collections::BTreeMap, ops::Bound};

use axum::{
    extract::{Path, Request, State},
    response::Response,
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use sha2::{Digest as _, Sha256};
use shardplane_model::{
    resource::{Kind, Resource},
    state::{Scope, State as Replicated},
};
use shardplane_proto::ids::ResourceId;

use super::{
    super::{
        Api, auth,
        errors::{Problem, Trouble},
        family::{Family, success},
        json::{self, Node},
    },
    kind,
};

const DEFAULT_PAGE: usize = 10;
const LARGEST_PAGE: usize = 100;

/// What a list is asked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Label and pattern; all must match. A `*` in a pattern stands for any text.
    pub labels: Vec<(String, String)>,
    /// How many at most; none for the default.
    pub size: Option<usize>,
    /// Where the last page ended.
    pub enumerator: Option<String>,
}

/// `GET /api/v1/<type>/get-by-labels`
pub async fn list(State(api): State<Api>, Path(path): Path<String>, request: Request) -> Response {
    let query = request.uri().query().unwrap_or_default().to_owned();
    match run(&api, &path, &query, auth::bearer(request.headers())).await {
        Ok((resources, next)) => success([
            ("pagination", Node::object([("enumeratorId", Node::from(next))])),
            ("resources", Node::List(resources)),
        ]),
        Err(problem) => Family::List.refuse(&problem),
    }
}

async fn run(
    api: &Api,
    path: &str,
    query: &str,
    token: Option<&str>,
) -> Result<(Vec<Node>, Option<String>), Problem> {
    let session = api.enter(token, &[Scope::Read]).await?;
    let (found, next) = page(&session.state, kind(path)?, &asked(query)?)?;
    let shown =
        found.into_iter().map(|resource| json::resource(&session.without_secrets(resource))).collect();
    Ok((shown, next))
}

/// Reads the query of a list.
fn asked(query: &str) -> Result<Page, Problem> {
    let mut page = Page::default();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match name.as_ref() {
            "maxPageSize" => page.size = Some(page_size(&value)?),
            "enumeratorId" => page.enumerator = (!value.is_empty()).then(|| value.into_owned()),
            name => {
                let bracketed = name.strip_prefix("labels[").map(|rest| rest.strip_suffix(']'));
                let label = match (bracketed, name.strip_prefix("label.")) {
                    (Some(Some(label)), _) | (None, Some(label)) if !label.is_empty() => label,
                    (None, None) => continue,
                    (Some(_), _) | (None, Some(_)) => {
                        return Err(Problem::bad_data(format!(
                            "{name:?}: a label is given as labels[key]=value or label.key=value"
                        )));
                    }
                };
                page.labels.push((label.to_owned(), value.into_owned()));
            }
        }
    }
    Ok(page)
}

fn page_size(value: &str) -> Result<usize, Problem> {
    let refused = || {
        Problem::bad_data(format!("maxPageSize: must be a number from 1 to {LARGEST_PAGE}, not {value:?}"))
    };
    // A number that only fails to fit is too big, not malformed.
    if !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit()) {
        return match value.parse() {
            Ok(0) => Err(refused()),
            Ok(size) => Ok(size),
            Err(_) => Ok(usize::MAX),
        };
    }
    Err(refused())
}

/// The resources of one page, and the enumerator of the next one.
///
/// # Errors
/// `PageSizeTooBig`, `EnumeratorNotFound`.
pub fn page<'a>(
    state: &'a Replicated,
    kind: Kind,
    asked: &Page,
) -> Result<(Vec<&'a Resource>, Option<String>), Problem> {
    let size = asked.size.unwrap_or(DEFAULT_PAGE);
    if size > LARGEST_PAGE {
        return Err(Problem::new(
            Trouble::PageSizeTooBig,
            format!("maxPageSize: at most {LARGEST_PAGE} are listed at once; ask for more pages instead"),
        ));
    }
    let filter = fingerprint(kind, &asked.labels);
    let from = match &asked.enumerator {
        None => Bound::Unbounded,
        Some(enumerator) => Bound::Excluded(last_of(enumerator, &filter).ok_or_else(|| {
            Problem::new(
                Trouble::EnumeratorNotFound,
                "enumeratorId: is not one of this list: use it with the type and the labels it was answered for, or begin without it",
            )
        })?),
    };
    let matching = |resource: &&Resource| {
        resource.kind() == kind && labels_match(&resource.metadata.labels, &asked.labels)
    };
    let mut rest =
        state.resources.range((from, Bound::Unbounded)).map(|(_, resource)| resource).filter(matching);
    let found: Vec<&Resource> = rest.by_ref().take(size).collect();
    let next = match (rest.next(), found.last()) {
        (Some(_), Some(last)) => Some(BASE64_URL_SAFE_NO_PAD.encode(format!("{filter}{}", last.id))),
        (Some(_) | None, _) => None,
    };
    Ok((found, next))
}

/// Eight characters that differ between types and filters.
fn fingerprint(kind: Kind, labels: &[(String, String)]) -> String {
    let mut hash = Sha256::new();
    hash.update(kind.path());
    let mut sorted: Vec<_> = labels.iter().collect();
    sorted.sort();
    for (name, value) in sorted {
        for part in [name, value] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
    }
    hex::encode(&hash.finalize()[..4])
}

fn last_of(enumerator: &str, filter: &str) -> Option<ResourceId> {
    let text = String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(enumerator).ok()?).ok()?;
    text.strip_prefix(filter)?.parse().ok()
}

/// Whether the labels satisfy all patterns.
pub fn labels_match(labels: &BTreeMap<String, String>, patterns: &[(String, String)]) -> bool {
    patterns.iter().all(|(name, pattern)| labels.get(name).is_some_and(|value| matches(pattern, value)))
}

/// Whether `text` is `pattern`, in which each `*` stands for any text.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        // The earliest place leaves most for the others.
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
#[path = "list_tests.rs"]
mod tests;
