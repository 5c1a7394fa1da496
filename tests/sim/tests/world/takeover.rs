//! Shards that cannot elect a primary: fences, proofs, takeovers. Each test name begins with the scenario it covers.

use shardplane_model::{
    command::{Command, Decision, Proof},
    state::{OperationKind, OperationState, Settings},
    time::Millis,
};
use shardplane_proto::ids::{ClusterId, GroupId, InstanceId, ResourceId};
use shardplane_sim::{
    keys::Keys,
    world::{World, settings},
};

use super::scenarios::ready;

/// Whether an ordered switch-over goes on in the shard: the engine keeps clients waiting meanwhile, the simulated one does not.
fn switches(world: &World, group: GroupId) -> bool {
    let state = &world.leader.state;
    state.tasks.values().filter(|task| task.name.starts_with("switch over")).any(|task| {
        let recent = task.ended.is_none_or(|ended| world.now < ended.0 + 3_000);
        recent && state.instances.get(&task.instance).is_some_and(|instance| instance.group == group)
    })
}

/// One step, in which no shard has two that take writes.
fn step(world: &mut World) {
    world.step();
    for (group, writers) in world.writers() {
        let one = writers.len() < 2 || switches(world, group);
        assert!(one, "{writers:?} of shard {group} take writes at {}", world.now);
    }
}

fn run(world: &mut World, seconds: u64) {
    (0..seconds * 4).for_each(|_| step(world));
}

/// Steps until `done`; answers how many seconds it took.
fn until(world: &mut World, seconds: u64, what: &str, done: impl Fn(&World) -> bool) -> u64 {
    let begin = world.now;
    while !done(world) {
        assert!(
            world.now - begin < seconds * 1_000,
            "{what}: not within {seconds} s; waiting {:#?}",
            world.leader.last.waiting
        );
        step(world);
    }
    (world.now - begin) / 1_000
}

fn formed(shards: usize, replicas: i32, hosts: usize) -> (World, ResourceId) {
    let mut world = ready(hosts, 8);
    let id = world.create(0, shards, replicas);
    world.settles(120);
    run(&mut world, 10);
    (world, id)
}

fn primaries(world: &World, id: ResourceId) -> Vec<InstanceId> {
    let status = world.status(id);
    status.shards.iter().map(|s| s.primary_instance_id.clone().unwrap().parse().unwrap()).collect()
}

fn replicas(world: &World, id: ResourceId, shard: usize) -> Vec<InstanceId> {
    let status = world.status(id);
    status.shards[shard].replica_instance_ids.iter().map(|i| i.parse().unwrap()).collect()
}

fn takeovers(world: &World) -> Vec<(InstanceId, Vec<Proof>)> {
    let decided = world.leader.decided.iter().filter_map(|(_, decision)| {
        let Decision::Takeover { heir, proofs, .. } = decision else { return None };
        Some((*heir, proofs.iter().map(|proven| proven.proof).collect()))
    });
    decided.collect()
}

fn serves(world: &World, id: ResourceId) -> bool {
    let groups = world.leader.state.resources[&id].cluster_spec().unwrap().groups();
    let writers = world.writers();
    groups.iter().all(|group| writers.get(&group.id).is_some_and(|w| w.len() == 1))
}

fn offset(world: &World, instance: InstanceId) -> u64 {
    world.mesh.nodes.values().find(|node| node.instance == instance).unwrap().offset
}

/// Everybody is there again, nobody is fenced, no operation runs, and epochs are unique.
fn healed(world: &mut World, id: ResourceId) {
    until(world, 600, "healed", |w| {
        let instances = || w.leader.state.instances_of(ClusterId::from(id)).filter(|i| i.wanted());
        let settled = w.leader.last.is_empty() && w.status(id).cluster_state.as_deref() == Some("ok");
        settled && instances().all(|i| i.fence.is_none())
    });
    world.settles(300);
    if world.hosts.iter().all(|host| host.up) {
        world.assert_whole(id);
    }
    let mut epochs: Vec<u64> =
        world.nodes_of(id).iter().filter(|n| n.up && n.is_slot_master()).map(|n| n.epoch).collect();
    epochs.sort_unstable();
    epochs.dedup();
    assert_eq!(epochs.len(), world.status(id).shards.len(), "two primaries with one epoch");
    let running = |o: &&shardplane_model::state::Operation| o.state == OperationState::Running;
    assert_eq!(world.leader.state.operations.values().filter(running).count(), 0);
}

fn events(world: &World, reason: &str) -> usize {
    world.leader.state.events.values().filter(|event| event.reason == reason).count()
}

#[test]
fn val_3_two_of_three_primaries_die_at_once_on_hosts_that_live() {
    let (mut world, id) = formed(3, 1, 3);
    let dead = &primaries(&world, id)[..2];
    let before: Vec<u64> = dead.iter().map(|instance| offset(&world, *instance)).collect();
    dead.iter().for_each(|instance| world.kill(*instance));
    let took = until(&mut world, 60, "serves again", |w| serves(w, id));
    assert!(took < 30, "took {took} s");
    assert!(!takeovers(&world).is_empty());
    assert!(
        takeovers(&world).iter().flat_map(|(_, proofs)| proofs).all(|p| matches!(p, Proof::Stopped { .. }))
    );
    assert_eq!(events(&world, "MajorityLost"), 1);
    let now = primaries(&world, id);
    for (shard, old) in dead.iter().enumerate() {
        assert_ne!(now[shard], *old, "an older copy serves");
        assert!(offset(&world, now[shard]) + 200 >= before[shard], "writes are gone");
    }
    healed(&mut world, id);
    for old in dead {
        let node = world.mesh.nodes.values().find(|node| node.instance == *old).unwrap();
        assert!(node.primary.is_some() && node.link_up, "{old} returned as a replica");
    }
    let done = world.leader.state.operations.values().find(|o| o.kind == OperationKind::Takeover).unwrap();
    assert_eq!(done.state, OperationState::Succeeded);
    assert!(done.notes.iter().any(|note| note.contains("its host has stopped it")), "{:?}", done.notes);
}

/// A host with two of three primaries is lost before anything could be moved.
#[test]
fn val_2_the_host_of_two_primaries_dies() {
    let (mut world, id) = formed(3, 1, 3);
    let first = primaries(&world, id);
    let host = world.host_of(first[0]);
    let heir = (1..3).flat_map(|s| replicas(&world, id, s)).find(|r| world.host_of(*r) == host).unwrap();
    world.take_over(heir);
    world.run(1);
    world.power_off(host);
    let took = until(&mut world, 180, "serves again", |w| serves(w, id));
    assert!((35..120).contains(&took), "took {took} s");
    let (_, proofs) = takeovers(&world).remove(0);
    assert!(proofs.iter().all(|proof| matches!(proof, Proof::LeaseExpired { .. })), "{proofs:?}");
    world.power_on(host);
    healed(&mut world, id);
}

#[test]
fn single_shard_whose_primarys_host_is_lost() {
    for count in [1, 2] {
        let (mut world, id) = formed(1, count, 4);
        let old = primaries(&world, id)[0];
        let host = world.host_of(old);
        world.power_off(host);
        let took = until(&mut world, 120, "serves again", |w| serves(w, id));
        // The replica notices the silence after 60 s, and is believed 15 s later.
        assert!((75..95).contains(&took), "took {took} s with {count} replicas");
        assert_eq!(takeovers(&world).len(), 1);
        healed(&mut world, id);
        world.power_on(host);
        healed(&mut world, id);
    }
}

/// How a host falls silent.
type Silence = fn(&mut World, usize);

/// A process that dies closes its connections; a host without power, that stands still or is parted says nothing.
#[test]
fn replica_notices_a_dead_process_at_once_and_a_silent_host_late() {
    let silences: [(&str, Silence); 3] = [
        ("without power", |w, host| w.power_off(host)),
        ("stands still", |w, host| w.hosts[host].frozen = true),
        ("parted", |w, host| w.hosts[host].peers_cut = true),
    ];
    let linked = |w: &World, id| w.nodes_of(id).iter().any(|n| n.primary.is_some() && n.link_up);
    for (name, silence) in silences {
        let (mut world, id) = formed(1, 1, 2);
        let host = world.host_of(primaries(&world, id)[0]);
        silence(&mut world, host);
        let took = until(&mut world, 70, "the link drops", |w| !linked(w, id));
        assert!((59..63).contains(&took), "{name}: {took} s");
    }
    let (mut world, id) = formed(1, 1, 2);
    let old = primaries(&world, id)[0];
    world.mesh.nodes.values_mut().find(|n| n.instance == old).unwrap().crash();
    world.step();
    assert!(!linked(&world, id));
}

/// The host is there again before it is replaced: its primary becomes a replica.
#[test]
fn single_shard_old_primary_returns_as_a_replica() {
    let (mut world, id) = formed(1, 1, 2);
    let old = primaries(&world, id)[0];
    let host = world.host_of(old);
    world.power_off(host);
    until(&mut world, 120, "serves again", |w| serves(w, id));
    let heir = primaries(&world, id)[0];
    world.power_on(host);
    healed(&mut world, id);
    assert_eq!(primaries(&world, id)[0], heir);
    let nodes = world.nodes_of(id);
    assert!(nodes.iter().any(|node| node.instance != heir && node.primary.is_some() && node.link_up));
}

/// Clients on the old primary's side go on writing: until its port is cut, which is before anybody is promoted.
#[test]
fn partition_of_a_single_shards_primary() {
    for seed_seconds in [0, 1, 3] {
        let (mut world, id) = formed(1, 1, 3);
        run(&mut world, seed_seconds);
        let old = primaries(&world, id)[0];
        let host = world.host_of(old);
        (world.hosts[host].control_cut, world.hosts[host].peers_cut) = (true, true);
        run(&mut world, 20);
        let node = |w: &World| w.mesh.nodes.values().find(|n| n.instance == old).unwrap().clone();
        assert!(!node(&world).cut, "its lease goes on");
        until(&mut world, 60, "the port is cut", |w| node(w).cut);
        assert!(takeovers(&world).is_empty(), "promoted before the cut");
        until(&mut world, 60, "serves again", |w| serves(w, id) && !takeovers(w).is_empty());
        assert!(node(&world).up, "the machine lives on");
        (world.hosts[host].control_cut, world.hosts[host].peers_cut) = (false, false);
        healed(&mut world, id);
    }
}

#[test]
fn coordinators_outage_alone_cuts_nobody() {
    let (mut world, id) = formed(3, 1, 3);
    let single = world.create(1, 1, 2);
    world.settles(120);
    world.change_leader(600_000);
    for _ in 0..600 * 4 {
        step(&mut world);
        assert!(world.mesh.nodes.values().all(|node| !node.cut && node.up));
    }
    assert!(serves(&world, id) && serves(&world, single));
    healed(&mut world, id);
    assert!(takeovers(&world).is_empty());
}

/// Without the coordinator a primary that lacks a copy is cut; with the coordinator it serves again.
#[test]
fn coordinators_outage_and_a_lost_replica_cut_the_primary_until_it_is_back() {
    let (mut world, id) = formed(1, 1, 2);
    let old = primaries(&world, id)[0];
    let replica = replicas(&world, id, 0)[0];
    world.change_leader(120_000);
    let host = world.host_of(replica);
    world.power_off(host);
    run(&mut world, 60);
    assert!(!serves(&world, id), "nobody knows whether the replica was promoted");
    until(&mut world, 90, "the coordinator is back", |w| serves(w, id));
    assert_eq!(primaries(&world, id)[0], old);
    assert!(takeovers(&world).is_empty());
}

#[test]
fn lagging_replica_is_not_promoted_when_a_better_one_is_known() {
    for lagging in 0..2 {
        let (mut world, id) = formed(1, 2, 3);
        let (old, others) = (primaries(&world, id)[0], replicas(&world, id, 0));
        let node = world.mesh.nodes.values_mut().find(|node| node.instance == others[lagging]).unwrap();
        node.lag = 5_000;
        run(&mut world, 20);
        let host = world.host_of(old);
        world.power_off(host);
        until(&mut world, 120, "serves again", |w| serves(w, id));
        assert_eq!(takeovers(&world)[0].0, others[1 - lagging]);
    }
}

/// Nothing is heard of the better replica for a moment when the primary dies: it is waited for, but not for ever.
#[test]
fn better_replica_that_comes_back_soon_is_waited_for() {
    for back in [true, false] {
        let (mut world, id) = formed(1, 2, 3);
        let (old, others) = (primaries(&world, id)[0], replicas(&world, id, 0));
        let node = world.mesh.nodes.values_mut().find(|node| node.instance == others[0]).unwrap();
        node.lag = 5_000;
        run(&mut world, 20);
        let host = world.host_of(others[1]);
        world.hosts[host].mute.insert(others[1]);
        run(&mut world, 2);
        world.kill(old);
        world.fail(old);
        run(&mut world, 40);
        assert!(takeovers(&world).is_empty(), "the lagging one is promoted");
        let waiting = world.leader.last.waiting.values().flatten().cloned().collect::<Vec<_>>().join("; ");
        assert!(waiting.contains("may have more"), "{waiting}");
        if back {
            world.hosts[host].mute.remove(&others[1]);
        }
        until(&mut world, 120, "serves again", |w| serves(w, id));
        assert_eq!(takeovers(&world)[0].0, others[usize::from(back)]);
    }
}

#[test]
fn leader_changes_at_any_moment() {
    for at in (0..80).step_by(4) {
        let (mut world, id) = formed(1, 1, 3);
        let host = world.host_of(primaries(&world, id)[0]);
        world.power_off(host);
        run(&mut world, at);
        world.change_leader(2_000);
        until(&mut world, 240, "serves again", |w| serves(w, id));
        world.power_on(host);
        healed(&mut world, id);
    }
    for at in (0..30).step_by(2) {
        let (mut world, id) = formed(3, 1, 3);
        let dead = primaries(&world, id);
        world.kill(dead[0]);
        world.kill(dead[2]);
        run(&mut world, at);
        world.change_leader(2_000);
        until(&mut world, 240, "serves again", |w| serves(w, id));
        healed(&mut world, id);
    }
}

/// The host is heard, but the process on it does not end.
#[test]
fn without_proof_nobody_is_promoted_and_people_are_told() {
    let (mut world, id) = formed(1, 1, 3);
    let old = primaries(&world, id)[0];
    world.sticks(old);
    world.fail(old);
    run(&mut world, 1_800);
    assert!(takeovers(&world).is_empty());
    assert!(!serves(&world, id));
    let status = world.status(id);
    let condition = status.conditions.iter().find(|c| c.r#type == "CanElect").unwrap();
    assert_eq!(condition.status, "False");
    for words in ["waits for proof", &old.to_string(), "power the host off"] {
        assert!(condition.message.contains(words), "{words}: {}", condition.message);
    }
    assert_eq!((events(&world, "WaitsForProof"), events(&world, "Fenced")), (1, 1));
    // Power off is what it says.
    let host = world.host_of(old);
    world.power_off(host);
    until(&mut world, 120, "serves again", |w| serves(w, id));
}

/// A lease of an hour; the operator knows that the host is off.
#[test]
fn operators_word_is_a_proof_when_a_replica_lives() {
    let (mut world, id) = formed(1, 1, 3);
    let long = Settings { lease: Millis::seconds(3_600), ..settings() };
    world.leader.apply(world.now, vec![Command::Configure(long)]).remove(0).unwrap();
    run(&mut world, 10);
    let host = world.host_of(primaries(&world, id)[0]);
    world.power_off(host);
    run(&mut world, 300);
    assert!(takeovers(&world).is_empty());
    let forgotten = world.hosts[host].id;
    let forget = vec![Command::ForgetHost(forgotten)];
    world.leader.apply(world.now, forget).remove(0).unwrap();
    until(&mut world, 60, "serves again", |w| serves(w, id));
    assert!(takeovers(&world)[0].1.contains(&Proof::HostRetired));
    until(&mut world, 120, "the host is forgotten", |w| !w.leader.state.hosts.contains_key(&forgotten));
    healed(&mut world, id);
}

#[test]
fn operators_word_is_refused_when_no_replica_lives() {
    let (mut world, id) = formed(1, 1, 2);
    let (old, replica) = (primaries(&world, id)[0], replicas(&world, id, 0)[0]);
    let hosts = [world.host_of(old), world.host_of(replica)];
    hosts.iter().for_each(|host| world.power_off(*host));
    run(&mut world, 60);
    let forget = vec![Command::ForgetHost(world.hosts[hosts[0]].id)];
    let answer = world.leader.apply(world.now, forget).remove(0);
    assert!(answer.unwrap_err().to_string().contains("only copy"));
}

/// It follows, and the primary's host was lost before anything reached it.
#[test]
fn operators_word_is_refused_when_the_replica_never_copied_anything() {
    let (mut world, id) = formed(1, 1, 2);
    let (old, replica) = (primaries(&world, id)[0], replicas(&world, id, 0)[0]);
    let lost = world.host_of(old);
    world.power_off(lost);
    let node = world.mesh.nodes.values_mut().find(|node| node.instance == replica).unwrap();
    (node.offset, node.keys) = (0, Keys::default());
    run(&mut world, 300);
    assert!(takeovers(&world).is_empty());
    let forget = vec![Command::ForgetHost(world.hosts[lost].id)];
    let answer = world.leader.apply(world.now, forget).remove(0);
    assert!(answer.unwrap_err().to_string().contains("only copy"));
    world.power_on(lost);
    healed(&mut world, id);
    assert_eq!(primaries(&world, id)[0], old);
}

/// Nobody is there to cut the port of the old primary: its guest holds the writes itself. In every step one takes writes at most.
#[test]
fn old_primary_whose_agent_is_dead_takes_no_writes_when_its_lease_is_over() {
    let (mut world, id) = formed(1, 1, 3);
    let old = primaries(&world, id)[0];
    let host = world.host_of(old);
    world.hosts[host].agent_dies();
    world.hosts[host].agent.down_until = world.now + 600_000;
    run(&mut world, 60);
    let takes = |w: &World| w.writers().values().flatten().any(|one| *one == old);
    assert!(takes(&world), "its copies follow: nobody can have been promoted");
    (world.hosts[host].control_cut, world.hosts[host].peers_cut) = (true, true);
    until(&mut world, 150, "another leads", |w| primaries(w, id)[0] != old && serves(w, id));
    run(&mut world, 60);
    assert!(!takes(&world));
    (world.hosts[host].control_cut, world.hosts[host].peers_cut) = (false, false);
    world.hosts[host].agent.down_until = world.now;
    healed(&mut world, id);
}

/// The old primary's host is heard again after the fence and before the proof.
#[test]
fn primary_that_is_back_in_time_goes_on() {
    let (mut world, id) = formed(1, 1, 3);
    let old = primaries(&world, id)[0];
    let host = world.host_of(old);
    (world.hosts[host].control_cut, world.hosts[host].peers_cut) = (true, true);
    until(&mut world, 40, "fenced", |w| events(w, "Fenced") == 1);
    (world.hosts[host].control_cut, world.hosts[host].peers_cut) = (false, false);
    healed(&mut world, id);
    assert!(takeovers(&world).is_empty());
    assert_eq!(primaries(&world, id)[0], old);
    let ended = world.leader.state.operations.values().find(|o| o.kind == OperationKind::Takeover).unwrap();
    assert!(
        matches!(&ended.state, OperationState::Failed { error } if error.contains("not needed")),
        "{ended:?}"
    );
}

/// It starts from its file and has no place in its primary's stream: what it lacks is not known, and an operator decides.
#[test]
fn restarted_replica_leads_only_when_its_primarys_host_is_given_up() {
    let (mut world, id) = formed(1, 1, 3);
    let (old, replica) = (primaries(&world, id)[0], replicas(&world, id, 0)[0]);
    let node = world.mesh.nodes.values_mut().find(|node| node.instance == old).unwrap();
    node.offset += 1;
    node.keys.set(1, 1, node.offset);
    run(&mut world, 5);
    let hosts = [old, replica].map(|instance| world.host_of(instance));
    hosts.iter().for_each(|host| world.power_off(*host));
    run(&mut world, 20);
    world.power_on(hosts[1]);
    run(&mut world, 300);
    assert!(takeovers(&world).is_empty());
    let waiting = world.leader.last.waiting.values().flatten().cloned().collect::<Vec<_>>().join("; ");
    assert!(waiting.contains("bring back the host of instance"), "{waiting}");
    let forget = vec![Command::ForgetHost(world.hosts[hosts[0]].id)];
    world.leader.apply(world.now, forget).remove(0).unwrap();
    until(&mut world, 120, "serves again", |w| serves(w, id));
    assert_eq!(takeovers(&world)[0].0, replica);
    healed(&mut world, id);
}

/// Both hosts come back: the one that was chosen leads, whether it had been promoted or not.
#[test]
fn chosen_heir_whose_host_is_lost_leads_when_it_is_back() {
    for promoted in [false, true] {
        let (mut world, id) = formed(1, 1, 3);
        let (old, heir) = (primaries(&world, id)[0], replicas(&world, id, 0)[0]);
        let hosts = [old, heir].map(|instance| world.host_of(instance));
        world.power_off(hosts[0]);
        until(&mut world, 120, "chosen", |w| !takeovers(w).is_empty());
        if promoted {
            let leads = |w: &World| w.mesh.nodes.values().any(|n| n.instance == heir && n.is_slot_master());
            until(&mut world, 10, "promoted", leads);
            // Nobody hears of it.
            world.hosts[hosts[1]].control_cut = true;
            run(&mut world, 5);
            world.hosts[hosts[1]].control_cut = false;
        }
        world.power_off(hosts[1]);
        run(&mut world, 60);
        hosts.iter().for_each(|host| world.power_on(*host));
        until(&mut world, 600, "serves again", |w| serves(w, id));
        assert_eq!(primaries(&world, id)[0], heir);
        healed(&mut world, id);
    }
}

/// It was cut off, and the last it did was to end a move of slots: its epoch is its heir's. It follows all the same.
#[test]
fn one_that_raised_its_epoch_unseen_follows_its_heir() {
    for more in [1, 2] {
        // Nobody else has room for it.
        let mut world = ready(2, 1);
        let id = world.create(0, 1, 1);
        world.settles(120);
        run(&mut world, 10);
        let (old, heir) = (primaries(&world, id)[0], replicas(&world, id, 0)[0]);
        let host = world.host_of(old);
        (world.hosts[host].control_cut, world.hosts[host].peers_cut) = (true, true);
        step(&mut world);
        let node = world.mesh.nodes.values_mut().find(|node| node.instance == old).unwrap();
        node.epoch += more;
        node.current_epoch = node.epoch;
        until(&mut world, 120, "taken over", |w| !takeovers(w).is_empty());
        until(&mut world, 30, "serves again", |w| serves(w, id));
        run(&mut world, 3);
        assert_eq!(primaries(&world, id)[0], heir);
        (world.hosts[host].control_cut, world.hosts[host].peers_cut) = (false, false);
        until(&mut world, 120, "unfenced", |w| w.leader.state.instances[&old].fence.is_none());
        for _ in 0..240 {
            step(&mut world);
            let node = world.mesh.nodes.values().find(|node| node.instance == old).unwrap();
            assert!(!node.up || node.primary.is_some(), "it leads again");
        }
        assert_eq!(primaries(&world, id)[0], heir);
        assert!(world.leader.state.instances[&old].succeeded_by.is_none(), "it says that it follows");
        healed(&mut world, id);
    }
}

/// The last one that led has taken writes that others confirmed; one that still follows its predecessor has none of them.
#[test]
fn who_follows_an_older_primary_waits_for_the_one_that_led_last() {
    let mut world = ready(3, 1);
    let id = world.create(0, 1, 2);
    world.settles(120);
    run(&mut world, 10);
    let old = primaries(&world, id)[0];
    let mut hosts: Vec<usize> = vec![world.host_of(old)];
    hosts.extend(replicas(&world, id, 0).into_iter().map(|instance| world.host_of(instance)));
    // The third hears nobody but the coordinator.
    world.hosts[hosts[2]].peers_cut = true;
    world.power_off(hosts[0]);
    until(&mut world, 180, "taken over", |w| !takeovers(w).is_empty());
    until(&mut world, 30, "serves again", |w| serves(w, id));
    let (led, behind) = (takeovers(&world)[0].0, replicas(&world, id, 0));
    run(&mut world, 5);
    let lost = world.host_of(led);
    world.power_off(lost);
    run(&mut world, 300);
    assert_eq!(takeovers(&world).len(), 1, "{behind:?} know nothing of the last writes");
    let waiting = world.leader.last.waiting.values().flatten().cloned().collect::<Vec<_>>().join("; ");
    assert!(waiting.contains(&format!("bring back the host of instance {led}")), "{waiting}");
    world.power_on(lost);
    until(&mut world, 180, "serves again", |w| serves(w, id));
    assert_eq!(primaries(&world, id)[0], led);
    world.hosts[hosts[2]].peers_cut = false;
    world.power_on(hosts[0]);
    healed(&mut world, id);
}
