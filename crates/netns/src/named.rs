//! Network namespaces that somebody else has made.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// Where `ip netns` keeps names.
const NAMES: &str = "/run/netns";

/// A network namespace.
#[derive(Debug)]
pub struct Namespace(OwnedFd);

impl Namespace {
    /// That of this thread.
    ///
    /// # Errors
    /// What the system says.
    pub fn own() -> io::Result<Self> {
        Ok(Self(File::open("/proc/thread-self/ns/net")?.into()))
    }

    /// The one that `ip netns add` has given this name, or at this path.
    ///
    /// # Errors
    /// What the system says.
    pub fn named(name: &str) -> io::Result<Self> {
        Ok(Self(File::open(Path::new(NAMES).join(name))?.into()))
    }

    /// Takes this thread there. Sockets that it makes from then on belong there.
    ///
    /// # Errors
    /// What the system says.
    pub fn enter(&self) -> io::Result<()> {
        // SAFETY: setns takes a descriptor, which is open, and a number.
        match unsafe { libc::setns(self.0.as_raw_fd(), libc::CLONE_NEWNET) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
