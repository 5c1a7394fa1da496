//! Manifests. In: YAML or JSON text with one or more documents. Out: documents with names resolved to ids; and resources written as
//! such text. Used by `apply`, `edit`, `delete -f` and `get -o yaml`.

use serde::Deserialize as _;
use shardplane_model::{engine::EngineKind, resource::Kind, state::State};
use shardplane_proto::ids::ResourceId;

use super::{
    super::json::Node,
    answer::Failure,
    lookup,
    types::{self, Type},
};

/// Most documents of one manifest.
const MOST: usize = 500;

/// Most opening brackets of a YAML manifest. A parser takes time with the square of their depth, and depth cannot be known before.
const MOST_BRACKETS: usize = 10_000;

/// One document of a manifest.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// Its type.
    pub kind: Kind,
    /// `metadata.name`; empty when there is none.
    pub name: String,
    /// The document.
    pub node: Node,
}

impl Document {
    /// How messages call it.
    pub fn title(&self) -> String {
        format!("{}/{}", self.kind, if self.name.is_empty() { "?" } else { &self.name })
    }

    /// `metadata.id`, when it is there and not empty.
    pub fn id(&self) -> Option<&str> {
        self.node
            .at(&["metadata", "id"])
            .or_else(|| self.node.get("id"))
            .and_then(Node::text)
            .filter(|id| !id.is_empty())
    }
}

/// Reads the documents of a manifest; a document `items: […]` stands for its items.
///
/// # Errors
/// The place where the text is not YAML, or a document without a known kind.
pub fn read(text: &str) -> Result<Vec<Document>, Failure> {
    let mut nodes = Vec::new();
    for document in parse(text) {
        let node = document.map_err(|cause| {
            Failure::Text(format!("document {} of the manifest is not valid YAML: {cause}", nodes.len() + 1))
        })?;
        match (node.get("items"), node.get("spec")) {
            (Some(Node::List(items)), None) => nodes.extend(items.iter().cloned()),
            _ if node == Node::Null => {}
            _ => nodes.push(node),
        }
        if nodes.len() > MOST {
            return Err(Failure::Text(format!("the manifest has more than {MOST} documents; split it")));
        }
    }
    if nodes.is_empty() {
        return Err(Failure::Text("the manifest is empty".to_owned()));
    }
    nodes.into_iter().enumerate().map(|(at, node)| document(at + 1, node)).collect()
}

/// The documents, as far as the text is one document of JSON, or YAML.
fn parse(text: &str) -> Box<dyn Iterator<Item = Result<Node, String>> + '_> {
    if let Ok(node) = serde_json::from_str::<Node>(text) {
        return Box::new(std::iter::once(Ok(node)));
    }
    let brackets = text.bytes().filter(|byte| matches!(byte, b'[' | b'{')).count();
    if brackets > MOST_BRACKETS {
        let text =
            format!("it has {brackets} opening brackets, at most {MOST_BRACKETS} are read; use indentation");
        return Box::new(std::iter::once(Err(text)));
    }
    let documents = serde_norway::Deserializer::from_str(text);
    Box::new(documents.map(|document| Node::deserialize(document).map_err(|cause| cause.to_string())))
}

fn document(number: usize, mut node: Node) -> Result<Document, Failure> {
    let name = node.at(&["metadata", "name"]).and_then(Node::text).unwrap_or_default().to_owned();
    let given = match node.get("kind") {
        Some(Node::Text(given)) => given.clone(),
        Some(other) => {
            return Err(Failure::Text(format!(
                "document {number}: kind must be a text, not {}",
                other.type_name()
            )));
        }
        None => {
            return Err(Failure::Text(format!(
                "document {number}: kind is missing; kc api-resources lists them"
            )));
        }
    };
    let Some(Type::Public(kind)) = types::of(&given) else {
        return Err(Failure::Text(format!(
            "document {number}: there is no kind {given:?}; kc api-resources lists them"
        )));
    };
    node.set("kind", Node::from(kind.name()));
    Ok(Document { kind, name, node })
}

/// Members that name another resource, with the type of what they name.
fn reference(member: &str, owner: Kind) -> Option<Kind> {
    match (member, owner) {
        ("folderId", _) => Some(Kind::Folder),
        ("vpcId", _) => Some(Kind::Vpc),
        ("vpcSubnetId", _) => Some(Kind::VpcSubnet),
        ("hostingProviderId", _) => Some(Kind::HostingProvider),
        ("postgreSqlId", _) => Some(Kind::Cluster(EngineKind::Postgres)),
        ("postgreSqlParametersSetId", _) => Some(Kind::ParametersSet(EngineKind::Postgres)),
        ("parametersSetId", Kind::Cluster(engine)) => Some(Kind::ParametersSet(engine)),
        _ => None,
    }
}

/// Puts ids in the place of names. A name is looked for in the document's own folder first.
///
/// # Errors
/// A name that names nothing, or several.
pub fn resolve(state: &State, document: &mut Document, folder: Option<ResourceId>) -> Result<(), Failure> {
    let kind = document.kind;
    if let Some(metadata) = document.node.child("metadata") {
        if let (None | Some(Node::Null), Some(folder)) = (metadata.get("folderId"), folder) {
            metadata.set("folderId", Node::from(folder.to_string()));
        }
        walk(state, kind, None, "metadata", metadata)?;
    }
    let own = document.node.at(&["metadata", "folderId"]).and_then(Node::text).and_then(|id| id.parse().ok());
    match document.node.child("spec") {
        Some(spec) => walk(state, kind, own, "spec", spec),
        None => Ok(()),
    }
}

fn walk(
    state: &State,
    owner: Kind,
    own: Option<ResourceId>,
    path: &str,
    node: &mut Node,
) -> Result<(), Failure> {
    match node {
        Node::Object(members) => {
            for (name, value) in members {
                let path = format!("{path}.{name}");
                match (reference(name, owner), &*value) {
                    (Some(kind), Node::Text(word)) => {
                        if let Some(id) = named(state, kind, own, &path, word)? {
                            *value = Node::from(id.to_string());
                        }
                    }
                    _ => walk(state, owner, own, &path, value)?,
                }
            }
            Ok(())
        }
        Node::List(items) => {
            for (at, item) in items.iter_mut().enumerate() {
                walk(state, owner, own, &format!("{path}[{at}]"), item)?;
            }
            Ok(())
        }
        Node::Null | Node::Bool(_) | Node::Integer(_) | Node::Float(_) | Node::Text(_) => Ok(()),
    }
}

/// The id that a word stands for; none when it is an id already, which the rules check.
fn named(
    state: &State,
    kind: Kind,
    own: Option<ResourceId>,
    path: &str,
    word: &str,
) -> Result<Option<ResourceId>, Failure> {
    if word.is_empty() || word.parse::<ResourceId>().is_ok() {
        return Ok(None);
    }
    let all = lookup::named(state, kind, word);
    let near: Vec<_> =
        all.iter().copied().filter(|resource| own.is_some() && resource.metadata.folder == own).collect();
    match (near.as_slice(), all.as_slice()) {
        ([only], _) | ([], [only]) => Ok(Some(only.id)),
        ([], []) => Err(Failure::Text(format!("{path}: there is no {kind} named {word:?}"))),
        ([], several) | (several, _) => Err(Failure::Text(format!(
            "{path}: there are multiple {kind} resources named {word:?}: use the ID{}",
            lookup::choices(state, several)
        ))),
    }
}

/// Documents as YAML, apart by `---`.
pub fn write(nodes: &[Node]) -> String {
    // A tree of ours always serialises.
    let texts: Vec<String> =
        nodes.iter().map(|node| serde_norway::to_string(node).unwrap_or_default()).collect();
    texts.join("---\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_keep_their_order_and_lists_are_unfolded() {
        let text = "kind: vpc\nmetadata: {name: a}\n---\n---\nitems:\n- {kind: Folder, metadata: {name: b}}\n- {kind: subnet}\n";
        let titles: Vec<String> = read(text).unwrap().iter().map(Document::title).collect();
        assert_eq!(titles, ["Vpc/a", "Folder/b", "VpcSubnet/?"]);
    }

    #[test]
    fn what_is_not_a_manifest_is_refused_with_its_place() {
        for (text, part) in [
            ("", "is empty"),
            ("kind: [", "document 1 of the manifest is not valid YAML"),
            ("metadata: {}", "document 1: kind is missing"),
            ("kind: Vpc\n---\nkind: Nope", "document 2: there is no kind \"Nope\""),
            ("kind: host", "there is no kind"),
            ("just text", "kind is missing"),
            (&"{a: ".repeat(300_000), "300000 opening brackets"),
            (&"[".repeat(9_000), "document 1 of the manifest is not valid YAML: recursion limit"),
            (&"- ".repeat(500_000), "document 1 of the manifest is not valid YAML: recursion limit"),
        ] {
            let refused = read(text).unwrap_err().text();
            assert!(refused.contains(part), "{text}: {refused}");
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        let node = Node::object([
            ("kind", Node::from("Vpc")),
            (
                "metadata",
                Node::object([
                    ("name", Node::from("yes")),
                    ("labels", Node::object([("a", Node::from("01"))])),
                ]),
            ),
        ]);
        let text = write(&[node.clone(), node.clone()]);
        let back = read(&text).unwrap();
        assert_eq!(back.len(), 2);
        assert_eq!(back[1].node, node);
    }
}
