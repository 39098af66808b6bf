//! Compiles the tracer, a plugin for QEMU in C, for both versions of QEMU's interface, and the
//! first program of traced virtual machines, so that the program carries them along.
//!
//! Where there is no C compiler the laboratory is built without it, and says so when it is asked to
//! trace.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Versions of QEMU's interface for plugins that the tracer is built for.
const APIS: [u8; 2] = [1, 2];

fn main() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tracer");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    println!("cargo:rerun-if-changed={}", source.display());
    println!("cargo:rerun-if-env-changed=CC");
    let cc = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    for api in APIS {
        let to = out.join(format!("tracer{api}.so"));
        let mut command = Command::new(&cc);
        command.args(["-shared", "-fPIC", "-fvisibility=hidden", "-s"]);
        command.arg(format!("-DPLUGIN_API={api}"));
        if let Err(why) = compile(command, &source.join("trace.c"), &to) {
            println!("cargo:warning=no tracer of protocol stacks in this build: {why}");
            std::fs::write(&to, []).expect("the build directory can be written");
        }
    }
    let (guest, to) = (source.join("../crates/stacks/linux"), out.join("guest"));
    println!("cargo:rerun-if-changed={}", guest.display());
    if let Err(why) = compile(guest_command(&cc, &source), &guest.join("guest.c"), &to) {
        println!("cargo:warning=no tracer of Linux in this build: {why}");
        std::fs::write(&to, []).expect("the build directory can be written");
    }
}

/// The program links nothing and lies where nothing else of a machine is, so that its marks are
/// found by address.
fn guest_command(cc: &str, tracer: &Path) -> Command {
    let mut command = Command::new(cc);
    command.args([
        "-ffreestanding",
        "-fno-stack-protector",
        "-fcf-protection=none",
    ]);
    command.args([
        "-fno-tree-loop-distribute-patterns",
        "-fno-asynchronous-unwind-tables",
    ]);
    command.args([
        "-fPIE",
        "-static",
        "-no-pie",
        "-nostdlib",
        "-Wl,--build-id=none",
    ]);
    command.arg("-Wl,-Ttext-segment=0x555500000000");
    command.arg("-I").arg(tracer);
    command
}

fn compile(mut command: Command, source: &Path, to: &Path) -> Result<(), String> {
    command.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]);
    let output = command
        .arg(to)
        .arg(source)
        .output()
        .map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr)
        .trim()
        .replace('\n', "; "))
}
