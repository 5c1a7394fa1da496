//! A machine in namespaces with its volume on a block device: mounted as it is, blank when the instance is gone.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use shardplane_harness::coordinator::Coordinator;
use shardplane_proto::v1::MachineState;

use crate::{ID, engine, host::Host, is, on_a_host, spec};

/// A loop device over a file of 1 GiB; gone when it is dropped.
struct Loop(PathBuf);

impl Loop {
    fn over(file: &Path) -> Self {
        fs::File::create(file).unwrap().set_len(1 << 30).unwrap();
        let output = Command::new("losetup").args(["--find", "--show"]).arg(file).output().unwrap();
        assert!(output.status.success(), "losetup: {}", String::from_utf8_lossy(&output.stderr));
        Self(String::from_utf8(output.stdout).unwrap().trim().into())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _gone = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

#[test]
fn a_machine_in_namespaces_has_its_volume_on_a_device() {
    on_a_host(scenario);
}

async fn scenario(host: &mut Host) {
    let backing = host.path("device.raw");
    let device = Loop::over(&backing);
    let folder = host.path("devices");
    fs::create_dir(&folder).unwrap();
    symlink(&device.0, folder.join("a")).unwrap();
    let mut coordinator = Coordinator::start().await;
    host.configure(coordinator.address);
    let mut config = fs::File::options().append(true).open(host.path("agent.toml")).unwrap();
    writeln!(config, "volume_devices = {:?}", folder.display().to_string()).unwrap();
    host.start_agent();
    let (hello, mut session) = coordinator.session().await;
    assert_eq!(hello.capacity.unwrap().disk_gib, 1, "what the devices have is what is offered");
    let digest = hello.images.iter().find(|image| image.engine == "valkey").unwrap().digest.clone();
    session.spec(spec(2, 1, &digest, 1)).await;
    session.report("it runs", |report| is(report, MachineState::Running)).await;
    engine(&mut session).await;
    let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", host.machines()[0])).unwrap();
    let data = mounts.lines().find(|line| line.contains(" /data ")).unwrap();
    assert!(data.contains(&device.0.display().to_string()), "{data}");
    session.spec(spec(2, 2, &digest, 0)).await;
    session.report("it is gone", |report| report.gone == [ID.to_string()]).await;
    let bytes = fs::read(&backing).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0), "nothing of it is left on the device");
}
