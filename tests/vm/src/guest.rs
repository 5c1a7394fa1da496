//! The tiny guest: built from `guest/guest.c` when a test needs it.
//!
//! In: a folder. Out: a kernel there that boots by PVH. The loader wants an ELF file of 64 bits, also for a guest of 32.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// Builds it.
///
/// # Panics
/// When the compiler fails.
pub fn build(dir: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest");
    let (object, elf32, kernel) = (dir.join("guest.o"), dir.join("guest.elf32"), dir.join("guest"));
    let text = |path: &Path| path.display().to_string();
    let flags = "-m32 -ffreestanding -fno-pic -fno-pie -fno-stack-protector -fcf-protection=none -mno-sse -O1 -Wall -Werror -c";
    let mut compile: Vec<String> = flags.split(' ').map(str::to_owned).collect();
    compile.extend([text(&source.join("guest.c")), "-o".into(), text(&object)]);
    run("gcc", &compile);
    let script = text(&source.join("guest.ld"));
    run(
        "ld",
        &[
            "-m".into(),
            "elf_i386".into(),
            "-nostdlib".into(),
            "-T".into(),
            script,
            "-o".into(),
            text(&elf32),
            text(&object),
        ],
    );
    run(
        "objcopy",
        &["-I".into(), "elf32-i386".into(), "-O".into(), "elf64-x86-64".into(), text(&elf32), text(&kernel)],
    );
    kernel
}

fn run(program: &str, arguments: &[String]) {
    let output = Command::new(program).args(arguments).output();
    match output {
        Ok(output) if output.status.success() => {}
        Ok(output) => panic!("{program}: {}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => panic!("cannot run {program}: {error}; install gcc and binutils"),
    }
}
