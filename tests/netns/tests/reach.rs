//! Who reaches whom: machines of one VPC across hosts and subnets, and nobody else.

use std::time::Duration;

use anyhow::Result;
use shardplane_agent::network::{WantedNetwork, WantedVpc};
use shardplane_netns::{
    Lab, able,
    machine::Guest,
    sh,
    spec::{Vpc, network},
};

#[test]
fn machines_of_a_subnet_reach_each_other_on_one_host_and_across_hosts() -> Result<()> {
    if !able() {
        return Ok(());
    }
    let lab = Lab::new(3)?;
    let vpc = Vpc::new(100, &[0, 0, 1, 2]);
    for (number, host) in lab.hosts.iter().enumerate() {
        host.ensure(&network(number, &[&vpc]))?;
    }
    let guests: Vec<Guest> =
        vpc.machines.iter().map(|m| Guest::boot(&lab.hosts[m.host], m)).collect::<Result<_>>()?;
    for from in &guests {
        for to in guests.iter().filter(|to| to.machine.ipv4 != from.machine.ipv4) {
            from.reaches(to)?;
        }
    }
    let mtu = lab.hosts[0].network().mtu();
    assert_eq!(mtu, 1450);
    assert!(sh(&guests[0].namespace, "ip link show eth0")?.contains("mtu 1450"));
    Ok(())
}

#[test]
fn subnets_of_a_vpc_reach_each_other_through_their_gateways() -> Result<()> {
    if !able() {
        return Ok(());
    }
    let lab = Lab::new(2)?;
    let one = Vpc::new(110, &[0, 1]);
    let two = one.another_subnet(111, 7, &[0, 1]);
    for (number, host) in lab.hosts.iter().enumerate() {
        let vpc = WantedVpc { vpc: one.vpc, subnets: vec![one.subnet_on(number), two.subnet_on(number)] };
        host.ensure(&WantedNetwork { vpcs: vec![vpc] })?;
    }
    let boot = |vpc: &Vpc| -> Result<Vec<Guest>> {
        vpc.machines.iter().map(|machine| Guest::boot(&lab.hosts[machine.host], machine)).collect()
    };
    let (ones, twos) = (boot(&one)?, boot(&two)?);
    for from in &ones {
        for to in &twos {
            from.reaches(to)?;
            to.reaches(from)?;
        }
    }
    Ok(())
}

#[test]
fn two_vpcs_with_the_same_addresses_never_meet() -> Result<()> {
    if !able() {
        return Ok(());
    }
    let lab = Lab::new(2)?;
    let red = Vpc::new(120, &[0, 1]);
    let mut blue = Vpc::new(121, &[0, 1]);
    blue.add(1);
    for (number, host) in lab.hosts.iter().enumerate() {
        host.ensure(&network(number, &[&red, &blue]))?;
    }
    let boot = |vpc: &Vpc| -> Result<Vec<Guest>> {
        vpc.machines.iter().map(|machine| Guest::boot(&lab.hosts[machine.host], machine)).collect()
    };
    let (red, blue) = (boot(&red)?, boot(&blue)?);
    red[0].reaches(&red[1])?;
    blue[0].reaches(&blue[1])?;
    blue[0].reaches(&blue[2])?;
    // The address that only blue has: red finds nobody there, on either host.
    let listener = blue[2].listen()?;
    let port = listener.local_addr()?.port();
    for guest in &red {
        let limit = Duration::from_millis(700);
        assert!(guest.connect_within(blue[2].machine.ipv4, port, limit).is_err());
    }
    // The same address in both: red's connection ends at red's machine, which does not listen there.
    let listener = blue[1].listen()?;
    let port = listener.local_addr()?.port();
    assert!(red[0].connect(blue[1].machine.ipv4, port).is_err());
    Ok(())
}

/// A port that is cut passes nothing in either direction, whatever is behind it, and passes everything when it is opened again.
#[test]
fn a_cut_port_passes_nothing_and_opens_again() -> Result<()> {
    if !able() {
        return Ok(());
    }
    let lab = Lab::new(2)?;
    let mut vpc = Vpc::new(120, &[0, 0, 1]);
    let ensure = |vpc: &Vpc| -> Result<()> {
        for (number, host) in lab.hosts.iter().enumerate() {
            host.ensure(&network(number, &[vpc]))?;
        }
        Ok(())
    };
    ensure(&vpc)?;
    let guests: Vec<Guest> =
        vpc.machines.iter().map(|m| Guest::boot(&lab.hosts[m.host], m)).collect::<Result<_>>()?;
    let listeners = guests.iter().map(Guest::listen).collect::<Result<Vec<_>>>()?;
    let ports = listeners.iter().map(|one| Ok(one.local_addr()?.port())).collect::<Result<Vec<_>>>()?;
    let connects = |from: usize, to: usize| guests[from].connect(guests[to].machine.ipv4, ports[to]).is_ok();
    let cut_off = |from: usize, to: usize| {
        let limit = Duration::from_millis(700);
        guests[from].connect_within(guests[to].machine.ipv4, ports[to], limit).is_err()
    };
    let pairs = [(0, 1), (1, 0), (0, 2), (2, 0)];
    assert!(pairs.iter().all(|(from, to)| connects(*from, *to)), "before the cut");
    vpc.machines[0].cut = true;
    ensure(&vpc)?;
    for (from, to) in pairs {
        assert!(cut_off(from, to), "{from} reaches {to} through a port that is cut");
    }
    assert!(connects(1, 2) && connects(2, 1), "the others are not concerned");
    ensure(&vpc)?;
    assert!(cut_off(0, 1), "once more is as good as once");
    vpc.machines[0].cut = false;
    ensure(&vpc)?;
    assert!(pairs.iter().all(|(from, to)| connects(*from, *to)), "after it was opened");
    Ok(())
}
