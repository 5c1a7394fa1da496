//! Schemas. In: message descriptors. Out: JSON schemas of the public messages and of the envelopes around them.

use std::collections::{BTreeMap, BTreeSet};

use prost_reflect::{FieldDescriptor, Kind as FieldKind, MessageDescriptor};
use shardplane_model::resource::Kind;

use super::{
    super::{
        family::Family,
        json::{Node, descriptor},
    },
    reference,
};

/// Messages that routes of the operator's answer or take.
pub const OPERATOR: [&str; 18] = [
    "HostList",
    "InstanceList",
    "OperationList",
    "OperationView",
    "EventList",
    "Explanation",
    "Catalogue",
    "CreateTokenRequest",
    "CreateTokenResponse",
    "ForgetHostResponse",
    "TokenList",
    "RevokeTokenResponse",
    "HostView",
    "DrainView",
    "HostPlan",
    "ChangePlan",
    "CordonHostRequest",
    "DrainHostRequest",
];

/// Name of the schema of a list of this type.
pub fn list_of(kind: Kind) -> String {
    format!("{}ListResponse", kind.name())
}

/// Name of the schema of a read of this type.
pub fn read_of(kind: Kind) -> String {
    format!("{}ReadResponse", kind.name())
}

/// Every schema by name.
pub fn all() -> Node {
    let mut found = BTreeMap::new();
    let roots = Kind::all().into_iter().map(Kind::name).chain(OPERATOR);
    for message in roots.filter_map(descriptor) {
        collect(&message, &mut found);
    }
    let mut schemas: BTreeMap<String, Node> =
        found.iter().map(|(name, message)| (name.clone(), schema(message))).collect();
    let text = || nullable("string");
    let error = |family: Family| {
        let codes = family.codes().iter().map(|code| Node::from(*code)).chain([Node::Null]).collect();
        [("errorMessage", text()), ("errorCode", Node::object([("enum", Node::List(codes))]))]
    };
    schemas.insert(
        "ChangeResponse".to_owned(),
        envelope([("requestId", text()), ("resourceId", text())], error(Family::Change)),
    );
    let poll = [("succeeded", typed("boolean")), ("scheduledResourceId", typed("string"))];
    schemas.insert("PollResponse".to_owned(), envelope(poll, error(Family::Poll)));
    schemas.insert("Problem".to_owned(), envelope([], error(Family::Operator)));
    schemas.extend(command_line());
    let event = [("resource", nullable("object")), ("deleted", typed("boolean")), ("id", typed("string"))];
    schemas.insert("ResourceEvent".to_owned(), envelope(event, []));
    for kind in Kind::all() {
        let resource = Node::object([(
            "oneOf",
            Node::List(vec![reference(kind.name()), Node::object([("type", Node::from("null"))])]),
        )]);
        schemas.insert(read_of(kind), envelope([("resource", resource)], error(Family::Read)));
        let page = envelope([("enumeratorId", text())], []);
        let items = Node::object([("type", Node::from("array")), ("items", reference(kind.name()))]);
        schemas.insert(
            list_of(kind),
            envelope([("pagination", page), ("resources", items)], error(Family::List)),
        );
    }
    Node::Object(schemas.into_iter().collect())
}

/// What the kc client posts and obeys.
fn command_line() -> [(String, Node); 2] {
    let texts = Node::object([("type", Node::from("array")), ("items", typed("string"))]);
    let maybe = || nullable("object");
    let mut request = envelope(
        [
            ("args", texts),
            ("retryParams", maybe()),
            ("editApply", maybe()),
            ("fileContent", nullable("string")),
        ],
        [],
    );
    request.set("required", Node::List(vec![Node::from("args")]));
    let response = envelope(
        [
            ("stdout", typed("string")),
            ("stderr", typed("string")),
            ("rc", typed("integer")),
            ("file", maybe()),
            ("config", maybe()),
            ("retryParams", maybe()),
            ("edit", maybe()),
            ("readFile", maybe()),
        ],
        [],
    );
    [("CommandLineRequest".to_owned(), request), ("CommandLineResponse".to_owned(), response)]
}

/// An object with exactly these members.
fn envelope<const N: usize, const M: usize>(members: [(&str, Node); N], error: [(&str, Node); M]) -> Node {
    let members: Vec<(String, Node)> =
        members.into_iter().chain(error).map(|(n, v)| (n.to_owned(), v)).collect();
    let names = members.iter().map(|(name, _)| Node::from(name.as_str())).collect();
    Node::object([
        ("type", Node::from("object")),
        ("properties", Node::Object(members)),
        ("required", Node::List(names)),
        ("additionalProperties", Node::Bool(false)),
    ])
}

fn typed(name: &str) -> Node {
    Node::object([("type", Node::from(name))])
}

fn nullable(name: &str) -> Node {
    Node::object([("type", Node::List(vec![Node::from(name), Node::from("null")]))])
}

fn collect(message: &MessageDescriptor, found: &mut BTreeMap<String, MessageDescriptor>) {
    if found.insert(message.name().to_owned(), message.clone()).is_some() {
        return;
    }
    let nested: BTreeSet<String> = message
        .fields()
        .filter(|field| !field.is_map())
        .filter_map(|field| field.kind().as_message().map(|nested| nested.name().to_owned()))
        .collect();
    for nested in nested.iter().filter_map(|name| descriptor(name)) {
        collect(&nested, found);
    }
}

fn schema(message: &MessageDescriptor) -> Node {
    let properties = message.fields().map(|field| (field.json_name().to_owned(), property(&field))).collect();
    let mut schema = Node::object([
        ("type", Node::from("object")),
        ("properties", Node::Object(properties)),
        ("additionalProperties", Node::Bool(false)),
    ]);
    describe(&mut schema, comment(message.parent_file(), message.path()));
    schema
}

fn property(field: &FieldDescriptor) -> Node {
    let single = |kind: &FieldKind| match kind {
        FieldKind::Message(message) => reference(message.name()),
        FieldKind::Bool => typed("boolean"),
        FieldKind::Double | FieldKind::Float => typed("number"),
        FieldKind::String | FieldKind::Bytes | FieldKind::Enum(_) => typed("string"),
        FieldKind::Int32
        | FieldKind::Int64
        | FieldKind::Uint32
        | FieldKind::Uint64
        | FieldKind::Sint32
        | FieldKind::Sint64
        | FieldKind::Fixed32
        | FieldKind::Fixed64
        | FieldKind::Sfixed32
        | FieldKind::Sfixed64 => typed("integer"),
    };
    let kind = field.kind();
    let mut schema = match (field.is_map(), field.is_list(), kind.as_message()) {
        (true, _, Some(entry)) => Node::object([
            ("type", Node::from("object")),
            ("additionalProperties", single(&entry.map_entry_value_field().kind())),
        ]),
        (_, true, _) => Node::object([("type", Node::from("array")), ("items", single(&kind))]),
        _ => single(&kind),
    };
    if field.supports_presence() && kind.as_message().is_none() {
        let plain = schema.get("type").and_then(Node::text).unwrap_or("string").to_owned();
        schema = nullable(&plain);
    }
    describe(&mut schema, comment(field.parent_message().parent_file(), field.path()));
    schema
}

fn describe(schema: &mut Node, comment: Option<String>) {
    if let Some(comment) = comment {
        schema.set("description", Node::from(comment));
    }
}

/// The comment above a message or field.
fn comment(file: prost_reflect::FileDescriptor, path: &[i32]) -> Option<String> {
    let info = file.file_descriptor_proto().source_code_info.as_ref()?;
    let location = info.location.iter().find(|location| location.path == path)?;
    let text = location.leading_comments.as_deref()?.trim();
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    (!text.is_empty()).then(|| lines.join(" "))
}
