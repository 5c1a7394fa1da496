//! `kc apply -f`: creates and updates what a manifest describes, document by document. In: the text of the file. Out: a line a document,
//! and with `-w` changes to wait for.

use shardplane_model::{resource::Kind, state::Scope};
use shardplane_proto::ids::ResourceId;

use super::{
    super::{
        errors::Problem,
        json::{self, Checked, Node},
        verbs::{Accepted, Session},
    },
    answer::{Answer, Failure},
    args::Args,
    lookup,
    manifest::{self, Document},
    wait::{self, Change},
};

/// Runs the verb. Without the file's text the client is told to read it.
///
/// # Errors
/// Nothing was applied when this fails; a later document that is refused is in the answer, after what was applied.
pub async fn run(
    mut session: Session,
    args: &Args,
    text: Option<&str>,
    waits_itself: bool,
) -> Result<Answer, Failure> {
    session.caller.needs(&[Scope::Write])?;
    let Some(path) = &args.filename else {
        return Err(Failure::Text("which file? kc apply -f <file>, or -f - for standard input".to_owned()));
    };
    let Some(text) = text else {
        return Ok(Answer { read_file: Some(path.clone()), ..Answer::default() });
    };
    let documents = manifest::read(text)?;
    let folder = lookup::folder(&session.state, args.folder.as_deref())?;
    let mut answer = Answer::default();
    let mut changes = Vec::new();
    for document in documents {
        let title = document.title();
        let applied = one(&session, document, folder).await;
        match applied {
            Ok((change, fresh)) => {
                answer.stdout.push_str(&match (args.quiet, fresh) {
                    (true, _) => format!("{}\n", change.resource),
                    (false, true) => format!("{title} applied\n"),
                    (false, false) => format!("{title} applied (nothing changed)\n"),
                });
                changes.push(change);
            }
            // Nobody leads any more: the client repeats the whole, and what is applied already is not changed by that.
            Err(Failure::Problem(problem)) if problem.status().is_server_error() => {
                return Err(problem.into());
            }
            Err(failure) => {
                answer.stderr.push_str(&format!("error: {title} was not applied: {}\n", failure.text()));
                answer.rc = 1;
                return Ok(answer);
            }
        }
        session.refresh().await?;
    }
    if args.wait {
        let hold = if waits_itself { wait::Hold::Briefly } else { wait::Hold::Long };
        return Ok(wait::first(&session, answer, changes, hold, args).await);
    }
    Ok(answer)
}

/// Applies one document; also says whether it changed anything.
///
/// # Errors
/// As the verb PUT, and names that name nothing or several.
pub async fn one(
    session: &Session,
    document: Document,
    folder: Option<ResourceId>,
) -> Result<(Change, bool), Failure> {
    let (kind, name) = (document.kind, document.name.clone());
    let checked = read(session, document, folder)?;
    let Accepted { request, resource } = session.put(&checked.resource, &checked.violations).await?;
    let before = session.state.resources.get(&resource).map(|resource| resource.change.request);
    Ok((Change { kind, request, resource, name }, before != Some(request)))
}

/// The message that a document means: names are ids, an id is found or made, and a password that is left out is the stored one.
///
/// # Errors
/// Names that name nothing or several.
pub fn read(
    session: &Session,
    mut document: Document,
    folder: Option<ResourceId>,
) -> Result<Checked, Failure> {
    manifest::resolve(&session.state, &mut document, folder)?;
    if document.id().is_none() {
        let existing = lookup::of_document(&session.state, &document, folder_of(&document)?)?;
        let id = existing.map_or_else(|| session.api.fresh_id().into(), |existing| existing.id);
        if let Some(metadata) = document.node.child("metadata") {
            metadata.set("id", Node::from(id.to_string()));
        }
    }
    keep_secret(session, &mut document);
    Ok(json::check(document.kind, &document.node))
}

/// The folder of a document whose names are resolved.
fn folder_of(document: &Document) -> Result<Option<ResourceId>, Failure> {
    let id = document.node.at(&["metadata", "folderId"]).and_then(Node::text).filter(|id| !id.is_empty());
    let id = id.map(str::parse).transpose();
    Ok(id.map_err(|cause| Problem::bad_data(format!("metadata.folderId: {cause}")))?)
}

/// What `kc get -o yaml` shows has no password: applying it again keeps the one there is. Of a role it is kept whoever asks.
fn keep_secret(session: &Session, document: &mut Document) {
    if !matches!(document.kind, Kind::Cluster(_)) {
        return;
    }
    let id = document.id().and_then(|id| id.parse().ok());
    let stored =
        id.and_then(|id| session.state.resource(document.kind, id)).and_then(|stored| session.secret(stored));
    if let (Some(secret), Some(spec)) = (stored, document.node.child("spec"))
        && matches!(spec.get("rootPassword"), None | Some(Node::Null))
    {
        spec.set("rootPassword", Node::from(secret));
    }
}
