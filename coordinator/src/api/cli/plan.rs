//! `kc plan`: what would become of it, changing nothing. In: a manifest, or a host or rack that is drained or lost. Out: where instances
//! would be, how well spread clusters would be, what travels and what clients would notice.

use std::fmt::Write as _;

use shardplane_model::state::Scope;
use shardplane_proto::v1;

use super::{
    super::{json, json::Node, verbs::Session},
    answer::{Answer, Failure},
    apply,
    args::{Args, Output},
    get, lookup, manifest, operator, table,
};

/// Runs the verb.
///
/// # Errors
/// A missing scope; names that name nothing or several; another question; what the change would be refused with.
pub fn run(session: Session, args: &Args, text: Option<&str>) -> Result<Answer, Failure> {
    match (&args.filename, text, args.words.as_slice()) {
        (Some(path), None, []) => Ok(Answer { read_file: Some(path.clone()), ..Answer::default() }),
        (Some(_), Some(text), []) => changes(session, args, text),
        (None, _, [what, rack, name]) if rack == "rack" => {
            hosts(&session, args, &v1::PlanHostRequest { rack: name.clone(), ..asked(what, args) })
        }
        (None, _, [what, host, name]) if host == "host" => about_host(&session, args, what, name),
        (None, _, [what, name]) => about_host(&session, args, what, name),
        _ => Err(Failure::Text(
            "what? kc plan -f <file>, kc plan drain|loss <host>, or kc plan loss rack <name>".to_owned(),
        )),
    }
}

fn asked(what: &str, args: &Args) -> v1::PlanHostRequest {
    v1::PlanHostRequest { what: what.to_owned(), force: args.force, ..Default::default() }
}

fn about_host(session: &Session, args: &Args, what: &str, name: &str) -> Result<Answer, Failure> {
    session.caller.needs(&[Scope::Operator])?;
    let id = operator::host_named(session, name)?;
    hosts(session, args, &v1::PlanHostRequest { id, ..asked(what, args) })
}

fn hosts(session: &Session, args: &Args, asked: &v1::PlanHostRequest) -> Result<Answer, Failure> {
    session.caller.needs(&[Scope::Operator])?;
    let plan = session.plan_host(asked)?;
    if let Some(answer) = as_data(args, &[json::message("HostPlan", &plan)], true) {
        return Ok(answer);
    }
    let moves = plan.moves.into_iter().map(|m| {
        let to = if m.to_host.is_empty() { "-".to_owned() } else { m.to_host };
        vec![m.instance_id, m.cluster_name, m.from_host, to, m.slots.to_string(), copies(m.bytes), m.blocker]
    });
    let mut pauses = String::new();
    for cluster in &plan.clusters {
        for pause in &cluster.pauses {
            // Writing to a String cannot fail.
            let _ = writeln!(pauses, "{}: {}", cluster.name, pause_told(pause));
        }
        // Nobody's primary is concerned; what is lost for good stands among the blockers.
        if cluster.pauses.is_empty() && cluster.slots == 0 {
            let _ = writeln!(pauses, "{}: pause: none", cluster.name);
        }
    }
    let clusters = plan.clusters.into_iter().map(|c| {
        let broken = [
            (!c.anti_affinity_ok, c.anti_affinity_message),
            (!c.primary_spread_ok, c.primary_spread_message),
        ];
        let why: Vec<String> = broken.into_iter().filter_map(|(broken, why)| broken.then_some(why)).collect();
        let (apart, spread) = (c.anti_affinity_ok.to_string(), c.primary_spread_ok.to_string());
        vec![c.name, apart, spread, c.slots.to_string(), copies(c.bytes), why.join("; ")]
    });
    Ok(Answer::printed(format!(
        "{}\n{}{pauses}",
        table::render(&["INSTANCE", "CLUSTER", "FROM", "TO", "SLOTS", "COPIES", "BLOCKER"], moves.collect()),
        table::render(&["CLUSTER", "ANTI-AFFINITY", "SPREAD", "SLOTS", "COPIES", "WHY"], clusters.collect())
    )))
}

/// Each document is planned on what the ones before would have made.
fn changes(mut session: Session, args: &Args, text: &str) -> Result<Answer, Failure> {
    session.caller.needs(&[Scope::Write])?;
    let documents = manifest::read(text)?;
    let folder = lookup::folder(&session.state, args.folder.as_deref())?;
    let mut plans = Vec::new();
    for document in documents {
        let title = document.title();
        let refused = |failure: Failure| match &failure {
            Failure::Problem(problem) if problem.status().is_server_error() => failure,
            Failure::Problem(_) | Failure::Text(_) => {
                Failure::Text(format!("{title} would be refused: {}", failure.text()))
            }
        };
        let checked = apply::read(&session, document, folder).map_err(refused)?;
        let planned = session.plan(&checked.resource, &checked.violations);
        let (plan, state) = planned.map_err(|problem| refused(problem.into()))?;
        session.state = state;
        plans.push(plan);
    }
    let nodes: Vec<Node> = plans.iter().map(|plan| json::message("ChangePlan", plan)).collect();
    if let Some(answer) = as_data(args, &nodes, nodes.len() == 1) {
        return Ok(answer);
    }
    Ok(Answer::printed(plans.iter().map(told).collect::<Vec<_>>().join("\n")))
}

fn as_data(args: &Args, nodes: &[Node], single: bool) -> Option<Answer> {
    match args.output {
        Output::Json => Some(Answer::printed(get::as_json(nodes.to_vec(), single))),
        Output::Yaml => Some(Answer::printed(manifest::write(nodes))),
        Output::Table | Output::Wide => None,
    }
}

/// A plan as people read it.
fn told(plan: &v1::ChangePlan) -> String {
    let title = format!("{}/{}", plan.kind, plan.name);
    let mut text = match plan.what.as_str() {
        "create" => format!("{title} would be created\n"),
        "update" => format!("{title} would be updated\n"),
        _ => format!("{title} is so already; nothing would change\n"),
    };
    for cluster in &plan.clusters {
        // Writing to a String cannot fail.
        let _ = cluster_told(&mut text, cluster);
    }
    text
}

/// Memory that is copied.
fn copies(bytes: u64) -> String {
    if bytes == 0 { "-".to_owned() } else { format!("{} MiB", bytes.div_ceil(1 << 20)) }
}

fn pause_told(pause: &v1::PlannedPause) -> String {
    let long =
        if pause.milliseconds == 0 { "none".to_owned() } else { format!("about {} ms", pause.milliseconds) };
    format!("pause: {long}: {}", pause.what)
}

fn cluster_told(text: &mut String, cluster: &v1::PlannedChange) -> std::fmt::Result {
    let rows = cluster.instances.iter().map(|i| {
        let shard =
            if i.shard_index < 0 { format!("{} (goes)", i.shard_id) } else { i.shard_index.to_string() };
        let id = if i.id.is_empty() { "(new)".to_owned() } else { i.id.clone() };
        vec![
            id,
            shard,
            i.role.clone(),
            i.host.clone(),
            i.change.clone(),
            copies(i.bytes),
            i.parameters.clone(),
        ]
    });
    let header = ["INSTANCE", "SHARD", "ROLE", "HOST", "CHANGE", "COPIES", "PARAMETERS"];
    writeln!(text, "cluster {}", cluster.name)?;
    if !cluster.instances.is_empty() {
        text.push_str(&table::render(&header, rows.collect()));
    }
    writeln!(text, "anti-affinity: {}: {}", cluster.anti_affinity_ok, cluster.anti_affinity_message)?;
    writeln!(text, "primary spread: {}: {}", cluster.primary_spread_ok, cluster.primary_spread_message)?;
    for travel in &cluster.travels {
        writeln!(
            text,
            "travels: {} slots with about {} keys, {} MiB, from shard {} to {}",
            travel.slots,
            travel.keys,
            travel.bytes.div_ceil(1 << 20),
            travel.from_shard_id,
            travel.to_shard_id
        )?;
    }
    for pause in &cluster.pauses {
        writeln!(text, "{}", pause_told(pause))?;
    }
    if cluster.pauses.is_empty() {
        writeln!(text, "pause: none")?;
    }
    cluster.waits.iter().try_for_each(|why| writeln!(text, "would wait: {why}"))
}
