//! Hosts and the links between them.

use std::fmt;
use std::io::{self, Write};
use std::net::Ipv6Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cards;
use crate::command::program;
use crate::process::Running;
use crate::rights::{Why, unshare};

/// Errors of creating or using a world.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// This process may not, and why.
    NotAllowed(Why),
    /// A system call failed: the step, and the kernel's error.
    System(&'static str, io::Error),
    /// The `ip` tool failed: its commands, and its message.
    Ip {
        /// Its input lines.
        script: String,
        /// What it wrote to standard error.
        said: String,
    },
    /// Links are to be made of cards, and of this link, by its number, they are not here.
    NoCards(usize),
    /// A setting that this kernel does not have or that cannot be written: its name, and why.
    Sysctl(String, io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAllowed(why) => why.fmt(f),
            Self::System(what, error) => write!(f, "{what}: {error}"),
            Self::Ip { script, said } => {
                write!(
                    f,
                    "ip: {} (input: {})",
                    said.trim(),
                    script.trim().replace('\n', "; ")
                )
            }
            Self::NoCards(number) => {
                write!(f, "{}: link {number} has no cards here", cards::CARDS)
            }
            Self::Sysctl(name, error) => write!(f, "sysctl {name}: {error}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::System("inside a namespace", error)
    }
}

/// Some hosts and the links between them. Dropping it, its [`Host`]s and the processes in them
/// removes everything.
#[derive(Debug)]
pub struct World {
    ip: PathBuf,
    links: usize,
}

impl World {
    /// An empty world.
    ///
    /// # Errors
    /// [`Error::NotAllowed`] where the `ip` tool is missing. Whether namespaces can be made shows
    /// with the first [`Self::host`]; [`crate::allowed`] tells beforehand.
    pub fn new() -> Result<Self, Error> {
        let ip = program("ip").ok_or(Error::NotAllowed(Why::NoIpTool))?;
        Ok(Self { ip, links: 0 })
    }

    /// A new host with only a loopback device. `name` has at most 8 characters, because it becomes
    /// part of device names.
    ///
    /// # Errors
    /// When the kernel refuses a namespace.
    pub fn host(&mut self, name: &str) -> Result<Host, Error> {
        let made = std::thread::scope(|scope| {
            scope
                .spawn(new_namespace)
                .join()
                .expect("making a namespace does not panic")
        });
        let namespace = made.map_err(|error| Error::System("making a network namespace", error))?;
        let host = Host {
            name: name.into(),
            namespace: Arc::new(namespace),
            mounts: None,
            ip: self.ip.clone(),
        };
        host.ip("link set lo up\n")?;
        // Without this an IPv6 address is tentative, and useless, for its first second.
        match host.sysctl("net.ipv6.conf.default.accept_dad", "0") {
            Err(Error::Sysctl(_, error)) if error.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
        Ok(host)
    }

    /// Joins two hosts by a veth pair, or by cards ([`crate::cards`]), and gives its ends these
    /// addresses (`10.0.0.1/24`, `fd00::1/64`).
    ///
    /// # Errors
    /// The `ip` tool failed, with its message.
    pub fn link(
        &mut self,
        (a, a_addresses): (&Host, &[&str]),
        (b, b_addresses): (&Host, &[&str]),
    ) -> Result<Link, Error> {
        let number = self.links;
        self.links += 1;
        let link = Link {
            a: format!("{}{number}", b.name),
            b: format!("{}{number}", a.name),
        };
        match cards::names(number) {
            Some(cards) => self.wire(&link, a, b, &cards)?,
            None if cards::are_given() => return Err(Error::NoCards(number)),
            None => a.ip(&format!(
                "link add {} type veth peer name {} netns {}\n",
                link.a,
                link.b,
                b.namespace_path()
            ))?,
        }
        // Both ends first: an address given to a device without a carrier is of no use until the
        // kernel has noticed the carrier, up to a second later.
        a.ip(&format!("link set {} up\n", link.a))?;
        b.ip(&format!("link set {} up\n", link.b))?;
        for (host, device, addresses) in [(a, &link.a, a_addresses), (b, &link.b, b_addresses)] {
            let lines = addresses.iter().map(|address| {
                // Usable at once, without duplicate address detection.
                let at_once = if address.contains(':') { " nodad" } else { "" };
                format!("addr add {address} dev {device}{at_once}\n")
            });
            host.ip(&lines.collect::<String>())?;
        }
        a.await_ipv6(&link.a, a_addresses)?;
        b.await_ipv6(&link.b, b_addresses)?;
        Ok(link)
    }

    /// Gives the hosts these cards of the calling process.
    fn wire(&self, link: &Link, a: &Host, b: &Host, cards: &(String, String)) -> Result<(), Error> {
        let script = format!(
            "link set {} down name {} netns {}\nlink set {} down name {} netns {}\n",
            cards.0,
            link.a,
            a.namespace_path(),
            cards.1,
            link.b,
            b.namespace_path()
        );
        run_ip(Command::new(&self.ip), &script)
    }
}

fn run_ip(mut command: Command, script: &str) -> Result<(), Error> {
    let starting = |error| Error::System("running ip", error);
    command.args(["-batch", "-"]);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(starting)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A tool that exits early reports the reason on standard error, not by the broken pipe.
        let _ = stdin.write_all(script.as_bytes());
    }
    let output = child.wait_with_output().map_err(starting)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(Error::Ip {
        script: script.into(),
        said,
    })
}

/// The names of a link's devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The device in the first host.
    pub a: String,
    /// The device in the second host.
    pub b: String,
}

/// A network namespace. Clones are the same host.
#[derive(Clone, Debug)]
pub struct Host {
    name: String,
    namespace: Arc<OwnedFd>,
    mounts: Option<Arc<OwnedFd>>,
    ip: PathBuf,
}

impl Host {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A path by which tools (`ip … netns PATH`, `nsenter --net=PATH`) reach the namespace as long
    /// as this process lives.
    pub fn namespace_path(&self) -> String {
        format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            self.namespace.as_raw_fd()
        )
    }

    /// A command that will run in this host's network. Programs in `sbin` are found too.
    pub fn command(&self, name: &str) -> Command {
        let mut command = Command::new(program(name).unwrap_or_else(|| name.into()));
        let namespace = Arc::clone(&self.namespace);
        let mounts = self.mounts.clone();
        let enter = move || {
            set_namespace(&namespace)?;
            mounts.as_deref().map_or(Ok(()), set_mounts)
        };
        // SAFETY: setns is a system call on descriptors that the closure keeps open.
        unsafe { command.pre_exec(enter) };
        command
    }

    /// The same host, with a BPF file system of its own at `/sys/fs/bpf` where the kernel permits
    /// one: what its programs pin there nobody else sees, and it vanishes with the host. Programs
    /// start in the root folder.
    ///
    /// # Errors
    /// When the kernel refuses a mount namespace.
    pub fn with_own_bpffs(mut self) -> Result<Self, Error> {
        let made = std::thread::scope(|scope| {
            let thread = scope.spawn(new_mounts);
            thread.join().expect("making a namespace does not panic")
        });
        let mounts = made.map_err(|error| Error::System("making a mount namespace", error))?;
        self.mounts = Some(Arc::new(mounts));
        Ok(self)
    }

    /// Starts a program here that ends with its owner. `command` comes from [`Self::command`].
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn start(&self, command: &mut Command) -> Result<Running, Error> {
        Running::start(command).map_err(|error| Error::System("starting a program", error))
    }

    /// Runs `work` on a thread in this host's network namespace. Sockets created there stay in that
    /// namespace, even if used elsewhere later.
    ///
    /// # Errors
    /// When the thread cannot enter the namespace.
    ///
    /// # Panics
    /// When `work` does, with its panic.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                set_namespace(&self.namespace)
                    .map_err(|error| Error::System("entering a namespace", error))?;
                Ok(work())
            });
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs these lines (without the word `ip`) in the `ip` tool.
    ///
    /// # Errors
    /// [`Error::Ip`] with its message.
    pub fn ip(&self, script: &str) -> Result<(), Error> {
        run_ip(self.command(&self.ip.to_string_lossy()), script)
    }

    /// Waits for the routes of the IPv6 addresses of `device`: a work queue of the kernel makes
    /// them, which a busy machine puts off. Goes on after [`IPV6_PATIENCE`] in any case.
    fn await_ipv6(&self, device: &str, addresses: &[&str]) -> Result<(), Error> {
        let addresses = addresses.iter().filter_map(|one| one.split('/').next());
        let own: Vec<Ipv6Addr> = addresses.filter_map(|one| one.parse().ok()).collect();
        if own.is_empty() {
            return Ok(());
        }
        let until = Instant::now() + IPV6_PATIENCE;
        self.enter(|| {
            while Instant::now() < until {
                let table = std::fs::read_to_string("/proc/thread-self/net/ipv6_route");
                if has_host_routes(&table.unwrap_or_default(), device, &own) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        })
    }

    /// Makes the interface `name` of a VLAN on a device, and gives it these addresses; the device
    /// loses its own. False: this kernel has no such interfaces.
    ///
    /// # Errors
    /// [`Error::Ip`].
    pub fn vlan(
        &self,
        device: &str,
        name: &str,
        number: u16,
        addresses: &[&str],
    ) -> Result<bool, Error> {
        let made = format!("link add link {device} name {name} type vlan id {number}\n");
        if self.ip(&made).is_err() {
            return Ok(false);
        }
        let mut lines =
            format!("addr flush dev {device}\nlink set {device} up\nlink set {name} up\n");
        for address in addresses {
            // Usable at once, without duplicate address detection.
            let at_once = if address.contains(':') { " nodad" } else { "" };
            lines += &format!("addr add {address} dev {name}{at_once}\n");
        }
        self.ip(&lines)?;
        Ok(true)
    }

    /// Adds a route: `destination` (`10.2.0.0/24`, `::/0`) through the neighbour `via`.
    ///
    /// # Errors
    /// [`Error::Ip`].
    pub fn route(&self, destination: &str, via: &str) -> Result<(), Error> {
        self.ip(&format!("route add {destination} via {via}\n"))
    }

    /// Sets a kernel setting below `net.` in this namespace only (`net.ipv4.ip_forward`).
    ///
    /// # Errors
    /// [`Error::Sysctl`].
    pub fn sysctl(&self, name: &str, value: &str) -> Result<(), Error> {
        let failed = |error| Error::Sysctl(name.into(), error);
        // Everything below `net` is per namespace (with few, read-only exceptions); the rest is the
        // machine's and none of our business.
        if !name.starts_with("net.") || name.contains("..") || name.contains('/') {
            return Err(failed(io::ErrorKind::InvalidInput.into()));
        }
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        self.enter(|| {
            std::fs::File::options()
                .write(true)
                .open(path)?
                .write_all(value.as_bytes())
        })?
        .map_err(failed)
    }
}

/// How long an IPv6 address may take to get its route.
const IPV6_PATIENCE: Duration = Duration::from_secs(20);

/// True when `table` (of the form of `/proc/net/ipv6_route`) has a host route for each of these
/// addresses of `device`, and one for the link-local address that the kernel gives it.
fn has_host_routes(table: &str, device: &str, own: &[Ipv6Addr]) -> bool {
    let hosts: Vec<Ipv6Addr> = table
        .lines()
        .map(|line| line.split_ascii_whitespace().collect::<Vec<_>>())
        .filter(|words| words.get(1) == Some(&"80") && words.last() == Some(&device))
        .filter_map(|words| u128::from_str_radix(words[0], 16).ok())
        .map(Ipv6Addr::from)
        .collect();
    // The network's own address (all zeros behind the prefix) is a host route too.
    let is_link_local = |one: &Ipv6Addr| one.is_unicast_link_local() && one.segments()[7] != 0;
    own.iter().all(|one| hosts.contains(one)) && hosts.iter().any(is_link_local)
}

/// Makes a network namespace with the calling thread in it, and returns a descriptor of it. For a
/// thread that ends right after.
fn new_namespace() -> io::Result<OwnedFd> {
    unshare(libc::CLONE_NEWNET)?;
    Ok(std::fs::File::open("/proc/thread-self/ns/net")?.into())
}

/// Makes a mount namespace with the calling thread in it. For a thread that ends right after.
fn new_mounts() -> io::Result<OwnedFd> {
    unshare(libc::CLONE_NEWNS)?;
    let (none, root) = (c"none", c"/");
    let private = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: strings that end in zero, and none where none is wanted.
    let made = unsafe {
        let nothing = std::ptr::null();
        libc::mount(
            none.as_ptr(),
            root.as_ptr(),
            nothing,
            private,
            nothing.cast(),
        )
    };
    if made != 0 {
        return Err(io::Error::last_os_error());
    }
    let (bpf, at) = (c"bpf", c"/sys/fs/bpf");
    // Whoever needs it says so when it is not there.
    // SAFETY: as above.
    let _ = unsafe {
        let nothing = std::ptr::null();
        libc::mount(bpf.as_ptr(), at.as_ptr(), bpf.as_ptr(), 0, nothing)
    };
    Ok(std::fs::File::open("/proc/thread-self/ns/mnt")?.into())
}

fn set_mounts(mounts: &OwnedFd) -> io::Result<()> {
    // SAFETY: setns takes a descriptor, which is open, and a number.
    match unsafe { libc::setns(mounts.as_raw_fd(), libc::CLONE_NEWNS) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_namespace(namespace: &OwnedFd) -> io::Result<()> {
    // SAFETY: setns takes a descriptor, which is open, and a number.
    match unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
