//! `kc events` and `kc cancel`. In: what events shall be about, or an operation. Out: a table of events; the operation as it is then.

use shardplane_model::resource::Kind;
use shardplane_proto::ids::{HostId, ResourceId};

use super::{
    super::{rest, verbs::Session},
    answer::{Answer, Failure},
    args::{Args, Verb},
    lookup, operator,
    types::{self, OperatorType, Type},
};

/// The `kc get` that `kc events` is short for; any other command as it is.
pub fn as_typed(args: &Args) -> Args {
    if args.verb != Verb::Events {
        return args.clone();
    }
    let words = ["event".to_owned()].into_iter().chain(args.words.iter().cloned());
    Args { words: words.collect(), ..args.clone() }
}

/// The subject that `--for cluster/NAME` or `--for host/NAME` means.
///
/// # Errors
/// Another form; a name that names nothing or several. The id of something that is gone is taken as it is.
pub fn subject(session: &Session, about: &str) -> Result<String, Failure> {
    let wrong = || {
        Failure::Text(format!("--for {about:?}: events are about cluster/NAME or host/NAME; ids do as well"))
    };
    let (what, name) = about.split_once('/').filter(|(_, name)| !name.is_empty()).ok_or_else(wrong)?;
    match what.to_ascii_lowercase().as_str() {
        "host" if name.parse::<HostId>().is_ok() => Ok(format!("host/{}", name.to_ascii_lowercase())),
        "host" => Ok(format!("host/{}", operator::host_named(session, name)?)),
        _ if what != "cluster" && !matches!(types::of(what), Some(Type::Public(Kind::Cluster(_)))) => {
            Err(wrong())
        }
        _ if name.parse::<ResourceId>().is_ok() => Ok(format!("cluster/{}", name.to_ascii_lowercase())),
        _ => {
            let clusters = Kind::all().into_iter().filter(|kind| matches!(kind, Kind::Cluster(_)));
            let mut found = clusters.map(|kind| lookup::one(&session.state, kind, name, None));
            let first = found.next().unwrap_or_else(|| Err(wrong()));
            let one = found.fold(first, |best, other| if best.is_ok() { best } else { other })?;
            Ok(format!("cluster/{}", one.id))
        }
    }
}

/// `kc cancel operation <id>`
///
/// # Errors
/// Other words; a missing scope; the refusals of the log.
pub async fn cancel(session: Session, args: &Args) -> Result<Answer, Failure> {
    let [word, id] = args.words.as_slice() else {
        return Err(Failure::Text("what? kc cancel operation <id>".to_owned()));
    };
    if types::of(word) != Some(Type::Operator(OperatorType::Operation)) {
        return Err(Failure::Text(format!(
            "{word} cannot be cancelled; an operation can: kc get operation lists them"
        )));
    }
    session.caller.needs(rest::MAY_CANCEL)?;
    let operation = session.cancel_operation(id).await?;
    let stays = if operation.kind == "grow" {
        "the spec is the one before, and what was placed goes"
    } else {
        "what was done stays"
    };
    Ok(Answer::printed(format!(
        "operation/{} {}; {stays}: {}",
        operation.id, operation.phase, operation.cause
    )))
}
