//! Output of commands: results to standard output, messages to standard error, files atomically.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::Context;
use crate::control::{Control, Silent};
use crate::error::LabError;
use crate::table::{visible, visible_json};

/// Writes to standard output. A closed pipe (`| head`) is not an error; any other failure is,
/// because a lost result must not look like success.
pub(crate) fn print(text: &str) -> Result<(), LabError> {
    put(&visible(text))
}

fn put(text: &str) -> Result<(), LabError> {
    let mut out = io::stdout().lock();
    arrived(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// Written.
    Whole,
    /// The pipe is closed (`| head`).
    ReaderLeft,
}

fn arrived(written: io::Result<()>) -> Result<(), LabError> {
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(LabError::file(Path::new("standard output"), error))
        }
        _ => Ok(()),
    }
}

/// Reports what a command has written, on standard output; not for devices and pipes, which may be
/// standard output themselves, so that the line would become part of the data.
pub(crate) fn report(path: &Path, text: &str, context: &Context<'_>) -> Result<(), LabError> {
    if is_stream(path) {
        context.note(text);
        return Ok(());
    }
    print(&format!("{text}\n"))
}

/// Writes a line to standard error.
pub(crate) fn note(text: &str) {
    let mut out = std::io::stderr().lock();
    let _ = out
        .write_all(visible(text).as_bytes())
        .and_then(|()| out.write_all(b"\n"));
}

/// Writes JSON to standard output.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), LabError> {
    put(&visible_json(&json(value)?))
}

/// Indented JSON with a final line break.
pub(crate) fn json(value: &impl Serialize) -> Result<String, LabError> {
    serde_json::to_string_pretty(value)
        .map(|text| text + "\n")
        .map_err(|error| LabError::Trace(format!("cannot be represented as JSON: {error}")))
}

/// Writes a file atomically.
pub(crate) fn write_file(path: &Path, text: &str) -> Result<(), LabError> {
    write_whole(path, &Silent, |out| out.write_all(text.as_bytes())).map(|_| ())
}

/// Writes a file atomically: to a temporary file first, which is then renamed. The previous
/// contents stay until then, and if `fill` fails or `control` stops. Devices and pipes are written
/// directly, as far as they are read.
pub(crate) fn write_whole(
    path: &Path,
    control: &dyn Control,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<Written, LabError> {
    if is_stream(path) {
        let file = File::create(path).map_err(|error| LabError::file(path, error))?;
        return match filled(file, path, control, fill) {
            Err(LabError::File { source, .. }) if source.kind() == ErrorKind::BrokenPipe => {
                Ok(Written::ReaderLeft)
            }
            filled => filled.map(|()| Written::Whole),
        };
    }
    // Writes the target of a symbolic link, not the link.
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let part = &beside(path);
    let file = create_part(path, part)?;
    let done = filled(file, path, control, fill).and_then(|()| {
        // As late as possible: a stopped command must not change anything.
        if control.stopped() {
            return Err(LabError::Stopped);
        }
        fs::rename(part, path).map_err(|error| LabError::file(path, error))
    });
    if done.is_err() {
        let _ = fs::remove_file(part);
    }
    done.map(|()| Written::Whole)
}

/// True if the path cannot be replaced by renaming: devices, pipes, and files that the process has
/// open (`/dev/stdout`).
pub(crate) fn is_stream(path: &Path) -> bool {
    let is_device = path.starts_with("/dev") && !path.starts_with("/dev/shm");
    is_device
        || path.starts_with("/proc")
        || fs::metadata(path).is_ok_and(|metadata| !metadata.is_file())
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

/// Creates a new file beside `path` with the permissions of the existing file, if that is writable.
fn create_part(path: &Path, part: &Path) -> Result<File, LabError> {
    let old = match OpenOptions::new().write(true).open(path) {
        Ok(old) => Some(old),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(LabError::file(path, error)),
    };
    let file = File::create(part).map_err(|error| LabError::file(part, error))?;
    if let Some(metadata) = old.and_then(|old| old.metadata().ok()) {
        // Some file systems have no permissions to keep.
        let _ = file.set_permissions(metadata.permissions());
    }
    Ok(file)
}

fn filled(
    file: File,
    path: &Path,
    control: &dyn Control,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), LabError> {
    let mut out = BufWriter::new(Watched { file, control });
    let written = fill(&mut out).and_then(|()| out.flush());
    // Discard the rest of the buffer.
    let _ = out.into_parts();
    match written {
        Err(_) if control.stopped() => Err(LabError::Stopped),
        written => written.map_err(|error| LabError::file(path, error)),
    }
}

/// A writer that fails once the run should stop.
struct Watched<'a> {
    file: File,
    control: &'a dyn Control,
}

impl Write for Watched<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.control.stopped() {
            // Not `Interrupted`, which would be retried.
            return Err(io::Error::other("stopped"));
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A temporary directory, removed on drop.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder = format!("fairlead-output-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(folder);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn names(&self) -> Vec<String> {
            let mut names: Vec<String> = fs::read_dir(&self.0)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Stops after a number of calls.
    struct After(Cell<u32>);

    impl Control for After {
        fn stopped(&self) -> bool {
            let left = self.0.get();
            self.0.set(left.saturating_sub(1));
            left == 0
        }
    }

    /// More than any buffer holds.
    static LONG: [u8; 1 << 16] = [b'x'; 1 << 16];

    #[test]
    fn only_a_closed_pipe_is_not_an_error() {
        assert!(arrived(Ok(())).is_ok());
        assert!(arrived(Err(ErrorKind::BrokenPipe.into())).is_ok());
        let error = arrived(Err(ErrorKind::StorageFull.into())).unwrap_err();
        assert_eq!(error.exit_code(), 1);
        assert!(
            error.to_string().starts_with("standard output: "),
            "{error}"
        );
    }

    #[test]
    fn a_failed_write_leaves_the_previous_file() {
        let folder = Folder::new("fails");
        let path = folder.0.join("a");
        let full = |out: &mut dyn Write| {
            out.write_all(&LONG)?;
            Err(ErrorKind::StorageFull.into())
        };
        let error = write_whole(&path, &Silent, full).unwrap_err();
        assert!(matches!(error, LabError::File { .. }), "{error}");
        assert_eq!(folder.names(), [""; 0]);
        write_file(&path, "before").unwrap();
        assert!(write_whole(&path, &Silent, full).is_err());
        assert_eq!(folder.names(), ["a"]);
        assert_eq!(fs::read(&path).unwrap(), b"before");
        write_file(&path, "behind").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"behind");
    }

    #[test]
    fn a_stopped_write_leaves_the_previous_file() {
        let folder = Folder::new("stopped");
        let path = folder.0.join("a");
        write_file(&path, "before").unwrap();
        // At once; between two writes; when all is written.
        for asked in [0, 1, 2] {
            let control = After(Cell::new(asked));
            let written = write_whole(&path, &control, |out| {
                out.write_all(&LONG)?;
                out.write_all(&LONG)
            });
            assert!(matches!(written, Err(LabError::Stopped)), "{asked}");
            assert_eq!(folder.names(), ["a"], "{asked}");
            assert_eq!(fs::read(&path).unwrap(), b"before", "{asked}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn links_and_permissions_are_kept() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = Folder::new("links");
        let (path, link) = (folder.0.join("a"), folder.0.join("link"));
        write_file(&path, "before").unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        symlink(&path, &link).unwrap();
        write_file(&link, "behind").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"behind");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
    }

    #[cfg(unix)]
    #[test]
    fn devices_are_written_directly() {
        write_file(Path::new("/dev/null"), "away").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        assert!(!Path::new("/dev/null.part").exists());
    }
}
