//! The ports of virtual machines: taps that only the agent opens, with the same filter as every port, and no trace of them.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    net::Ipv4Addr,
    os::fd::OwnedFd,
    path::PathBuf,
    thread,
    time::Duration,
};

use anyhow::Result;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use shardplane_agent::network::{PortKind, inventory::LinkKind, inventory::TapFlags, name, tap};
use shardplane_netns::{
    Host, Lab, able,
    frame::{arp, ethernet, udp},
    sh,
    spec::{Machine, Vpc, network},
};

/// Bytes of virtio's header before each frame.
const HEADER: usize = 12;

fn vpc(vni: u32, hosts: &[usize]) -> Vpc {
    Vpc { kind: PortKind::Tap, ..Vpc::new(vni, hosts) }
}

fn netns(host: &Host, vpc: &Vpc) -> PathBuf {
    host.network().vpc_netns(vpc.vpc)
}

fn attach(host: &Host, vpc: &Vpc, machine: &Machine) -> Result<OwnedFd> {
    Ok(tap::attach(&netns(host, vpc), &name::port(machine.instance))?)
}

/// What a VMM makes of a tap: frames in and out of it.
struct Card(File);

impl Card {
    fn new(fd: OwnedFd) -> Self {
        // What a tap has for a header until a VMM says otherwise is 10 bytes.
        Self(File::from(fd))
    }

    fn send(&self, frame: &[u8]) -> Result<()> {
        let header = [0; HEADER - 2];
        (&self.0).write_all(&[&header[..], frame].concat())?;
        Ok(())
    }

    /// The marks in the order in which they came, until the last of them.
    fn receive(&self, marks: &[&str], last: &str) -> Result<Vec<String>> {
        let mut found = Vec::new();
        let mut buffer = vec![0; 4096];
        loop {
            use std::os::fd::AsFd as _;
            let mut ready = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            anyhow::ensure!(poll(&mut ready, PollTimeout::from(10_000_u16))? > 0, "never came: {last}");
            let length = (&self.0).read(&mut buffer)?;
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            for mark in marks.iter().filter(|mark| text.contains(**mark)) {
                found.push((*mark).to_owned());
                if *mark == last {
                    return Ok(found);
                }
            }
        }
    }
}

/// UBI-7: what a VMM gets is what its card was described as.
#[test]
fn ubi_7_a_tap_is_made_with_its_flags_and_one_that_differs_is_made_anew() -> Result<()> {
    if !able() {
        return Ok(());
    }
    let lab = Lab::new(1)?;
    let host = &lab.hosts[0];
    let vpc = vpc(600, &[0]);
    host.ensure(&network(0, &[&vpc]))?;
    let port = name::port(vpc.machines[0].instance);
    let look = || -> Result<_> {
        let inventory = host.inventory()?;
        Ok(inventory.vpcs[&vpc.vpc].links[&port].clone())
    };
    let link = look()?;
    assert_eq!(link.kind, LinkKind::Tap(TapFlags::OURS));
    assert!(link.up && link.mtu == host.network().mtu() && link.mac != vpc.machines[0].mac);
    assert!(host.ensure(&network(0, &[&vpc]))?.steps.is_empty());

    // Somebody made another one of the same name; a VMM that expects ours would refuse it.
    let at = host.open(&format!("vpc-{}", vpc.vpc))?;
    for other in ["multi_queue vnet_hdr user 0", "user 0", "vnet_hdr", "vnet_hdr user 7"] {
        sh(&at, &format!("ip link del {port}"))?;
        sh(&at, &format!("ip tuntap add dev {port} mode tap {other}"))?;
        host.ensure(&network(0, &[&vpc]))?;
        assert_eq!(look()?.kind, LinkKind::Tap(TapFlags::OURS), "{other}");
    }
    host.sweep_all()?;
    assert!(host.inventory()?.is_empty());
    Ok(())
}

/// HOST-8: the next VMM waits until the last one's files are closed, and is told when they never are.
#[test]
fn host_8_a_tap_has_one_holder_and_a_missing_one_is_not_made_by_attaching() -> Result<()> {
    if !able() {
        return Ok(());
    }
    let lab = Lab::new(1)?;
    let host = &lab.hosts[0];
    let vpc = vpc(601, &[0]);
    host.ensure(&network(0, &[&vpc]))?;
    let machine = &vpc.machines[0];
    let held = attach(host, &vpc, machine)?;
    let busy = attach(host, &vpc, machine).unwrap_err();
    assert!(busy.to_string().contains("busy"), "{busy}");
    let release = thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        drop(held);
    });
    drop(attach(host, &vpc, machine)?);
    let released = release.join();
    assert!(released.is_ok());
    let missing = tap::attach(&netns(host, &vpc), "spp000000000000").unwrap_err();
    assert_eq!(missing.raw_os_error(), Some(nix::libc::ENODEV), "{missing}");
    // It stays when nobody holds it, with all that belongs to it.
    assert!(host.ensure(&network(0, &[&vpc]))?.steps.is_empty());
    Ok(())
}

#[test]
fn a_vm_speaks_in_its_own_name_only_and_a_cut_one_not_at_all() -> Result<()> {
    if !able() {
        return Ok(());
    }
    let lab = Lab::new(1)?;
    let host = &lab.hosts[0];
    let mut vpc = vpc(602, &[0, 0, 0]);
    host.ensure(&network(0, &[&vpc]))?;
    let [liar, other, victim] = &vpc.machines.clone()[..] else { unreachable!("three machines") };
    let card = Card::new(attach(host, &vpc, liar)?);
    let ears = Card::new(attach(host, &vpc, victim)?);
    let (own, to) = ((liar.mac, liar.ipv4), (victim.mac, victim.ipv4));
    let gateway = Ipv4Addr::new(10, 20, 0, 1);
    let ip = |mac, ip, mark: &str| ethernet(to.0, mac, 0x0800, &udp(ip, to.1, 1000, mark));
    card.send(&ip(other.mac, own.1, "[another MAC]"))?;
    card.send(&ip(own.0, other.ipv4, "[another IPv4]"))?;
    card.send(&ethernet(to.0, own.0, 0x0806, &arp((own.0, gateway), to, "[ARP for the gateway]")))?;
    card.send(&ip(own.0, own.1, "[honest]"))?;
    let marks = ["[another MAC]", "[another IPv4]", "[ARP for the gateway]", "[honest]"];
    assert_eq!(ears.receive(&marks, "[honest]")?, ["[honest]"]);

    vpc.machines[0].cut = true;
    host.ensure(&network(0, &[&vpc]))?;
    // A tap that is down takes nothing.
    assert!(card.send(&ip(own.0, own.1, "[cut]")).is_err());
    vpc.machines[0].cut = false;
    host.ensure(&network(0, &[&vpc]))?;
    card.send(&ip(own.0, own.1, "[open again]"))?;
    assert_eq!(ears.receive(&["[cut]", "[open again]"], "[open again]")?, ["[open again]"]);
    Ok(())
}

#[test]
fn vms_that_come_and_go_leave_no_tap() -> Result<()> {
    if !able() {
        return Ok(());
    }
    let lab = Lab::new(1)?;
    let host = &lab.hosts[0];
    let mut vpc = vpc(603, &[0]);
    host.ensure(&network(0, &[&vpc]))?;
    let before = host.inventory()?.links();
    for _ in 0..20 {
        let stays = vpc.clone();
        vpc.add(0);
        host.ensure(&network(0, &[&vpc]))?;
        // The VMM of a machine that goes may not be dead yet.
        let held = attach(host, &vpc, &vpc.machines[1])?;
        vpc = stays;
        host.ensure(&network(0, &[&vpc]))?;
        drop(held);
        assert_eq!(host.inventory()?.links(), before);
    }
    Ok(())
}
