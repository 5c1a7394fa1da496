//! The operator's types on the command line. In: a type and names to filter by. Out: a table, JSON or YAML; a host that is forgotten, a
//! token that is taken back. Used by `kc get`, `kc describe` and `kc delete`.

use shardplane_model::{
    state::{Scope, State},
    view,
};

use super::{
    super::{json::Node, rest, verbs::Session},
    answer::{Answer, Failure},
    args::{Args, Output},
    events, get, host, lookup, manifest,
    rows::{self, Item, List},
    types::OperatorType,
};

/// `kc get host|capacity|instance|operation|event|catalogue|token [name]`
///
/// # Errors
/// A missing scope; a name that is not there.
pub fn run(session: &Session, kind: OperatorType, names: &[String], args: &Args) -> Result<Answer, Failure> {
    let list = select(session, kind, names, args)?;
    if args.quiet {
        return Ok(Answer::printed(
            list.items.iter().map(|item| format!("{}\n", item.id)).collect::<String>(),
        ));
    }
    match args.output {
        Output::Table | Output::Wide if list.items.is_empty() => {
            Ok(Answer { stderr: "No resources found.\n".to_owned(), ..Answer::default() })
        }
        Output::Table | Output::Wide => Ok(Answer::printed(list.rows(args.output == Output::Wide).text())),
        Output::Json => {
            let nodes: Vec<Node> = list.items.into_iter().map(|item| item.node).collect();
            Ok(Answer::printed(get::as_json(nodes, names.len() == 1)))
        }
        Output::Yaml => {
            let nodes: Vec<Node> = list.items.into_iter().map(|item| item.node).collect();
            Ok(Answer::printed(manifest::write(&nodes)))
        }
    }
}

/// The items that names mean; all without names.
///
/// # Errors
/// A missing scope; names that none has.
pub fn select(session: &Session, kind: OperatorType, names: &[String], args: &Args) -> Result<List, Failure> {
    let mut list = read(session, kind)?;
    if let Some(about) = &args.for_what {
        if kind != OperatorType::Event {
            return Err(Failure::Text("--for is for events here: kc events --for cluster/NAME".to_owned()));
        }
        let subject = events::subject(session, about)?;
        list.items.retain(|item| item.name == subject);
    }
    if names.is_empty() {
        return Ok(list);
    }
    list.items.retain(|item| names.iter().any(|name| concerns(session, item, name)));
    if list.items.is_empty() {
        let word = kind.words().first().copied().unwrap_or_default();
        return Err(Failure::Text(format!(
            "there is no {word} {}; kc get {word} lists them",
            names.join(", ")
        )));
    }
    Ok(list)
}

/// `kc delete host|token <name>…`
///
/// # Errors
/// A type that has no delete; a missing scope; a name that names nothing or several; the refusals of the log.
pub async fn delete(session: &Session, kind: OperatorType, names: &[String]) -> Result<Answer, Failure> {
    session.caller.needs(&[Scope::Operator])?;
    let word = kind.words().first().copied().unwrap_or_default();
    let list = read(session, kind)?;
    // Names first: a mistyped one must not leave half of them deleted.
    let found: Vec<&Item> =
        names.iter().map(|name| the_one(&list, word, name)).collect::<Result<_, Failure>>()?;
    let mut answer = Answer::default();
    for item in found {
        let done = match kind {
            OperatorType::Host => session.forget_host(&item.id).await.map(|_| "forgotten"),
            OperatorType::Token => session.revoke_token(&item.id).await.map(|_| "taken back"),
            OperatorType::Instance
            | OperatorType::Operation
            | OperatorType::Event
            | OperatorType::Capacity
            | OperatorType::Catalogue => {
                return Err(Failure::Text(format!("{word} can be read with kc get, not deleted")));
            }
        };
        match done {
            Ok(done) => answer.stdout.push_str(&format!("{word}/{} {done}\n", item.name)),
            Err(problem) if answer.stdout.is_empty() => return Err(problem.into()),
            Err(problem) => {
                answer.stderr = format!("error: {}\n", Failure::from(problem).text());
                answer.rc = 1;
                return Ok(answer);
            }
        }
    }
    Ok(answer)
}

/// The id of the host that a word names.
///
/// # Errors
/// None or several are named so.
pub fn host_named(session: &Session, name: &str) -> Result<String, Failure> {
    the_one(&rows::hosts(host::all(session)), "host", name).map(|item| item.id.clone())
}

/// The one item that a word names, by id, else by name.
fn the_one<'a>(list: &'a List, word: &str, name: &str) -> Result<&'a Item, Failure> {
    if let Some(item) = list.items.iter().find(|item| item.id.eq_ignore_ascii_case(name)) {
        return Ok(item);
    }
    let named: Vec<&Item> = list.items.iter().filter(|item| item.name == name).collect();
    match named.as_slice() {
        [only] => Ok(only),
        [] => Err(Failure::Text(format!("there is no {word} {name:?}; kc get {word} lists them"))),
        several => {
            let choices: String = several.iter().map(|item| format!("\n  {}  {name}", item.id)).collect();
            Err(Failure::Text(format!("there are multiple {word}s named {name:?}: use the ID{choices}")))
        }
    }
}

/// Whether an item is the named one, or belongs to the named cluster or host.
fn concerns(session: &Session, item: &Item, name: &str) -> bool {
    if item.id.eq_ignore_ascii_case(name) || item.name == name {
        return true;
    }
    let belongs = |member: &str| item.node.get(member).and_then(Node::text);
    let owner = |id: &str| id.eq_ignore_ascii_case(name) || cluster_name(&session.state, id) == name;
    belongs("clusterId").is_some_and(owner)
        || ["hostId", "hostName"]
            .iter()
            .any(|member| belongs(member).is_some_and(|text| text.eq_ignore_ascii_case(name)))
        || belongs("subject").is_some_and(|subject| subject.split_once('/').is_some_and(|(_, id)| owner(id)))
}

fn cluster_name(state: &State, id: &str) -> String {
    id.parse().map_or_else(|_| id.to_owned(), |id| lookup::name_of(state, id))
}

fn read(session: &Session, kind: OperatorType) -> Result<List, Failure> {
    let scopes: &[Scope] = match kind {
        OperatorType::Catalogue => &[Scope::Read, Scope::Operator],
        OperatorType::Host
        | OperatorType::Instance
        | OperatorType::Operation
        | OperatorType::Event
        | OperatorType::Capacity
        | OperatorType::Token => &[Scope::Operator],
    };
    session.caller.needs(scopes)?;
    let (state, now) = (&session.state, session.now());
    Ok(match kind {
        OperatorType::Host => rows::hosts(host::all(session)),
        OperatorType::Capacity => rows::capacity(&host::all(session)),
        OperatorType::Instance => rows::instances(view::instances(state, &session.observed, now, "")),
        OperatorType::Operation => {
            rows::operations(state, now, view::operations(state, &session.observed, now, ""))
        }
        OperatorType::Event => rows::events(state, now, view::events(state, "")),
        OperatorType::Catalogue => rows::catalogue(rest::catalogue_of(state)),
        OperatorType::Token => rows::tokens(rest::tokens_of(state, "")),
    })
}
