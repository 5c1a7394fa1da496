//! `ensure` makes right what is wrong, changes nothing that is right, and leaves alone what is not the agent's.

use std::fs::{self, File};

use anyhow::Result;
use shardplane_agent::network::{NetworkError, NetworkInventory, WantedError, WantedNetwork, name};
use shardplane_netns::{
    Host, Lab, able,
    machine::Guest,
    sh,
    spec::{Vpc, network},
};
use shardplane_proto::ids::InstanceId;

fn inside_vpc(host: &Host, vpc: &Vpc) -> Result<File> {
    host.open(&format!("vpc-{}", vpc.vpc))
}

#[test]
fn twice_is_as_good_as_once_and_a_restart_changes_nothing() -> Result<()> {
    if !able() {
        return Ok(());
    }
    let mut lab = Lab::new(1)?;
    let (vpc, other) = (Vpc::new(300, &[0, 0, 1, 2]), Vpc::new(301, &[0, 1]));
    let wanted = network(0, &[&vpc, &other]);
    let host = &mut lab.hosts[0];
    assert!(!host.ensure(&wanted)?.steps.is_empty());
    let before = host.inventory()?;
    assert_eq!(host.ensure(&wanted)?.steps, Vec::<String>::new());
    host.restart()?;
    assert_eq!(host.ensure(&wanted)?.steps, Vec::<String>::new());
    assert_eq!(host.inventory()?, before);
    // Two VPCs of a bridge and a tunnel each, and three ports.
    assert_eq!((before.links(), before.vpcs.len(), before.machines.len()), (7, 2, 3));
    Ok(())
}

#[test]
fn whatever_somebody_breaks_is_repaired() -> Result<()> {
    if !able() {
        return Ok(());
    }
    let lab = Lab::new(2)?;
    let vpc = Vpc::new(310, &[0, 0, 1]);
    for (number, host) in lab.hosts.iter().enumerate() {
        host.ensure(&network(number, &[&vpc]))?;
    }
    let guests: Vec<Guest> =
        vpc.machines.iter().map(|m| Guest::boot(&lab.hosts[m.host], m)).collect::<Result<_>>()?;
    let host = &lab.hosts[0];
    let right = host.inventory()?;
    let at = inside_vpc(host, &vpc)?;
    let (bridge, tunnel) = (name::bridge(vpc.subnet), name::vxlan(vpc.subnet));
    let (first, second) = (name::port(vpc.machines[0].instance), name::port(vpc.machines[1].instance));
    let (near, far) = (vpc.machines[1].mac, vpc.machines[2].mac);
    let breaks = [
        format!("bridge fdb replace {far} dev {tunnel} dst 172.31.0.99 self permanent"),
        format!("bridge fdb del {far} dev {tunnel} dst 172.31.0.2 self"),
        format!("bridge fdb append 00:00:00:00:00:00 dev {tunnel} dst 172.31.0.99 self permanent"),
        format!("bridge fdb del {far} dev {tunnel} master"),
        format!("bridge fdb replace {far} dev {first} master static"),
        format!("bridge fdb replace {near} dev {first} master static"),
        format!("bridge fdb replace {near} dev {second} master permanent"),
        format!("bridge fdb replace 02:ee:00:00:00:07 dev {tunnel} master static"),
        format!("bridge link set dev {tunnel} neigh_suppress off flood on learning on"),
        format!("bridge link set dev {first} learning on"),
        format!("ip neigh replace 10.20.0.13 lladdr 02:ee:00:00:00:01 dev {bridge} nud permanent"),
        format!("ip neigh replace 10.20.0.99 lladdr 02:ee:00:00:00:01 dev {bridge} nud permanent"),
        format!("ip neigh del 10.20.0.12 dev {bridge}"),
        format!("ip neigh replace 10.20.0.12 lladdr {near} dev {bridge} nud stale"),
        format!("ip addr flush dev {bridge}"),
        format!("ip addr add 10.20.0.77/24 dev {bridge}"),
        format!("ip link set {bridge} address 02:ee:00:00:00:03"),
        format!("ip link set {bridge} type bridge mcast_snooping 1"),
        format!("ip link set {bridge} down"),
        format!("ip link set {first} mtu 1300"),
        format!("ip link set {first} nomaster"),
        format!("ip link del {second}"),
        format!("ip link del {tunnel}"),
        format!("ip link del {bridge}"),
        "nft flush ruleset".to_owned(),
        "nft add table bridge shardplane_old".to_owned(),
        "sysctl -q -w net.ipv4.ip_forward=0".to_owned(),
    ];
    for broken in breaks {
        sh(&at, &broken)?;
        assert_ne!(host.inventory()?, right, "{broken} broke nothing");
        let changes = host.ensure(&network(0, &[&vpc]))?;
        assert!(!changes.steps.is_empty(), "{broken}");
        assert_eq!(host.ensure(&network(0, &[&vpc]))?.steps, Vec::<String>::new(), "after {broken}");
    }
    guests[0].reaches(&guests[2])
}

#[test]
fn what_a_killed_agent_left_half_made_is_finished_or_removed() -> Result<()> {
    if !able() {
        return Ok(());
    }
    let lab = Lab::new(1)?;
    let host = &lab.hosts[0];
    let vpc = Vpc::new(320, &[0]);
    let wanted = network(0, &[&vpc]);
    let netns = host.run_dir.path().join("netns");
    // Killed between making the file and mounting the namespace on it: one that is wanted, one that is not.
    fs::write(netns.join(format!("vpc-{}", vpc.vpc)), "")?;
    fs::write(netns.join(format!("machine-{}", InstanceId::from_u128(7))), "")?;
    fs::write(netns.join("notes-of-the-operator"), "")?;
    assert_eq!(host.inventory()?.debris.len(), 2);
    host.ensure(&wanted)?;
    assert_eq!(host.ensure(&wanted)?.steps, Vec::<String>::new());
    // Killed between making interfaces and naming their owners: wanted ones and others.
    let at = inside_vpc(host, &vpc)?;
    sh(&at, &format!("ip link set {} down", name::port(vpc.machines[0].instance)))?;
    sh(&at, "ip link add spb000000000abc type bridge")?;
    sh(&at, "ip link add spp000000000abc type veth peer name eth0")?;
    host.ensure(&wanted)?;
    let have = host.inventory()?;
    assert_eq!((have.links(), have.machines.len(), have.debris.len()), (3, 1, 0));
    assert_eq!(host.ensure(&wanted)?.steps, Vec::<String>::new());
    assert!(netns.join("notes-of-the-operator").exists());
    Ok(())
}

#[test]
fn what_is_not_the_agents_is_left_alone() -> Result<()> {
    if !able() {
        return Ok(());
    }
    let lab = Lab::new(1)?;
    let host = &lab.hosts[0];
    let vpc = Vpc::new(330, &[0]);
    host.ensure(&network(0, &[&vpc]))?;
    let at = inside_vpc(host, &vpc)?;
    // One by name, one by alias, and everything in the host's own namespace.
    sh(&at, "ip link add tap0 type bridge")?;
    sh(&at, "ip link add spb000000000abc type bridge")?;
    sh(&at, "ip link set spb000000000abc alias somebody-elses")?;
    sh(&at, "nft add table bridge somebodys")?;
    sh(&host.namespace, "ip link add spb000000000abc type bridge")?;
    sh(&host.namespace, "ip link add vx0 type vxlan id 5 dstport 4790 local 172.31.0.1")?;
    let changes = host.ensure(&network(0, &[&vpc]))?;
    assert_eq!(changes.steps, Vec::<String>::new());
    let links = sh(&at, "ip -o link")?;
    assert!(links.contains("tap0") && links.contains("spb000000000abc"), "{links}");
    assert!(sh(&at, "nft list tables bridge")?.contains("somebodys"));
    host.sweep_all()?;
    let links = sh(&host.namespace, "ip -o link")?;
    assert!(
        links.contains("vx0") && links.contains("spb000000000abc") && links.contains("uplink"),
        "{links}"
    );
    Ok(())
}

#[test]
fn a_name_that_somebody_else_has_stops_one_vpc_and_no_other() -> Result<()> {
    if !able() {
        return Ok(());
    }
    let lab = Lab::new(1)?;
    let host = &lab.hosts[0];
    let (mut blocked, other) = (Vpc::new(340, &[]), Vpc::new(341, &[0]));
    host.ensure(&network(0, &[&blocked]))?;
    blocked.add(0);
    let port = name::port(blocked.machines[0].instance);
    let at = inside_vpc(host, &blocked)?;
    sh(&at, &format!("ip link add {port} type bridge"))?;
    sh(&at, &format!("ip link set {port} alias somebody-elses"))?;
    let refused = host.ensure(&network(0, &[&blocked, &other]));
    let Err(NetworkError::Incomplete { failures, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(failures.len(), 1);
    assert!(
        matches!(&*failures[0].cause, NetworkError::NameTaken { name, .. } if *name == port),
        "{failures:?}"
    );
    assert!(host.inventory()?.machines.contains_key(&other.machines[0].instance));
    sh(&at, &format!("ip link del {port}"))?;
    host.ensure(&network(0, &[&blocked, &other]))?;
    Ok(())
}

#[test]
fn ids_whose_names_collide_are_refused_before_anything_is_changed() -> Result<()> {
    if !able() {
        return Ok(());
    }
    let lab = Lab::new(1)?;
    let mut vpc = Vpc::new(350, &[0, 0]);
    vpc.machines[1].instance = InstanceId::from_u128(vpc.machines[0].instance.as_u128() ^ (1 << 100));
    let refused = lab.hosts[0].ensure(&network(0, &[&vpc]));
    assert!(matches!(&refused, Err(NetworkError::Wanted(WantedError::NameCollision { .. }))), "{refused:?}");
    assert_eq!(lab.hosts[0].inventory()?, NetworkInventory::default());
    Ok(())
}

#[test]
fn a_machine_that_moves_takes_its_addresses_along() -> Result<()> {
    if !able() {
        return Ok(());
    }
    let lab = Lab::new(2)?;
    let mut vpc = Vpc::new(360, &[0, 0]);
    for to in [1, 0, 1] {
        for (number, host) in lab.hosts.iter().enumerate() {
            host.ensure(&network(number, &[&vpc]))?;
        }
        let guests: Vec<Guest> =
            vpc.machines.iter().map(|m| Guest::boot(&lab.hosts[m.host], m)).collect::<Result<_>>()?;
        guests[0].reaches(&guests[1])?;
        // It is stopped here and started there: its namespace here goes, so the address can be set up again there.
        vpc.machines[1].host = to;
        lab.hosts[0].ensure(&network(0, &[&Vpc { machines: Vec::new(), ..vpc.clone() }]))?;
    }
    Ok(())
}

#[test]
fn sweeping_leaves_nothing_and_an_instance_may_change_its_vpc() -> Result<()> {
    if !able() {
        return Ok(());
    }
    let lab = Lab::new(1)?;
    let host = &lab.hosts[0];
    let (old, mut new) = (Vpc::new(370, &[0, 0]), Vpc::new(371, &[]));
    host.ensure(&network(0, &[&old]))?;
    // The same machine and the same VNI in another VPC: removals of all VPCs come before what is made.
    new.vni = old.vni;
    new.machines = old.machines[..1].to_vec();
    host.ensure(&network(0, &[&new]))?;
    let have = host.inventory()?;
    assert_eq!((have.vpcs.len(), have.machines.len(), have.links()), (1, 1, 3));
    assert_eq!(host.ensure(&network(0, &[&new]))?.steps, Vec::<String>::new());
    host.ensure(&WantedNetwork::default())?;
    assert!(host.inventory()?.is_empty());
    assert_eq!(fs::read_dir(host.run_dir.path().join("netns"))?.count(), 0);
    Ok(())
}
