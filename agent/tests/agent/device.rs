//! A machine in namespaces with its volume on a block device: mounted as it is, blank when the instance is gone.

use std::{fs, io::Write as _, os::unix::fs::symlink};

use shardplane_harness::{LoopDevice, coordinator::Coordinator};
use shardplane_proto::v1::MachineState;

use crate::{
    ID, engine,
    host::{Host, valkey},
    is, on_a_host, spec,
};

#[test]
fn a_machine_in_namespaces_has_its_volume_on_a_device() {
    on_a_host(scenario);
}

async fn scenario(host: &mut Host) {
    let backing = host.path("device.raw");
    let device = LoopDevice::over(&backing, 1).unwrap();
    let folder = host.path("devices");
    fs::create_dir(&folder).unwrap();
    symlink(device.path(), folder.join("a")).unwrap();
    let mut coordinator = Coordinator::start().await;
    host.configure(coordinator.address);
    let mut config = fs::File::options().append(true).open(host.path("agent.toml")).unwrap();
    writeln!(config, "volume_devices = {:?}", folder.display().to_string()).unwrap();
    host.start_agent();
    let (hello, mut session) = coordinator.session().await;
    assert_eq!(hello.capacity.unwrap().disk_gib, 1, "what the devices have is what is offered");
    let digest = valkey(&hello);
    session.spec(spec(2, 1, &digest, 1)).await;
    session.report("it runs", |report| is(report, MachineState::Running)).await;
    engine(&mut session).await;
    let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", host.machines()[0])).unwrap();
    let data = mounts.lines().find(|line| line.contains(" /data ")).unwrap();
    assert!(data.contains(&device.path().display().to_string()), "{data}");
    session.spec(spec(2, 2, &digest, 0)).await;
    session.report("it is gone", |report| report.gone == [ID.to_string()]).await;
    let bytes = fs::read(&backing).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0), "nothing of it is left on the device");
}
