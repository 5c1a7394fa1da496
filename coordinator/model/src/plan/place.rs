//! Choosing hosts. In: seats to fill. Out: reservations, all or none, or why not. Called for creates, added replicas,
//! replacements and moves alike, so that every verb follows the same policy.

use shardplane_proto::ids::{Generation, HostId, InstanceId, ResourceId};

use super::{
    NewIds,
    draft::{Draft, Seat},
    score::{Candidate, Score, score},
};
use crate::{
    command::Reservation,
    engine::{Class, ClusterView, EngineKind, GroupSpec, Member, Needs},
    net::{Cidr, mac_of},
    resource::Spec,
    state::{Footprint, Image, Instance, Intent, Parameters, State},
};

/// A seat to fill.
#[derive(Debug, Clone)]
pub struct Vacancy {
    /// The group that lacks a member.
    pub group: GroupSpec,
    /// Whether the member starts its group as primary, or becomes its primary when it takes another's place.
    pub primary: bool,
    /// Whose place it takes later, when it is in sync.
    pub replaces: Option<InstanceId>,
    /// Hosts that will not do, whatever their score.
    pub not_on: Vec<HostId>,
}

/// What an instance of the cluster takes, and the image it boots.
#[derive(Debug, Clone)]
pub struct Shape {
    /// From its host.
    pub footprint: Footprint,
    /// Virtual processors.
    pub vcpus: u32,
    /// Percent of each.
    pub vcpu_share: u32,
    /// Engine version.
    pub version: String,
}

/// The shape of a cluster's instances of this class; none when its offers left the catalogue.
pub fn shape(state: &State, view: &ClusterView<'_>, class: Class) -> Option<Shape> {
    let version = view.spec.version().to_owned();
    // An offer may leave the catalogue or change; a cluster keeps the shape it was made with.
    let alike = |member: &&Member<'_>| view.class_of(member.instance.group) == class;
    if let Some(known) = view.wanted().find(alike).map(|member| member.instance) {
        let (footprint, vcpus, vcpu_share) = (known.footprint, known.vcpus, known.vcpu_share);
        return Some(Shape { footprint, vcpus, vcpu_share, version });
    }
    match view.spec.needs(class) {
        Needs::Offers { vm, volume, volume_gib } => {
            let vm = state.settings.vm_offers.get(&vm)?;
            let volume = state.settings.volume_offers.get(&volume)?;
            let footprint = Footprint {
                vcpu_percent: u64::from(vm.vcpus) * u64::from(vm.vcpu_share),
                memory_mib: vm.memory_mib,
                disk_gib: u64::from(volume_gib),
                iops: u64::from(volume.iops),
            };
            Some(Shape { footprint, vcpus: vm.vcpus, vcpu_share: vm.vcpu_share, version })
        }
        Needs::Fixed { footprint, vcpus, vcpu_share } => {
            Some(Shape { footprint, vcpus, vcpu_share, version })
        }
    }
}

/// Fills all vacancies or none, in their order.
///
/// # Errors
/// What is missing, for people: capacity, an image, an address.
pub fn fill(
    state: &State,
    view: &ClusterView<'_>,
    draft: &mut Draft<'_>,
    seats: &mut Vec<Seat>,
    vacancies: &[Vacancy],
    ids: NewIds<'_>,
) -> Result<Vec<Reservation>, String> {
    if !draft.missing().is_empty() {
        return Err(format!("this leader has not heard of host {} yet", draft.missing().join(", host ")));
    }
    let mut trial = draft.clone();
    let mut taken = seats.clone();
    let mut reservations = Vec::new();
    for vacancy in vacancies {
        let class = vacancy.group.class;
        let shape = shape(state, view, class).ok_or("its offers are no longer in the catalogue")?;
        let best = choose(view, &trial, &taken, vacancy, &shape).ok_or_else(|| {
            let needed = vacancies.len();
            let (placed, why) = (reservations.len(), why_nowhere(view, &trial, &taken, vacancy, &shape));
            let instances = if needed == 1 { "instance" } else { "instances" };
            format!("needs room for {needed} {instances}, found it for {placed}: {why}")
        })?;
        let Network { subnet, vpc, vni, cidr } = network(state, vacancy)?;
        let ipv4 = trial.take_address(subnet, cidr).ok_or_else(|| {
            format!(
                "subnet {subnet} ({cidr}) has no free address; released ones rest for two minutes, those on lost hosts until the host is back or forgotten"
            )
        })?;
        trial.promise(best.host, shape.footprint);
        taken.push(Seat { group: vacancy.group.id, host: best.host, primary: vacancy.primary, class });
        let instance = Instance {
            id: InstanceId::from_u128(ids()),
            cluster: view.resource.id.into(),
            group: vacancy.group.id,
            host: best.host,
            subnet,
            vpc,
            ipv4,
            mac: mac_of(vni, ipv4),
            footprint: shape.footprint,
            vcpus: shape.vcpus,
            vcpu_share: shape.vcpu_share,
            image_digest: digest(view, &trial, best.host, &shape).unwrap_or_default(),
            first_primary: vacancy.primary && vacancy.replaces.is_none(),
            intent: Intent::Wanted,
            replaces: vacancy.replaces,
            created: view.now,
            fact: None,
            moved: None,
            // Which ones those are is for the log to say.
            parameters: Parameters::default(),
            config_generation: Generation::default(),
            restart_generation: Generation::default(),
            fence: None,
            succeeded_by: None,
        };
        reservations.push(Reservation { instance, own_group_on_host: best.own_group_on_host });
    }
    *draft = trial;
    *seats = taken;
    Ok(reservations)
}

/// The newest image of an engine that runs this version.
pub(crate) fn image_for<'i>(engine: EngineKind, images: &'i [Image], version: &str) -> Option<&'i Image> {
    let numbers =
        |image: &Image| image.version.split('.').map(|part| part.parse().unwrap_or(0)).collect::<Vec<u32>>();
    images
        .iter()
        .filter(|image| image.engine == engine.name() && engine.runs(&image.version, version))
        .max_by_key(|image| numbers(image))
}

fn digest(view: &ClusterView<'_>, draft: &Draft<'_>, host: HostId, shape: &Shape) -> Option<String> {
    let images = &draft.host(host)?.facts.images;
    image_for(view.cluster.engine, images, &shape.version).map(|image| image.digest.clone())
}

/// The best open host with room and the image. One that could not run a member of the cluster lately is taken only when no other will
/// do: whatever failed there would most likely fail again.
pub fn choose(
    view: &ClusterView<'_>,
    draft: &Draft<'_>,
    seats: &[Seat],
    vacancy: &Vacancy,
    shape: &Shape,
) -> Option<Score> {
    let candidate = Candidate {
        group: vacancy.group.id,
        primary: vacancy.primary,
        footprint: shape.footprint,
        groups: view.data_groups().count(),
        class: vacancy.group.class,
    };
    let fit = draft
        .open_hosts()
        .filter(|host| !vacancy.not_on.contains(&host.id))
        .filter(|host| may_share(vacancy, seats, host.id))
        .filter(|host| draft.short(host, shape.footprint).is_empty())
        .filter(|host| digest(view, draft, host.id, shape).is_some())
        .map(|host| (view.cluster.passes_over(host.id, view.now), score(draft, seats, host, candidate)));
    fit.min().map(|(_, score)| score)
}

/// Voters of one quorum never share a host: its loss would be two votes.
fn may_share(vacancy: &Vacancy, seats: &[Seat], host: HostId) -> bool {
    match vacancy.group.class {
        Class::Data => true,
        Class::Quorum => !seats.iter().any(|seat| seat.group == vacancy.group.id && seat.host == host),
    }
}

fn why_nowhere(
    view: &ClusterView<'_>,
    draft: &Draft<'_>,
    seats: &[Seat],
    vacancy: &Vacancy,
    shape: &Shape,
) -> String {
    let reasons: Vec<String> = draft
        .open_hosts()
        .map(|host| {
            let short = draft.short(host, shape.footprint);
            let why = if vacancy.not_on.contains(&host.id) {
                "is excluded".to_owned()
            } else if !may_share(vacancy, seats, host.id) {
                "has another voter of its quorum".to_owned()
            } else if !short.is_empty() {
                format!("is short of {}", short.join(", "))
            } else if digest(view, draft, host.id, shape).is_none() {
                format!("has no image of version {}", shape.version)
            } else {
                "fits".to_owned()
            };
            format!("host {} {why}", host.facts.name)
        })
        .chain(draft.cordoned().map(|(host, cordon)| format!("host {} is {cordon}", host.facts.name)))
        .take(8)
        .collect();
    if reasons.is_empty() { "no host is ready".to_owned() } else { reasons.join(", ") }
}

/// What an instance needs to know of its subnet.
struct Network {
    subnet: ResourceId,
    vpc: ResourceId,
    vni: u32,
    cidr: Cidr,
}

fn network(state: &State, vacancy: &Vacancy) -> Result<Network, String> {
    let subnet = vacancy.group.subnet;
    let vni = state.vnis.get(&subnet).copied();
    match (state.resources.get(&subnet).map(|resource| &resource.spec), vni) {
        (Some(Spec::VpcSubnet { vpc, cidr }), Some(vni)) => {
            Ok(Network { subnet, vpc: *vpc, vni, cidr: *cidr })
        }
        (_, _) => Err(format!("subnet {subnet} is gone")),
    }
}
