//! `kc cordon`, `kc uncordon`, `kc drain`. In: a host by name or id, flags. Out: what it is now, or what is left there.

use shardplane_model::{state::Scope, view};
use shardplane_proto::v1;

use super::{
    super::verbs::Session,
    answer::{Answer, Failure},
    args::{Args, Verb, span},
    operator, table,
};

/// Runs the verb.
///
/// # Errors
/// A missing scope; a name that names nothing or several; a flag the verb does not have; the refusals of the log.
pub async fn run(session: Session, args: &Args) -> Result<Answer, Failure> {
    session.caller.needs(&[Scope::Operator])?;
    let [name] = args.words.as_slice() else {
        return Err(Failure::Text("which host? kc cordon|uncordon|drain <host>".to_owned()));
    };
    for (given, flag, verbs) in [
        (args.for_what.is_some(), "--for", &[Verb::Cordon][..]),
        (args.reason.is_some(), "--reason", &[Verb::Cordon, Verb::Drain]),
        (args.force, "--force", &[Verb::Drain]),
    ] {
        if given && !verbs.contains(&args.verb) {
            return Err(Failure::Text(format!("{flag} is not a flag of this command; kc help lists them")));
        }
    }
    let id = operator::host_named(&session, name)?;
    let reason = args.reason.clone().unwrap_or_default();
    if args.verb == Verb::Drain {
        let asked = v1::DrainHostRequest { id, reason, force: args.force };
        return Ok(Answer::printed(left(&session.drain(asked).await?)));
    }
    let host = if args.verb == Verb::Uncordon {
        session.uncordon(&id).await?
    } else {
        let span = args.for_what.as_deref().map(|value| span("--for", value)).transpose();
        let for_seconds = span.map_err(Failure::Text)?.unwrap_or_default();
        session.cordon(v1::CordonHostRequest { id, reason, for_seconds }).await?
    };
    let text = match &host.cordon {
        None => format!("host/{} uncordoned\n", host.name),
        Some(cordon) if cordon.until_time.is_empty() => {
            format!("host/{0} cordoned until kc uncordon {0}\n", host.name)
        }
        Some(cordon) => format!("host/{} cordoned until {}\n", host.name, cordon.until_time),
    };
    Ok(Answer::printed(text))
}

/// What is left on a host that is drained.
fn left(host: &v1::HostView) -> String {
    let drain = host.drain.clone().unwrap_or_default();
    if drain.instances.is_empty() {
        return format!(
            "host/{0} drained: nothing is left there; kc uncordon {0} opens it again\n",
            host.name
        );
    }
    let rows = drain
        .instances
        .into_iter()
        .map(|i| vec![i.instance_id, i.cluster_name, i.phase, i.message])
        .collect();
    format!(
        "host/{0} draining: {1} {2} left; kc drain {0} says how far it is, kc uncordon {0} ends it\n{3}",
        host.name,
        drain.left,
        if drain.left == 1 { "instance" } else { "instances" },
        table::render(&["INSTANCE", "CLUSTER", "PHASE", "MESSAGE"], rows)
    )
}

/// STATE of a host in tables.
pub fn state_of(host: &v1::HostView) -> String {
    let more = match (&host.drain, &host.cordon) {
        (Some(drain), _) if drain.phase == "drained" => ",Drained",
        (Some(_), _) => ",Draining",
        (None, Some(_)) => ",Cordoned",
        (None, None) => "",
    };
    // Nothing can be placed there, which `Ready` alone would hide.
    let bare = if host.images.is_empty() { ",NoImage" } else { "" };
    format!("{}{more}{bare}", host.state)
}

/// Who closed a host, until when and why, and how far a drain is; empty for an open one.
pub fn maintenance(host: &v1::HostView) -> String {
    let Some(cordon) = &host.cordon else { return String::new() };
    let mut text = format!("by {} since {}", cordon.by, cordon.time);
    if !cordon.until_time.is_empty() {
        text.push_str(&format!(" until {}", cordon.until_time));
    }
    if let Some(drain) = host.drain.as_ref().filter(|drain| drain.left > 0) {
        let blocked = drain.instances.iter().filter(|left| left.phase == "blocked").count();
        text.push_str(&format!(", {} left, {blocked} blocked", drain.left));
    }
    if !cordon.reason.is_empty() {
        text.push_str(&format!(": {}", cordon.reason));
    }
    text
}

/// Every host as operators see it.
pub fn all(session: &Session) -> v1::HostList {
    view::hosts(&session.state, &session.observed, session.now(), "")
}
