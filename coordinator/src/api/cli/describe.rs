//! `kc describe`: everything about one resource on one page. In: a type and a name. Out: its manifest with status, where its instances
//! are, what runs and what happened lately. Secrets are never shown.

use std::fmt::Write as _;

use shardplane_model::{
    resource::{Kind, Resource},
    state::Scope,
    view,
};

use super::{
    super::verbs::Session,
    answer::{Answer, Failure},
    args::{Args, Output},
    columns, get, lookup, manifest, operator, rows, table,
    types::{self, Type},
};

/// Most events and operations shown.
const NEWEST: usize = 10;

/// Runs the verb.
///
/// # Errors
/// A type or name that is not there; a missing scope.
pub fn run(session: &Session, args: &Args) -> Result<Answer, Failure> {
    let [word, names @ ..] = args.words.as_slice() else {
        return Err(Failure::Text("what? kc describe <type> <name>".to_owned()));
    };
    let kind = match types::of(word) {
        Some(Type::Operator(kind)) => {
            let args = Args { output: Output::Yaml, quiet: false, ..args.clone() };
            return operator::run(session, kind, names, &args);
        }
        Some(Type::Public(_)) | None => types::public(word)?,
    };
    session.caller.needs(&[Scope::Read])?;
    let folder = lookup::folder(&session.state, args.folder.as_deref())?;
    let [name] = names else {
        return Err(Failure::Text(format!("which {kind}? kc describe {word} <name>")));
    };
    let resource = lookup::one(&session.state, kind, name, folder)?;
    let mut text = manifest::write(&[get::envelope(session, resource)]);
    if let (Kind::Cluster(_), true) = (kind, session.caller.may(Scope::Operator)) {
        cluster(session, resource, &mut text);
    }
    if session.caller.may(Scope::Operator) {
        happened(session, resource, &mut text);
    }
    Ok(Answer::printed(text))
}

fn cluster(session: &Session, resource: &Resource, text: &mut String) {
    let id = resource.id.to_string();
    let instances = view::instances(&session.state, &session.observed, session.now(), &id).items;
    let rows = instances.into_iter().map(|i| {
        let intent = rows::intent(&i);
        vec![
            i.shard_index.to_string(),
            i.role,
            i.id,
            i.host_name,
            i.address,
            i.machine,
            i.engine_state,
            intent,
            i.message,
        ]
    });
    let header = ["SHARD", "ROLE", "INSTANCE", "HOST", "ADDRESS", "MACHINE", "ENGINE", "INTENT", "MESSAGE"];
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "\nInstances on {}:\n{}",
        table::count(columns::hosts_used(session, resource), "host"),
        table::render(&header, rows.collect())
    );
    if let Some(waiting) =
        session.observed.waiting.get(&resource.id.into()).filter(|waiting| !waiting.is_empty())
    {
        let _ = write!(text, "\nWaits for:\n");
        for reason in waiting {
            let _ = writeln!(text, "  {reason}");
        }
    }
    let mut operations = view::operations(&session.state, &session.observed, session.now(), &id).items;
    operations.drain(..operations.len().saturating_sub(NEWEST));
    if !operations.is_empty() {
        let rows = operations
            .into_iter()
            .map(|o| vec![o.id, o.kind, o.phase, format!("{}%", o.progress), o.cause, o.error]);
        let header = ["ID", "KIND", "PHASE", "PROGRESS", "CAUSE", "ERROR"];
        let _ = write!(text, "\nOperations:\n{}", table::render(&header, rows.collect()));
    }
}

fn happened(session: &Session, resource: &Resource, text: &mut String) {
    let mut events = view::events(&session.state, &resource.id.to_string()).items;
    events.drain(..events.len().saturating_sub(NEWEST));
    if events.is_empty() {
        return;
    }
    let rows = events.into_iter().map(|e| {
        let at = session.state.events.get(&u64::from(e.number)).map(|event| event.at);
        vec![at.map(|at| table::age(session.now(), at)).unwrap_or_default(), e.severity, e.reason, e.message]
    });
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "\nEvents:\n{}",
        table::render(&["AGE", "SEVERITY", "REASON", "MESSAGE"], rows.collect())
    );
}
