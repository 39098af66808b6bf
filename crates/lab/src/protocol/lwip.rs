//! lwIP, built from a checkout that the user names: its sources are not part of this project.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::tracer::{MARKS_C, TraceSpec};
use crate::error::LabError;

/// The workload's own files.
const FILES: [(&str, &str); 4] = [
    ("driver.c", include_str!("../../../stacks/lwip/driver.c")),
    (
        "lwipopts.h",
        include_str!("../../../stacks/lwip/lwipopts.h"),
    ),
    ("arch/cc.h", include_str!("../../../stacks/lwip/arch/cc.h")),
    ("fairlead_packet.h", MARKS_C),
];
/// Folders of a checkout of which all sources are built.
const FOLDERS: [&str; 2] = ["src/core", "src/core/ipv4"];
/// Besides these.
const SOURCE: &str = "src/netif/ethernet.c";
/// Sources of a checkout, at most.
const SOURCES_MAX: usize = 200;
/// Its send buffer holds 16 segments.
pub const SIZE_MAX: u32 = 8192;

/// Names of the workloads, and what they do.
pub const STACKS: [(&str, &str); 2] = [
    (
        "lwip-tcp",
        "lwIP, from a checkout (--checkout): a message is sent and received by TCP",
    ),
    ("lwip-udp", "the same by UDP"),
];

/// A built workload; removed on drop.
#[derive(Debug)]
pub struct Built {
    folder: PathBuf,
}

impl Drop for Built {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Built {
    /// Builds the workload with the sources of a checkout.
    ///
    /// # Errors
    /// It is no checkout of lwIP, or cannot be compiled.
    pub fn new(checkout: &Path) -> Result<Self, LabError> {
        let sources = sources(checkout)?;
        let name = format!("fairlead-lwip-{}", std::process::id());
        let folder = env::temp_dir().join(name);
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error| LabError::file(&path, error)
        };
        fs::create_dir(&folder).map_err(failed(&folder))?;
        let built = Self { folder };
        let folder = &built.folder;
        fs::create_dir(folder.join("arch")).map_err(failed(folder))?;
        for (name, text) in FILES {
            let path = folder.join(name);
            fs::write(&path, text).map_err(failed(&path))?;
        }
        let cc = env::var_os("CC").unwrap_or_else(|| "cc".into());
        let output = Command::new(&cc)
            .args(["-O2", "-g1", "-static", "-w", "-o"])
            .arg(built.program())
            .arg(format!("-ffile-prefix-map={}=lwip", checkout.display()))
            .arg("-I")
            .arg(folder)
            .arg("-I")
            .arg(checkout.join("src/include"))
            .arg(folder.join("driver.c"))
            .args(&sources)
            .stdin(Stdio::null())
            .output()
            .map_err(failed(Path::new(&cc)))?;
        if output.status.success() {
            return Ok(built);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let first: Vec<&str> = said.lines().take(5).collect();
        Err(LabError::Protocol(format!(
            "{}: lwIP cannot be built from it:\n{}",
            checkout.display(),
            first.join("\n")
        )))
    }

    fn program(&self) -> PathBuf {
        self.folder.join("lwip")
    }

    /// What to trace: one of [`STACKS`].
    ///
    /// # Errors
    /// A number is out of range.
    pub fn spec(&self, stack: &str, size: u32, packets: u32) -> Result<TraceSpec, LabError> {
        if !(1..=SIZE_MAX).contains(&size) {
            let problem = format!("write a number from 1 to {SIZE_MAX}");
            return Err(LabError::option("--size", size.to_string(), problem));
        }
        let protocol = stack.trim_start_matches("lwip-");
        let words = [protocol.to_owned(), size.to_string(), packets.to_string()];
        let description = [stack.to_owned(), size.to_string(), packets.to_string()];
        Ok(TraceSpec {
            program: self.program().into_os_string(),
            arguments: words.iter().map(OsString::from).collect(),
            is_quiet: true,
            name: Some("lwip"),
            description: Some(description.to_vec()),
            packets: 2 * u64::from(packets),
            ..TraceSpec::default()
        })
    }
}

fn sources(checkout: &Path) -> Result<Vec<PathBuf>, LabError> {
    let not_lwip = || {
        let problem = "is no checkout of lwIP: it has no src/core/tcp.c".to_owned();
        LabError::option("--checkout", checkout.display().to_string(), problem)
    };
    let mut sources = Vec::new();
    for folder in FOLDERS {
        let entries = fs::read_dir(checkout.join(folder)).map_err(|_| not_lwip())?;
        let files = entries.flatten().map(|entry| entry.path());
        sources.extend(files.filter(|file| file.extension().is_some_and(|end| end == "c")));
    }
    sources.push(checkout.join(SOURCE));
    // The order of linking is the layout of the program.
    sources.sort();
    let is_lwip = checkout.join("src/core/tcp.c").is_file() && sources.len() <= SOURCES_MAX;
    is_lwip.then_some(sources).ok_or_else(not_lwip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_folders_are_refused() {
        let error = Built::new(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap_err();
        assert!(
            error.to_string().contains("is no checkout of lwIP"),
            "{error}"
        );
        assert_eq!(error.exit_code(), 2);
    }
}
