//! Answers as JSON. In: messages of ours. Out: members in the order of the protobuf file, absent ones as null, so that every
//! answer of a type has the same members. Called by the REST handlers and the command line.

use prost_reflect::{Kind as FieldKind, MessageDescriptor};
use serde::Serialize;
use shardplane_proto::v1;

use super::{Node, descriptor};

/// A public resource in its envelope.
pub fn resource(resource: &v1::Resource) -> Node {
    use v1::resource::Body;
    match &resource.body {
        Some(Body::Valkey(body)) => message("Valkey", body),
        Some(Body::ValkeyParametersSet(body)) => message("ValkeyParametersSet", body),
        Some(Body::PostgreSql(body)) => message("PostgreSql", body),
        Some(Body::PostgreSqlParametersSet(body)) => message("PostgreSqlParametersSet", body),
        Some(Body::PostgreSqlRole(body)) => message("PostgreSqlRole", body),
        Some(Body::Vpc(body)) => message("Vpc", body),
        Some(Body::VpcSubnet(body)) => message("VpcSubnet", body),
        Some(Body::Folder(body)) => message("Folder", body),
        Some(Body::HostingProvider(body)) => message("HostingProvider", body),
        None => Node::Null,
    }
}

/// A message of ours by its short name.
pub fn message<M: Serialize>(name: &str, body: &M) -> Node {
    // Our own messages always serialise; numbers in them are 32 bits and finite.
    let plain = serde_json::to_vec(body)
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok())
        .unwrap_or(Node::Null);
    match descriptor(name) {
        Some(descriptor) => complete(&descriptor, plain),
        None => plain,
    }
}

/// Adds what is absent as null, at every depth.
fn complete(message: &MessageDescriptor, node: Node) -> Node {
    let Node::Object(members) = node else { return node };
    let mut members: Vec<(String, Option<Node>)> =
        members.into_iter().map(|(name, value)| (name, Some(value))).collect();
    let mut take =
        |name: &str| members.iter_mut().find(|(given, _)| given == name).and_then(|(_, value)| value.take());
    let fields = message.fields().map(|field| {
        let value = match (take(field.json_name()), field.kind().as_message()) {
            (None, _) => Node::Null,
            (Some(value), None) if matches!(field.kind(), FieldKind::Uint64 | FieldKind::Int64) => {
                as_number(value)
            }
            (Some(value), None) => value,
            (Some(value), Some(entry)) if field.is_map() => {
                let kind = entry.map_entry_value_field().kind();
                if matches!(kind, FieldKind::Uint64 | FieldKind::Int64) { as_numbers(value) } else { value }
            }
            (Some(Node::List(items)), Some(nested)) => {
                Node::List(items.into_iter().map(|item| complete(nested, item)).collect())
            }
            (Some(value), Some(nested)) => complete(nested, value),
        };
        (field.json_name().to_owned(), value)
    });
    Node::Object(fields.collect())
}

/// Protobuf's JSON writes 64-bit numbers as text; ours are small enough to be numbers.
fn as_number(node: Node) -> Node {
    match node {
        Node::Text(text) => text.parse().map_or(Node::Text(text), Node::Integer),
        Node::Null | Node::Bool(_) | Node::Integer(_) | Node::Float(_) | Node::List(_) | Node::Object(_) => {
            node
        }
    }
}

/// The same for the values of a map.
fn as_numbers(node: Node) -> Node {
    match node {
        Node::Object(members) => {
            Node::Object(members.into_iter().map(|(name, value)| (name, as_number(value))).collect())
        }
        Node::Null | Node::Bool(_) | Node::Integer(_) | Node::Float(_) | Node::List(_) | Node::Text(_) => {
            node
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_numbers_are_numbers_in_maps_too() {
        let goal = v1::OperationGoal { what: "slots".to_owned(), amount: 5 };
        let counts = [("slots".to_owned(), 3)].into();
        let operation = v1::OperationView { counts, goal: Some(goal), ..Default::default() };
        let node = message("OperationView", &operation);
        assert_eq!(node.at(&["counts", "slots"]), Some(&Node::Integer(3)));
        assert_eq!(node.at(&["goal", "amount"]), Some(&Node::Integer(5)));
    }

    #[test]
    fn absent_members_are_null_and_the_order_is_that_of_the_file() {
        let subnet = v1::VpcSubnet {
            api_version: "v1".to_owned(),
            kind: "VpcSubnet".to_owned(),
            metadata: Some(v1::Metadata { id: "x".to_owned(), ..Default::default() }),
            status: Some(v1::CommonStatus { state: "stable".to_owned(), ..Default::default() }),
            ..Default::default()
        };
        let text = serde_json::to_string(&resource(&v1::Resource {
            body: Some(v1::resource::Body::VpcSubnet(subnet)),
        }))
        .unwrap();
        assert_eq!(
            text,
            r#"{"apiVersion":"v1","kind":"VpcSubnet","metadata":{"id":"x","name":"","description":null,"folderId":null,"labels":{},"deleteProtection":null},"spec":null,"status":{"state":"stable","createTime":"","createdByUser":null,"lastChangeRequest":null,"pricing":null}}"#
        );
    }
}
