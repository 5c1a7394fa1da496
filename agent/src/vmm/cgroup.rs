//! Limits of a machine by cgroup v2.
//!
//! In: the v2 root and a machine's limits. Out: a group a machine with its limits set, or a host condition that says why
//! limits are not enforced. A VMM makes groups before a launch and removes them after a death; the launcher joins.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use shardplane_proto::{
    ids::{HostId, InstanceId},
    v1,
};

use crate::vmm::Limits;

/// Processes and threads of one machine.
const MAX_PIDS: u32 = 4096;
/// Length of a period of `cpu.max` in microseconds.
const CPU_PERIOD_US: u64 = 100_000;

/// Whose memory ran out when the kernel killed a process of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OutOfMemory {
    /// The machine's own group reached its limit.
    #[error(
        "out of memory: the kernel killed processes of it, which needed more than the {limit_mib} MiB that its group may use"
    )]
    OfMachine {
        /// `memory.max` in MiB: the machine's memory and what running it takes.
        limit_mib: u64,
    },
    /// The whole host.
    #[error(
        "out of memory: the kernel killed processes of it because the whole host had none left; keep more back with memory_mib in [reserve]"
    )]
    OfHost,
}

/// Where machines are limited, or why they are not.
#[derive(Debug, Clone)]
pub enum Cgroups {
    /// `shardplane-<host>` below the v2 root.
    Enforced {
        /// The folder of this host's machines.
        parent: PathBuf,
        /// The io controller is there.
        io: bool,
    },
    /// No limits.
    Absent {
        /// Why, and what to do.
        why: String,
    },
}

impl Cgroups {
    /// Looks for a usable v2 hierarchy at the usual places.
    pub fn detect(host: HostId) -> Self {
        let roots = [Path::new("/sys/fs/cgroup"), Path::new("/sys/fs/cgroup/unified")];
        match roots.iter().find(|root| root.join("cgroup.controllers").exists()) {
            Some(root) => Self::at(root, host),
            None => Self::Absent {
                why: "no cgroup v2 is mounted at /sys/fs/cgroup; boot with systemd.unified_cgroup_hierarchy=1, \
                      or mount it"
                    .into(),
            },
        }
    }

    fn at(root: &Path, host: HostId) -> Self {
        Self::set_up(root, host).unwrap_or_else(|why| Self::Absent { why })
    }

    fn set_up(root: &Path, host: HostId) -> Result<Self, String> {
        let path = root.join("cgroup.controllers");
        let text =
            fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let has = |name: &str| text.split_ascii_whitespace().any(|one| one == name);
        if !has("cpu") || !has("memory") {
            return Err(format!(
                "cgroup v2 at {} has the controllers [{}] but not both cpu and memory: cgroup v1 holds them; boot with \
                 systemd.unified_cgroup_hierarchy=1 (or cgroup_no_v1=all)",
                root.display(),
                text.trim()
            ));
        }
        let io = has("io");
        let mut wanted = String::from("+cpu +memory");
        for optional in ["pids", "io"].into_iter().filter(|name| has(name)) {
            wanted.push_str(" +");
            wanted.push_str(optional);
        }
        let text = host.to_string();
        let parent = root.join(format!("shardplane-{}", &text[text.len() - 8..]));
        let failed = |what: &Path, error: io::Error| format!("cannot prepare {}: {error}", what.display());
        fs::create_dir_all(&parent).map_err(|error| failed(&parent, error))?;
        for dir in [root, &parent] {
            let control = dir.join("cgroup.subtree_control");
            fs::write(&control, &wanted).map_err(|error| failed(&control, error))?;
        }
        Ok(Self::Enforced { parent, io })
    }

    /// `LimitsEnforced=False` when they are not.
    pub fn condition(&self) -> Option<v1::HostCondition> {
        match self {
            Self::Enforced { io: true, .. } => None,
            Self::Enforced { io: false, .. } => {
                Some(condition("cgroup v2 has no io controller: IOPS of volumes are not limited".into()))
            }
            Self::Absent { why } => Some(condition(format!("machines run without limits: {why}"))),
        }
    }

    /// The same where something else limits I/O.
    pub fn condition_without_io(&self) -> Option<v1::HostCondition> {
        match self {
            Self::Enforced { .. } => None,
            Self::Absent { .. } => self.condition(),
        }
    }

    /// Makes the machine's group with its limits; `None` when limits are not enforced. `overhead_mib` is the memory that
    /// the way it is run needs on top of the machine's own.
    ///
    /// # Errors
    /// When the kernel refuses a value.
    pub fn prepare(
        &self,
        instance: InstanceId,
        limits: &Limits,
        overhead_mib: u64,
    ) -> io::Result<Option<PathBuf>> {
        let Self::Enforced { parent, .. } = self else { return Ok(None) };
        let group = parent.join(instance.to_string());
        let named = |error: io::Error, path: &Path| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        };
        // Anew for each start: what the kernel counted in the last one is not this one's.
        absent_is_fine(fs::remove_dir(&group)).map_err(|error| named(error, &group))?;
        fs::create_dir_all(&group).map_err(|error| named(error, &group))?;
        for (file, value, required) in settings(limits, overhead_mib) {
            let path = group.join(file);
            // memory.swap.max and pids.max are absent on kernels without them.
            if required || path.exists() {
                fs::write(&path, value).map_err(|error| named(error, &path))?;
            }
        }
        Ok(Some(group))
    }

    /// Whether the kernel killed processes of a machine since its start because memory ran out; `None` when not, or when it
    /// cannot be known. Blocks briefly.
    pub fn out_of_memory(&self, instance: InstanceId) -> Option<OutOfMemory> {
        let Self::Enforced { parent, .. } = self else { return None };
        let group = parent.join(instance.to_string());
        let events = fs::read_to_string(group.join("memory.events")).ok()?;
        let count = |key: &str| {
            let line = events.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
            line.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or(0)
        };
        if count("oom_kill") == 0 {
            return None;
        }
        if count("oom") == 0 {
            return Some(OutOfMemory::OfHost);
        }
        let limit = fs::read_to_string(group.join("memory.max")).ok()?;
        Some(OutOfMemory::OfMachine { limit_mib: limit.trim().parse::<u64>().ok()? >> 20 })
    }

    /// Removes the group of a machine that is gone.
    ///
    /// # Errors
    /// When it still holds processes.
    pub fn release(&self, instance: InstanceId) -> io::Result<()> {
        match self {
            Self::Enforced { parent, .. } => {
                absent_is_fine(fs::remove_dir(parent.join(instance.to_string())))
            }
            Self::Absent { .. } => Ok(()),
        }
    }

    /// Removes the folder of this host's machines; all of them must be gone.
    ///
    /// # Errors
    /// When a group is still there.
    pub fn release_all(&self) -> io::Result<()> {
        let Self::Enforced { parent, .. } = self else { return Ok(()) };
        for entry in fs::read_dir(parent)? {
            let path = entry?.path();
            if path.is_dir() {
                absent_is_fine(fs::remove_dir(path))?;
            }
        }
        absent_is_fine(fs::remove_dir(parent))
    }
}

/// The line of `io.max` for a device.
pub fn io_max(major: u64, minor: u64, iops: u32) -> String {
    format!("{major}:{minor} riops={iops} wiops={iops}")
}

/// `cpu.max` holds for all threads of the machine, so that what its VMM does for its disk and card is in the machine's own share.
fn settings(limits: &Limits, overhead_mib: u64) -> [(&'static str, String, bool); 4] {
    let quota = u64::from(limits.vcpus) * u64::from(limits.vcpu_share) * CPU_PERIOD_US / 100;
    [
        // The kernel refuses a quota below one millisecond.
        ("cpu.max", format!("{} {CPU_PERIOD_US}", quota.max(1000)), true),
        ("memory.max", ((limits.memory_mib + overhead_mib) << 20).to_string(), true),
        ("memory.swap.max", "0".into(), false),
        ("pids.max", MAX_PIDS.to_string(), false),
    ]
}

fn condition(message: String) -> v1::HostCondition {
    v1::HostCondition { r#type: "LimitsEnforced".into(), status: "False".into(), message }
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { vcpus: 2, vcpu_share: 50, memory_mib: 512, iops: 750 };

    fn root(controllers: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cgroup.controllers"), controllers).unwrap();
        dir
    }

    #[test]
    fn limits_are_written() {
        let dir = root("cpuset cpu io memory pids\n");
        let cgroups = Cgroups::at(dir.path(), HostId::from_u128(5));
        assert_eq!(cgroups.condition(), None);
        let control = fs::read_to_string(dir.path().join("cgroup.subtree_control")).unwrap();
        assert_eq!(control, "+cpu +memory +pids +io");
        let id = InstanceId::from_u128(1);
        let group = cgroups.prepare(id, &LIMITS, 64).unwrap().unwrap();
        assert_eq!(group, dir.path().join("shardplane-00000005").join(id.to_string()));
        assert_eq!(fs::read_to_string(group.join("cpu.max")).unwrap(), "100000 100000");
        assert_eq!(fs::read_to_string(group.join("memory.max")).unwrap(), ((512 + 64) << 20).to_string());
        assert!(!group.join("memory.swap.max").exists(), "only where the kernel has it");
    }

    /// HOST-5: a counter that the kernel keeps tells a machine that was killed for want of memory from others.
    #[test]
    fn host_5_a_machine_that_was_killed_for_want_of_memory_is_told_from_others() {
        let dir = root("cpu memory");
        let cgroups = Cgroups::at(dir.path(), HostId::from_u128(5));
        let id = InstanceId::from_u128(1);
        assert_eq!(cgroups.out_of_memory(id), None, "it has no group");
        let group = cgroups.prepare(id, &LIMITS, 64).unwrap().unwrap();
        for (events, expected) in [
            ("low 0\nhigh 0\nmax 12\noom 0\noom_kill 0\noom_group_kill 0\n", None),
            ("max 90\noom 1\noom_kill 1\n", Some(OutOfMemory::OfMachine { limit_mib: 576 })),
            ("max 0\noom 0\noom_kill 1\n", Some(OutOfMemory::OfHost)),
            ("another kernel", None),
        ] {
            fs::write(group.join("memory.events"), events).unwrap();
            assert_eq!(cgroups.out_of_memory(id), expected, "{events}");
        }
        assert!(OutOfMemory::OfMachine { limit_mib: 576 }.to_string().contains("576 MiB"));
    }

    #[test]
    fn values_are_rendered_as_the_kernel_reads_them() {
        assert_eq!(io_max(7, 3, 750), "7:3 riops=750 wiops=750");
        let tiny = Limits { vcpus: 0, vcpu_share: 0, ..LIMITS };
        assert_eq!(settings(&tiny, 64)[0].1, "1000 100000");
    }

    #[test]
    fn without_controllers_a_condition_says_why() {
        for controllers in ["", "cpuset io pids"] {
            let dir = root(controllers);
            let cgroups = Cgroups::at(dir.path(), HostId::from_u128(5));
            let condition = cgroups.condition().unwrap();
            assert_eq!((condition.r#type.as_str(), condition.status.as_str()), ("LimitsEnforced", "False"));
            assert!(condition.message.contains("cpu and memory"), "{}", condition.message);
            assert_eq!(cgroups.prepare(InstanceId::from_u128(1), &LIMITS, 64).unwrap(), None);
        }
        let dir = root("cpu memory");
        let condition = Cgroups::at(dir.path(), HostId::from_u128(5)).condition().unwrap();
        assert!(condition.message.contains("IOPS"), "{}", condition.message);
    }
}
