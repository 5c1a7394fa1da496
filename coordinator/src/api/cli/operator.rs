//! The operator's types on the command line. In: a type and names to filter by. Out: a table, JSON or YAML; a host that is forgotten, a
//! token that is taken back. Used by `kc get`, `kc describe` and `kc delete`.

use serde::Serialize;
use shardplane_model::{
    state::{Scope, State},
    time::Timestamp,
    view,
};
use shardplane_proto::{ids::OperationId, v1};

use super::{
    super::{json, json::Node, rest, verbs::Session},
    answer::{Answer, Failure},
    args::{Args, Output},
    get, host, lookup, manifest, table,
    types::OperatorType,
};

/// Rows and nodes of one list.
struct List {
    header: Vec<&'static str>,
    wide: Vec<&'static str>,
    items: Vec<Item>,
}

struct Item {
    id: String,
    name: String,
    row: Vec<String>,
    wide: Vec<String>,
    node: Node,
}

/// `kc get host|instance|operation|event|catalogue|token [name]`
///
/// # Errors
/// A missing scope; a name that is not there.
pub fn run(session: &Session, kind: OperatorType, names: &[String], args: &Args) -> Result<Answer, Failure> {
    let mut list = read(session, kind)?;
    if !names.is_empty() {
        list.items.retain(|item| names.iter().any(|name| concerns(session, item, name)));
        if list.items.is_empty() {
            let word = kind.words().first().copied().unwrap_or_default();
            return Err(Failure::Text(format!(
                "there is no {word} {}; kc get {word} lists them",
                names.join(", ")
            )));
        }
    }
    if args.quiet {
        return Ok(Answer::printed(
            list.items.iter().map(|item| format!("{}\n", item.id)).collect::<String>(),
        ));
    }
    let wide = args.output == Output::Wide;
    match args.output {
        Output::Table | Output::Wide if list.items.is_empty() => {
            Ok(Answer { stderr: "No resources found.\n".to_owned(), ..Answer::default() })
        }
        Output::Table | Output::Wide => {
            let header: Vec<&str> =
                list.header.into_iter().chain(list.wide.into_iter().filter(|_| wide)).collect();
            let rows = list
                .items
                .into_iter()
                .map(|item| item.row.into_iter().chain(item.wide.into_iter().filter(|_| wide)).collect());
            Ok(Answer::printed(table::render(&header, rows.collect())))
        }
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
    the_one(&hosts(host::all(session)), "host", name).map(|item| item.id.clone())
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
        | OperatorType::Token => &[Scope::Operator],
    };
    session.caller.needs(scopes)?;
    let (state, now) = (&session.state, session.now());
    Ok(match kind {
        OperatorType::Host => hosts(host::all(session)),
        OperatorType::Instance => instances(view::instances(state, &session.observed, now, "")),
        OperatorType::Operation => operations(state, now, view::operations(state, "")),
        OperatorType::Event => events(state, now, view::events(state, "")),
        OperatorType::Catalogue => catalogue(rest::catalogue_of(state)),
        OperatorType::Token => tokens(rest::tokens_of(state, "")),
    })
}

fn node<M: Serialize>(name: &str, message: &M) -> Node {
    json::message(name, message)
}

fn hosts(list: v1::HostList) -> List {
    let item = |host: v1::HostView| {
        let (has, promised) = (host.capacity.unwrap_or_default(), host.promised.unwrap_or_default());
        let images = host.images.iter().map(|image| format!("{}:{}", image.engine, image.version));
        let troubles = host
            .conditions
            .iter()
            .filter(|c| c.status != "True")
            .map(|c| format!("{}={}", c.r#type, c.status));
        Item {
            row: vec![
                host.name.clone(),
                host.id.clone(),
                host::state_of(&host),
                host.instances.to_string(),
                format!("{}/{}%", promised.vcpu_percent, has.vcpu_percent),
                format!("{}/{}Mi", promised.memory_mib, has.memory_mib),
                format!("{}/{}Gi", promised.disk_gib, has.disk_gib),
                format!("{}/{}", promised.iops, has.iops),
            ],
            wide: vec![
                host.rack.clone(),
                host.zone.clone(),
                host.underlay_ipv4.clone(),
                host.vmm.clone(),
                host.agent_version.clone(),
                images.collect::<Vec<_>>().join(","),
                troubles.collect::<Vec<_>>().join(","),
                host.last_report_time.clone(),
                host::maintenance(&host),
            ],
            node: node("HostView", &host),
            id: host.id,
            name: host.name,
        }
    };
    List {
        header: vec!["NAME", "ID", "STATE", "INSTANCES", "VCPU", "MEMORY", "DISK", "IOPS"],
        wide: vec![
            "RACK",
            "ZONE",
            "UNDERLAY",
            "VMM",
            "AGENT",
            "IMAGES",
            "CONDITIONS",
            "LAST-REPORT",
            "CORDON",
        ],
        items: list.items.into_iter().map(item).collect(),
    }
}

fn instances(list: v1::InstanceList) -> List {
    let item = |instance: v1::InstanceView| Item {
        row: vec![
            instance.id.clone(),
            instance.cluster_name.clone(),
            instance.group_index.to_string(),
            instance.role.clone(),
            instance.host_name.clone(),
            instance.address.clone(),
            instance.machine.clone(),
            instance.engine_state.clone(),
            instance.intent.clone(),
        ],
        wide: vec![instance.mac.clone(), instance.last_report_time.clone(), instance.message.clone()],
        node: node("InstanceView", &instance),
        id: instance.id.clone(),
        name: instance.id,
    };
    List {
        header: vec!["ID", "CLUSTER", "SHARD", "ROLE", "HOST", "ADDRESS", "MACHINE", "ENGINE", "INTENT"],
        wide: vec!["MAC", "LAST-REPORT", "MESSAGE"],
        items: list.items.into_iter().map(item).collect(),
    }
}

fn operations(state: &State, now: Timestamp, list: v1::OperationList) -> List {
    let item = |operation: v1::OperationView| {
        let id: Option<OperationId> = operation.id.parse().ok();
        let begun = id.and_then(|id| state.operations.get(&id)).map(|operation| operation.created);
        let running =
            operation.steps.iter().filter(|step| step.phase == "running").map(|step| step.name.as_str());
        Item {
            row: vec![
                operation.id.clone(),
                operation.kind.clone(),
                cluster_name(state, &operation.cluster_id),
                operation.phase.clone(),
                format!("{}%", operation.progress),
                begun.map(|at| table::age(now, at)).unwrap_or_default(),
                operation.cause.clone(),
            ],
            wide: vec![running.collect::<Vec<_>>().join(", "), operation.error.clone()],
            node: node("OperationView", &operation),
            id: operation.id.clone(),
            name: operation.id,
        }
    };
    List {
        header: vec!["ID", "KIND", "CLUSTER", "PHASE", "PROGRESS", "AGE", "CAUSE"],
        wide: vec!["RUNNING", "ERROR"],
        items: list.items.into_iter().map(item).collect(),
    }
}

fn events(state: &State, now: Timestamp, list: v1::EventList) -> List {
    let item = |event: v1::EventView| {
        let at = state.events.get(&u64::from(event.number)).map(|event| event.at);
        Item {
            row: vec![
                at.map(|at| table::age(now, at)).unwrap_or_default(),
                event.severity.clone(),
                event.reason.clone(),
                event.subject.clone(),
                event.message.clone(),
            ],
            wide: vec![event.time.clone()],
            node: node("EventView", &event),
            id: event.number.to_string(),
            name: event.subject,
        }
    };
    List {
        header: vec!["AGE", "SEVERITY", "REASON", "SUBJECT", "MESSAGE"],
        wide: vec!["TIME"],
        items: list.items.into_iter().map(item).collect(),
    }
}

fn catalogue(catalogue: v1::Catalogue) -> List {
    let vms = catalogue.vm_offers.into_iter().map(|offer| {
        let size = format!("{} vCPU at {}%, {} MiB", offer.vcpus, offer.vcpu_share, offer.memory_mib);
        let price = format!("{} per hour", offer.price_hour);
        let node = node("VmOffer", &offer);
        Item {
            row: vec![offer.id.clone(), "vm".to_owned(), size, price],
            wide: Vec::new(),
            node,
            id: offer.id.clone(),
            name: offer.id,
        }
    });
    let volumes = catalogue.volume_offers.into_iter().map(|offer| {
        let size = format!("{} IOPS, up to {} GiB", offer.iops, offer.max_size_gib);
        let price = format!("{} per GiB and hour", offer.price_gib_hour);
        let node = node("VolumeOffer", &offer);
        Item {
            row: vec![offer.id.clone(), "volume".to_owned(), size, price],
            wide: Vec::new(),
            node,
            id: offer.id.clone(),
            name: offer.id,
        }
    });
    List {
        header: vec!["ID", "KIND", "SIZE", "PRICE"],
        wide: Vec::new(),
        items: vms.chain(volumes).collect(),
    }
}

fn tokens(list: v1::TokenList) -> List {
    let item = |token: v1::TokenView| Item {
        row: vec![token.name.clone(), token.id.clone(), token.scopes.join(","), token.create_time.clone()],
        wide: Vec::new(),
        node: node("TokenView", &token),
        id: token.id,
        name: token.name,
    };
    List {
        header: vec!["NAME", "ID", "SCOPES", "CREATED"],
        wide: Vec::new(),
        items: list.items.into_iter().map(item).collect(),
    }
}
