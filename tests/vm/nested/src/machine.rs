//! The story of one machine without an agent: what only the host's end of its link, its VMM and its console show. In one go: boots of
//! an emulated machine in an emulated machine take long.
//!
//! In: `vmm`. Out: Ok, or what was not as it should be; figures on the console. Called by `main`.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use prost::Message as _;
use shardplane_proto::v1::{
    EngineState, GuestConfig, GuestConfirm, GuestNic, GuestStop, ValkeyConfig, ValkeyDirective, from_guest,
    to_guest,
};

use crate::vmm::{ADDRESS, HOST, VOLUME, Vm, console, until};

const PASSWORD: &str = "of-the-nested-machine";
/// Longer than an emulated machine stands still by itself.
const PAUSE: Duration = Duration::from_secs(10);

/// All of it.
pub fn tell() -> anyhow::Result<()> {
    run("truncate", &["-s", "128M", VOLUME])?;
    run("mkfs.ext4", &["-q", "-F", VOLUME])?;
    let told = tell_of_it();
    if told.is_err() {
        println!("the machine's console:\n{}", console());
    }
    told?;
    run("e2fsck", &["-fn", VOLUME])
}

fn run(program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new(program).args(arguments).output().with_context(|| format!("run {program}"))?;
    ensure!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
    Ok(())
}

fn tell_of_it() -> anyhow::Result<()> {
    let mut vm = boot("first", "")?;
    vm.send(to_guest::Body::Config(config()))?;
    vm.report("a running engine", |report| report.state() == EngineState::Running)?;
    ensure!(ask("PING")? == "+PONG", "the engine answers over the card");
    println!("nested: PONG over the card");
    stood_still(&mut vm)?;
    ensure!(!console().contains("drifts"), "the machine keeps its wall clock with its host's");
    vm.send(to_guest::Body::Stop(GuestStop { deadline_ms: 60_000 }))?;
    vm.report("the last report", |report| report.state() == EngineState::Stopped)?;
    ended(vm, "its supervisor was told to stop")?;

    let mut vm = boot("second", "clocksource=kvm-clock unknown_nmi_panic")?;
    vm.send(to_guest::Body::Config(config()))?;
    let report = vm.report("a running engine", |report| report.state() == EngineState::Running)?;
    ensure!(report.engine_starts == 1, "started {} times", report.engine_starts);
    ensure!(ask("PING")? == "+PONG", "the engine answers over the same volume");
    // By the other clock that a guest of KVM may have.
    stood_still(&mut vm)?;

    // A kernel that panics starts over: it neither hangs nor stays away.
    vm.call("vm.nmi")?;
    vm.comes_again()?;
    println!("nested: the machine started over after a panic of its kernel");
    vm.send(to_guest::Body::Config(config()))?;
    let report = vm.report("a running engine", |report| report.state() == EngineState::Running)?;
    ensure!(report.engine_starts == 1, "started {} times since the boot", report.engine_starts);

    vm.call("vm.power-button")?;
    vm.report("the last report", |report| report.state() == EngineState::Stopped)?;
    ensure!(console().contains("power button pressed"), "the machine heard its button");
    ended(vm, "its power button was pressed")
}

fn boot(which: &str, more: &str) -> anyhow::Result<Vm> {
    let (mut vm, took) = Vm::boot(more).with_context(|| format!("the {which} boot"))?;
    let hello = vm.hear("hello", |body| match body {
        from_guest::Body::Hello(hello) => Some(hello.clone()),
        from_guest::Body::Report(_) | from_guest::Body::Outcome(_) => None,
    })?;
    println!("nested: hello of {} {} over vsock", hello.engine, hello.engine_version);
    println!("measured: {which} boot, from the start of cloud-hypervisor to hello: {} ms", took.as_millis());
    let boot =
        console().lines().find_map(|line| line.split_once("since the kernel's start: ")?.1.to_owned().into());
    let boot: String = boot.context("the console shows the boot's timeline")?;
    println!("measured: {which} boot, in the guest: {boot}");
    Ok(vm)
}

/// A paused machine notices.
fn stood_still(vm: &mut Vm) -> anyhow::Result<()> {
    vm.call("vm.pause")?;
    // The pause itself is what is tried.
    std::thread::sleep(PAUSE + Duration::from_secs(1));
    vm.call("vm.resume")?;
    // An emulated machine stands still for a second now and then, so that the length is what tells.
    until("the pause in the guest's log", || longest_pause().filter(|pause| *pause >= PAUSE))?;
    let mut report = vm.report("a report of the pause", |report| report.held_wake > 0)?;
    while report.held_wake > 0 {
        vm.send(to_guest::Body::Confirm(GuestConfirm { wake: report.held_wake }))?;
        report = vm.report("the next report", |_| true)?;
    }
    println!("nested: a pause was noticed, and writes were held until the host confirmed");
    Ok(())
}

/// The longest that the guest says it stood still.
fn longest_pause() -> Option<Duration> {
    let console = console();
    let pauses = console
        .lines()
        .filter_map(|line| line.split_once("stood still for ")?.1.split_once(" s:")?.0.parse().ok());
    pauses.map(Duration::from_secs_f64).max()
}

fn ended(vm: Vm, why: &str) -> anyhow::Result<()> {
    let status = vm.ended()?;
    ensure!(status.success(), "cloud-hypervisor ended with {status}");
    println!("nested: the machine turned itself off when {why}");
    Ok(())
}

/// One command of the engine's protocol, and the first line of its answer.
fn ask(command: &str) -> anyhow::Result<String> {
    let mut engine = TcpStream::connect((ADDRESS, 6379)).context("connect to the engine over the card")?;
    write!(engine, "AUTH {PASSWORD}\r\n{command}\r\n").context("write to the engine")?;
    let mut lines = BufReader::new(engine).lines();
    let login = lines.next().context("the engine closed the connection")??;
    ensure!(login == "+OK", "the engine answers the password with {login}");
    Ok(lines.next().context("the engine closed the connection")??)
}

fn config() -> GuestConfig {
    let directive = |name: &str, value: &str| ValkeyDirective { name: name.into(), value: value.into() };
    let engine = ValkeyConfig {
        password: PASSWORD.into(),
        port: 6379,
        bus_port: 16379,
        announce_ip: ADDRESS.into(),
        directives: vec![
            directive("appendonly", "yes"),
            directive("appendfsync", "everysec"),
            directive("cluster-node-timeout", "15000"),
        ],
        has_replicas: false,
        node_timeout_ms: 15_000,
        persistent: true,
        other_primary: None,
    };
    GuestConfig {
        generation: 1,
        instance_id: "nested".into(),
        hostname: "nested-0".into(),
        nic: Some(GuestNic {
            mac: "52:54:00:00:00:05".into(),
            ipv4: format!("{ADDRESS}/24"),
            gateway: HOST.into(),
            mtu: 1450,
        }),
        engine_config: engine.encode_to_vec(),
        memory_mib: 128,
        restart_generation: 0,
    }
}
