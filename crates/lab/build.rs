//! Compiles the tracer, a plugin for QEMU in C, for both versions of QEMU's interface, so that the
//! program carries it along.
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
        if let Err(why) = compile(&cc, &source, api, &to) {
            println!("cargo:warning=no tracer of protocol stacks in this build: {why}");
            std::fs::write(&to, []).expect("the build directory can be written");
        }
    }
}

fn compile(cc: &str, source: &Path, api: u8, to: &Path) -> Result<(), String> {
    let output = Command::new(cc)
        .args([
            "-std=gnu11",
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-shared",
            "-fPIC",
        ])
        .args(["-fvisibility=hidden", "-s"])
        .arg(format!("-DPLUGIN_API={api}"))
        .arg("-o")
        .arg(to)
        .arg(source.join("trace.c"))
        .output()
        .map_err(|error| format!("{cc}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr)
        .trim()
        .replace('\n', "; "))
}
