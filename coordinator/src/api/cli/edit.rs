//! `kc edit`: a resource in the user's editor. In: a type and a name, then the edited text. Out: the text to edit, once more with the
//! reason when it was refused, or the line that says that it is applied.

use shardplane_model::state::Scope;

use super::{
    super::{
        json::Node,
        verbs::{self, Session},
    },
    answer::{Answer, Edit, EditApply, Failure},
    apply,
    args::Args,
    get, lookup, manifest, types,
};

/// Runs the verb.
///
/// # Errors
/// A type or name that is not there; a missing scope. A refused text is an answer, not an error.
pub async fn run(session: Session, args: &Args, edited: Option<&EditApply>) -> Result<Answer, Failure> {
    session.caller.needs(&[Scope::Write])?;
    session.caller.needs(&[Scope::Read])?;
    if let Some(edited) = edited {
        return match applied(&session, edited).await {
            Ok(line) => Ok(Answer::printed(line)),
            // The client repeats the same text by itself.
            Err(Failure::Problem(problem)) if problem.status().is_server_error() => Err(problem.into()),
            Err(failure) => Ok(Answer {
                edit: Some(Edit {
                    content: edited.content.clone(),
                    kind: edited.kind.clone(),
                    resource_id: edited.resource_id.clone(),
                    error: failure.text(),
                }),
                ..Answer::default()
            }),
        };
    }
    let [kind, name] = args.words.as_slice() else {
        return Err(Failure::Text("what? kc edit <type> <name>".to_owned()));
    };
    let folder = lookup::folder(&session.state, args.folder.as_deref())?;
    let resource = lookup::one(&session.state, types::public(kind)?, name, folder)?;
    let mut node = get::envelope(&session, resource);
    node.remove("status");
    let edit = Edit {
        content: manifest::write(&[node]),
        kind: resource.kind().path().to_owned(),
        resource_id: resource.id.to_string(),
        error: String::new(),
    };
    Ok(Answer { edit: Some(edit), ..Answer::default() })
}

async fn applied(session: &Session, edited: &EditApply) -> Result<String, Failure> {
    let kind = types::public(&edited.kind)?;
    let id = verbs::resource_id(kind, &edited.resource_id)?;
    session.find(kind, id)?;
    let mut documents = manifest::read(&edited.content)?;
    let (Some(mut document), None) = (documents.pop(), documents.pop()) else {
        return Err(Failure::Text("the text must stay one document".to_owned()));
    };
    if document.kind != kind {
        return Err(Failure::Text(format!("kind cannot change: it was {kind}, now it is {}", document.kind)));
    }
    match document.id() {
        Some(given) if given.parse() != Ok(id) => {
            return Err(Failure::Text(format!("metadata.id cannot change: it was {id}, now it is {given}")));
        }
        Some(_) | None => {
            if let Some(metadata) = document.node.child("metadata") {
                metadata.set("id", Node::from(id.to_string()));
            }
        }
    }
    let title = document.title();
    let (_, fresh) = apply::one(session, document, None).await?;
    Ok(format!("{title} {}", if fresh { "edited" } else { "edited (nothing changed)" }))
}
