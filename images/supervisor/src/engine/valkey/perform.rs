//! The tasks of a cluster's life, each performed twice as good as once.
//!
//! In: a `ValkeyTask` step. Out: done, or the engine's text. Called by `mod` under the task's deadline.

use std::time::Duration;

use redis::{Cmd, aio::MultiplexedConnection};
use shardplane_proto::v1::{
    ValkeyAddress,
    valkey_task::{AssignSlots, Failover, Forget, Meet, Replicate, StandDown, Step, Takeover},
};
use tokio::time::{Instant, sleep};

use super::{
    control::{engine_error, says},
    parse::{self, Node},
    slots, standing,
};
use crate::engine::EngineError;

const LAST_SLOT: u32 = 16_383;
const FAILOVER_DEADLINE: Duration = Duration::from_secs(8);
const FAILOVER_POLL: Duration = Duration::from_millis(100);
/// The engine gives a manual failover up after 5 s, without a word (`cluster-manual-failover-timeout`).
const FAILOVER_GIVEN_UP: Duration = Duration::from_millis(5_250);

/// For every step but those that move keys.
const DEADLINE: Duration = Duration::from_secs(15);

/// How long a step may take.
pub fn deadline(step: Option<&Step>) -> Duration {
    match step {
        Some(Step::MoveSlots(_) | Step::CloseSlots(_)) => slots::DEADLINE,
        Some(
            Step::AssignSlots(_)
            | Step::Meet(_)
            | Step::Replicate(_)
            | Step::Forget(_)
            | Step::Failover(_)
            | Step::Takeover(_)
            | Step::StandDown(_),
        )
        | None => DEADLINE,
    }
}

/// Performs one step.
pub async fn perform(context: slots::Context<'_>, step: Step) -> Result<(), EngineError> {
    let mut connection = context.control.for_task().await?;
    match step {
        Step::AssignSlots(task) => assign_slots(&mut connection, &task).await,
        Step::Meet(task) => meet(&mut connection, &task).await,
        Step::Replicate(task) => replicate(&mut connection, &task).await,
        Step::Forget(task) => forget(&mut connection, &task).await,
        Step::Failover(Failover {}) => failover(&mut connection).await,
        Step::MoveSlots(task) => slots::move_slots(context, &task).await,
        Step::CloseSlots(task) => slots::close_slots(context, &task).await,
        Step::Takeover(Takeover {}) => takeover(&mut connection).await,
        Step::StandDown(StandDown { on }) => stand_down(&mut connection, on).await,
    }
}

async fn assign_slots(connection: &mut MultiplexedConnection, task: &AssignSlots) -> Result<(), EngineError> {
    let (own, others) = nodes(connection).await?;
    let missing = missing_slots(&own, task)?;
    // The engine refuses an epoch to a node that has one or knows others; a repetition must not trip over that.
    if own.config_epoch != task.config_epoch && task.config_epoch > 0 && others.is_empty() {
        run(connection, cluster("SET-CONFIG-EPOCH").arg(task.config_epoch)).await?;
    }
    for (start, end) in missing {
        run(connection, cluster("ADDSLOTSRANGE").arg(start).arg(end)).await?;
    }
    Ok(())
}

/// The parts of the wanted range that the node does not own yet. Refused when it is a replica or owns other slots.
fn missing_slots(own: &Node, task: &AssignSlots) -> Result<Vec<(u32, u32)>, EngineError> {
    let (start, end) = (task.start, task.end);
    if start > end || end > LAST_SLOT {
        return Err(EngineError::Refused(format!("slots {start}-{end} are no range within 0-{LAST_SLOT}")));
    }
    if !own.is("master") {
        return Err(EngineError::Refused(format!("node {} is a replica, it takes no slots", own.id)));
    }
    if let Some((other_start, other_end)) = own.slots.iter().find(|(s, e)| *s < start || *e > end) {
        return Err(EngineError::Refused(format!(
            "node {} owns slots {other_start}-{other_end} besides {start}-{end}",
            own.id
        )));
    }
    let mut missing = Vec::new();
    let mut next = start;
    for &(owned_start, owned_end) in &own.slots {
        if owned_start > next {
            missing.push((next, owned_start - 1));
        }
        next = owned_end + 1;
    }
    if next <= end {
        missing.push((next, end));
    }
    Ok(missing)
}

async fn meet(connection: &mut MultiplexedConnection, task: &Meet) -> Result<(), EngineError> {
    let (own, others) = nodes(connection).await?;
    for peer in task.peers.iter().filter(|peer| !is_met(peer, &own, &others)) {
        run(connection, cluster("MEET").arg(&peer.ip).arg(peer.port).arg(peer.bus_port)).await?;
    }
    Ok(())
}

fn is_met(peer: &ValkeyAddress, own: &Node, others: &[Node]) -> bool {
    let at = |node: &Node| node.ip == peer.ip && node.port == peer.port;
    at(own) || others.iter().any(|node| at(node) && node.connected && !node.is("handshake"))
}

async fn replicate(connection: &mut MultiplexedConnection, task: &Replicate) -> Result<(), EngineError> {
    let (own, _) = nodes(connection).await?;
    if own.is("slave") && own.primary_id == task.primary_node_id {
        return Ok(());
    }
    let keys: u64 = redis::cmd("DBSIZE").query_async(connection).await.map_err(engine_error)?;
    nothing_to_lose(&own, keys)?;
    run(connection, cluster("REPLICATE").arg(&task.primary_node_id)).await
}

/// Refused for a primary with slots or keys. A replica's keys are a copy, which the engine replaces.
fn nothing_to_lose(own: &Node, keys: u64) -> Result<(), EngineError> {
    let (id, ranges) = (&own.id, own.slots.len());
    if own.is("slave") || (ranges == 0 && keys == 0) {
        return Ok(());
    }
    Err(EngineError::Refused(format!(
        "node {id} has {ranges} slot ranges and {keys} keys; it would lose them as a replica"
    )))
}

async fn forget(connection: &mut MultiplexedConnection, task: &Forget) -> Result<(), EngineError> {
    match run(connection, cluster("FORGET").arg(&task.node_id)).await {
        Err(error) if says(&error, "unknown node") => Ok(()),
        result => result,
    }
}

async fn failover(connection: &mut MultiplexedConnection) -> Result<(), EngineError> {
    if role(connection).await? == Role::Primary {
        return Ok(());
    }
    if role(connection).await? == (Role::Replica { link_up: false }) {
        return Err(EngineError::Refused(
            "the link to the primary is down; a failover now could lose writes".to_owned(),
        ));
    }
    // A primary that has not heard yet that this node follows it drops the request, and a vote may be lost.
    let deadline = Instant::now() + FAILOVER_GIVEN_UP;
    run(connection, &cluster("FAILOVER")).await?;
    while Instant::now() < deadline {
        sleep(FAILOVER_POLL).await;
        if role(connection).await? == Role::Primary {
            return Ok(());
        }
    }
    run(connection, &cluster("FAILOVER")).await?;
    until_primary(connection, "the second CLUSTER FAILOVER").await
}

async fn until_primary(connection: &mut MultiplexedConnection, after: &str) -> Result<(), EngineError> {
    let deadline = Instant::now() + FAILOVER_DEADLINE;
    while Instant::now() < deadline {
        sleep(FAILOVER_POLL).await;
        if role(connection).await? == Role::Primary {
            return Ok(());
        }
    }
    Err(EngineError::Engine(format!("no primary {} s after {after}", FAILOVER_DEADLINE.as_secs())))
}

/// The link to the primary does not matter: that one is fenced, and this is the member that knows most. The engine gives it the slots
/// that it knows as its primary's; done is who leads with slots.
async fn takeover(connection: &mut MultiplexedConnection) -> Result<(), EngineError> {
    let (own, _) = nodes(connection).await?;
    if !own.is("master") {
        run(connection, cluster("FAILOVER").arg("TAKEOVER")).await?;
        until_primary(connection, "CLUSTER FAILOVER TAKEOVER").await?;
    }
    let (own, _) = nodes(connection).await?;
    leads_with_slots(&own)
}

fn leads_with_slots(own: &Node) -> Result<(), EngineError> {
    if own.slots.is_empty() {
        return Err(EngineError::Refused(format!(
            "node {} leads without slots: it knew none of its primary's, and nobody serves them until they are added to it (CLUSTER ADDSLOTSRANGE)",
            own.id
        )));
    }
    Ok(())
}

async fn stand_down(connection: &mut MultiplexedConnection, on: bool) -> Result<(), EngineError> {
    if on && role(connection).await? == Role::Primary {
        return Err(EngineError::Refused("this node is a primary: only a replica can stand down".to_owned()));
    }
    let mut set = redis::cmd("CONFIG");
    let value = if on { "yes" } else { "no" };
    let order = set.arg("SET").arg("cluster-replica-no-failover").arg(value);
    // Whatever ends in between: one that stands down too long is told to stand again.
    if on {
        standing::note(on)?;
        return run(connection, order).await;
    }
    run(connection, order).await?;
    standing::note(on)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Primary,
    Replica { link_up: bool },
}

async fn role(connection: &mut MultiplexedConnection) -> Result<Role, EngineError> {
    let info: String =
        redis::cmd("INFO").arg("replication").query_async(connection).await.map_err(engine_error)?;
    let info = parse::fields(&info);
    Ok(match info.text("role") {
        "master" => Role::Primary,
        _ => Role::Replica { link_up: info.text("master_link_status") == "up" },
    })
}

/// The node itself and the others.
async fn nodes(connection: &mut MultiplexedConnection) -> Result<(Node, Vec<Node>), EngineError> {
    let text: String = cluster("NODES").query_async(connection).await.map_err(engine_error)?;
    let (own, others): (Vec<_>, Vec<_>) = parse::nodes(&text).into_iter().partition(|node| node.is("myself"));
    let own = own.into_iter().next();
    Ok((
        own.ok_or_else(|| EngineError::Engine("CLUSTER NODES does not list the node itself".to_owned()))?,
        others,
    ))
}

fn cluster(subcommand: &str) -> Cmd {
    let mut command = redis::cmd("CLUSTER");
    command.arg(subcommand);
    command
}

async fn run(connection: &mut MultiplexedConnection, command: &Cmd) -> Result<(), EngineError> {
    command.exec_async(connection).await.map_err(engine_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(flags_to_slots: &str) -> Node {
        parse::nodes(&format!(
            "6e731a511d84d1a3938221280d95474aa68545ca 10.0.0.1:6379@16379 {flags_to_slots}"
        ))
        .remove(0)
    }

    #[test]
    fn a_takeover_of_no_slots_is_none() {
        assert!(leads_with_slots(&node("myself,master - 0 0 7 connected 0-9")).is_ok());
        let error = leads_with_slots(&node("myself,master - 0 0 7 connected")).unwrap_err().to_string();
        assert!(error.contains("leads without slots"), "{error}");
    }

    #[test]
    fn only_missing_slots_are_added_and_others_refuse_the_task() {
        let task = AssignSlots { start: 0, end: 99, config_epoch: 1 };
        let missing =
            |slots: &str| missing_slots(&node(&format!("myself,master - 0 0 0 connected {slots}")), &task);
        assert_eq!(missing("").unwrap(), [(0, 99)]);
        assert_eq!(missing("0-99").unwrap(), []);
        assert_eq!(missing("10-19 50").unwrap(), [(0, 9), (20, 49), (51, 99)]);
        assert!(missing("0-99 200").unwrap_err().to_string().contains("200-200 besides 0-99"));
        let replica = node("myself,slave 0245661d4bf70a334e7ccc0054180439e256ba57 0 0 0 connected");
        assert!(missing_slots(&replica, &task).unwrap_err().to_string().contains("replica"));
        let beyond = AssignSlots { end: 16_384, ..task };
        assert!(missing_slots(&replica, &beyond).unwrap_err().to_string().contains("no range"));
    }

    #[test]
    fn tasks_that_move_keys_have_more_time() {
        let close = Step::CloseSlots(shardplane_proto::v1::valkey_task::CloseSlots::default());
        assert_eq!(deadline(Some(&close)), slots::DEADLINE);
        assert!(slots::DEADLINE > DEADLINE * 5);
        assert_eq!(deadline(Some(&Step::Takeover(Takeover {}))), DEADLINE);
        assert_eq!(deadline(None), DEADLINE);
    }

    #[test]
    fn only_a_primary_has_something_to_lose() {
        let primary = |slots: &str| node(&format!("myself,master - 0 0 0 connected {slots}"));
        assert!(nothing_to_lose(&primary(""), 0).is_ok());
        assert!(nothing_to_lose(&primary(""), 1).unwrap_err().to_string().contains("1 keys"));
        assert!(nothing_to_lose(&primary("0-9"), 0).unwrap_err().to_string().contains("1 slot ranges"));
        let replica = node("myself,slave 0245661d4bf70a334e7ccc0054180439e256ba57 0 0 0 connected");
        assert!(nothing_to_lose(&replica, 1_000).is_ok());
    }

    #[test]
    fn a_peer_is_met_when_its_link_is_up() {
        let own = node("myself,master - 0 0 0 connected");
        let peer = |port| ValkeyAddress { ip: "10.0.0.1".into(), port, bus_port: 16379 };
        let other = |text: &str| {
            parse::nodes(&format!("0245661d4bf70a334e7ccc0054180439e256ba57 10.0.0.1:7000@17000 {text}"))
        };
        assert!(is_met(&peer(6379), &own, &[]), "itself");
        assert!(is_met(&peer(7000), &own, &other("master - 0 0 2 connected")));
        assert!(!is_met(&peer(7000), &own, &other("handshake - 0 0 0 connected")));
        assert!(!is_met(&peer(7000), &own, &other("master,fail - 0 0 2 disconnected")));
    }
}
