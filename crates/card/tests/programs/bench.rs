//! A host, a client and a card.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fairlead_card::{CardCounts, Settings, serve, setup};
use fairlead_netns::trial::skip;
use fairlead_netns::{Host, Namespace, World, allowed, program};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The host's addresses.
pub(crate) const HOST_V4: &str = "10.88.0.2";
pub(crate) const HOST_V6: &str = "fd88::2";

/// What a test works with.
pub(crate) struct Bench {
    pub(crate) client: Host,
    pub(crate) host: Host,
    /// The host's interface, which has the card behind it.
    pub(crate) wire: String,
    /// The card's network namespace.
    pub(crate) card: String,
    /// Where programs connect.
    pub(crate) socket: PathBuf,
    /// Connections that the card takes.
    pub(crate) most: u32,
    /// Connections that are idle for so long leave when room is scarce.
    pub(crate) idle: Duration,
    /// A folder of the test's own.
    pub(crate) folder: PathBuf,
    python: PathBuf,
    library: PathBuf,
    world: World,
    /// Other cards.
    others: Vec<String>,
}

/// Takes the cards away, whatever happens.
impl Drop for Bench {
    fn drop(&mut self) {
        for card in [&self.card].into_iter().chain(&self.others) {
            let _ = self.host.enter(|| setup::down(card));
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn library() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let folder = own.parent()?;
    let places = [folder.parent()?, folder].map(|at| at.join("libfairlead_bypass.so"));
    // A build of the workspace makes both, a build of this test one of them.
    let built = |place: &PathBuf| std::fs::metadata(place)?.modified();
    let built = places
        .into_iter()
        .filter_map(|place| Some((built(&place).ok()?, place)));
    built.max().map(|(_, place)| place)
}

/// The interface of a VLAN.
const TAGGED: &str = "tagged";

impl Bench {
    /// Everything for the test of this name; `None` if something is missing, which was said.
    pub(crate) fn new(name: &str) -> Option<Self> {
        Self::with(name, None)
    }

    /// The same on a VLAN of this number.
    pub(crate) fn tagged(name: &str, vlan: u16) -> Option<Self> {
        Self::with(name, Some(vlan))
    }

    fn with(name: &str, vlan: Option<u16>) -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let Some(library) = library() else {
            skip(name, "no bypass library: cargo build -p fairlead-bypass");
            return None;
        };
        let is_root = std::fs::metadata("/proc/self").is_ok_and(|about| about.uid() == 0);
        let Some(python) = program("python3").filter(|_| is_root) else {
            skip(name, "root and python3 are needed");
            return None;
        };
        if let Err(why) = allowed() {
            skip(name, &why.to_string());
            return None;
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let card = format!("fl-test-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(&card);
        std::fs::create_dir_all(&folder).unwrap();
        let mut world = World::new().unwrap();
        let (client, host) = (world.host("client").unwrap(), world.host("host").unwrap());
        let addresses = [
            ["10.88.0.1/24", "fd88::1/64"],
            ["10.88.0.2/24", "fd88::2/64"],
        ];
        let of_link = addresses.each_ref().map(|both| match vlan {
            Some(_) => &[][..],
            None => &both[..],
        });
        let link = world.link((&client, of_link[0]), (&host, of_link[1]));
        let link = link.unwrap();
        let mut wire = link.b;
        if let Some(vlan) = vlan {
            for (end, device, both) in [
                (&client, &link.a, addresses[0]),
                (&host, &wire, addresses[1]),
            ] {
                if !end.vlan(device, TAGGED, vlan, &both).unwrap() {
                    skip(name, "this kernel has no interfaces of VLANs");
                    return None;
                }
            }
            wire = TAGGED.to_owned();
        }
        host.enter(|| setup::up(&card, &wire)).unwrap().unwrap();
        Some(Self {
            client,
            host,
            wire,
            card,
            socket: folder.join("socket"),
            most: 100,
            idle: PATIENCE,
            folder,
            python,
            library,
            world,
            others: Vec::new(),
        })
    }

    /// Another card of the same host, on a wire of its own with these addresses: the client's, and
    /// the host's.
    pub(crate) fn another(&mut self, client: &str, host: &str) -> Settings {
        let card = format!("{}-{}", self.card, self.others.len());
        let ends = ((&self.client, &[client][..]), (&self.host, &[host][..]));
        let wire = self.world.link(ends.0, ends.1).unwrap().b;
        // A route through a neighbour goes with it.
        let neighbour = client.split('/').next().unwrap();
        self.host.route("10.200.0.0/16", neighbour).unwrap();
        let up = || setup::up(&card, &wire);
        self.host.enter(up).unwrap().unwrap();
        self.others.push(card.clone());
        Settings {
            socket: self.folder.join(format!("{card}-socket")),
            orders: self.folder.join(format!("{card}-orders")),
            card,
            ..self.settings()
        }
    }

    /// A link without a card, with these addresses. Returns the host's interface.
    pub(crate) fn plain_link(&mut self, client: &str, host: &str) -> String {
        let ends = ((&self.client, &[client][..]), (&self.host, &[host][..]));
        self.world.link(ends.0, ends.1).unwrap().b
    }

    /// Where the card takes orders.
    pub(crate) fn orders(&self) -> PathBuf {
        self.folder.join("orders")
    }

    /// What the card is to do.
    pub(crate) fn settings(&self) -> Settings {
        Settings {
            card: self.card.clone(),
            socket: self.socket.clone(),
            connections: self.most,
            idle: self.idle,
            orders: self.orders(),
            at_step: |_| {},
        }
    }

    /// Does something while the card serves. What it counted comes beside.
    pub(crate) fn served<T>(&self, work: impl FnOnce(&AtomicBool) -> T) -> (T, CardCounts) {
        self.served_by(&self.settings(), work)
    }

    /// The same for this card.
    pub(crate) fn served_by<T>(
        &self,
        settings: &Settings,
        work: impl FnOnce(&AtomicBool) -> T,
    ) -> (T, CardCounts) {
        let (stop, ready) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let served = scope.spawn(|| {
                let ready = || ready.store(true, Ordering::Release);
                let stop = || stop.load(Ordering::Acquire);
                self.host.enter(|| serve(settings, ready, stop)).unwrap()
            });
            while !ready.load(Ordering::Acquire) && !served.is_finished() {
                std::thread::sleep(Duration::from_millis(5));
            }
            // A test that fails ends the card, too.
            let end = Stop(&stop);
            let outcome = work(&stop);
            drop(end);
            (outcome, served.join().unwrap().unwrap())
        })
    }

    /// A program in Python on the host; with the bypass library, if it `is_offloaded`.
    pub(crate) fn program(&self, is_offloaded: bool, arguments: &[&str]) -> Command {
        self.command(is_offloaded, &self.python.to_string_lossy(), arguments)
    }

    /// The same of any program.
    pub(crate) fn command(&self, is_offloaded: bool, name: &str, arguments: &[&str]) -> Command {
        let mut command = self.host.command(name);
        command.args(arguments).current_dir(&self.folder);
        if is_offloaded {
            command.env("LD_PRELOAD", &self.library);
            command.env("FAIRLEAD_OFFLOAD_SOCKET", &self.socket);
        }
        command
    }

    /// Waits until a program listens at port 80 of this machine.
    pub(crate) fn until_listening(at: &Host) {
        let until = Instant::now() + PATIENCE;
        while at.enter(|| count_of(LISTEN)).unwrap() == 0 {
            assert!(Instant::now() < until, "nobody listens");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// As [`Self::program`] with the library, without the right to change connections.
    pub(crate) fn unprivileged(&self, arguments: &[&str]) -> Command {
        let mut command = self.host.command("setpriv");
        command
            .args(["--bounding-set", "-net_admin"])
            .arg(&self.python);
        command.args(arguments).current_dir(&self.folder);
        command.env("LD_PRELOAD", &self.library);
        command.env("FAIRLEAD_OFFLOAD_SOCKET", &self.socket);
        command
    }

    /// A program in Python on the client.
    pub(crate) fn peer(&self, arguments: &[&str]) -> Command {
        let mut command = self.client.command(&self.python.to_string_lossy());
        command.args(arguments).current_dir(&self.folder);
        command
    }

    /// Established connections of port 80 on the card.
    pub(crate) fn on_card(&self) -> usize {
        let name = self.card.clone();
        let counted = std::thread::spawn(move || {
            Namespace::named(&name).unwrap().enter().unwrap();
            established()
        });
        counted.join().unwrap()
    }

    /// Those in the host's kernel.
    pub(crate) fn on_host(&self) -> usize {
        self.host.enter(established).unwrap()
    }
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// States of sockets, as in `/proc/net/tcp`.
const ESTABLISHED: &str = "01";
const LISTEN: &str = "0A";

/// Established connections of port 80 in the namespace that this thread is in.
fn established() -> usize {
    count_of(ESTABLISHED)
}

fn count_of(state: &str) -> usize {
    let table = |name: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{name}"));
    let tables = [table("tcp"), table("tcp6")].map(Result::unwrap_or_default);
    let lines = tables.iter().flat_map(|text| text.lines());
    lines
        .map(|line| line.split_ascii_whitespace().collect::<Vec<_>>())
        .filter(|words| words.get(1).is_some_and(|local| local.ends_with(":0050")))
        .filter(|words| words.get(3) == Some(&state))
        .count()
}
