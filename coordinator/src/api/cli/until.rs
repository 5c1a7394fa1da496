//! `kc wait`: until a resource or an operation is as somebody wants it. In: a type, a name, what to wait for and how long; later what the
//! client echoes. Out: a line and exit code 0 when it is reached; 1 with the reason when it cannot be any more, or the time is over.

use shardplane_model::{
    resource::{Kind, Outcome, Resource},
    state::Scope,
    time::{Millis, Timestamp},
    view,
};
use shardplane_proto::ids::{ClusterId, ResourceId};

use super::{
    super::{json::Node, verbs::Session},
    answer::{Answer, Failure, Retry},
    args::Args,
    get, lookup,
    rows::{done, left},
    table,
    types::{self, OperatorType, Type},
};

/// First word of `retryParams.operation` of a wait.
pub const WORD: &str = "wait";

/// How long without `--timeout`, in seconds.
const PATIENCE: u32 = 300;

/// What to wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wish {
    /// Nothing is left to do for the last accepted spec.
    Stable,
    /// The engine itself says that the cluster serves.
    Ok,
    /// It is not there any more.
    Deleted,
    /// A condition has this status.
    Condition(String, String),
}

impl Wish {
    fn of(text: &str) -> Result<Self, Failure> {
        Ok(match text.split_once('=') {
            None if text == "stable" => Wish::Stable,
            None if text == "ok" => Wish::Ok,
            None if text == "deleted" || text == "delete" => Wish::Deleted,
            Some(("condition", condition)) if !condition.is_empty() => {
                let (name, status) = condition.split_once('=').unwrap_or((condition, "True"));
                Wish::Condition(name.to_owned(), status.to_owned())
            }
            _ => {
                return Err(Failure::Text(format!(
                    "--for {text:?}: there are stable, ok, deleted and condition=NAME[=True]"
                )));
            }
        })
    }
}

/// How it stands.
enum Stand {
    /// As wished; says so.
    Reached(String),
    /// It will not be any more; says why.
    Never(String),
    /// Not yet; says how it is.
    NotYet(String),
}

/// One look. `retry` is what the client echoes, none at first.
///
/// # Errors
/// Words that are not right; a missing scope; a name that is not there; when it cannot be reached any more, or not in time.
pub fn run(session: &Session, args: &Args, retry: Option<&Retry>) -> Result<Answer, Failure> {
    let [word, name] = args.words.as_slice() else {
        return Err(Failure::Text(
            "what? kc wait <type> <name> --for stable|ok|deleted|condition=NAME, or kc wait operation <id>"
                .to_owned(),
        ));
    };
    let patience = args.timeout.unwrap_or(PATIENCE);
    let until = match retry {
        None => session.now().plus(Millis::seconds(patience.into())),
        Some(retry) => retry
            .change_request_id
            .parse()
            .map(Timestamp)
            .map_err(|_| Failure::Text("retryParams are not what was answered before".to_owned()))?,
    };
    let (id, stand) = match types::of(word) {
        Some(Type::Operator(OperatorType::Operation)) => (name.clone(), operation(session, name, args)?),
        Some(Type::Operator(_)) => {
            return Err(Failure::Text(format!("{word} cannot be waited for: resources and operations can")));
        }
        Some(Type::Public(_)) | None => resource(session, types::public(word)?, name, args, retry)?,
    };
    match stand {
        Stand::Reached(text) => Ok(Answer::printed(text)),
        Stand::Never(why) => Err(Failure::Text(why)),
        Stand::NotYet(how) if session.now() >= until => {
            Err(Failure::Text(format!("timed out after {}: {how}", table::span(patience.into()))))
        }
        Stand::NotYet(how) => Ok(Answer {
            stderr: format!("{how}\n"),
            retry: Some(Retry {
                kind: word.clone(),
                change_request_id: until.0.to_string(),
                resource_id: id,
                operation: WORD.to_owned(),
            }),
            ..Answer::default()
        }),
    }
}

fn operation(session: &Session, id: &str, args: &Args) -> Result<Stand, Failure> {
    session.caller.needs(&[Scope::Operator])?;
    if let Some(other) = args.for_what.as_deref().filter(|wish| *wish != "succeeded") {
        return Err(Failure::Text(format!(
            "--for {other:?}: an operation is waited for until it has succeeded"
        )));
    }
    let operation = session.operation(id)?;
    let title = format!("operation/{id}");
    Ok(match operation.phase.as_str() {
        "succeeded" => Stand::Reached(format!("{title} succeeded")),
        "running" => {
            let more = [format!("{}%", operation.progress), done(&operation), left(&operation)];
            let more: Vec<String> = more.into_iter().filter(|text| !text.is_empty()).collect();
            Stand::NotYet(format!("{title} is running: {}", more.join(", ")))
        }
        "cancelled" => Stand::Never(format!("{title} was {}", operation.error)),
        phase => Stand::Never(format!("{title} {phase}: {}", operation.error)),
    })
}

fn resource(
    session: &Session,
    kind: Kind,
    name: &str,
    args: &Args,
    retry: Option<&Retry>,
) -> Result<(String, Stand), Failure> {
    session.caller.needs(&[Scope::Read])?;
    let Some(wish) = args.for_what.as_deref() else {
        return Err(Failure::Text("for what? --for stable, ok, deleted or condition=NAME[=True]".to_owned()));
    };
    let wish = Wish::of(wish)?;
    let folder = lookup::folder(&session.state, args.folder.as_deref())?;
    let title = format!("{kind}/{name}");
    // Once found, it is the one with that id, whatever else gets its name.
    let found = match retry.map(|retry| retry.resource_id.parse::<ResourceId>()) {
        Some(Ok(id)) => session.state.resource(kind, id),
        Some(Err(_)) => return Err(Failure::Text("retryParams are not what was answered before".to_owned())),
        None => match lookup::one(&session.state, kind, name, folder) {
            Ok(found) => Some(found),
            Err(_) if wish == Wish::Deleted && lookup::named(&session.state, kind, name).is_empty() => None,
            Err(failure) => return Err(failure),
        },
    };
    let stand = match (found, &wish) {
        (None, Wish::Deleted) => Stand::Reached(format!("{title} is deleted")),
        (None, _) => Stand::Never(format!("{title} was deleted meanwhile")),
        (Some(found), wish) => there(session, found, &title, wish),
    };
    Ok((found.map(|found| found.id.to_string()).unwrap_or_default(), stand))
}

fn there(session: &Session, resource: &Resource, title: &str, wish: &Wish) -> Stand {
    let word = view::state_word(&session.state, resource);
    let status = get::envelope(session, resource).get("status").cloned().unwrap_or(Node::Null);
    let not = |what: &str, is: &str| Stand::NotYet(format!("{title} is not {what}: {is}"));
    match (wish, &resource.change.outcome) {
        (Wish::Stable, Outcome::Done) => Stand::Reached(format!("{title} is stable")),
        (Wish::Stable, Outcome::Failed { message }) => {
            Stand::Never(format!("{title} could not be carried out: {message}"))
        }
        (Wish::Stable, Outcome::InFlight) => {
            let waiting = session.observed.waiting.get(&ClusterId::from(resource.id));
            let waiting = waiting.filter(|waiting| !waiting.is_empty());
            not(
                "stable",
                &waiting.map_or_else(|| word.to_owned(), |why| format!("{word}: {}", why.join("; "))),
            )
        }
        (Wish::Deleted, _) if resource.deleting() => not("deleted", "it is being deleted"),
        (Wish::Deleted, _) => not("deleted", &format!("it is {word} and nobody has deleted it")),
        (Wish::Ok, _) => match status.get("clusterState").and_then(Node::text) {
            Some("ok") => Stand::Reached(format!("{title} is ok")),
            Some(other) => not("ok", other),
            None if matches!(resource.kind(), Kind::Cluster(_)) => not("ok", "nothing is heard of it yet"),
            None => Stand::Never(format!("a {} has no state of its own; wait for stable", resource.kind())),
        },
        (Wish::Condition(name, wanted), _) => condition(&status, title, name, wanted),
    }
}

fn condition(status: &Node, title: &str, name: &str, wanted: &str) -> Stand {
    let text =
        |node: &Node, member: &str| node.get(member).and_then(Node::text).unwrap_or_default().to_owned();
    let all = status.get("conditions").map_or(&[][..], Node::items);
    let Some(found) = all.iter().find(|c| text(c, "type").eq_ignore_ascii_case(name)) else {
        let names: Vec<String> = all.iter().map(|c| text(c, "type")).collect();
        let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        return Stand::NotYet(format!("{title} has no condition {name}; there is {there}"));
    };
    let is = text(found, "status");
    if is.eq_ignore_ascii_case(wanted) {
        return Stand::Reached(format!("{title}: {} is {is}", text(found, "type")));
    }
    Stand::NotYet(format!("{title}: {} is {is}: {}", text(found, "type"), text(found, "message")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_are_understood_or_told() {
        let condition = |name: &str, status: &str| Wish::Condition(name.to_owned(), status.to_owned());
        for (text, wish) in [
            ("stable", Wish::Stable),
            ("ok", Wish::Ok),
            ("deleted", Wish::Deleted),
            ("delete", Wish::Deleted),
            ("condition=NothingWaits", condition("NothingWaits", "True")),
            ("condition=NothingWaits=False", condition("NothingWaits", "False")),
        ] {
            assert_eq!(Wish::of(text).unwrap(), wish, "{text}");
        }
        for text in ["", "fine", "condition", "condition=", "stable=True"] {
            assert!(Wish::of(text).unwrap_err().text().contains("there are stable"), "{text}");
        }
    }
}
