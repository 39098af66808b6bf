//! Waiting for packets, signals and time, in one system call.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use crate::passing::PassingErrors;
use crate::sys;

/// The signals that end a server, read like packets instead of interrupting it.
#[derive(Debug)]
pub struct EndSignals {
    file: OwnedFd,
    /// SIGHUP from a closed terminal is ignored.
    ignores_hang_up: bool,
}

/// A request to end, or to do something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndSignal {
    /// SIGTERM.
    Terminate,
    /// SIGINT: Ctrl-C.
    Interrupt,
    /// SIGHUP, by the kernel: the terminal is gone.
    HangUp,
    /// SIGHUP, by a process: whatever has a configuration is to read it anew.
    Reload,
    /// SIGUSR1: log files were moved away, and are to be opened again.
    Reopen,
}

impl EndSignal {
    /// The signal's usual name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Terminate => "SIGTERM",
            Self::Interrupt => "SIGINT",
            Self::HangUp | Self::Reload => "SIGHUP",
            Self::Reopen => "SIGUSR1",
        }
    }
}

/// What a wait has ended with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// The device has a packet.
    pub device: bool,
    /// An error has passed by.
    pub passing: bool,
    /// A signal has come.
    pub signal: bool,
    /// Somebody has written to the file for requests.
    pub requests: bool,
}

impl Ready {
    /// All of it, or nothing.
    pub fn all_if(all: bool) -> Self {
        Self {
            device: all,
            passing: all,
            signal: all,
            requests: all,
        }
    }
}

impl EndSignals {
    /// Takes SIGTERM, SIGINT and SIGHUP over, but for those that are ignored, as SIGHUP is behind
    /// nohup(1). Call it before any thread is started: threads that run already would go on being
    /// ended by them.
    pub fn take_over() -> io::Result<Self> {
        Self::of(END.into_iter().filter(|one| !sys::is_ignored(*one)))
    }

    /// As [`Self::take_over`], for a server with a configuration and logs: [`EndSignal::Reload`]
    /// comes behind nohup(1), too, only [`EndSignal::HangUp`] does not. So does
    /// [`EndSignal::Reopen`].
    pub fn take_over_with_reload() -> io::Result<Self> {
        let comes = |one: &i32| *one == libc::SIGHUP || !sys::is_ignored(*one);
        Self::of(END.into_iter().filter(comes).chain([libc::SIGUSR1]))
    }

    fn of(signals: impl Iterator<Item = i32>) -> io::Result<Self> {
        let file = sys::open_signals(&signals.collect::<Vec<_>>())?;
        let ignores_hang_up = sys::is_ignored(libc::SIGHUP);
        Ok(Self {
            file,
            ignores_hang_up,
        })
    }

    /// The next signal that has come; never waits.
    pub fn poll_signal(&self) -> io::Result<Option<EndSignal>> {
        let signal = sys::read_signal(&self.file)?.and_then(|(number, code)| known(number, code));
        Ok(signal.filter(|one| *one != EndSignal::HangUp || !self.ignores_hang_up))
    }

    /// Waits until the device has a packet, an error passes by, a signal has come, somebody has
    /// written to `requests`, or the time is up, and says which. What is broken is ready, too:
    /// reading it tells.
    pub fn wait_with(
        &self,
        device: &impl AsFd,
        passing: &PassingErrors,
        requests: &impl AsFd,
        timeout: Option<Duration>,
    ) -> io::Result<Ready> {
        let [v4, v6] = passing.files();
        let requests = Some(requests.as_fd());
        let files = [
            Some(device.as_fd()),
            Some(self.file.as_fd()),
            v4,
            v6,
            requests,
        ];
        let [device, signal, v4, v6, requests] = sys::wait_readable(files, timeout)?;
        let passing = v4 || v6;
        Ok(Ready {
            device,
            passing,
            signal,
            requests,
        })
    }
}

const END: [i32; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// What a signal means, by its number and what sent it (`si_code`, sigaction(2)).
fn known(number: i32, code: i32) -> Option<EndSignal> {
    match number {
        libc::SIGTERM => Some(EndSignal::Terminate),
        libc::SIGINT => Some(EndSignal::Interrupt),
        libc::SIGHUP if code == libc::SI_KERNEL => Some(EndSignal::HangUp),
        libc::SIGHUP => Some(EndSignal::Reload),
        libc::SIGUSR1 => Some(EndSignal::Reopen),
        _ => None,
    }
}

/// Waits until a device has a packet or the time is up (`None`: for ever); true in the first case.
pub fn wait_for_packet(device: &impl AsFd, timeout: Option<Duration>) -> io::Result<bool> {
    sys::wait_readable([Some(device.as_fd())], timeout).map(|[ready]| ready)
}

/// Waits until a file takes bytes without waiting, or is in error, or the time is up; true in the
/// first two cases. A pipe that is ready takes [`PIPE_BYTES`] at once.
pub fn wait_for_room(file: &impl AsFd, timeout: Duration) -> io::Result<bool> {
    sys::wait_writable(file.as_fd(), timeout)
}

/// Opens a named pipe for writing, without waiting for its reader; `None` while there is none. A
/// write does not wait either: [`wait_for_room`] does.
///
/// # Errors
/// When it cannot be opened.
pub fn open_named_pipe(path: &Path) -> io::Result<Option<File>> {
    let mut options = File::options();
    let options = options.write(true).custom_flags(libc::O_NONBLOCK);
    match options.open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Opens a file to write at its end, and makes it if it is not there, for its owner and group. A
/// pipe without a reader is an error, and a write to one that is full does not wait.
///
/// # Errors
/// When it cannot be opened.
pub fn open_for_appending(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    let options = options.append(true).create(true).mode(0o640);
    options
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
}

/// What a pipe with room takes without waiting.
pub const PIPE_BYTES: usize = libc::PIPE_BUF;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_that_is_gone_is_told_from_somebody_who_asks() {
        let by_process = libc::SI_USER;
        assert_eq!(
            known(libc::SIGHUP, libc::SI_KERNEL),
            Some(EndSignal::HangUp)
        );
        assert_eq!(known(libc::SIGHUP, by_process), Some(EndSignal::Reload));
        assert_eq!(known(libc::SIGHUP, libc::SI_TKILL), Some(EndSignal::Reload));
        assert_eq!(
            known(libc::SIGINT, libc::SI_KERNEL),
            Some(EndSignal::Interrupt)
        );
        assert_eq!(known(libc::SIGTERM, by_process), Some(EndSignal::Terminate));
        assert_eq!(known(libc::SIGUSR1, by_process), Some(EndSignal::Reopen));
        assert_eq!(known(libc::SIGUSR2, by_process), None);
    }
}
