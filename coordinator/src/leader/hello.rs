//! Parsing what a host says. In: session messages. Out: typed facts and reports, or what is wrong with them. Called by the session.

use std::net::Ipv4Addr;

use shardplane_model::{
    command::Ended,
    engine::EngineKind,
    observed::MemberReport,
    state::{Footprint, HostCondition, HostFacts, Image},
    time::Timestamp,
};
use shardplane_proto::{
    ids::{Generation, HostId, InstanceId, NotAnId},
    v1,
};

use super::ear::Said;

/// A message of a host that makes no sense.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadMessage {
    /// An id that is none.
    #[error("{field}")]
    Id {
        /// Where.
        field: &'static str,
        /// Why.
        source: NotAnId,
    },
    /// A field that does not parse.
    #[error("{field}: {given:?} {rule}")]
    Field {
        /// Where.
        field: &'static str,
        /// What was given.
        given: String,
        /// What is allowed.
        rule: &'static str,
    },
}

/// Longest text of a host or guest that is kept, in bytes.
const LONGEST_TEXT: usize = 1024;
/// Counts and notes of one step that are kept.
const MOST_COUNTS: usize = 8;
const MOST_NOTES: usize = 4;
/// Problems of one host that are kept.
const MOST_PROBLEMS: usize = 16;

/// A text of a host or a guest, cut to [`LONGEST_TEXT`]: what they say must not fill the log.
pub(super) fn cut(mut text: String) -> String {
    if text.len() > LONGEST_TEXT {
        let end = (0..=LONGEST_TEXT).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

/// How a step ended, as a guest says: no more of it than the log should keep.
pub(super) fn ended(outcome: v1::TaskOutcome) -> Ended {
    Ended {
        error: (!outcome.ok).then(|| cut(outcome.error)),
        counts: outcome.counts.into_iter().take(MOST_COUNTS).map(|(what, n)| (cut(what), n)).collect(),
        notes: outcome.notes.into_iter().take(MOST_NOTES).map(cut).collect(),
    }
}

/// Names and labels of hosts: short, printable, one word.
fn word(field: &'static str, given: &str, may_be_empty: bool) -> Result<String, BadMessage> {
    let fits = given.len() <= 63
        && given.bytes().all(|b| b.is_ascii_graphic())
        && (may_be_empty || !given.is_empty());
    if fits {
        return Ok(given.to_owned());
    }
    let rule = "must be a word of 1 to 63 ASCII characters";
    Err(BadMessage::Field { field, given: given.chars().take(64).collect(), rule })
}

/// Who a host is, what it says about itself and what it had accepted.
pub(super) fn hello(hello: v1::HostHello) -> Result<(HostId, HostFacts, Generation), BadMessage> {
    let id = hello.host_id.parse().map_err(|source| BadMessage::Id { field: "host_id", source })?;
    let underlay: Ipv4Addr = hello.underlay_ipv4.parse().map_err(|_| BadMessage::Field {
        field: "underlay_ipv4",
        given: hello.underlay_ipv4.clone(),
        rule: "must be an IPv4 address",
    })?;
    let capacity = hello.capacity.unwrap_or_default();
    let mut images: Vec<Image> = hello
        .images
        .into_iter()
        .map(|image| Image {
            engine: image.engine,
            version: image.version,
            digest: image.digest,
            size: image.size_bytes,
        })
        .collect();
    images.sort();
    let condition =
        |c: v1::HostCondition| HostCondition { name: c.r#type, status: c.status, message: c.message };
    let facts = HostFacts {
        name: word("name", &hello.name, false)?,
        rack: word("rack", &hello.rack, true)?,
        zone: word("zone", &hello.zone, true)?,
        underlay,
        capacity: Footprint {
            vcpu_percent: capacity.vcpu_percent,
            memory_mib: capacity.memory_mib,
            disk_gib: capacity.disk_gib,
            iops: capacity.iops,
        },
        images,
        vmm: word("vmm", &hello.vmm, false)?,
        agent_version: word("agent_version", &hello.agent_version, false)?,
        boot_id: hello.boot_id,
        conditions: hello.conditions.into_iter().map(condition).collect(),
    };
    Ok((id, facts, Generation(hello.accepted_generation)))
}

/// One report. `engine_of` tells which engine an instance runs; a report of an engine is kept only when it is one.
pub(super) fn report(
    host: HostId,
    report: v1::HostReport,
    engine_of: impl Fn(InstanceId) -> Option<EngineKind>,
) -> Result<Said, BadMessage> {
    let id = |text: &str| {
        text.parse::<InstanceId>().map_err(|source| BadMessage::Id { field: "instance_id", source })
    };
    let mut members = Vec::new();
    for instance in report.instances {
        let machine = instance.machine();
        let id = id(&instance.instance_id)?;
        let guest = instance.guest.unwrap_or_default();
        let engine_state = guest.state();
        let engine = engine_of(id).and_then(|engine| engine.read_report(&guest.engine_report));
        let answers = machine == v1::MachineState::Running && engine_state == v1::EngineState::Running;
        members.push((
            id,
            MemberReport {
                host,
                at: Timestamp::default(),
                machine,
                message: cut(instance.message),
                engine_state,
                engine_message: cut(guest.message),
                engine: engine.filter(|_| answers),
                config_generation: guest.config_generation,
                restart_generation: guest.restart_generation,
                failed_since: None,
                silent_since: None,
                detached_since: None,
                under_way: None,
                fenced: instance.fenced,
                port_cut: instance.port_cut,
            },
        ));
    }
    Ok(Said {
        full: report.full,
        accepted: Generation(report.accepted_generation),
        members,
        gone: report.gone.iter().map(|text| id(text)).collect::<Result<_, _>>()?,
        problems: report.problems.into_iter().take(MOST_PROBLEMS).map(cut).collect(),
    })
}
