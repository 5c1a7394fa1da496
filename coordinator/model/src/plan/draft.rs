//! What the planner has promised so far in one plan, on top of what the state says. In: state and observation. Out: free capacity
//! and addresses, so that two placements of one plan never promise the same thing. Persistent, so that a trial is a cheap clone.

use std::net::Ipv4Addr;

use imbl::{OrdMap, OrdSet};
use shardplane_proto::ids::{GroupId, HostId, ResourceId};

use crate::{
    engine::Class,
    net::Cidr,
    observed::{FRESH, Observed},
    state::{Cordon, Footprint, Host, Presence, State},
    time::Timestamp,
};

/// Where a member of the cluster being planned sits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seat {
    /// Its group.
    pub group: GroupId,
    /// Its host.
    pub host: HostId,
    /// Whether it is, or will be, a primary.
    pub primary: bool,
    /// What it is for.
    pub class: Class,
}

/// Free capacity and addresses.
#[derive(Debug, Clone)]
pub struct Draft<'a> {
    state: &'a State,
    /// Sorted.
    open: Vec<HostId>,
    missing: Vec<&'a str>,
    promised: OrdMap<HostId, Footprint>,
    taken: OrdSet<(ResourceId, Ipv4Addr)>,
    /// How many more copies of data may begin only to move a member.
    moves_left: usize,
}

/// That many members may be moved at once in an installation without hosts, and one more for every eight hosts: each move copies a
/// whole data set over the network that clients use, and a repair may need it meanwhile.
const MOVES_AT_ONCE: usize = 4;
const HOSTS_A_MOVE: usize = 8;

impl<'a> Draft<'a> {
    /// What is free now. Only hosts that are present, heard and not cordoned are open for new instances.
    pub fn new(state: &'a State, observed: &Observed, now: Timestamp) -> Self {
        let open = |host: &&Host| host.schedulable() && observed.hears(host.id, now);
        let mut promised: OrdMap<HostId, Footprint> = OrdMap::new();
        for instance in state.instances.values() {
            let sum = promised.entry(instance.host).or_default();
            *sum = sum.plus(instance.footprint);
        }
        // A new leader hears its hosts one after another; the first ones are not all there is.
        let gathering = now.since(observed.since) <= FRESH;
        let missing = |host: &&Host| gathering && host.schedulable() && !open(host);
        Self {
            state,
            missing: state.hosts.values().filter(missing).map(|host| host.facts.name.as_str()).collect(),
            open: state.hosts.values().filter(open).map(|host| host.id).collect(),
            promised,
            taken: state.instances.values().map(|i| (i.subnet, i.ipv4)).collect(),
            moves_left: {
                let hosts = state.hosts.values().filter(|host| host.presence == Presence::Present).count();
                let moving = state.instances.values().filter(|i| i.wanted() && i.replaces.is_some()).count();
                (MOVES_AT_ONCE + hosts / HOSTS_A_MOVE).saturating_sub(moving)
            },
        }
    }

    /// A draft in which every known host is open: to explain, not to place.
    pub fn of_all_hosts(state: &'a State) -> Self {
        let mut draft = Self::new(state, &Observed::default(), Timestamp::default());
        draft.open = state.hosts.keys().copied().collect();
        draft
    }

    /// The same, as if nothing could be placed on this host.
    pub fn without(mut self, host: HostId) -> Self {
        self.open.retain(|open| *open != host);
        self
    }

    /// A host by id.
    pub fn host(&self, id: HostId) -> Option<&'a Host> {
        self.state.hosts.get(&id)
    }

    /// Hosts that may get instances, by id.
    pub fn open_hosts(&self) -> impl Iterator<Item = &'a Host> {
        self.open.iter().filter_map(|id| self.state.hosts.get(id))
    }

    /// Hosts that would be open were they not cordoned, with their cordon.
    pub fn cordoned(&self) -> impl Iterator<Item = (&'a Host, &'a Cordon)> {
        let present = |host: &&Host| host.presence == Presence::Present;
        self.state.hosts.values().filter(present).filter_map(|host| Some((host, host.cordon.as_ref()?)))
    }

    /// Names of hosts that have not found a new leader yet, while they can be expected to.
    pub fn missing(&self) -> &[&'a str] {
        &self.missing
    }

    /// What is promised on a host.
    pub fn promised(&self, host: HostId) -> Footprint {
        self.promised.get(&host).copied().unwrap_or_default()
    }

    /// What is short on a host for `footprint`.
    pub fn short(&self, host: &Host, footprint: Footprint) -> Vec<&'static str> {
        self.promised(host.id).plus(footprint).exceeds(host.facts.capacity)
    }

    /// Takes `footprint` from a host.
    pub fn promise(&mut self, host: HostId, footprint: Footprint) {
        let sum = self.promised(host).plus(footprint);
        self.promised.insert(host, sum);
    }

    /// Takes the lowest free address of a subnet.
    pub fn take_address(&mut self, subnet: ResourceId, cidr: Cidr) -> Option<Ipv4Addr> {
        let resting = self.state.resting.get(&subnet);
        let free = |address: &Ipv4Addr| {
            !self.taken.contains(&(subnet, *address))
                && resting.is_none_or(|rest| !rest.contains_key(address))
        };
        let address = cidr.usable().find(free)?;
        self.taken.insert((subnet, address));
        Some(address)
    }

    /// Whether another member may be moved now; a move that begins counts at once.
    pub fn may_move(&self) -> bool {
        self.moves_left > 0
    }

    /// A move begins.
    pub fn begin_move(&mut self) {
        self.moves_left = self.moves_left.saturating_sub(1);
    }

    /// Whether an open host has another name of this kind than `name`, for racks and zones.
    pub fn open_elsewhere(&self, of: fn(&Host) -> &str, name: &str) -> bool {
        self.open_hosts().any(|host| of(host) != name)
    }

    /// Steps from one host to another in the ring of ids.
    pub fn ring_distance(&self, from: HostId, to: HostId) -> usize {
        let position = |host: HostId| self.open.binary_search(&host).unwrap_or(0);
        let ring = self.open.len().max(1);
        (position(to) + ring - position(from) % ring) % ring
    }
}
