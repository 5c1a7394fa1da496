//! `GET /openapi.json`: OpenAPI 3.1 from the same descriptors that the messages come from. In: the descriptors. Out: paths and schemas
//! with the comments of the protobuf files as descriptions. Called by the door.

mod paths;
mod schemas;

use std::sync::LazyLock;

use axum::response::Response;
use http::StatusCode;

use super::{family, json::Node};

/// The document; it depends on nothing but the build.
static DOCUMENT: LazyLock<Node> = LazyLock::new(document);

/// `GET /openapi.json`
pub async fn serve() -> Response {
    family::json(StatusCode::OK, &DOCUMENT)
}

fn document() -> Node {
    Node::object([
        ("openapi", Node::from("3.1.0")),
        (
            "info",
            Node::object([
                ("title", Node::from("Shardplane")),
                ("version", Node::from(env!("CARGO_PKG_VERSION"))),
                ("description", Node::from("Sharded Valkey clusters on bare-metal hosts.")),
                (
                    "license",
                    Node::object([
                        ("name", Node::from("Apache-2.0")),
                        ("identifier", Node::from("Apache-2.0")),
                    ]),
                ),
            ]),
        ),
        ("security", Node::List(vec![Node::object([("token", Node::List(Vec::new()))])])),
        ("paths", paths::all()),
        (
            "components",
            Node::object([
                ("schemas", schemas::all()),
                (
                    "securitySchemes",
                    Node::object([(
                        "token",
                        Node::object([("type", Node::from("http")), ("scheme", Node::from("bearer"))]),
                    )]),
                ),
            ]),
        ),
    ])
}

/// A reference to a schema of the document.
fn reference(name: &str) -> Node {
    Node::object([("$ref", Node::from(format!("#/components/schemas/{name}")))])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn names(node: Option<&Node>) -> Vec<String> {
        node.map_or(&[][..], Node::members).iter().map(|(name, _)| name.clone()).collect()
    }

    fn references(node: &Node, found: &mut BTreeSet<String>) {
        found.extend(node.get("$ref").and_then(Node::text).map(str::to_owned));
        node.members().iter().for_each(|(_, value)| references(value, found));
        node.items().iter().for_each(|item| references(item, found));
    }

    #[test]
    fn every_reference_leads_somewhere_and_operations_have_unique_ids() {
        let document = document();
        let schemas: BTreeSet<String> = names(document.at(&["components", "schemas"])).into_iter().collect();
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        assert!(found.len() > 20);
        for target in found {
            let name = target.strip_prefix("#/components/schemas/").unwrap();
            assert!(schemas.contains(name), "{target}");
        }
        let mut ids = BTreeSet::new();
        for path in names(document.get("paths")) {
            let item = document.at(&["paths", &path]).unwrap();
            for method in names(Some(item)) {
                let operation = item.get(&method).unwrap();
                assert!(
                    ids.insert(operation.get("operationId").and_then(Node::text).unwrap().to_owned()),
                    "{method} {path}"
                );
                assert!(!names(operation.get("responses")).is_empty(), "{method} {path}");
                let declared: BTreeSet<String> = operation
                    .get("parameters")
                    .map_or(&[][..], Node::items)
                    .iter()
                    .filter(|p| p.get("in").and_then(Node::text) == Some("path"))
                    .map(|p| p.get("name").and_then(Node::text).unwrap().to_owned())
                    .collect();
                let used: BTreeSet<String> = path
                    .split('/')
                    .filter_map(|s| Some(s.strip_prefix('{')?.split_once('}')?.0.to_owned()))
                    .collect();
                assert_eq!(declared, used, "{method} {path}");
            }
        }
    }

    #[test]
    fn paths_and_schemas_are_the_known_ones() {
        let document = document();
        let mut lines: Vec<String> = Vec::new();
        for path in names(document.get("paths")) {
            for method in names(document.at(&["paths", &path])) {
                lines.push(format!("{method} {path}"));
            }
        }
        lines.extend(names(document.at(&["components", "schemas"])));
        let text = lines.join("\n") + "\n";
        let golden = include_str!("golden.txt");
        assert_eq!(
            text, golden,
            "the public surface changed: when that is meant, write the left text to golden.txt"
        );
    }

    #[test]
    fn comments_of_the_protobuf_files_are_descriptions() {
        let document = document();
        let text = document
            .at(&["components", "schemas", "Metadata", "properties", "deleteProtection", "description"])
            .and_then(Node::text)
            .unwrap_or_default();
        assert_eq!(text, "While true, DELETE is refused with ResourceIsDeleteProtected.");
    }
}
