//! A child process that does not outlive its owner.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// A child process. Dropping it kills the process (by its id) and waits for its exit. If this
/// process dies first, the kernel kills the child; that is tied to the *thread* that started it, so
/// start it from a thread that lives long enough.
#[derive(Debug)]
pub struct Running {
    child: Child,
}

impl Running {
    /// Starts `command`.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let parent = std::process::id();
        // SAFETY: the closure makes two system calls that touch no memory of ours.
        unsafe {
            command.pre_exec(move || {
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                    return Err(io::Error::last_os_error());
                }
                // The parent may have died before the call above; then nobody would kill us.
                if libc::getppid() as u32 != parent {
                    return Err(io::Error::from_raw_os_error(libc::ESRCH));
                }
                Ok(())
            });
        }
        Ok(Self {
            child: command.spawn()?,
        })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The child, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Sends it a signal, unless it has ended and been waited for.
    ///
    /// # Errors
    /// What kill(2) says.
    pub fn signal(&mut self, signal: Signal) -> io::Result<()> {
        if self.child.try_wait()?.is_some() {
            return Ok(());
        }
        let pid = libc::pid_t::try_from(self.child.id()).map_err(io::Error::other)?;
        // SAFETY: kill takes numbers; the child has not been waited for, so the id is still its.
        match unsafe { libc::kill(pid, signal.number()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Its exit status once it has ended, `None` when it still runs after `patience`.
    ///
    /// # Errors
    /// What waitpid(2) says.
    pub fn wait_for(&mut self, patience: Duration) -> io::Result<Option<ExitStatus>> {
        let until = Instant::now() + patience;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// True while it has not ended.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The signals that tests and demonstrations send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM: please end.
    Terminate,
    /// SIGINT: Ctrl-C.
    Interrupt,
    /// SIGHUP: reload the configuration.
    HangUp,
    /// SIGKILL: end at once.
    Kill,
    /// SIGSTOP: suspend.
    Stop,
    /// SIGCONT: go on.
    Continue,
    /// SIGQUIT: end when all is done, for those who have that.
    Quit,
    /// SIGUSR1: open log files again.
    User1,
}

impl Signal {
    fn number(self) -> libc::c_int {
        match self {
            Self::Terminate => libc::SIGTERM,
            Self::Interrupt => libc::SIGINT,
            Self::HangUp => libc::SIGHUP,
            Self::Kill => libc::SIGKILL,
            Self::Stop => libc::SIGSTOP,
            Self::Continue => libc::SIGCONT,
            Self::Quit => libc::SIGQUIT,
            Self::User1 => libc::SIGUSR1,
        }
    }
}

/// Raises this process's limit of open files to `wanted`, as far as the hard limit lets it, and
/// returns the limit that holds then. Children inherit it.
///
/// # Errors
/// What getrlimit(2) and setrlimit(2) say.
pub fn raise_open_files(wanted: u64) -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: both calls get a valid pointer to an rlimit.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) != 0 {
            return Err(io::Error::last_os_error());
        }
        if limit.rlim_cur < wanted {
            limit.rlim_cur = wanted.min(limit.rlim_max);
            if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
    }
    Ok(limit.rlim_cur)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_process_is_gone() {
        let running = Running::start(Command::new("sleep").arg("600")).unwrap();
        let path = format!("/proc/{}", running.id());
        assert!(std::path::Path::new(&path).exists());
        drop(running);
        assert!(!std::path::Path::new(&path).exists());
    }

    #[test]
    fn a_signal_ends_it_and_the_end_is_seen() {
        let mut running = Running::start(Command::new("sleep").arg("600")).unwrap();
        assert_eq!(running.wait_for(Duration::from_millis(5)).unwrap(), None);
        running.signal(Signal::Terminate).unwrap();
        let status = running.wait_for(Duration::from_secs(60)).unwrap().unwrap();
        assert!(!status.success());
        running.signal(Signal::Kill).unwrap();
        assert!(!running.is_alive());
    }

    #[test]
    fn the_limit_of_open_files_never_falls() {
        let first = raise_open_files(64).unwrap();
        let second = raise_open_files(u64::MAX).unwrap();
        assert!(second >= first);
    }
}
