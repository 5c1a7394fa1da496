//! Names and ids. In: a word that names a resource. Out: the resource, or a text that says what it could be. Used by every verb that
//! takes a name.

use std::fmt::Write as _;

use shardplane_model::{
    resource::{Kind, Resource},
    state::State,
};
use shardplane_proto::ids::ResourceId;

use super::{answer::Failure, manifest::Document};

/// Resources of a type with this name, in the order of their ids.
pub fn named<'a>(state: &'a State, kind: Kind, name: &str) -> Vec<&'a Resource> {
    state.resources.values().filter(|r| r.kind() == kind && r.metadata.name == name).collect()
}

/// The one resource of a type that a word names: by id, else by name, in the folder when one is given.
///
/// # Errors
/// There is none, or there are several: they are listed.
pub fn one<'a>(
    state: &'a State,
    kind: Kind,
    word: &str,
    folder: Option<ResourceId>,
) -> Result<&'a Resource, Failure> {
    if let Some(found) = word.parse().ok().and_then(|id| state.resource(kind, id)) {
        return Ok(found);
    }
    let mut found = named(state, kind, word);
    found.retain(|resource| folder.is_none() || resource.metadata.folder == folder);
    match found.as_slice() {
        [only] => Ok(only),
        [] => Err(Failure::Text(format!(
            "there is no {kind} named {word:?}; kc get {} lists them",
            kind.path()
        ))),
        several => Err(Failure::Text(format!(
            "there are multiple {kind} resources named {word:?}: use the ID{}",
            choices(state, several)
        ))),
    }
}

/// The stored resource that a document without an id means: of its type, with its name, in this folder; none when there is none yet.
///
/// # Errors
/// There are several: they are listed.
pub fn of_document<'a>(
    state: &'a State,
    document: &Document,
    folder: Option<ResourceId>,
) -> Result<Option<&'a Resource>, Failure> {
    let mut found = named(state, document.kind, &document.name);
    found.retain(|resource| resource.metadata.folder == folder);
    match found.as_slice() {
        [] => Ok(None),
        [only] => Ok(Some(only)),
        several => Err(Failure::Text(format!(
            "there are multiple {} resources with that name: add metadata.id to say which{}",
            document.kind,
            choices(state, several)
        ))),
    }
}

/// Several resources, one a line, so that people can choose.
pub fn choices(state: &State, several: &[&Resource]) -> String {
    let mut text = String::new();
    for resource in several {
        let folder = resource
            .metadata
            .folder
            .map_or_else(String::new, |id| format!(" in folder {}", name_of(state, id)));
        // Writing to a String cannot fail.
        let _ = write!(text, "\n  {}  {}{folder}", resource.id, resource.metadata.name);
    }
    text
}

/// The name of a resource, or its id when it is not there.
pub fn name_of(state: &State, id: ResourceId) -> String {
    state.resources.get(&id).map_or_else(|| id.to_string(), |resource| resource.metadata.name.clone())
}

/// The folder that `-n` names.
///
/// # Errors
/// As [`one`].
pub fn folder(state: &State, word: Option<&str>) -> Result<Option<ResourceId>, Failure> {
    word.map(|word| one(state, Kind::Folder, word, None).map(|folder| folder.id)).transpose()
}
