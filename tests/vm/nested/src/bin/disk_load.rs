//! `/init` of a machine that does nothing but keep its second disk busy: reads and writes of 4 KiB past the page cache, several at once.
//!
//! In: the modules of `images/kernel`. Out: every second a line on the console with how many it has done so far. Put in the place of the
//! supervisor by `tests/all/host.rs`, booted by a real agent for a real instance.

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use anyhow::Context as _;
use rustix::{
    fs::OFlags,
    mount::{MountFlags, mount},
};

/// So many that some always wait at the disk: cloud-hypervisor's limiter forgets the time between two operations that do not follow each
/// other at once, and one worker alone gets the less of its offer the longer its way to the disk and back is.
const WORKERS: u64 = 32;
const PAGE: u64 = 4096;
/// Of the disk, which has more.
const PAGES: u64 = 65_536;

static DONE: AtomicU64 = AtomicU64::new(0);

/// What goes past the page cache has to lie so in memory.
#[repr(align(4096))]
struct Page([u8; 4096]);

fn main() {
    match prepare() {
        Ok(disk) => load(&disk),
        Err(error) => println!("load: failed: {error:#}"),
    }
    // PID 1 must not end.
    loop {
        thread::park();
    }
}

fn prepare() -> anyhow::Result<File> {
    fs::create_dir_all("/dev").context("make /dev")?;
    mount("devtmpfs", "/dev", "devtmpfs", MountFlags::empty(), None).context("mount /dev")?;
    let order = fs::read_to_string("/modules/order").context("read the order of the modules")?;
    for name in order.lines() {
        let file = File::open(Path::new("/modules").join(name).with_extension("ko"));
        let file = file.with_context(|| format!("open the module {name}"))?;
        // Those that this machine has no use for may refuse.
        let _not_needed = rustix::system::finit_module(&file, c"", 0);
    }
    let direct = i32::try_from(OFlags::DIRECT.bits()).context("name O_DIRECT")?;
    let disk = File::options().read(true).write(true).custom_flags(direct).open("/dev/vdb");
    disk.context("open the second disk")
}

fn load(disk: &File) {
    thread::scope(|scope| {
        for worker in 0..WORKERS {
            scope.spawn(move || {
                if let Err(error) = work(disk, worker) {
                    println!("load: failed: {error}");
                }
            });
        }
        loop {
            thread::sleep(Duration::from_secs(1));
            println!("load: {} done", DONE.load(Ordering::Relaxed));
        }
    });
}

/// Here and there, so that neither side can put neighbours together.
fn work(disk: &File, worker: u64) -> std::io::Result<()> {
    let mut page = Box::new(Page([0x5a; 4096]));
    let mut place = worker;
    loop {
        place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (place >> 33) % PAGES * PAGE;
        if place >> 63 == 0 {
            disk.write_all_at(&page.0, at)?
        } else {
            disk.read_exact_at(&mut page.0, at)?
        }
        DONE.fetch_add(1, Ordering::Relaxed);
    }
}
