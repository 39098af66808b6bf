//! Compiles the kernel program, and writes what the loader must know of it in Rust: the layout of
//! maps and the table of counters have their only declaration in the program's headers.
//!
//! Where there is no clang (or no header of libbpf) the loader is
//! built without it, says so, and Fairlead runs on its engine alone.

use std::env;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

mod counters;
#[path = "../src/declared.rs"]
mod declared;
mod layout;

/// Objects, their sources, and what is defined for them.
const OBJECTS: [(&str, &str, &[&str]); 14] = [
    ("fairlead_tc", "fairlead_tc", &[]),
    ("fairlead_xdp", "fairlead_xdp", &[]),
    ("fairlead_tc_lru", "fairlead_tc", &["-DFL_FLOWS_LRU"]),
    ("fairlead_xdp_lru", "fairlead_xdp", &["-DFL_FLOWS_LRU"]),
    ("fairlead_tc_tcb", "fairlead_tc", &["-DFL_FLOWS_TCB"]),
    ("fairlead_xdp_tcb", "fairlead_xdp", &["-DFL_FLOWS_TCB"]),
    ("fairlead_out", "fairlead_out", &[]),
    ("fairlead_in", "fairlead_in", &[]),
    ("fairlead_host", "fairlead_host", &[]),
    ("fairlead_pair", "fairlead_pair", &[]),
    ("fairlead_meter", "fairlead_meter", &[]),
    ("fairlead_offload", "fairlead_offload", &[]),
    ("fairlead_refer", "fairlead_refer", &[]),
    ("fairlead_resolve", "fairlead_resolve", &[]),
];

fn main() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bpf");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    println!("cargo:rerun-if-changed={}", source.display());
    println!("cargo:rerun-if-env-changed=FAIRLEAD_CLANG");
    println!("cargo:rerun-if-changed=src/declared.rs");
    std::fs::write(out.join("maps.rs"), declared_maps(&source)).expect("it can be written");
    let in_rust = [
        ("layout", layout::in_rust as fn(&str) -> String),
        ("counters", counters::in_rust),
    ];
    for (name, in_rust) in in_rust {
        let header = source.join(format!("include/fairlead/{name}.h"));
        let text = std::fs::read_to_string(header).expect("a header of the kernel program");
        let to = out.join(format!("{name}.rs"));
        std::fs::write(to, in_rust(&text)).expect("the build directory can be written");
    }
    let clang = env::var("FAIRLEAD_CLANG").unwrap_or_else(|_| "clang".to_owned());
    for (object, from, defined) in OBJECTS {
        let to = out.join(format!("{object}.o"));
        if let Err(why) = compile(&clang, &source, from, defined, &to) {
            println!("cargo:warning=no kernel fast path in this build: {why}");
            std::fs::write(&to, []).expect("the build directory can be written");
        }
    }
}

/// The table of all maps and whether they are pinned, as Rust.
fn declared_maps(source: &Path) -> String {
    let mut table = String::from("pub(super) const DECLARED: &[(&str, Pinning)] = &[\n");
    for folder in ["", "lib", "include/fairlead"] {
        let entries = std::fs::read_dir(source.join(folder)).expect("the sources are there");
        let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        files.sort();
        // Where the declarations are defined.
        files.retain(|file| file.is_file() && !file.ends_with("include/fairlead/map.h"));
        for file in files {
            let text = std::fs::read_to_string(&file).expect("sources are text");
            let maps = declared::maps(&text);
            let maps = maps.unwrap_or_else(|why| panic!("{}: {why}", file.display()));
            for (name, pinning) in maps {
                let _ = writeln!(table, "    (\"{name}\", {pinning}),");
            }
        }
    }
    table + "];\n"
}

fn compile(
    clang: &str,
    source: &Path,
    object: &str,
    defined: &[&str],
    to: &Path,
) -> Result<(), String> {
    let output = Command::new(clang)
        .args([
            "-O2",
            "-g",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-unused-parameter",
        ])
        .args(["-target", "bpf", "-mcpu=v3"])
        .args(defined)
        .arg(format!("-I{}", source.join("include").display()))
        .arg(format!("-I/usr/include/{}-linux-gnu", env::consts::ARCH))
        .arg("-c")
        .arg(source.join(format!("{object}.bpf.c")))
        .arg("-o")
        .arg(to)
        .output()
        .map_err(|error| format!("{clang} does not run ({error}); install clang and libbpf-dev"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("bpf/bpf_helpers.h' file not found") {
        return Err("the headers of libbpf are missing; install libbpf-dev".to_owned());
    }
    // A fault in our own source must not pass as a missing compiler.
    panic!("{object}.bpf.c does not compile:\n{said}");
}
