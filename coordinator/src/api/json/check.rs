//! The check of a request's JSON against the descriptors. In: the body of a PUT, or a document of a manifest. Out: the message
//! without what was wrong, and every violation with its path. Called by the REST PUT and `kc apply`.

use std::collections::BTreeSet;

use prost_reflect::{FieldDescriptor, Kind as FieldKind, MessageDescriptor};
use serde_json::{Map, Value};
use shardplane_model::{refusal::Violation, resource::Kind};
use shardplane_proto::v1;

use super::{Node, descriptor};

/// Members whose value never stands in an error text.
const SECRET_MEMBERS: [&str; 2] = ["rootPassword", "password"];

/// Longest piece of a given value in an error text, characters.
const SHOWN: usize = 64;

/// Most violations that are told one by one: nobody reads more, and a body holds a hundred thousand.
const TOLD: usize = 64;

/// A body that is not JSON, or not an object.
#[derive(Debug, thiserror::Error)]
pub enum MalformedBody {
    /// Nothing was sent.
    #[error("the body is empty: send the whole resource as JSON, with metadata and spec")]
    Empty,
    /// Not JSON.
    #[error("the body is not valid JSON")]
    Syntax(#[source] serde_json::Error),
    /// JSON, but something else than an object.
    #[error("the body must be a JSON object with metadata and spec, not {0}")]
    NotAnObject(&'static str),
}

/// What is left of a body, and what was wrong with it.
#[derive(Debug)]
pub struct Checked {
    /// The resource without the members that were wrong.
    pub resource: v1::Resource,
    /// Every violation, in the order of the body.
    pub violations: Vec<Violation>,
}

/// Reads a body as a JSON object.
///
/// # Errors
/// When it is empty, not JSON, or not an object.
pub fn parse(body: &[u8]) -> Result<Node, MalformedBody> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(MalformedBody::Empty);
    }
    let node: Node = serde_json::from_slice(body).map_err(MalformedBody::Syntax)?;
    match node {
        Node::Object(_) => Ok(node),
        other @ (Node::Null
        | Node::Bool(_)
        | Node::Integer(_)
        | Node::Float(_)
        | Node::Text(_)
        | Node::List(_)) => Err(MalformedBody::NotAnObject(other.type_name())),
    }
}

/// Checks the body of a PUT of this type.
pub fn check(kind: Kind, body: &Node) -> Checked {
    let mut found = Violations::default();
    let mut clean = Map::new();
    let Some(message) = descriptor(kind.name()) else {
        found.add("kind", format!("{kind} is not known here"));
        return Checked { resource: v1::Resource::default(), violations: found.all() };
    };
    let members: &[(String, Node)] = match body {
        Node::Object(members) => members,
        Node::Null | Node::Bool(_) | Node::Integer(_) | Node::Float(_) | Node::Text(_) | Node::List(_) => {
            found.add("", format!("must be an object, not {}", body.type_name()));
            &[]
        }
    };
    let mut seen = BTreeSet::new();
    let mut top_level_id = None;
    for (name, value) in members {
        if found.again("", name, &mut seen) {
            continue;
        }
        match (name.as_str(), value) {
            ("status", _) | (_, Node::Null) => {}
            ("apiVersion", value) => found.word("apiVersion", value, "v1"),
            ("kind", value) => found.word("kind", value, kind.name()),
            ("id", Node::Text(id)) => top_level_id = Some(id.clone()),
            ("id", value) => found.wrong_type("id", value, "a text: the ULID of the resource"),
            ("metadata" | "spec", value) => {
                let Some(nested) =
                    message.get_field_by_json_name(name).and_then(|field| field.kind().as_message().cloned())
                else {
                    continue;
                };
                if let Some(value) = found.message(&nested, value, name) {
                    clean.insert(name.clone(), value);
                }
            }
            (unknown, _) => {
                found.add(
                    &join("", unknown),
                    "is not a member of a resource: apiVersion, kind, metadata, spec are",
                );
            }
        }
    }
    if let Some(id) = top_level_id {
        found.top_level_id(&mut clean, &id);
    }
    let resource = resource_of(kind, Value::Object(clean)).unwrap_or_else(|error| {
        // What the walk above let through fits the descriptors; the message parser may still know better.
        found.add("", error.to_string());
        v1::Resource::default()
    });
    Checked { resource, violations: found.all() }
}

fn resource_of(kind: Kind, clean: Value) -> Result<v1::Resource, serde_json::Error> {
    let mut name = kind.name().to_owned();
    name[..1].make_ascii_lowercase();
    let mut body = Map::new();
    body.insert(name, clean);
    serde_json::from_value(Value::Object(body))
}

#[derive(Default)]
struct Violations {
    told: Vec<Violation>,
    untold: usize,
}

impl Violations {
    fn add(&mut self, path: &str, message: impl Into<String>) {
        if self.told.len() == TOLD {
            self.untold += 1;
            return;
        }
        let violation = Violation::new(if path.is_empty() { "body" } else { path }, message);
        // A member given twice is wrong twice in the same way.
        if !self.told.contains(&violation) {
            self.told.push(violation);
        }
    }

    fn all(mut self) -> Vec<Violation> {
        if self.untold > 0 {
            let text = format!("breaks rules in {} more places; mend these first", self.untold);
            self.told.push(Violation::new("body", text));
        }
        self.told
    }

    fn wrong_type(&mut self, path: &str, given: &Node, wanted: &str) {
        self.add(path, format!("must be {wanted}, not {}", shown(path, given)));
    }

    fn word(&mut self, path: &str, given: &Node, wanted: &str) {
        if given.text() != Some(wanted) {
            self.add(path, format!("must be \"{wanted}\" here, not {}", shown(path, given)));
        }
    }

    /// Whether a member was seen before, which is a violation.
    fn again<'a>(&mut self, path: &str, name: &'a str, seen: &mut BTreeSet<&'a str>) -> bool {
        let again = !seen.insert(name);
        if again {
            self.add(&join(path, name), "is given more than once");
        }
        again
    }

    fn top_level_id(&mut self, clean: &mut Map<String, Value>, id: &str) {
        let metadata = clean.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
        let Value::Object(metadata) = metadata else { return };
        match metadata.get("id") {
            None => {
                metadata.insert("id".to_owned(), Value::String(id.to_owned()));
            }
            Some(Value::String(inner)) if inner.eq_ignore_ascii_case(id) => {}
            Some(_) => self.add("id", "differs from metadata.id: give one of them"),
        }
    }

    fn message(&mut self, message: &MessageDescriptor, node: &Node, path: &str) -> Option<Value> {
        let Node::Object(members) = node else {
            // Not shown: a text may be the whole spec, in quotes by mistake, with its password.
            self.add(path, format!("must be an object, not {}", node.type_name()));
            return None;
        };
        let mut seen = BTreeSet::new();
        let mut clean = Map::new();
        for (name, value) in members {
            if self.again(path, name, &mut seen) {
                continue;
            }
            let path = join(path, name);
            let Some(field) = message.get_field_by_json_name(name) else {
                let text = if self.told.len() < TOLD { unknown(message, name) } else { String::new() };
                self.add(&path, text);
                continue;
            };
            if *value == Node::Null {
                continue;
            }
            if let Some(value) = self.field(&field, value, &path) {
                clean.insert(name.clone(), value);
            }
        }
        Some(Value::Object(clean))
    }

    fn field(&mut self, field: &FieldDescriptor, node: &Node, path: &str) -> Option<Value> {
        if field.is_map() {
            return self.map(field, node, path);
        }
        if !field.is_list() {
            return self.single(&field.kind(), node, path);
        }
        let Node::List(items) = node else {
            self.wrong_type(path, node, "a list");
            return None;
        };
        // A list with a wrong item still has its length, so that the rules about counts can be checked besides.
        let blank = || Value::Object(Map::new());
        let clean = items
            .iter()
            .enumerate()
            .filter_map(|(at, item)| {
                let found = self.single(&field.kind(), item, &format!("{path}[{at}]"));
                if field.kind().as_message().is_some() { Some(found.unwrap_or_else(blank)) } else { found }
            })
            .collect();
        Some(Value::Array(clean))
    }

    fn map(&mut self, field: &FieldDescriptor, node: &Node, path: &str) -> Option<Value> {
        let Node::Object(members) = node else {
            self.wrong_type(path, node, "an object of texts");
            return None;
        };
        let kind = field.kind();
        let value_kind = kind.as_message()?.map_entry_value_field().kind();
        let mut seen = BTreeSet::new();
        let mut clean = Map::new();
        for (name, value) in members {
            if self.again(path, name, &mut seen) || *value == Node::Null {
                continue;
            }
            if let Some(value) = self.single(&value_kind, value, &join(path, name)) {
                clean.insert(name.clone(), value);
            }
        }
        Some(Value::Object(clean))
    }

    fn single(&mut self, kind: &FieldKind, node: &Node, path: &str) -> Option<Value> {
        match (kind, node) {
            (FieldKind::Message(message), node) => self.message(message, node, path),
            (FieldKind::String, Node::Text(text)) => Some(Value::String(text.clone())),
            (FieldKind::String, node) => {
                self.wrong_type(path, node, "a text in quotes");
                None
            }
            (FieldKind::Bool, Node::Bool(value)) => Some(Value::Bool(*value)),
            (FieldKind::Bool, node) => {
                self.wrong_type(path, node, "true or false, without quotes");
                None
            }
            (kind, node) => self.number(kind, node, path),
        }
    }

    fn number(&mut self, kind: &FieldKind, node: &Node, path: &str) -> Option<Value> {
        let (lowest, highest) = match kind {
            FieldKind::Uint32 | FieldKind::Fixed32 => (0, i128::from(u32::MAX)),
            FieldKind::Uint64 | FieldKind::Fixed64 => (0, i128::from(u64::MAX)),
            FieldKind::Int64 | FieldKind::Sint64 | FieldKind::Sfixed64 => {
                (i128::from(i64::MIN), i128::from(i64::MAX))
            }
            FieldKind::Int32
            | FieldKind::Sint32
            | FieldKind::Sfixed32
            | FieldKind::Double
            | FieldKind::Float
            | FieldKind::Bool
            | FieldKind::String
            | FieldKind::Bytes
            | FieldKind::Message(_)
            | FieldKind::Enum(_) => (i128::from(i32::MIN), i128::from(i32::MAX)),
        };
        match whole(node) {
            Some(value) if (lowest..=highest).contains(&value) => i64::try_from(value).ok().map(Value::from),
            Some(_) => {
                self.add(
                    path,
                    format!("is out of range: {} does not fit {lowest} to {highest}", shown(path, node)),
                );
                None
            }
            None => {
                self.wrong_type(path, node, "a whole number, without quotes or fraction");
                None
            }
        }
    }
}

fn join(path: &str, name: &str) -> String {
    let plain = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    let shown: String = name.chars().take(SHOWN).collect();
    match (path.is_empty(), plain) {
        (true, _) => shown,
        (false, true) => format!("{path}.{shown}"),
        (false, false) => format!("{path}[{shown:?}]"),
    }
}

/// A whole number, also when it is written like 3.0 or 1e1.
fn whole(node: &Node) -> Option<i128> {
    match node {
        Node::Integer(value) => Some(*value),
        // A cast saturates, and what saturates is out of every range.
        #[allow(clippy::cast_possible_truncation)]
        Node::Float(value) if value.fract() == 0.0 => Some(*value as i128),
        Node::Float(_) | Node::Null | Node::Bool(_) | Node::Text(_) | Node::List(_) | Node::Object(_) => None,
    }
}

/// A given value for an error text: never a secret, never long.
fn shown(path: &str, given: &Node) -> String {
    if SECRET_MEMBERS.iter().any(|name| path.ends_with(name)) {
        return given.type_name().to_owned();
    }
    match given {
        Node::Null | Node::List(_) | Node::Object(_) => given.type_name().to_owned(),
        Node::Bool(value) => format!("the boolean {value}"),
        Node::Integer(value) => format!("the number {value}"),
        Node::Float(value) => format!("the number {value}"),
        Node::Text(text) => {
            let cut: String = text.chars().take(SHOWN).collect();
            format!("the text {cut:?}{}", if cut.len() < text.len() { " and so on" } else { "" })
        }
    }
}

fn unknown(message: &MessageDescriptor, name: &str) -> String {
    let folded = |name: &str| name.replace(['_', '-'], "").to_ascii_lowercase();
    let known: Vec<String> = message.fields().map(|field| field.json_name().to_owned()).collect();
    match known.iter().find(|field| folded(field) == folded(name)) {
        Some(meant) => format!("is not known: did you mean {meant}?"),
        None if known.is_empty() => "is not known: nothing is allowed here".to_owned(),
        None => format!("is not known: allowed are {}", known.join(", ")),
    }
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
