//! One history: a world, faults and requests for a while, then healing. In: a seed. Out: what was simulated, or a panic; the same seed
//! gives the same history.

use std::collections::BTreeMap;

use shardplane_model::{state::OperationKind, view::spread::most_primaries_on_a_host};
use shardplane_proto::ids::ResourceId;

use super::{
    check,
    clients::Counts,
    faults::{Fault, Faults},
    rng::Rng,
    truth,
    users::{Ask, Users},
    watch::Watch,
    world::{BEGIN, STEP, World},
};

/// How a history shall be.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    pub seed: u64,
    /// Simulated minutes before everything heals.
    pub minutes: u64,
    /// Hosts in the beginning; by the seed when not given.
    pub hosts: Option<usize>,
    /// Print every line as it comes.
    pub trace: bool,
}

/// Of a whole history.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    pub millis: u64,
    pub entries: u64,
    pub faults: BTreeMap<Fault, u64>,
    pub asks: BTreeMap<Ask, (u64, u64)>,
    pub clients: Counts,
    pub hash: u64,
}

/// How long the healed world may take until nothing is left to do, in seconds.
const HEALS: u64 = 1_200;

pub struct Story {
    pub world: World,
    options: Options,
    faults: Faults,
    users: Users,
}

impl Story {
    pub fn new(options: Options) -> Self {
        let mut world = World::new(options.seed);
        world.leader.trace.prints = options.trace;
        world.leader.reports_every = STEP * 2;
        world.views_every = 40;
        let watched = Rng::new(world.rng.draw());
        world.watch = Some(Watch::new(watched));
        Self { world, options, faults: Faults::default(), users: Users::default() }
    }

    /// Lives it.
    pub fn live(&mut self) -> Summary {
        self.begin();
        let end = self.world.now + self.options.minutes * 60_000;
        while self.world.now < end {
            let pause = 1 + self.world.rng.below(40);
            self.go(pause * 1_000);
            self.event();
        }
        self.heal();
        self.summary()
    }

    pub fn summary(&self) -> Summary {
        Summary {
            millis: self.world.now - BEGIN,
            entries: self.world.leader.index,
            faults: self.faults.counts.clone(),
            asks: self.users.counts.clone(),
            clients: self.world.watch.as_ref().map(|watch| watch.clients.counts).unwrap_or_default(),
            hash: self.world.leader.trace.hash(),
        }
    }

    fn begin(&mut self) {
        let world = &mut self.world;
        let hosts = self.options.hosts.unwrap_or(3 + usize::try_from(world.rng.below(4)).unwrap());
        for _ in 0..hosts {
            let (rack, room) = (world.rng.below(3), 5 + world.rng.below(12));
            let host = world.add_host(&format!("r{rack}"), room);
            world.hosts[host].wire.rng = Rng::new(world.rng.draw());
        }
        self.users.begin(world);
        for _ in 0..=world.rng.below(2) {
            self.users.ask(world, Ask::Create);
        }
        // Now and then the first fault comes while the clusters are made.
        let quiet = world.rng.below(60_000);
        self.go(quiet);
    }

    fn go(&mut self, millis: u64) {
        for _ in 0..millis / STEP {
            self.world.step();
            self.faults.end_due(&mut self.world);
        }
    }

    fn event(&mut self) {
        let rng = &mut self.world.rng;
        if rng.below(10) < 6 {
            let fault = Fault::ALL[usize::try_from(rng.below(Fault::ALL.len() as u64)).unwrap()];
            // From two seconds to two minutes, short ones more often.
            let lasts = (2_000 << rng.below(6)) + rng.below(60_000);
            self.faults.begin(&mut self.world, fault, lasts);
            if fault == Fault::LedgerLost
                && let Some(watch) = &mut self.world.watch
            {
                self.world.hosts.iter().filter(|h| h.agent.accepted.is_none()).for_each(|h| {
                    watch.safety.ledger_lost(h.id);
                });
            }
        } else {
            let ask = Ask::ALL[usize::try_from(rng.below(Ask::ALL.len() as u64)).unwrap()];
            self.users.ask(&mut self.world, ask);
        }
    }

    /// Faults stop, everything returns, there is room: within a bound nothing is left to do and everything is as it should be.
    fn heal(&mut self) {
        let world = &mut self.world;
        world.leader.trace.line(world.now, "everything heals".to_owned());
        self.faults.end_all(world);
        for _ in 0..6 {
            world.add_host("", 60);
        }
        for at in 0..world.hosts.len() {
            let known = world.leader.state.hosts.contains_key(&world.hosts[at].id);
            if known && world.rng.below(2) == 0 {
                world.uncordon(at);
            }
        }
        let began = world.leader.stamp(world.now);
        world.run(15);
        self.users.put_failed_again(world);
        world.run(5);
        world.settles(HEALS);
        self.users.put_failed_again(world);
        world.run(2);
        world.settles(HEALS);
        let moves = [OperationKind::Move, OperationKind::Switchover];
        let state = &world.leader.state;
        let moves =
            state.operations.values().filter(|o| o.created >= began && moves.contains(&o.kind)).count();
        let members = state.instances.len();
        assert!(moves <= 2 * members, "{moves} moves for {members} members: that is ping-pong");
        let (index, decided) = (world.leader.index, world.leader.decided.len());
        world.run(20);
        assert!(
            world.leader.decided.len() == decided,
            "decided in a healthy world: {:#?}",
            &world.leader.decided[decided..]
        );
        assert!(world.leader.index - index <= 1, "entries are logged in a healthy world");
        self.all_is_well();
    }

    fn all_is_well(&self) {
        let world = &self.world;
        for at in 0..world.hosts.len() {
            let Some(host) = world.leader.state.hosts.get(&world.hosts[at].id) else { continue };
            if host.drain().is_some() {
                let left = world.left(at);
                assert!(left.iter().all(|left| left.why.contains("no other copy")), "{left:#?}");
                assert!(world.drained(at) == left.is_empty(), "host {at} is empty and nobody says so");
            }
        }
        let members = truth::members(&world.leader.state, &world.mesh);
        for (cluster, members) in &members {
            let id = ResourceId::from(*cluster);
            if !world.leader.state.resources.contains_key(&id) {
                continue;
            }
            world.assert_whole(id);
            let status = world.status(id);
            let spec = check::valkey(world, id).spec.unwrap();
            assert!(status.anti_affinity_ok, "{}", status.anti_affinity_message);
            let spread = status.primary_spread_ok || spec.replicas_per_shard == Some(0);
            assert!(
                spread,
                "{} (at most {} a host)",
                status.primary_spread_message,
                most_primaries_on_a_host(spec.shards.len())
            );
            let table = truth::table(members.iter().map(|(_, node)| *node));
            let runs: Vec<_> = table.runs().collect();
            let even = runs.iter().map(|(start, end, _)| end - start + 1).collect::<Vec<_>>();
            let (least, most) = (even.iter().min().copied(), even.iter().max().copied());
            assert!(
                runs.len() == spec.shards.len() && most.unwrap_or(0) - least.unwrap_or(0) <= 1,
                "slots are not contiguous and even: {runs:x?}"
            );
            for (_, node) in members {
                assert!(node.migrating.is_empty() && node.importing.is_empty(), "open slots: {node:#?}");
                assert!(node.directives.unapplied().is_empty(), "directives wait: {:?}", node.directives);
                assert!(!node.cut && !node.held && !node.stands_down, "{:x} is kept back", node.id);
            }
            let missing =
                world.watch.as_ref().map(|watch| watch.clients.missing(*cluster, members, &world.mesh));
            assert_eq!(missing.unwrap_or_default(), Vec::<usize>::new(), "keys that are not there any more");
        }
    }
}
