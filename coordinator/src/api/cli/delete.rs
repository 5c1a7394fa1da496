//! `kc delete`: by type and names, or everything a manifest describes, last document first. In: names or a file's text. Out: a line a
//! resource, and with `-w` changes to wait for. Hosts and tokens of the operator's go to [`super::operator`].

use shardplane_model::{
    resource::{Kind, Resource},
    state::Scope,
};
use shardplane_proto::ids::ResourceId;

use super::{
    super::verbs::Session,
    answer::{Answer, Failure},
    args::Args,
    lookup,
    manifest::{self, Document},
    operator,
    types::{self, Type},
    wait::{self, Change, Hold},
};

/// Runs the verb.
///
/// # Errors
/// Names that name nothing or several; the refusals of the verb DELETE.
pub async fn run(
    mut session: Session,
    args: &Args,
    text: Option<&str>,
    waits_itself: bool,
) -> Result<Answer, Failure> {
    if let (None, [word, names @ ..]) = (&args.filename, args.words.as_slice())
        && let (Some(Type::Operator(kind)), false) = (types::of(word), names.is_empty())
    {
        return operator::delete(&session, kind, names).await;
    }
    session.caller.needs(&[Scope::Write])?;
    let folder = lookup::folder(&session.state, args.folder.as_deref())?;
    match (&args.filename, text, args.words.as_slice()) {
        (Some(path), None, _) => Ok(Answer { read_file: Some(path.clone()), ..Answer::default() }),
        (Some(_), Some(text), []) => {
            described(&mut session, args, manifest::read(text)?, folder, waits_itself).await
        }
        (None, _, [kind, names @ ..]) if !names.is_empty() => {
            named(&session, args, types::public(kind)?, names, folder, waits_itself).await
        }
        _ => Err(Failure::Text("what? kc delete <type> <name>…, or kc delete -f <file>".to_owned())),
    }
}

async fn named(
    session: &Session,
    args: &Args,
    kind: Kind,
    names: &[String],
    folder: Option<ResourceId>,
    waits_itself: bool,
) -> Result<Answer, Failure> {
    // Names first: a mistyped one must not leave half of them deleted.
    let found: Vec<&Resource> =
        names.iter().map(|name| lookup::one(&session.state, kind, name, folder)).collect::<Result<_, _>>()?;
    let mut changes = Vec::new();
    for resource in found {
        changes.push(one(session, resource).await?);
    }
    finish(
        session,
        args,
        Answer::default(),
        changes,
        if waits_itself || args.wait { Hold::Briefly } else { Hold::Long },
    )
    .await
}

async fn described(
    session: &mut Session,
    args: &Args,
    documents: Vec<Document>,
    folder: Option<ResourceId>,
    waits_itself: bool,
) -> Result<Answer, Failure> {
    let mut answer = Answer::default();
    let mut last = Vec::new();
    let count = documents.len();
    for (at, mut document) in documents.into_iter().rev().enumerate() {
        session.refresh().await?;
        let title = document.title();
        let Some(resource) = target(session, &mut document, folder)? else {
            answer.stdout.push_str(&format!("{title} is not there\n"));
            continue;
        };
        let change = one(session, resource).await?;
        if at + 1 == count {
            last.push(change);
            continue;
        }
        // What comes next may be in use by this one until it is gone.
        let waited = wait::first(session, Answer::default(), vec![change], Hold::Long, args).await;
        if waited.rc != 0 || waited.retry.is_some() {
            let why = if waited.rc == 0 {
                "it takes long; run the same command again in a while"
            } else {
                waited.stderr.trim()
            };
            answer.stderr.push_str(&format!("error: {title} is not gone yet: {why}\n"));
            answer.rc = 1;
            return Ok(answer);
        }
        answer.stdout.push_str(&format!("{title} deleted\n"));
    }
    finish(session, args, answer, last, if waits_itself { Hold::Briefly } else { Hold::Long }).await
}

/// The stored resource a document means, if it is there.
fn target<'a>(
    session: &'a Session,
    document: &mut Document,
    folder: Option<ResourceId>,
) -> Result<Option<&'a Resource>, Failure> {
    if let Some(id) = document.id() {
        return Ok(id.parse().ok().and_then(|id| session.state.resource(document.kind, id)));
    }
    // A folder that is gone has nothing in it, so a name that cannot be resolved means that the document is gone as well.
    let folder_word = document
        .node
        .at(&["metadata", "folderId"])
        .and_then(super::super::json::Node::text)
        .map(str::to_owned);
    let folder = match folder_word {
        Some(word) => match lookup::one(&session.state, Kind::Folder, &word, None) {
            Ok(folder) => Some(folder.id),
            Err(_) => return Ok(None),
        },
        None => folder,
    };
    lookup::of_document(&session.state, document, folder)
}

async fn one(session: &Session, resource: &Resource) -> Result<Change, Failure> {
    let kind = resource.kind();
    let accepted = session.delete(kind, resource.id).await?;
    Ok(Change {
        kind,
        request: accepted.request,
        resource: resource.id,
        name: resource.metadata.name.clone(),
    })
}

/// Says what became of the changes: with `-w` waits, else looks once.
async fn finish(
    session: &Session,
    args: &Args,
    mut answer: Answer,
    changes: Vec<Change>,
    hold: Hold,
) -> Result<Answer, Failure> {
    let deleted = |change: &Change| format!("{}/{} deleted\n", change.kind, change.name);
    if args.wait {
        answer.stdout.extend(changes.iter().map(deleted));
        let waited = wait::first(session, answer.clone(), changes, hold, args).await;
        // What is not gone yet is not said to be.
        return Ok(if waited.retry.is_some() || waited.rc != 0 {
            Answer { stdout: String::new(), ..waited }
        } else {
            waited
        });
    }
    let state = session.api.store.local();
    answer.stdout.extend(changes.iter().map(|change| match state.resources.contains_key(&change.resource) {
        true => format!("{}/{} is being deleted\n", change.kind, change.name),
        false => deleted(change),
    }));
    Ok(answer)
}
