//! The world of every test.
//!
//! ```text
//!   client ── front ─── switch ─── back ── servers
//!   10.1.0.10/24     10.1.0.2 10.2.0.254  10.2.0.1 … 10.2.0.3
//!   fd01::10/64      fd01::2  fd02::fe    fd02::1 … fd02::3
//!            virtual: 10.1.0.3, fd01:3::3
//! ```

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use fairlead_netns::{Error, Host, Link, World};

/// Programs that the tests run, and the Debian packages they come from.
pub(crate) const PROGRAMS: [(&str, &str); 5] = [
    ("curl", "curl"),
    ("nginx", "nginx"),
    ("openssl", "openssl"),
    ("python3", "python3"),
    ("wrk", "wrk"),
];

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) const BOTH: [Self; 2] = [Self::V4, Self::V6];

    fn choose(self, v4: &str, v6: &str) -> IpAddr {
        let text = if self == Self::V4 { v4 } else { v6 };
        text.parse().expect("an address")
    }

    /// The virtual address.
    pub(crate) fn virtual_at(self, port: u16) -> SocketAddr {
        SocketAddr::new(self.choose("10.1.0.3", "fd01:3::3"), port)
    }

    /// Address `number` (1 to 3) of the servers' host.
    pub(crate) fn server_at(self, number: u8, port: u16) -> SocketAddr {
        let v4 = format!("10.2.0.{number}");
        SocketAddr::new(self.choose(&v4, &format!("fd02::{number}")), port)
    }

    /// The client's address.
    pub(crate) fn client(self) -> IpAddr {
        self.choose("10.1.0.10", "fd01::10")
    }
}

/// Hosts, links and a folder for files. All of it is gone when the test ends.
#[derive(Debug)]
pub(crate) struct Lab {
    pub(crate) client: Host,
    pub(crate) switch: Host,
    pub(crate) servers: Host,
    /// Between client (a) and switch (b).
    pub(crate) front: Link,
    /// Between switch (a) and servers (b).
    pub(crate) back: Link,
    folder: PathBuf,
}

static LABS: AtomicU32 = AtomicU32::new(0);

impl Lab {
    pub(crate) fn new() -> Result<Self, Error> {
        let mut world = World::new()?;
        let client = world.host("client")?;
        // What a switch pins must not meet that of another test's.
        let switch = world.host("switch")?.with_own_bpffs()?;
        let servers = world.host("servers")?;
        let front = world.link(
            (&client, &["10.1.0.10/24", "fd01::10/64"]),
            (&switch, &["10.1.0.2/24", "fd01::2/64"]),
        )?;
        let back = world.link(
            (&switch, &["10.2.0.254/24", "fd02::fe/64"]),
            (
                &servers,
                &[
                    "10.2.0.1/24",
                    "10.2.0.2/24",
                    "10.2.0.3/24",
                    "fd02::1/64",
                    "fd02::2/64",
                    "fd02::3/64",
                ],
            ),
        )?;
        client.route("10.1.0.3/32", "10.1.0.2")?;
        client.route("fd01:3::/64", "fd01::2")?;
        servers.route("0.0.0.0/0", "10.2.0.254")?;
        servers.route("::/0", "fd02::fe")?;
        switch.sysctl("net.ipv4.ip_forward", "1")?;
        switch.sysctl("net.ipv6.conf.all.forwarding", "1")?;
        // Cards are on wires.
        if xdp_is_asked_for() && !fairlead_netns::cards::are_given() {
            as_on_a_wire((&client, &front.a), (&switch, &front.b))?;
            as_on_a_wire((&servers, &back.b), (&switch, &back.a))?;
        }
        let number = LABS.fetch_add(1, Ordering::Relaxed);
        let name = format!("fairlead-e2e-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder)?;
        Ok(Self {
            client,
            switch,
            servers,
            front,
            back,
            folder,
        })
    }

    /// A folder that is gone when the test ends.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes a file into the folder and returns its path.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.folder.join(name);
        fs::write(&path, content).expect("writing a file of the test");
        path
    }
}

/// The tests are to run on XDP, which sees no super-packets and no unfinished checksums.
pub(crate) fn xdp_is_asked_for() -> bool {
    std::env::var("FAIRLEAD_E2E_MODE").is_ok_and(|mode| mode.starts_with("xdp"))
}

/// True where XDP sends into the links of a lab. Before Linux 6.3 a veth does not tell whether it
/// takes packets, and is not believed to: such packets are the engine's.
pub(crate) fn links_take_xdp() -> bool {
    let tells = matches!(fairlead_survey::all_xdp_features(), Ok(Some(_)));
    tells || fairlead_netns::cards::are_given()
}

/// Switches a link's offloads off. The far end keeps joining received segments: a veth takes what
/// XDP sends to it only where that, or a program, is on.
fn as_on_a_wire(far: (&Host, &str), near: (&Host, &str)) -> Result<(), Error> {
    for ((host, device), gro) in [(far, "on"), (near, "off")] {
        offloads(host, device, "off", gro)?;
    }
    Ok(())
}

/// Switches a device's offloads, and the joining of received segments.
pub(crate) fn offloads(host: &Host, device: &str, all: &str, gro: &str) -> Result<(), Error> {
    let mut command = host.command("ethtool");
    command.args(["-K", device, "gro", gro]);
    // In this order: those that need others come after them.
    for name in ["tx", "rx", "sg", "tso", "gso"] {
        command.args([name, all]);
    }
    let output = command.output()?;
    assert!(
        output.status.success(),
        "ethtool: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

impl Drop for Lab {
    fn drop(&mut self) {
        // A failed test leaves its files for whoever looks into it.
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}
