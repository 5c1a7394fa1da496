//! The parts of the kernel that the network of machines needs.
//!
//! In: what the kernel says of itself, and its modules on disk. Out: one finding. Modules are loaded by the kernel when they are first
//! asked for, so that one on disk is as good as one in memory.

use super::{Finding, View};
use crate::config::VmmKind;

/// Name of the module and of its option in the kernel's configuration.
type Module = (&'static str, &'static str);

const ALWAYS: [Module; 3] =
    [("bridge", "CONFIG_BRIDGE"), ("vxlan", "CONFIG_VXLAN"), ("nf_tables", "CONFIG_NF_TABLES")];
const TUN: Module = ("tun", "CONFIG_TUN");
const VETH: Module = ("veth", "CONFIG_VETH");

/// Whether the kernel has a module on disk, to be loaded or built in.
pub(super) fn on_disk(view: &View, name: &str) -> bool {
    list(view).is_some_and(|text| lists(&text, name))
}

/// All modules of the running kernel's folder; `None` when it has none.
fn list(view: &View) -> Option<String> {
    let release = view.read("/proc/sys/kernel/osrelease").ok()?;
    let of = |file: &str| view.read(&format!("/lib/modules/{}/{file}", release.trim()));
    match (of("modules.dep"), of("modules.builtin")) {
        (Err(_), Err(_)) => None,
        (dep, builtin) => Some(dep.unwrap_or_default() + &builtin.unwrap_or_default()),
    }
}

fn lists(text: &str, name: &str) -> bool {
    // File names have either kind of dash.
    text.replace('-', "_").contains(&format!("/{name}.ko"))
}

/// The kernel's own configuration is packed, and only where it was built so; a copy lies beside the kernel.
fn built_in(view: &View) -> Option<String> {
    let release = view.read("/proc/sys/kernel/osrelease").ok()?;
    view.read(&format!("/boot/config-{}", release.trim())).ok()
}

pub(super) fn modules(view: &View, kind: VmmKind) -> Finding {
    let what = "kernel modules";
    let port = match kind {
        VmmKind::Namespace => VETH,
        VmmKind::CloudHypervisor => TUN,
    };
    let wanted: Vec<Module> = ALWAYS.into_iter().chain([port]).collect();
    let names = |modules: &[Module]| modules.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let loaded = |name: &str| view.path("/sys/module").join(name).is_dir();
    let (on_disk, config) = (list(view), built_in(view));
    let is_there = |(name, option): &Module| {
        loaded(name)
            || on_disk.as_ref().is_some_and(|text| lists(text, name))
            || config.as_ref().is_some_and(|text| text.lines().any(|line| line == format!("{option}=y")))
    };
    let missing: Vec<Module> = wanted.iter().copied().filter(|module| !is_there(module)).collect();
    if missing.is_empty() {
        return Finding::ok(what, names(&wanted));
    }
    let missing = names(&missing);
    if on_disk.is_some() {
        let text = format!("the kernel does not have {missing}: install its modules, or another kernel");
        return Finding::fail(what, text);
    }
    // A kernel without modules: what is built in and takes no parameters shows nowhere.
    Finding::warn(
        what,
        format!("it cannot be seen whether the kernel has {missing}; without them no port can be made"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preflight::{
        Level::{Fail, Ok as Fine, Warn},
        assert_row,
    };

    const RELEASE: (&str, &str) = ("/proc/sys/kernel/osrelease", "6.1.0-1\n");
    const DEP: &str = "/lib/modules/6.1.0-1/modules.dep";

    #[test]
    fn what_is_loaded_on_disk_or_built_in_is_there_and_what_is_nowhere_is_not() {
        let dep = "kernel/drivers/net/vxlan/vxlan.ko.xz: kernel/a.ko\nkernel/net/netfilter/nf_tables.ko:\n";
        let (_dir, view) = View::with(&[
            RELEASE,
            (DEP, dep),
            ("/lib/modules/6.1.0-1/modules.builtin", "kernel/drivers/net/tun.ko\n"),
            ("/sys/module/bridge/refcnt", "0"),
        ]);
        assert_row(&modules(&view, VmmKind::CloudHypervisor), Fine, &["bridge, vxlan, nf_tables, tun"]);
        let row = modules(&view, VmmKind::Namespace);
        assert_row(&row, Fail, &["does not have veth: install"]);

        let config =
            "CONFIG_BRIDGE=y\nCONFIG_VXLAN=y\nCONFIG_NF_TABLES=y\nCONFIG_TUN=m\n# CONFIG_VETH is not set\n";
        let (_dir, view) = View::with(&[RELEASE, ("/boot/config-6.1.0-1", config)]);
        let row = modules(&view, VmmKind::CloudHypervisor);
        assert_row(&row, Warn, &["has tun; without"]);
        let (_dir, view) = View::with(&[]);
        assert_row(&modules(&view, VmmKind::Namespace), Warn, &["bridge, vxlan, nf_tables, veth"]);
        let (_dir, view) = View::with(&[RELEASE, (DEP, "kernel/a.ko:\n")]);
        assert_row(&modules(&view, VmmKind::Namespace), Fail, &["bridge, vxlan, nf_tables, veth"]);
    }
}
