//! A port speaks only in its own name: what else a machine sends reaches neither its neighbour on the host nor a machine
//! on another host. Every test also sends an honest frame last, and sees it arrive.

use std::{fs::File, net::Ipv4Addr};

use anyhow::Result;
use shardplane_agent::network::Mac;
use shardplane_netns::{
    Lab, able,
    frame::{Wire, arp, ethernet, udp, udp6},
    machine::Guest,
    sh,
    spec::{Machine, Vpc, network},
};

const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;
const VLAN: u16 = 0x8100;

/// Frames that a machine must not send, each with the mark it carries.
fn dishonest_frames(liar: &Machine, other: &Machine, victim: &Machine) -> Vec<(&'static str, Vec<u8>)> {
    let (own, to) = ((liar.mac, liar.ipv4), (victim.mac, victim.ipv4));
    let stranger = Mac([2, 0xee, 0, 0, 0, 1]);
    let gateway = Ipv4Addr::new(10, 20, 0, 1);
    let ip = |mac, ip, mark| (mark, ethernet(to.0, mac, IPV4, &udp(ip, to.1, 1000, mark)));
    let reply = |mac, sender, mark| (mark, ethernet(to.0, mac, ARP, &arp(sender, to, mark)));
    let raw =
        |kind, head: &[u8], body: Vec<u8>, mark| (mark, ethernet(to.0, own.0, kind, &[head, &body].concat()));
    vec![
        ip(other.mac, own.1, "[another MAC]"),
        ip(stranger, own.1, "[a stranger's MAC]"),
        ip(own.0, other.ipv4, "[another IPv4]"),
        ip(own.0, gateway, "[the gateway's IPv4]"),
        ip(other.mac, other.ipv4, "[another machine wholly]"),
        reply(own.0, (own.0, other.ipv4), "[ARP for another IPv4]"),
        reply(own.0, (own.0, gateway), "[ARP for the gateway]"),
        reply(own.0, (other.mac, own.1), "[ARP with another MAC]"),
        reply(other.mac, own, "[ARP from another MAC]"),
        raw(VLAN, &[0, 5, 8, 0], udp(own.1, to.1, 1000, "[own IPv4 in a VLAN]"), "[own IPv4 in a VLAN]"),
        raw(IPV6, &[], udp6("[IPv6]"), "[IPv6]"),
        raw(0x88b5, &[], b"[another protocol]".to_vec(), "[another protocol]"),
        raw(IPV4, &[], udp(own.1, to.1, 67, "[a DHCP answer]"), "[a DHCP answer]"),
    ]
}

/// Machines that are up and silent: they answer nothing, so that only what was sent is on the wire.
fn listen_only(lab: &Lab, vpc: &Vpc) -> Result<Vec<File>> {
    let open = |machine: &Machine| {
        let namespace = lab.hosts[machine.host].open(&format!("machine-{}", machine.instance))?;
        sh(&namespace, "ip link set eth0 up")?;
        Ok(namespace)
    };
    vpc.machines.iter().map(open).collect()
}

#[test]
fn a_machine_cannot_speak_in_another_name() -> Result<()> {
    if !able() {
        return Ok(());
    }
    let lab = Lab::new(2)?;
    let vpc = Vpc::new(200, &[0, 0, 0, 1]);
    for (number, host) in lab.hosts.iter().enumerate() {
        host.ensure(&network(number, &[&vpc]))?;
    }
    let namespaces = listen_only(&lab, &vpc)?;
    let [liar, other, near, far] = &vpc.machines[..] else { unreachable!("four machines") };
    let wire = Wire::open(&namespaces[0])?;
    for (victim, namespace) in [(near, &namespaces[2]), (far, &namespaces[3])] {
        let ears = Wire::open(namespace)?;
        let frames = dishonest_frames(liar, other, victim);
        for (_, frame) in &frames {
            wire.send(frame)?;
        }
        let (own, to) = ((liar.mac, liar.ipv4), (victim.mac, victim.ipv4));
        wire.send(&ethernet(to.0, own.0, ARP, &arp(own, to, "[honest ARP]")))?;
        wire.send(&ethernet(to.0, own.0, IPV4, &udp(own.1, to.1, 1000, "[honest IPv4]")))?;
        let mut marks: Vec<&str> = frames.iter().map(|(mark, _)| *mark).collect();
        marks.extend(["[honest ARP]", "[honest IPv4]"]);
        assert_eq!(ears.receive(&marks, "[honest IPv4]")?, ["[honest ARP]", "[honest IPv4]"]);
    }
    Ok(())
}

#[test]
fn without_the_filter_the_same_frames_would_arrive() -> Result<()> {
    if !able() {
        return Ok(());
    }
    let lab = Lab::new(1)?;
    let vpc = Vpc::new(201, &[0, 0, 0]);
    lab.hosts[0].ensure(&network(0, &[&vpc]))?;
    sh(&lab.hosts[0].open(&format!("vpc-{}", vpc.vpc))?, "nft flush ruleset")?;
    let namespaces = listen_only(&lab, &vpc)?;
    let frames = dishonest_frames(&vpc.machines[0], &vpc.machines[1], &vpc.machines[2]);
    let ears = Wire::open(&namespaces[2])?;
    let wire = Wire::open(&namespaces[0])?;
    for (_, frame) in &frames {
        wire.send(frame)?;
    }
    let marks: Vec<&str> = frames.iter().map(|(mark, _)| *mark).collect();
    assert_eq!(ears.receive(&marks, "[a DHCP answer]")?, marks);
    Ok(())
}

#[test]
fn a_frame_out_of_a_tunnel_cannot_have_the_name_of_a_machine_here() -> Result<()> {
    if !able() {
        return Ok(());
    }
    let lab = Lab::new(2)?;
    let vpc = Vpc::new(203, &[0, 0, 1]);
    for (number, host) in lab.hosts.iter().enumerate() {
        host.ensure(&network(number, &[&vpc]))?;
    }
    // The other host's filter is gone: its machine may send what it likes.
    sh(&lab.hosts[1].open(&format!("vpc-{}", vpc.vpc))?, "nft flush ruleset")?;
    let namespaces = listen_only(&lab, &vpc)?;
    let [victim, here, liar] = &vpc.machines[..] else { unreachable!("three machines") };
    let ears = Wire::open(&namespaces[0])?;
    let wire = Wire::open(&namespaces[2])?;
    wire.send(&ethernet(victim.mac, here.mac, IPV4, &udp(here.ipv4, victim.ipv4, 1000, "[lie]")))?;
    wire.send(&ethernet(victim.mac, liar.mac, IPV4, &udp(liar.ipv4, victim.ipv4, 1000, "[honest]")))?;
    assert_eq!(ears.receive(&["[lie]", "[honest]"], "[honest]")?, ["[honest]"]);
    Ok(())
}

#[test]
fn a_machine_that_changes_its_own_mac_is_silenced_and_set_right() -> Result<()> {
    if !able() {
        return Ok(());
    }
    let lab = Lab::new(1)?;
    let vpc = Vpc::new(202, &[0, 0]);
    let wanted = network(0, &[&vpc]);
    lab.hosts[0].ensure(&wanted)?;
    let namespaces = listen_only(&lab, &vpc)?;
    let ears = Wire::open(&namespaces[1])?;
    sh(&namespaces[0], "ip link set eth0 address 02:ee:00:00:00:02")?;
    let (from, to) = (&vpc.machines[0], &vpc.machines[1]);
    let changed = Mac([2, 0xee, 0, 0, 0, 2]);
    let wire = Wire::open(&namespaces[0])?;
    wire.send(&ethernet(to.mac, changed, IPV4, &udp(from.ipv4, to.ipv4, 1000, "[changed]")))?;
    let changes = lab.hosts[0].ensure(&wanted)?;
    assert_eq!(changes.steps.len(), 1, "{changes:?}");
    wire.send(&ethernet(to.mac, from.mac, IPV4, &udp(from.ipv4, to.ipv4, 1000, "[honest]")))?;
    assert_eq!(ears.receive(&["[changed]", "[honest]"], "[honest]")?, ["[honest]"]);
    let boot = |machine| Guest::boot(&lab.hosts[0], machine);
    boot(from)?.reaches(&boot(to)?)
}
