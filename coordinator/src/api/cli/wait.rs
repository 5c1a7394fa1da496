//! `-w`: waiting until changes are carried out. In: accepted changes. Out: the final line when they are done, an error when one failed,
//! else what to come back with. Used by `apply` and `delete`.

use std::time::Duration;

use shardplane_model::{
    resource::{Kind, Outcome},
    state::{Scope, State},
};
use shardplane_proto::ids::{ClusterId, RequestId, ResourceId};
use tokio::time::{Instant, timeout_at};

use super::{
    super::{rest, verbs::Session},
    answer::{Answer, Failure, Retry},
    args::{Args, Verb},
};

/// An accepted change to wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Type of the resource.
    pub kind: Kind,
    /// The change.
    pub request: RequestId,
    /// The resource.
    pub resource: ResourceId,
    /// Its name; it is gone after a delete.
    pub name: String,
}

/// How long the first answer may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// The client comes back by itself.
    Briefly,
    /// The client does not come back after it has sent a file: hold its request as long as it has patience.
    Long,
}

impl Hold {
    fn longest(self) -> Duration {
        match self {
            Hold::Briefly => Duration::from_millis(300),
            // Clients give up after 60 s.
            Hold::Long => Duration::from_secs(45),
        }
    }
}

/// How changes stand together.
enum Stand {
    Done,
    Failed(String),
    Waiting(Vec<Change>),
}

fn stand(state: &State, changes: &[Change]) -> Stand {
    let mut waiting = Vec::new();
    for change in changes {
        match state.requests.get(&change.request).map(|request| &request.outcome) {
            Some(Outcome::Failed { message }) => {
                return Stand::Failed(format!(
                    "{}/{} could not be carried out: {message}",
                    change.kind, change.name
                ));
            }
            Some(Outcome::InFlight) => waiting.push(change.clone()),
            // A request that is forgotten was done long ago.
            Some(Outcome::Done) | None => {}
        }
    }
    if waiting.is_empty() { Stand::Done } else { Stand::Waiting(waiting) }
}

/// Waits for changes that were just accepted, as long as `hold` allows. `answer` is what to say when all goes well.
pub async fn first(
    session: &Session,
    answer: Answer,
    changes: Vec<Change>,
    hold: Hold,
    args: &Args,
) -> Answer {
    let until = Instant::now() + hold.longest();
    let mut applied = session.api.store.applied();
    loop {
        applied.mark_unchanged();
        let state = session.api.store.local();
        match stand(&state, &changes) {
            Stand::Done => return answer,
            Stand::Failed(text) => return Answer { rc: 1, stderr: format!("error: {text}\n"), ..answer },
            Stand::Waiting(waiting) => {
                // Whatever ends the wait, the next round looks at the state or gives up.
                let over = !matches!(timeout_at(until, applied.changed()).await, Ok(Ok(())));
                if over {
                    let stderr = progress(session, &state, &waiting);
                    // What is said at the end is said when it is true.
                    return Answer {
                        stderr,
                        stdout: String::new(),
                        retry: Some(come_back(&changes, args)),
                        ..answer
                    };
                }
            }
        }
    }
}

/// What is said when the client comes back.
///
/// # Errors
/// When what it echoes is not what it was told; a missing scope.
pub fn again(session: &Session, retry: &Retry, args: &Args) -> Result<Answer, Failure> {
    session.caller.needs(&[Scope::Read, Scope::Write])?;
    let changes = changes_of(retry)?;
    let done = if args.verb == Verb::Delete { "deleted" } else { "applied" };
    let lines = changes.iter().map(|c| format!("{}/{} {done}\n", c.kind, c.name));
    let answer = Answer::printed(lines.collect::<String>());
    Ok(match stand(&session.state, &changes) {
        Stand::Done => answer,
        Stand::Failed(text) => Answer::failed(&text),
        Stand::Waiting(waiting) => Answer {
            stderr: progress(session, &session.state, &waiting),
            retry: Some(retry.clone()),
            ..Answer::default()
        },
    })
}

/// One line a change: what it waits for.
fn progress(session: &Session, state: &State, waiting: &[Change]) -> String {
    // What the planner waits for is newer than the session when the request was held.
    let observed = session.api.reports.observed();
    let line = |change: &Change| {
        let cluster = ClusterId::from(change.resource);
        let reasons = observed.waiting.get(&cluster).map(|reasons| reasons.join("; ")).unwrap_or_default();
        let steps: Vec<&str> = state.running_tasks(cluster).map(|task| task.name.as_str()).collect();
        let what = match (reasons.is_empty(), steps.is_empty()) {
            (false, _) => reasons,
            (true, false) => steps.join(", "),
            (true, true) => "in progress".to_owned(),
        };
        format!("{}/{}: {what}\n", change.kind, change.name)
    };
    waiting.iter().map(line).collect()
}

fn come_back(changes: &[Change], args: &Args) -> Retry {
    let joined = |part: &dyn Fn(&Change) -> String| changes.iter().map(part).collect::<Vec<_>>().join(",");
    let verb = if args.verb == Verb::Delete { "delete" } else { "apply" };
    let names: Vec<String> = changes.iter().map(|change| change.name.clone()).collect();
    Retry {
        kind: joined(&|change| change.kind.path().to_owned()),
        change_request_id: joined(&|change| change.request.to_string()),
        resource_id: joined(&|change| change.resource.to_string()),
        operation: format!("{verb} {}", serde_json::to_string(&names).unwrap_or_default()),
    }
}

fn changes_of(retry: &Retry) -> Result<Vec<Change>, Failure> {
    let wrong = || Failure::Text("retryParams are not what was answered before".to_owned());
    let names: Vec<String> = retry
        .operation
        .split_once(' ')
        .and_then(|(_, names)| serde_json::from_str(names).ok())
        .unwrap_or_default();
    let parts =
        retry.kind.split(',').zip(retry.change_request_id.split(',')).zip(retry.resource_id.split(','));
    parts
        .enumerate()
        .map(|(at, ((kind, request), resource))| {
            Ok(Change {
                kind: rest::kind(kind)?,
                request: request.parse().map_err(|_| wrong())?,
                resource: resource.parse().map_err(|_| wrong())?,
                name: names.get(at).cloned().unwrap_or_else(|| resource.to_owned()),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_echoes_is_what_it_was_told() {
        let change = |number, name: &str| Change {
            kind: Kind::Vpc,
            request: RequestId::from_u128(number),
            resource: ResourceId::from_u128(number + 1),
            name: name.to_owned(),
        };
        let changes = vec![change(1, "a, \"b\""), change(3, "c")];
        let args = super::super::args::parse(&["delete".to_owned()]).unwrap();
        assert_eq!(changes_of(&come_back(&changes, &args)).unwrap(), changes);
        let broken = Retry { change_request_id: "x".to_owned(), ..come_back(&changes, &args) };
        assert!(changes_of(&broken).is_err());
    }
}
