//! What this process may do about network namespaces, found out by trying.

use std::ffi::CString;
use std::fmt;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::command::program;

/// How this process can get network namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// It may make them as it is (root, or the root of a user namespace).
    AsItIs,
    /// It may after [`enter_user_namespace`].
    InUserNamespace,
}

/// Why this process cannot have network namespaces, or the TUN device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The `ip` tool is missing.
    NoIpTool,
    /// Neither its own rights nor a user namespace suffice; what the kernel or `ip` said to each
    /// attempt.
    NotPermitted {
        /// The attempt with the rights the process has.
        as_it_is: String,
        /// The attempt in a user namespace.
        in_user_namespace: String,
    },
    /// `/dev/net/tun` cannot be opened; what the kernel said.
    NoTun(String),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoIpTool => {
                f.write_str("the `ip` tool is missing (Debian: apt-get install iproute2)")
            }
            Self::NotPermitted {
                as_it_is,
                in_user_namespace,
            } => write!(
                f,
                "network namespaces are not permitted, neither to this user ({as_it_is}) nor in a \
                 user namespace ({in_user_namespace}); run as root, or allow user namespaces \
                 (user.max_user_namespaces, kernel.unprivileged_userns_clone, \
                 kernel.apparmor_restrict_unprivileged_userns)"
            ),
            Self::NoTun(error) => write!(
                f,
                "/dev/net/tun cannot be opened ({error}); load the module (modprobe tun) and let \
                 this user read and write the device"
            ),
        }
    }
}

impl std::error::Error for Why {}

/// Finds out how this process can have network namespaces, by making one and a veth pair in it in
/// a child process. Takes some milliseconds and leaves nothing behind.
///
/// # Errors
/// [`Why`] not, in words that say what to change.
pub fn allowed() -> Result<Rights, Why> {
    let Some(ip) = program("ip") else {
        return Err(Why::NoIpTool);
    };
    let trial = |enter: fn(&Maps) -> io::Result<()>| {
        let mut command = Command::new(&ip);
        command
            .args([
                "link", "add", "trial-a", "type", "veth", "peer", "name", "trial-b",
            ])
            .stdin(Stdio::null());
        let maps = Maps::of_this_user();
        // SAFETY: `enter` makes only raw system calls on memory prepared before the fork.
        unsafe { command.pre_exec(move || enter(&maps)) };
        match command.output() {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => Err(error.to_string()),
        }
    };
    let as_it_is = match trial(|_| unshare(libc::CLONE_NEWNET)) {
        Ok(()) => return Ok(Rights::AsItIs),
        Err(error) => error,
    };
    match trial(Maps::enter) {
        Ok(()) => Ok(Rights::InUserNamespace),
        Err(in_user_namespace) => Err(Why::NotPermitted {
            as_it_is,
            in_user_namespace,
        }),
    }
}

/// Finds out whether the TUN device can be opened. What more it takes (`CAP_NET_ADMIN` in the
/// namespace) the root of a [`crate::World`] has.
///
/// # Errors
/// [`Why::NoTun`].
pub fn tun_allowed() -> Result<(), Why> {
    std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/net/tun")
        .map(|_| ())
        .map_err(|error| Why::NoTun(error.to_string()))
}

/// Moves this process into new user, network and mount namespaces, in which it is root and which
/// its later children share. Call it before any thread is started: the kernel refuses it to a
/// process of several threads.
///
/// # Errors
/// What the kernel says (`EINVAL` with more than one thread, `EPERM` or `ENOSPC` where user
/// namespaces are switched off).
pub fn enter_user_namespace() -> io::Result<()> {
    Maps::of_this_user().enter()
}

/// Makes `command` run in new user, network and mount namespaces of its own, as their root. For
/// programs that have threads already, which [`enter_user_namespace`] is closed to: they can run
/// themselves once more this way.
pub fn in_user_namespace(command: &mut Command) {
    let maps = Maps::of_this_user();
    // SAFETY: `enter` makes only raw system calls on memory prepared before the fork.
    unsafe { command.pre_exec(move || maps.enter()) };
}

/// The contents of the two map files (user_namespaces(7)), made before the fork: a forked child
/// must not allocate.
struct Maps {
    uid: CString,
    gid: CString,
}

impl Maps {
    fn of_this_user() -> Self {
        // SAFETY: these calls take nothing and cannot fail.
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        let line = |id: u32| CString::new(format!("0 {id} 1\n")).expect("digits hold no NUL");
        Self {
            uid: line(uid),
            gid: line(gid),
        }
    }

    /// Async-signal-safe, for use between fork and exec too.
    fn enter(&self) -> io::Result<()> {
        unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET | libc::CLONE_NEWNS)?;
        write_file(c"/proc/self/setgroups", c"deny")?;
        write_file(c"/proc/self/uid_map", &self.uid)?;
        write_file(c"/proc/self/gid_map", &self.gid)
    }
}

/// unshare(2) of the calling thread.
pub(crate) fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: unshare takes a number and touches no memory of ours.
    match unsafe { libc::unshare(flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn write_file(path: &std::ffi::CStr, text: &std::ffi::CStr) -> io::Result<()> {
    let bytes = text.to_bytes();
    // SAFETY: path and bytes are valid for the calls; the descriptor is closed before returning.
    let written = unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let written = libc::write(fd, bytes.as_ptr().cast(), bytes.len());
        let error = io::Error::last_os_error();
        libc::close(fd);
        if written < 0 {
            return Err(error);
        }
        written
    };
    if written as usize == bytes.len() {
        Ok(())
    } else {
        Err(io::ErrorKind::WriteZero.into())
    }
}
