//! The host of one virtual machine, itself an emulated machine: PID 1 of it, with cloud-hypervisor beside.
//!
//! In: `/machine/{kernel,image.erofs}` and `/usr/bin/cloud-hypervisor` of its image, the disk `/dev/vdc` for the machine's volume. Out: lines
//! on the console, of which the last says whether all went well; then it turns itself off. Booted by `tests/nested.rs` with the kernel and
//! initramfs of `images/build kernel`, which take it for a supervisor.

mod story;
mod vmm;

use rustix::system::{RebootCommand, reboot};

fn main() {
    match story::tell() {
        Ok(()) => println!("nested: all is well"),
        Err(error) => println!("nested: failed: {error:#}\nthe machine's console:\n{}", vmm::console()),
    }
    rustix::fs::sync();
    if let Err(error) = reboot(RebootCommand::PowerOff) {
        println!("nested: the host does not turn itself off: {error}");
    }
}
