//! The testbed: three hosts (network namespaces), `wrk` on the client, nginx on the server, and
//! between them the switch's host with Fairlead and its peers. The peers run all the time, idle but
//! in their turns. Fairlead runs in its own only: its program would see everybody's packets.
//!
//! ```text
//! client 10.1.0.2 ── 10.1.0.1 switch 10.2.0.254 ── 10.2.0.1 servers
//!        10.4.0.2 ──────────────────────────────── 10.4.0.1
//! ```

pub(crate) mod congestion;
pub(crate) mod targets;
pub(crate) mod wrk;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fairlead_netns::{Host, Link, Running, Signal, World};

use targets::Target;

/// The files that are asked for, and their sizes in bytes.
pub(crate) const FILES: [(&str, usize); 3] =
    [("1KiB", 1 << 10), ("64KiB", 64 << 10), ("1MiB", 1 << 20)];

/// What a testbed is like.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// The fairlead binary.
    pub(crate) fairlead: PathBuf,
    /// The word for `[fastpath] mode`.
    pub(crate) mode: String,
    /// The links' offloads (segmentation, receive, checksums) as shipped, or all off as on a wire.
    pub(crate) offloads: bool,
    /// The congestion control that is asked for.
    pub(crate) congestion: Option<String>,
    /// Client and server on core 0 and everything of the switch on core 1, packets too.
    pub(crate) apart: bool,
    /// Packets that the switch's interfaces receive are steered over all cores.
    pub(crate) steer: bool,
    /// The switch's interfaces join the segments that they receive.
    pub(crate) join: bool,
    /// Addresses of the client.
    pub(crate) client_addresses: u8,
    /// Connections that are open at once.
    pub(crate) open: u32,
    /// One more host, 10.3.0.1, behind an interface of the switch that the fast path is on, too.
    pub(crate) stranger: bool,
}

/// A running testbed. Dropping it ends and removes everything.
pub(crate) struct Testbed {
    /// Where `wrk` runs.
    pub(crate) client: Host,
    /// Where Fairlead and its peers run.
    pub(crate) switch: Host,
    /// The host of [`Layout::stranger`].
    pub(crate) stranger: Option<Host>,
    /// The congestion control that all of them use.
    pub(crate) congestion: String,
    /// Interfaces configured for Fairlead; empty: it selects them.
    interfaces: Vec<String>,
    /// While it runs.
    fairlead: Option<Running>,
    /// What starts it.
    serve: Vec<String>,
    world: World,
    processes: Vec<Running>,
    folder: PathBuf,
    apart: bool,
    /// How many files a process may open here.
    files: u32,
}

/// How long Fairlead may take to end.
const END: Duration = Duration::from_secs(5);

impl Drop for Testbed {
    fn drop(&mut self) {
        // Killed, it would leave its fast path to a next run in a network that goes away.
        let _ = self.end_fairlead();
        self.processes.clear();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Runs a program on one core.
const CORES: [[&str; 3]; 2] = [["taskset", "-c", "0"], ["taskset", "-c", "1"]];

impl Testbed {
    /// Builds everything and waits until everybody answers.
    pub(crate) fn new(layout: &Layout) -> Result<Self> {
        for (program, package) in [
            ("nginx", "nginx-light"),
            ("haproxy", "haproxy"),
            ("wrk", "wrk"),
            ("curl", "curl"),
            ("ethtool", "ethtool"),
        ] {
            ensure!(
                fairlead_netns::program(program).is_some(),
                "{program} is missing: sudo apt-get install {package}"
            );
        }
        let files = fairlead_netns::raise_open_files(1 << 20)?;
        let folder = std::env::temp_dir().join(format!("fairlead-bench-{}", std::process::id()));
        fs::create_dir_all(folder.join("files"))?;
        for (name, bytes) in FILES {
            fs::write(folder.join("files").join(name), vec![b'x'; bytes])?;
        }
        let mut world = World::new()?;
        let client = world.host("client")?;
        let switch = world.host("switch")?;
        let servers = world.host("servers")?;
        let addresses: Vec<String> = (0..layout.client_addresses)
            .map(|number| format!("10.1.0.{}/24", u32::from(number) + 10))
            .collect();
        let mut of_client = vec!["10.1.0.2/24"];
        of_client.extend(addresses.iter().map(String::as_str));
        let front = world.link((&client, &of_client), (&switch, &["10.1.0.1/24"]))?;
        let back = world.link((&switch, &["10.2.0.254/24"]), (&servers, &["10.2.0.1/24"]))?;
        let alone = world.link((&client, &["10.4.0.2/24"]), (&servers, &["10.4.0.1/24"]))?;
        client.route("10.1.0.3/32", "10.1.0.1")?;
        client.route("10.2.0.0/24", "10.1.0.1")?;
        servers.route("default", "10.2.0.254")?;
        switch.sysctl("net.ipv4.ip_forward", "1")?;
        // Many short connections from few client addresses.
        for host in [&client, &switch] {
            host.sysctl("net.ipv4.ip_local_port_range", "1024 65535")?;
            host.sysctl("net.ipv4.tcp_tw_reuse", "1")?;
        }
        for host in [&switch, &servers] {
            host.sysctl("net.core.somaxconn", "16384")?;
        }
        let hosts = [&client, &switch, &servers];
        let congestion = congestion::settle(hosts, layout.congestion.as_deref())?;
        let mut testbed = Self {
            congestion,
            client,
            switch,
            stranger: None,
            interfaces: Vec::new(),
            fairlead: None,
            serve: Vec::new(),
            world,
            processes: Vec::new(),
            folder,
            apart: layout.apart,
            files: u32::try_from(files).unwrap_or(u32::MAX),
        };
        testbed.settle_links(layout, &servers, [&front, &back, &alone])?;
        if layout.stranger {
            let third = testbed.add_stranger()?;
            testbed.interfaces = vec![front.b, back.a, third];
        }
        testbed.start(layout, &servers)?;
        testbed.wait_for_all()?;
        Ok(testbed)
    }

    /// Has everybody answer once; Fairlead, whose turn it is then, at last.
    fn wait_for_all(&mut self) -> Result<()> {
        for target in Target::WITH_LINK.into_iter().rev() {
            self.turn_of(target)?;
            self.wait_for(target)?;
        }
        Ok(())
    }

    /// Makes the host of [`Layout::stranger`]; the switch's interface that leads to it.
    fn add_stranger(&mut self) -> Result<String> {
        let stranger = self.world.host("stranger")?;
        let ends = (&self.switch, &["10.3.0.254/24"][..]);
        let link = self.world.link(ends, (&stranger, &["10.3.0.1/24"]))?;
        stranger.route("default", "10.3.0.254")?;
        self.stranger = Some(stranger);
        Ok(link.a)
    }

    /// Offloads, and which core takes packets.
    fn settle_links(
        &self,
        layout: &Layout,
        servers: &Host,
        [front, back, alone]: [&Link; 3],
    ) -> Result<()> {
        // Masks of cores that take what a device receives; 0: whoever sent it.
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let (of_hosts, of_switch) = match (layout.apart, layout.steer) {
            (true, _) => (1, 2),
            (false, true) => (0, (1u32 << cores.min(31)) - 1),
            (false, false) => (0, 0),
        };
        let ends = [
            (&self.client, &front.a, of_hosts),
            (&self.switch, &front.b, of_switch),
            (&self.switch, &back.a, of_switch),
            (servers, &back.b, of_hosts),
            (&self.client, &alone.a, of_hosts),
            (servers, &alone.b, of_hosts),
        ];
        for (host, device, cores) in ends {
            if !layout.offloads {
                run(host
                    .command("ethtool")
                    .args(["-K", device])
                    .args(["tso", "off", "gso", "off", "gro", "off"])
                    .args(["tx", "off", "rx", "off"]))?;
            }
            if layout.join && host.name() == self.switch.name() {
                run(host.command("ethtool").args(["-K", device, "gro", "on"]))?;
            }
            if cores > 0 {
                // The system's own view of devices is of another namespace: a fresh one is needed.
                let steer = format!(
                    "mount -t sysfs none /sys && \
                     echo {cores:x} > /sys/class/net/{device}/queues/rx-0/rps_cpus"
                );
                run(host
                    .command("unshare")
                    .args(["--mount", "sh", "-c", &steer]))
                .context("steering received packets to a core")?;
            }
        }
        Ok(())
    }

    fn start(&mut self, layout: &Layout, servers: &Host) -> Result<()> {
        let folder = self.folder.clone();
        let write = |name: &str, text: &str| -> Result<String> {
            let path = folder.join(name);
            fs::write(&path, text)?;
            Ok(path.display().to_string())
        };
        let prefix = folder.display().to_string();
        // A process holds as many connections as it may open files; shares are never quite even.
        let needed = 1 + layout.open / (self.files * 3 / 4);
        for number in 0..needed {
            let name = format!("server{number}");
            let file = format!("{name}.conf");
            let path = write(&file, &targets::server(&folder, &name))?;
            self.spawn(servers, 0, &["nginx", "-p", &prefix, "-c", &path])?;
        }
        // As many processes as HAProxy has threads.
        let processes = if layout.apart { 1 } else { 2 };
        for number in 0..needed.max(processes) {
            let name = format!("peer{number}");
            let file = format!("{name}.conf");
            let path = write(&file, &targets::nginx_peer(&folder, &name))?;
            let switch = self.switch.clone();
            self.spawn(&switch, 1, &["nginx", "-p", &prefix, "-c", &path])?;
        }
        let switch = self.switch.clone();
        for (name, tuned) in [("haproxy.cfg", false), ("haproxy-tuned.cfg", true)] {
            let path = write(name, &targets::haproxy(tuned))?;
            self.spawn(&switch, 1, &["haproxy", "-db", "-f", &path])?;
        }
        let text = targets::fairlead(&layout.mode, &self.interfaces, layout.apart);
        let path = write("fairlead.toml", &text)?;
        let program = layout.fairlead.display().to_string();
        self.serve = [&program, "serve", "--config", &path]
            .map(str::to_owned)
            .into();
        Ok(())
    }

    /// Has Fairlead running where it is its turn, and nowhere else.
    pub(crate) fn turn_of(&mut self, target: Target) -> Result<()> {
        if target != Target::Fairlead {
            return self.end_fairlead();
        }
        if self.fairlead.is_none() {
            let words: Vec<&str> = self.serve.iter().map(String::as_str).collect();
            self.fairlead = Some(self.started(&self.switch, 1, &words)?);
            self.wait_for(target)?;
            // A second that does not count: the peers have had theirs, and have their pools.
            self.measure(&wrk::Load {
                address: target.address(),
                file: FILES[0].0,
                close: true,
                connections: 64,
                seconds: 1,
                distinct: false,
            })?;
        }
        Ok(())
    }

    /// Uses another build of Fairlead from its next turn on, which starts anew.
    pub(crate) fn use_build(&mut self, program: &Path) -> Result<()> {
        self.end_fairlead()?;
        self.serve[0] = program.display().to_string();
        Ok(())
    }

    fn end_fairlead(&mut self) -> Result<()> {
        let Some(mut process) = self.fairlead.take() else {
            return Ok(());
        };
        process.signal(Signal::Terminate)?;
        let end = process.wait_for(END)?;
        ensure!(end.is_some(), "Fairlead does not end");
        Ok(())
    }

    /// Fairlead's own number, 0 where it does not run: `taskset` becomes what it starts.
    pub(crate) fn fairlead_pid(&self) -> u32 {
        self.fairlead.as_ref().map_or(0, Running::id)
    }

    fn spawn(&mut self, host: &Host, core: usize, words: &[&str]) -> Result<()> {
        let process = self.started(host, core, words)?;
        self.processes.push(process);
        Ok(())
    }

    fn started(&self, host: &Host, core: usize, words: &[&str]) -> Result<Running> {
        let words = [self.on_core(core), words].concat();
        let mut command = host.command(words[0]);
        command.args(&words[1..]).stdout(Stdio::null());
        let name = Path::new(words[words.len() - 1]).with_extension("err");
        command.stderr(Stdio::from(fs::File::create(name)?));
        Ok(host.start(&mut command)?)
    }

    /// What to write before a program so that it runs where it belongs.
    fn on_core(&self, core: usize) -> &'static [&'static str] {
        match self.apart {
            true => &CORES[core],
            false => &[],
        }
    }

    fn wait_for(&self, target: Target) -> Result<()> {
        let until = Instant::now() + Duration::from_secs(15);
        while Instant::now() < until {
            let mut curl = self.client.command("curl");
            curl.args(["-s", "-m", "2", "-o", "/dev/null", "-w", "%{http_code}"]);
            let url = format!("http://{}/1KiB", target.address());
            if curl.arg(url).output()?.stdout == b"200" {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let said = |name: &str| fs::read_to_string(self.folder.join(name)).unwrap_or_default();
        bail!(
            "{} at {} does not answer; the logs:\n{}{}{}",
            target.name(),
            target.address(),
            said("fairlead.err"),
            said("peer0.err"),
            said("haproxy.err")
        )
    }

    /// How many connections one process can hold here, with some files to spare.
    pub(crate) fn connections_per_process(&self) -> u32 {
        self.files.saturating_sub(1_000)
    }

    /// True where a peer can have as many clients: HAProxy is one process.
    pub(crate) fn can_hold(&self, target: Target, count: u32) -> bool {
        let is_haproxy = matches!(target, Target::Haproxy | Target::HaproxyTuned);
        !is_haproxy || count <= self.connections_per_process() - 1_000
    }

    /// One measurement.
    pub(crate) fn measure(&self, load: &wrk::Load<'_>) -> Result<wrk::Sample> {
        wrk::run(&self.client, &self.folder, self.on_core(0), load)
    }

    /// Which fast path Fairlead says it has.
    pub(crate) fn fast_path(&self) -> String {
        let log = fs::read_to_string(self.folder.join("fairlead.err")).unwrap_or_default();
        let mut lines = log.lines().filter(|line| line.contains("fast path"));
        lines.next_back().unwrap_or_default().to_owned()
    }
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output()?;
    ensure!(
        output.status.success(),
        "{:?}: {}",
        command.get_program(),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
