//! QEMU: found, asked for its version, given the tracer.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::LabError;

/// The tracer, built for both versions of QEMU's interface; empty without a C compiler.
const TRACERS: [&[u8]; 2] = [
    include_bytes!(concat!(env!("OUT_DIR"), "/tracer1.so")),
    include_bytes!(concat!(env!("OUT_DIR"), "/tracer2.so")),
];

/// Since this version, QEMU accepts version 2 of its interface, and version 1 no longer.
const API_2_SINCE: (u32, u32) = (8, 2);
/// Since this version, QEMU's interface has all that the tracer uses.
const OLDEST: (u32, u32) = (6, 2);

/// A program of QEMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Emulator {
    pub(super) path: PathBuf,
    /// `qemu-x86_64 7.2.22`.
    pub(super) name: String,
    version: (u32, u32),
}

impl Emulator {
    /// Finds a program of QEMU and asks for its version.
    ///
    /// # Errors
    /// It is not there, with the package that has it, or too old.
    pub(super) fn find(program: &str, package: &str) -> Result<Self, LabError> {
        let Some(path) = in_path(program) else {
            return Err(LabError::Protocol(format!(
                "{program} is not installed; tracing needs it: apt-get install {package}"
            )));
        };
        let output = Command::new(&path)
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .map_err(|error| LabError::file(&path, error))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let Some((number, version)) = version(&text) else {
            return Err(LabError::Protocol(format!(
                "{}: --version says nothing that is known: {text:?}",
                path.display()
            )));
        };
        if version < OLDEST {
            return Err(LabError::Protocol(format!(
                "{program} {number} is too old for the tracer, which needs QEMU {}.{} or later",
                OLDEST.0, OLDEST.1
            )));
        }
        let name = format!("{program} {number}");
        Ok(Self {
            path,
            name,
            version,
        })
    }

    /// The version of QEMU's interface for which the tracer is taken.
    pub(super) fn api(&self) -> u8 {
        if self.version >= API_2_SINCE { 2 } else { 1 }
    }
}

/// `7.2.22` and (7, 2) of `qemu-x86_64 version 7.2.22 (Debian …)`.
fn version(text: &str) -> Option<(String, (u32, u32))> {
    let (_, rest) = text.split_once("version ")?;
    let number = rest.split_whitespace().next()?;
    let mut parts = number.split('.');
    let major = parts.next()?.parse().ok()?;
    let minor = parts.next()?.parse().ok()?;
    Some((number.to_owned(), (major, minor)))
}

/// The program of this name in `PATH`, as a shell finds it.
pub(super) fn in_path(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program));
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// The tracer as a file, for as long as this lives.
#[derive(Debug)]
pub(super) struct TracerFile {
    folder: PathBuf,
    path: PathBuf,
}

/// Bytes of the path of the folder, unless the folder for temporary files has a longer one.
const FOLDER_BYTES: usize = 160;

impl TracerFile {
    /// Writes the tracer into a new folder for temporary files.
    ///
    /// # Errors
    /// The laboratory was built without it, or it cannot be written.
    pub(super) fn unpack(api: u8) -> Result<Self, LabError> {
        let bytes = TRACERS[usize::from(api > 1)];
        if bytes.is_empty() {
            return Err(LabError::Protocol(
                "this program was built without a C compiler, so without the tracer; build it \
                 again where cc is installed (apt-get install gcc)"
                    .to_owned(),
            ));
        }
        let parent = env::temp_dir();
        // All paths have one length.
        let width = FOLDER_BYTES.saturating_sub(parent.as_os_str().len());
        let name = |at: u32| {
            let name = format!("fairlead-tracer-{}-{at}", std::process::id());
            format!("{name:-<width$}")
        };
        let folder = (0..1000)
            .map(|at| parent.join(name(at)))
            .find_map(|folder| match fs::create_dir(&folder) {
                Ok(()) => Some(Ok(folder)),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => None,
                Err(error) => Some(Err(LabError::file(&folder, error))),
            });
        let Some(folder) = folder else {
            return Err(LabError::file(
                &env::temp_dir(),
                std::io::ErrorKind::AlreadyExists.into(),
            ));
        };
        let folder = folder?;
        let unpacked = Self {
            path: folder.join("trace.so"),
            folder,
        };
        fs::write(&unpacked.path, bytes).map_err(|error| LabError::file(&unpacked.path, error))?;
        Ok(unpacked)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A folder of this run's own, removed in the end.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for TracerFile {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        let debian = "qemu-x86_64 version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nCopyright";
        assert_eq!(version(debian), Some(("7.2.22".to_owned(), (7, 2))));
        let (_, later) = version("qemu-x86_64 version 10.0.2 (v10)").unwrap();
        assert!(later > API_2_SINCE);
        assert_eq!(version("usage"), None);
    }

    #[test]
    fn a_missing_program_names_its_package() {
        let error = Emulator::find("qemu-no-such", "qemu-user").unwrap_err();
        assert!(
            error.to_string().contains("apt-get install qemu-user"),
            "{error}"
        );
        assert_eq!(error.exit_code(), 2);
    }
}
