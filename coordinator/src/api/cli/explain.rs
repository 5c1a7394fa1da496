//! `kc explain placement <cluster>`: why each instance is where it is, and why the other hosts were not chosen. In: a cluster. Out: a
//! paragraph an instance.

use std::fmt::Write as _;

use shardplane_model::{resource::Kind, state::Scope};

use super::{
    super::{json, rest, verbs::Session},
    answer::{Answer, Failure},
    args::{Args, Output},
    get, lookup, manifest,
};

/// Runs the verb.
///
/// # Errors
/// A name that is not there; a missing scope.
pub fn run(session: &Session, args: &Args) -> Result<Answer, Failure> {
    session.caller.needs(&[Scope::Operator])?;
    let [what, name] = args.words.as_slice() else {
        return Err(Failure::Text("what? kc explain placement <cluster>".to_owned()));
    };
    if what != "placement" {
        return Err(Failure::Text(format!(
            "{what:?} cannot be explained; placement can: kc explain placement <cluster>"
        )));
    }
    let folder = lookup::folder(&session.state, args.folder.as_deref())?;
    let kinds = Kind::all().into_iter().filter(|kind| matches!(kind, Kind::Cluster(_)));
    let mut failure = None;
    let mut found = None;
    for kind in kinds {
        match lookup::one(&session.state, kind, name, folder) {
            Ok(resource) => found = Some(resource),
            Err(cause) => failure = Some(cause),
        }
    }
    let resource = match (found, failure) {
        (Some(resource), _) => resource,
        (None, Some(cause)) => return Err(cause),
        (None, None) => return Err(Failure::Text(format!("there is no cluster named {name:?}"))),
    };
    let explanation = rest::explain(session, resource.kind(), &resource.id.to_string())?;
    let node = json::message("Explanation", &explanation);
    match args.output {
        Output::Json => return Ok(Answer::printed(get::as_json(vec![node], true))),
        Output::Yaml => return Ok(Answer::printed(manifest::write(&[node]))),
        Output::Table | Output::Wide => {}
    }
    let mut text = String::new();
    for instance in &explanation.instances {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "instance {} of shard {}", instance.instance_id, instance.shard_id);
        let _ = writeln!(text, "  is on {}: {}", instance.chosen_host, instance.why);
        for other in &instance.others {
            let _ = writeln!(text, "  not on {}: {}", other.host, other.why_not);
        }
    }
    if text.is_empty() {
        return Ok(Answer { stderr: "Nothing is placed yet.\n".to_owned(), ..Answer::default() });
    }
    Ok(Answer::printed(text))
}
