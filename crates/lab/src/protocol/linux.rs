//! Linux's own TCP and UDP: a kernel of the user's in a virtual machine.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use super::tracer::{GuestSpec, has_machine_emulator};
use crate::error::LabError;

/// The first program of the machine; empty without a C compiler.
const GUEST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guest"));
/// Names a kernel, wherever it is.
const KERNEL_VARIABLE: &str = "FAIRLEAD_KERNEL";
/// Where `scripts/vm` keeps kernels, seen from the repository; each has a folder of its series.
const KERNELS: &str = ".deps/kernels";
/// Its buffers hold one message.
const SIZE_MAX: u32 = 65_000;
const PACKETS_MAX: u32 = 1_000_000;

/// Names of the workloads, and what they do.
pub const STACKS: [(&str, &str); 2] = [
    (
        "linux-tcp",
        "Linux in a virtual machine (--kernel): a message is sent and received by TCP over lo",
    ),
    ("linux-udp", "the same by UDP"),
];

/// Whether this is one of [`STACKS`].
pub fn is_named(name: &str) -> bool {
    STACKS.iter().any(|(known, _)| *known == name)
}

/// What to trace: one of [`STACKS`], with messages of these sizes, one after the other.
///
/// # Errors
/// A number is out of range, or this build has no guest program.
pub fn spec(
    stack: &str,
    sizes: &[u32],
    packets: u32,
    kernel: &Path,
) -> Result<GuestSpec, LabError> {
    let numbers = sizes.iter().map(|size| ("--size", *size, SIZE_MAX));
    let packets_too = [("--packets", packets, PACKETS_MAX)];
    for (option, value, max) in numbers.chain(packets_too) {
        if !(1..=max).contains(&value) {
            let problem = format!("write a number from 1 to {max}");
            return Err(LabError::option(option, value.to_string(), problem));
        }
    }
    if GUEST.is_empty() {
        return Err(LabError::Protocol(
            "this program was built without a C compiler for x86-64, so without what a virtual \
             machine runs; build it again where cc is installed (apt-get install gcc)"
                .to_owned(),
        ));
    }
    let written: Vec<String> = sizes.iter().map(u32::to_string).collect();
    Ok(GuestSpec {
        kernel: kernel.to_owned(),
        program: GUEST.to_vec(),
        files: Vec::new(),
        arguments: vec![stack.to_owned(), written.join(","), packets.to_string()],
        cpu: None,
        packets: 2 * u64::from(packets) * sizes.len() as u64,
    })
}

/// The kernel that is named, by an option or by the variable, or one at hand.
///
/// # Errors
/// None is named or at hand.
pub fn kernel(named: Option<&Path>) -> Result<PathBuf, LabError> {
    let variable = env::var_os(KERNEL_VARIABLE).map(PathBuf::from);
    named
        .map(Path::to_owned)
        .or(variable)
        .or_else(at_hand)
        .ok_or_else(|| {
            LabError::Protocol(format!(
                "no Linux kernel to be traced; name one with --kernel or {KERNEL_VARIABLE}: \
             /boot/vmlinuz-… of the package linux-image-amd64, or, in the repository, what \
             scripts/vm 6.1 true gets into {KERNELS}"
            ))
        })
}

/// A kernel at hand, where there is an emulator for it.
pub fn available() -> Option<PathBuf> {
    kernel(None).ok().filter(|_| has_machine_emulator())
}

/// Of what `scripts/vm` has got, the first by series; the repository is the current folder or where
/// this program was built.
fn at_hand() -> Option<PathBuf> {
    let program = env::current_exe().ok()?;
    let above = program.ancestors().skip(1).take(5).map(Path::to_owned);
    let roots = std::iter::once(PathBuf::from(".")).chain(above);
    roots.map(|root| root.join(KERNELS)).find_map(|folder| {
        let mut found: Vec<PathBuf> = files(&folder)
            .flat_map(|series| files(&series.join("boot")))
            .filter(|file| {
                let name = file.file_name().unwrap_or_default();
                name.to_string_lossy().starts_with("vmlinuz-")
            })
            .collect();
        found.sort();
        found.into_iter().next()
    })
}

fn files(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.flatten().map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_range_are_refused() {
        for (size, packets) in [(0, 1), (SIZE_MAX + 1, 1), (1, 0), (1, PACKETS_MAX + 1)] {
            let error = spec("linux-tcp", &[1, size], packets, Path::new("vmlinuz")).unwrap_err();
            assert_eq!(error.exit_code(), 2);
        }
        assert!(is_named("linux-udp") && !is_named("linux"));
    }
}
