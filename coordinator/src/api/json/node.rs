//! JSON that keeps the order of members and remembers members given twice. In: text of a request (JSON or YAML) or a message of
//! ours. Out: a tree that the checks of this folder walk, and answers whose members keep their order. Called by the REST and
//! command-line code.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, MapAccess, SeqAccess, Visitor},
    ser::SerializeMap,
};

/// One JSON value.
#[derive(Debug, Clone, PartialEq)]
pub enum Node {
    /// `null`, or nothing at all in YAML.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Integer(i128),
    /// Any other number.
    Float(f64),
    /// A string.
    Text(String),
    /// An array.
    List(Vec<Node>),
    /// An object; a name may stand in it twice, which the checks report.
    Object(Vec<(String, Node)>),
}

impl Node {
    /// An object of these members, in this order.
    pub fn object<const N: usize>(members: [(&str, Node); N]) -> Node {
        Node::Object(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    /// The member of this name, when this is an object that has it.
    pub fn get(&self, name: &str) -> Option<&Node> {
        match self {
            Node::Object(members) => members.iter().find(|(given, _)| given == name).map(|(_, value)| value),
            Node::Null
            | Node::Bool(_)
            | Node::Integer(_)
            | Node::Float(_)
            | Node::Text(_)
            | Node::List(_) => None,
        }
    }

    /// The member at this chain of names.
    pub fn at(&self, names: &[&str]) -> Option<&Node> {
        names.iter().try_fold(self, |node, name| node.get(name))
    }

    /// The members, when it is an object; otherwise none.
    pub fn members(&self) -> &[(String, Node)] {
        match self {
            Node::Object(members) => members,
            Node::Null
            | Node::Bool(_)
            | Node::Integer(_)
            | Node::Float(_)
            | Node::Text(_)
            | Node::List(_) => &[],
        }
    }

    /// The text, when it is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Node::Text(text) => Some(text),
            Node::Null
            | Node::Bool(_)
            | Node::Integer(_)
            | Node::Float(_)
            | Node::List(_)
            | Node::Object(_) => None,
        }
    }

    /// The items, when it is a list; otherwise none.
    pub fn items(&self) -> &[Node] {
        match self {
            Node::List(items) => items,
            Node::Null
            | Node::Bool(_)
            | Node::Integer(_)
            | Node::Float(_)
            | Node::Text(_)
            | Node::Object(_) => &[],
        }
    }

    /// Sets a member: in its place when it is there, else at the end. Does nothing to what is not an object.
    pub fn set(&mut self, name: &str, value: Node) {
        if let Node::Object(members) = self {
            match members.iter_mut().find(|(given, _)| given == name) {
                Some((_, slot)) => *slot = value,
                None => members.push((name.to_owned(), value)),
            }
        }
    }

    /// The member to change, made as an empty object when it is missing or null. None when this is not an object.
    pub fn child(&mut self, name: &str) -> Option<&mut Node> {
        if matches!(self.get(name), None | Some(Node::Null)) {
            self.set(name, Node::Object(Vec::new()));
        }
        match self {
            Node::Object(members) => {
                members.iter_mut().find(|(given, _)| given == name).map(|(_, value)| value)
            }
            Node::Null
            | Node::Bool(_)
            | Node::Integer(_)
            | Node::Float(_)
            | Node::Text(_)
            | Node::List(_) => None,
        }
    }

    /// Takes a member out.
    pub fn remove(&mut self, name: &str) {
        if let Node::Object(members) = self {
            members.retain(|(given, _)| given != name);
        }
    }

    /// Without members that are null, at every depth.
    pub fn without_nulls(self) -> Node {
        match self {
            Node::Object(members) => Node::Object(
                members
                    .into_iter()
                    .filter(|(_, value)| *value != Node::Null)
                    .map(|(name, value)| (name, value.without_nulls()))
                    .collect(),
            ),
            Node::List(items) => Node::List(items.into_iter().map(Node::without_nulls).collect()),
            plain @ (Node::Null | Node::Bool(_) | Node::Integer(_) | Node::Float(_) | Node::Text(_)) => plain,
        }
    }

    /// What it is, as people call it.
    pub fn type_name(&self) -> &'static str {
        match self {
            Node::Null => "null",
            Node::Bool(_) => "a boolean",
            Node::Integer(_) | Node::Float(_) => "a number",
            Node::Text(_) => "a text",
            Node::List(_) => "a list",
            Node::Object(_) => "an object",
        }
    }
}

impl From<&str> for Node {
    fn from(text: &str) -> Self {
        Node::Text(text.to_owned())
    }
}

impl From<String> for Node {
    fn from(text: String) -> Self {
        Node::Text(text)
    }
}

impl From<Option<String>> for Node {
    fn from(text: Option<String>) -> Self {
        text.map_or(Node::Null, Node::Text)
    }
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Node::Null => serializer.serialize_unit(),
            Node::Bool(value) => serializer.serialize_bool(*value),
            // Requests are limited to 64 bits by the parser, so the wider forms never occur in what is answered.
            Node::Integer(value) => match i64::try_from(*value) {
                Ok(value) => serializer.serialize_i64(value),
                Err(_) => serializer.serialize_u64(u64::try_from(*value).unwrap_or(u64::MAX)),
            },
            Node::Float(value) => serializer.serialize_f64(*value),
            Node::Text(value) => serializer.serialize_str(value),
            Node::List(items) => serializer.collect_seq(items),
            Node::Object(members) => {
                let mut map = serializer.serialize_map(Some(members.len()))?;
                for (name, value) in members {
                    map.serialize_entry(name, value)?;
                }
                map.end()
            }
        }
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        Node::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Integer(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Integer(value.into()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Node, E> {
        Ok(Node::Integer(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Node, E> {
        Ok(Node::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Node, A::Error> {
        let mut members = Vec::new();
        while let Some(name) = access.next_key::<Node>()? {
            let name = match name {
                Node::Text(name) => name,
                Node::Bool(name) => name.to_string(),
                Node::Integer(name) => name.to_string(),
                other @ (Node::Null | Node::Float(_) | Node::List(_) | Node::Object(_)) => {
                    return Err(A::Error::custom(format!(
                        "a member's name must be a text, not {}",
                        other.type_name()
                    )));
                }
            };
            members.push((name, access.next_value()?));
        }
        Ok(Node::Object(members))
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}
