//! Volumes on block devices: the machine's disk is the device, opened by its VMM as a user that owns nothing else of the host.

use std::{fs, os::unix::fs::symlink, process::Command};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use shardplane_harness::LoopDevice;
use shardplane_proto::v1::MachineState;
use shardplane_vm_tests::host::Host;

use crate::scene::{id, instance, is, play_on, spec};

fn starts_with_zeros(device: &LoopDevice) -> bool {
    let head = Command::new("head").args(["-c", "1048576"]).arg(device.path()).output().unwrap().stdout;
    head.len() == 1 << 20 && head.iter().all(|byte| *byte == 0)
}

#[test]
fn a_volume_on_a_device_lives_as_long_as_its_instance_and_is_blank_afterwards() {
    // Outlives the host, which must have let go of it.
    let mut made = None;
    let prepare = |host: &mut Host| {
        let folder = host.path("devices");
        fs::create_dir(&folder).unwrap();
        let [fits, other] =
            ["fits", "other"].map(|name| LoopDevice::over(&host.path(&format!("{name}.raw")), 1).unwrap());
        // Somebody's file system, on the device whose name comes first.
        let status = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(other.path()).status().unwrap();
        assert!(status.success());
        symlink(other.path(), folder.join("a")).unwrap();
        symlink(fits.path(), folder.join("b")).unwrap();
        host.set(format!("volume_devices = {:?}", folder.display().to_string()));
        made = Some([fits, other]);
    };
    play_on(prepare, async |stage| {
        let check = stage.host.agent_command(&["check"]);
        let table = String::from_utf8_lossy(&check.stdout).into_owned();
        assert!(
            table.contains("1 are free, 0 are volumes") && table.contains("a: holds something"),
            "{table}"
        );
        stage.session.spec(spec(1, vec![instance(0, "idle"), instance(1, "idle")])).await;
        let refused = |number| move |report: &_| is(report, number, MachineState::Failed, "no device in");
        // One of them has the only device; which one, chance decides.
        stage.session.report("one is refused", |report| refused(0)(report) || refused(1)(report)).await;
        let has = |number| {
            let dir = stage.host.path(&format!("state/volumes/{}", id(number)));
            dir.join("device").exists() || dir.join("device.new").exists()
        };
        let winner = usize::from(!has(0));
        stage.runs(winner).await;
        stage.session.spec(spec(2, vec![instance(winner, "idle")])).await;
        stage.session.report("the other is gone", |report| !report.gone.is_empty()).await;
        let vm = stage.host.vm(id(winner)).unwrap();
        assert!(stage.host.uids().contains(&vm.uid()), "its user can open the device");
        let record = stage.host.path(&format!("state/volumes/{}/device", id(winner)));
        assert_eq!(fs::read_to_string(&record).unwrap(), "b");
        let held = fs::read_dir(format!("/proc/{}/fd", vm.pid)).unwrap().flatten().any(|entry| {
            fs::metadata(entry.path()).is_ok_and(|meta| {
                use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
                let device = fs::metadata(stage.host.path("devices/b")).unwrap();
                meta.file_type().is_block_device() && meta.rdev() == device.rdev()
            })
        });
        assert!(held, "the VMM has the device itself open");

        // The same device again, after a death.
        kill(Pid::from_raw(vm.pid), Signal::SIGKILL).unwrap();
        stage.session.report("it died", |report| is(report, winner, MachineState::Down, "died")).await;
        stage.runs(winner).await;
        assert_eq!(fs::read_to_string(&record).unwrap(), "b");
        stage.session.spec(spec(3, vec![])).await;
        stage.session.report("it is gone", |report| report.gone == [id(winner).to_string()]).await;
        assert!(!record.exists());
        let check = stage.host.agent_command(&["check"]);
        let table = String::from_utf8_lossy(&check.stdout).into_owned();
        assert!(table.contains("1 are free, 0 are volumes"), "{table}");

        // An operator gives the host up: what is on the devices goes too.
        stage.session.spec(spec(4, vec![instance(0, "idle")])).await;
        stage.runs(0).await;
        stage.host.kill_agent();
        let swept = stage.host.sweep();
        assert!(swept.status.success(), "{}", String::from_utf8_lossy(&swept.stderr));
    });
    if let Some([fits, other]) = made {
        assert!(starts_with_zeros(&fits), "nothing of the volume is left");
        assert!(!starts_with_zeros(&other), "what was somebody else's is his");
    }
}
