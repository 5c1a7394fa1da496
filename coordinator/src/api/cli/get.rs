//! `kc get`: reads resources. In: types, names, a folder, a format. Out: a table, JSON, YAML that `apply` reads, or ids. Secrets are
//! never shown here, whatever the token.

use shardplane_model::{
    resource::{Kind, Resource},
    state::Scope,
};
use shardplane_proto::ids::ResourceId;

use super::{
    super::{json, json::Node, verbs::Session},
    answer::{Answer, Failure},
    args::{Args, Output},
    columns, lookup, manifest, operator,
    types::{self, Type},
};

/// Runs the verb.
///
/// # Errors
/// A type or name that is not there; a missing scope.
pub fn run(session: &Session, args: &Args) -> Result<Answer, Failure> {
    let Some((words, names)) = args.words.split_first() else {
        return Err(Failure::Text(
            "which type? kc get <type> [name]; kc api-resources lists them".to_owned(),
        ));
    };
    let types = types::list(words)?;
    if let ([Type::Operator(kind)], names) = (types.as_slice(), names) {
        return operator::run(session, *kind, names, args);
    }
    session.caller.needs(&[Scope::Read])?;
    let folder =
        if args.all_folders { None } else { lookup::folder(&session.state, args.folder.as_deref())? };
    let mut groups: Vec<(Type, Vec<&Resource>)> = Vec::new();
    for kind in types {
        let Type::Public(public) = kind else {
            return Err(Failure::Text("read the operator's types one at a time".to_owned()));
        };
        groups.push((kind, found(session, public, names, folder)?));
    }
    let found: Vec<&Resource> = groups.iter().flat_map(|(_, found)| found.iter().copied()).collect();
    if args.quiet {
        return Ok(Answer::printed(found.iter().map(|r| format!("{}\n", r.id)).collect::<String>()));
    }
    match args.output {
        Output::Table | Output::Wide => Ok(tables(session, args, &groups)),
        Output::Json => {
            let shown: Vec<Node> = found.iter().map(|resource| envelope(session, resource)).collect();
            Ok(Answer::printed(as_json(shown, names.len() == 1)))
        }
        Output::Yaml => {
            let shown: Vec<Node> = found.iter().map(|resource| envelope(session, resource)).collect();
            Ok(Answer::printed(manifest::write(&shown)))
        }
    }
}

/// The resources of a type that names mean; all of the folder without names.
///
/// # Errors
/// A name that names nothing or several.
pub fn found<'s>(
    session: &'s Session,
    kind: Kind,
    names: &[String],
    folder: Option<ResourceId>,
) -> Result<Vec<&'s Resource>, Failure> {
    if names.is_empty() {
        let inside = |r: &&Resource| r.kind() == kind && (folder.is_none() || r.metadata.folder == folder);
        return Ok(session.state.resources.values().filter(inside).collect());
    }
    names.iter().map(|name| lookup::one(&session.state, kind, name, folder)).collect()
}

/// A resource as `-o json` and `-o yaml` show it.
pub fn envelope(session: &Session, resource: &Resource) -> Node {
    let mut node = json::resource(&session.without_secrets(resource));
    for part in ["metadata", "spec"] {
        if let Some(shown) = node.child(part) {
            *shown = shown.clone().without_nulls();
        }
    }
    node
}

/// One object for one name, else a list of items.
pub fn as_json(mut shown: Vec<Node>, single: bool) -> String {
    let node = match shown.pop() {
        Some(only) if single && shown.is_empty() => only,
        last => Node::object([("items", Node::List(shown.into_iter().chain(last).collect()))]),
    };
    // A tree of ours always serialises.
    serde_json::to_string_pretty(&node).unwrap_or_default()
}

fn tables(session: &Session, args: &Args, groups: &[(Type, Vec<&Resource>)]) -> Answer {
    let several = groups.len() > 1;
    let mut text = String::new();
    for (kind, found) in groups {
        let (Type::Public(kind), false) = (kind, found.is_empty()) else { continue };
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&columns::rows(session, *kind, found, args.output == Output::Wide, several).text());
    }
    let mut answer = Answer::printed(text);
    if answer.stdout.is_empty() {
        answer.stderr = match &args.folder {
            Some(folder) => format!("No resources found in folder {folder}.\n"),
            None => "No resources found.\n".to_owned(),
        };
    }
    answer
}
