//! Starts that fail: each is told with the VMM's words, leaves no process, and the next one is made from scratch.

use std::{fs, os::fd::AsRawFd as _, os::unix::fs::PermissionsExt as _};

use shardplane_agent::network::{name, tap};
use shardplane_proto::v1::MachineState;

use crate::scene::{VPC, id, instance, is, play, spec};

/// HOST-8: somebody else has the machine's tap.
#[test]
fn host_8_a_busy_tap_is_told_and_waited_for() {
    play(async |stage| {
        stage.session.spec(spec(1, vec![instance(0, "off")])).await;
        let down = |report: &_| is(report, 0, MachineState::Down, "died");
        stage.session.report("its port is there and free", down).await;
        let netns = stage.host.path(&format!("run/netns/vpc-{VPC}"));
        let held = tap::attach(&netns, &name::port(id(0))).unwrap();
        let busy = |report: &_| is(report, 0, MachineState::Failed, "busy");
        stage.session.report("the tap is busy", busy).await;
        assert!(stage.host.tagged().is_empty(), "no VMM was started for nothing");
        drop(held);
        stage.runs(0).await;
    });
}

/// After a boot that failed, a second one in the same VMM would give a machine without disks.
#[test]
fn a_boot_that_failed_on_a_disk_is_never_tried_again_in_the_same_vmm() {
    play(async |stage| {
        stage.session.spec(spec(1, vec![instance(0, "off")])).await;
        stage.session.report("its volume is there", |report| is(report, 0, MachineState::Down, "died")).await;
        // As another machine's VMM would hold it.
        let volume = fs::File::options()
            .read(true)
            .write(true)
            .open(stage.host.path(&format!("state/volumes/{}/data.raw", id(0))))
            .unwrap();
        lock(&volume);
        stage.session.spec(spec(2, vec![instance(0, "idle")])).await;
        for _ in 0..2 {
            let report = stage
                .session
                .report("the boot fails", |report| is(report, 0, MachineState::Failed, "vm.boot"))
                .await;
            let message = &report.instances[0].message;
            assert!(message.to_lowercase().contains("lock"), "with the VMM's words: {message}");
            assert!(stage.host.vms().is_empty(), "the VMM of a failed boot is gone");
            stage
                .session
                .report("it is tried again", |report| is(report, 0, MachineState::Preparing, ""))
                .await;
        }
        drop(volume);
        stage.runs(0).await;
        let info = stage.host.vm(id(0)).unwrap().info().unwrap();
        assert_eq!(info["config"]["disks"].as_array().unwrap().len(), 2, "it has its disks");
        assert!(info["device_tree"]["data"].is_object(), "{}", info["device_tree"]);
    });
}

#[allow(unsafe_code)]
fn lock(file: &fs::File) {
    // SAFETY: all zeros is a valid flock, and the descriptor is open.
    unsafe {
        let mut request: nix::libc::flock = std::mem::zeroed();
        request.l_type = i16::try_from(nix::libc::F_WRLCK).unwrap();
        assert_eq!(nix::libc::fcntl(file.as_raw_fd(), nix::libc::F_OFD_SETLK, &request), 0);
    }
}

#[test]
fn a_kernel_that_is_none_fails_the_boot_and_one_that_is_closed_the_start_of_the_agent() {
    play(async |stage| {
        let kernel = stage.host.path("images/kernel/vmlinuz");
        // One of the operator's own, which nothing names.
        fs::remove_file(stage.host.path("images/kernel/kernel.json")).unwrap();
        let good = fs::read(&kernel).unwrap();
        fs::write(&kernel, "no kernel").unwrap();
        stage.session.spec(spec(1, vec![instance(0, "idle")])).await;
        stage.session.report("the boot fails", |report| is(report, 0, MachineState::Failed, "vm.boot")).await;
        fs::write(&kernel, &good).unwrap();
        stage.runs(0).await;

        let check = || {
            let output = stage.host.agent_command(&["check"]);
            (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let (fine, table) = check();
        assert!(fine, "{table}");
        for what in [
            "ok    /dev/kvm ",
            "ok    cloud-hypervisor ",
            "ok    kernel ",
            "warn  kernel digests ",
            "ok    hugepages ",
            "ok    user ids ",
            "ok    disk ",
            "ok    landlock ",
            "warn  underlay ",
        ] {
            assert!(table.contains(what), "{what} in\n{table}");
        }
        fs::set_permissions(&kernel, fs::Permissions::from_mode(0o600)).unwrap();
        let (fine, table) = check();
        assert!(!fine && table.contains("fail  kernel") && table.contains("chmod o+r"), "{table}");
        let refused = stage.host.agent_command(&["run"]);
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && text.contains("this host cannot run machines"), "{text}");
    });
}

/// HOST-14: what a machine boots is compared with what was built, before each boot and without one; mended, it is used without a word to the
/// agent.
#[test]
fn host_14_an_image_or_kernel_that_was_damaged_since_is_never_booted() {
    play(async |stage| {
        for (number, (name, words)) in [
            ("tiny-1.erofs", "the image is not used"),
            ("kernel/vmlinuz", "cannot use the kernel"),
            ("kernel/initramfs", "initramfs has the digest"),
        ]
        .into_iter()
        .enumerate()
        {
            let generation = 2 * number as u64 + 1;
            let file = stage.host.path("images").join(name);
            let good = fs::read(&file).unwrap();
            let mut bad = good.clone();
            *bad.last_mut().unwrap() ^= 1;
            fs::write(&file, bad).unwrap();
            stage.session.spec(spec(generation, vec![instance(0, "idle")])).await;
            for _ in 0..2 {
                stage
                    .session
                    .report("it is not used", |report| is(report, 0, MachineState::Failed, words))
                    .await;
                assert!(stage.host.tagged().is_empty(), "nothing was started with it");
                stage
                    .session
                    .report("it is looked at again", |report| is(report, 0, MachineState::Preparing, ""))
                    .await;
            }
            fs::write(&file, good).unwrap();
            stage.runs(0).await;
            stage.session.spec(spec(generation + 1, vec![])).await;
            stage.session.report("it is gone", |report| report.gone == [id(0).to_string()]).await;
        }
        let log = stage.host.log();
        assert_eq!(log.matches("the VMM has booted").count(), 3, "one boot for each that was mended");
    });
}
