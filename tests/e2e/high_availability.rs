//! Two machines with the same address, by the configurations of docs/high-availability.md.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlead_netns::trial::skip;
use fairlead_netns::{Host, Link, Running, Signal, World, program};

use crate::harness::{Lab, Origin, PATIENCE, binary, on_the_fast_path, web};

const VIRTUAL: &str = "10.1.0.3";

/// A host with two bridges, which joins the machines with their clients and their servers.
struct Site {
    world: World,
    bridges: Host,
    servers: Host,
}

/// One machine, its switch, and the daemon that assigns or announces the address.
struct Machine {
    host: Host,
    front: Link,
    switch: Running,
    daemon: Running,
}

impl Site {
    fn new() -> Self {
        let mut world = World::new().unwrap();
        let bridges = world.host("bridges").unwrap();
        for bridge in ["front", "back"] {
            bridges
                .ip(&format!(
                    "link add {bridge} type bridge\nlink set {bridge} up\n"
                ))
                .unwrap();
        }
        let servers = world.host("servers").unwrap();
        let mut site = Self {
            world,
            bridges,
            servers: servers.clone(),
        };
        site.plug(&servers, "10.2.0.1/24", "back");
        for number in [1, 2] {
            servers
                .route(
                    &format!("100.64.{number}.0/24"),
                    &format!("10.2.0.25{number}"),
                )
                .unwrap();
        }
        site
    }

    fn plug(&mut self, host: &Host, address: &str, bridge: &str) -> Link {
        let link = self.world.link((host, &[address]), (&self.bridges, &[]));
        let link = link.unwrap();
        let script = format!("link set {} master {bridge}\n", link.b);
        self.bridges.ip(&script).unwrap();
        link
    }

    /// A machine with this address towards the clients, whose daemon is started by `daemon`.
    fn machine(
        &mut self,
        lab: &Lab,
        number: u8,
        address: &str,
        daemon: impl FnOnce(&Host, &Link) -> Running,
    ) -> Machine {
        let name = format!("edge{number}");
        let host = self.world.host(&name).unwrap().with_own_bpffs().unwrap();
        let front = self.plug(&host, address, "front");
        self.plug(&host, &format!("10.2.0.25{number}/24"), "back");
        host.sysctl("net.ipv4.ip_forward", "1").unwrap();
        let configuration = format!(
            r#"
[instance]
name = "{name}"
admin = "127.0.0.1:9090"
announce = "off"
[network]
device = "fairlead0"
snat = "100.64.{number}.0/24"
[fastpath]
mode = "tc"
[[service]]
name = "web"
listen = "{VIRTUAL}:80"
protocol = "http"
[[service.route]]
pool = "pages"
[[pool]]
name = "pages"
server = [{{ address = "10.2.0.1:8080" }}]
"#
        );
        let mut command = host.command(&binary().to_string_lossy());
        command.args(["serve", "--config"]);
        command.arg(lab.file(&format!("{name}.toml"), configuration));
        let log = std::fs::File::create(lab.folder().join(format!("{name}.log"))).unwrap();
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let switch = host.start(&mut command).unwrap();
        let daemon = daemon(&host, &front);
        Machine {
            host,
            front,
            switch,
            daemon,
        }
    }
}

impl Machine {
    /// The number of connections that its switch has accepted; 0 where it does not say.
    fn accepted(&self) -> u64 {
        let page = ask(&self.host, "127.0.0.1:9090", "/status").unwrap_or_default();
        let body = page.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        let status: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
        status["accepted"].as_u64().unwrap_or(0)
    }

    fn end(mut self) {
        for process in [&mut self.daemon, &mut self.switch] {
            process.signal(Signal::Terminate).unwrap();
            process.wait_for(PATIENCE).unwrap();
        }
    }
}

/// The answer that a host gets; `None` where there is no whole one within a moment.
fn ask(host: &Host, to: &str, path: &str) -> Option<String> {
    const MOMENT: Duration = Duration::from_millis(500);
    let to: SocketAddr = to.parse().unwrap();
    let stream = host.enter(|| TcpStream::connect_timeout(&to, MOMENT));
    let mut stream = stream.unwrap().ok()?;
    stream.set_read_timeout(Some(MOMENT)).unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.starts_with("HTTP/1.1 200").then_some(answer)
}

/// Waits until a new connection is served by this machine; how long that took.
#[track_caller]
fn is_served_by(client: &Host, machine: &Machine) -> Duration {
    let begin = Instant::now();
    loop {
        let before = machine.accepted();
        let answered = ask(client, &format!("{VIRTUAL}:80"), "/").is_some();
        let took = begin.elapsed();
        // Counters are published a few times a second.
        std::thread::sleep(Duration::from_millis(300));
        if answered && machine.accepted() > before {
            return took;
        }
        assert!(
            begin.elapsed() < PATIENCE,
            "nothing is served by {:?}",
            machine.front
        );
    }
}

/// The block of the guide that begins so.
fn block_of_guide(beginning: &str) -> String {
    let guide = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/high-availability.md"
    );
    let text = std::fs::read_to_string(guide).expect("the guide");
    let mut blocks = text.split("```text\n").skip(1);
    let block = blocks.find(|block| block.starts_with(beginning));
    let block = block.and_then(|block| block.split("```").next());
    block.expect("the block").to_owned()
}

/// Whether these programs are here; says so where they are not, or where links are cards.
fn can_run(test: &str, daemon: &str, package: &str) -> bool {
    if fairlead_netns::cards::are_given() {
        skip(test, "the machine has too few cards for two switches");
        return false;
    }
    let there = program(daemon).is_some();
    if !there {
        skip(
            test,
            &format!("programs are missing: apt-get install {package}"),
        );
    }
    there
}

fn start(lab: &Lab, host: &Host, program: &str, log: &Path, arguments: &[&str]) -> Running {
    let mut command = host.command(program);
    let log = std::fs::File::create(lab.folder().join(log)).unwrap();
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    host.start(&mut command).unwrap()
}

#[test]
fn by_vrrp_the_other_machine_serves_when_a_switch_is_killed() {
    let test = "high_availability::by_vrrp_the_other_machine_serves_when_a_switch_is_killed";
    on_the_fast_path(|lab| {
        if !can_run(test, "keepalived", "keepalived") {
            return;
        }
        let mut site = Site::new();
        let client = site.world.host("client").unwrap();
        site.plug(&client, "10.1.0.10/24", "front");
        let serve = web("pages", false, Arc::default());
        let _server = Origin::start_on(&site.servers, "10.2.0.1:8080".parse().unwrap(), serve);
        let guide = block_of_guide("global_defs");
        let mut machine = |number: u8| {
            site.machine(
                lab,
                number,
                &format!("10.1.0.{number}/24"),
                |host, front| {
                    let name = format!("keepalived{number}");
                    let priority = format!("priority {}", 110 - number);
                    let text = guide.replace("eth0", &front.a);
                    let text = text.replace("priority 100", &priority);
                    let path = lab.file(&format!("{name}.conf"), text);
                    let pid = |kind: &str| {
                        let file = lab.folder().join(format!("{name}.{kind}"));
                        file.to_string_lossy().into_owned()
                    };
                    let (own, vrrp) = (pid("pid"), pid("vrrp"));
                    let arguments = [
                        "--dont-fork",
                        "--log-console",
                        "--vrrp",
                        "-f",
                        &path.to_string_lossy(),
                        "-p",
                        &own,
                        "-r",
                        &vrrp,
                    ];
                    start(
                        lab,
                        host,
                        "keepalived",
                        Path::new(&format!("{name}.log")),
                        &arguments,
                    )
                },
            )
        };
        let (mut first, second) = (machine(1), machine(2));
        is_served_by(&client, &first);
        first.switch.signal(Signal::Kill).unwrap();
        // Two failed checks, one second apart, and what an advertisement takes.
        let took = is_served_by(&client, &second);
        assert!(took < Duration::from_secs(20), "{took:?}");
        println!("served by the other machine after {took:?}");
        first.end();
        second.end();
    });
}

#[test]
fn by_bgp_a_router_has_the_machines_that_announce_the_address() {
    let test = "high_availability::by_bgp_a_router_has_the_machines_that_announce_the_address";
    on_the_fast_path(|lab| {
        if !can_run(test, "bird", "bird2") {
            return;
        }
        let mut site = Site::new();
        let router = site.world.host("router").unwrap();
        let client = site.world.host("client").unwrap();
        let ends = (&client, ["10.3.0.10/24"].as_slice());
        site.world.link(ends, (&router, &["10.3.0.1/24"])).unwrap();
        client.route("default", "10.3.0.1").unwrap();
        site.plug(&router, "10.9.0.254/24", "front");
        router.sysctl("net.ipv4.ip_forward", "1").unwrap();
        let serve = web("pages", false, Arc::default());
        let _server = Origin::start_on(&site.servers, "10.2.0.1:8080".parse().unwrap(), serve);
        let bird = |host: &Host, name: &str, text: String| {
            let path = lab.file(&format!("{name}.conf"), text);
            let socket = lab.folder().join(format!("{name}.ctl"));
            let (path, socket) = (path.to_string_lossy(), socket.to_string_lossy());
            let arguments = ["-f", "-c", &path, "-s", &socket];
            start(
                lab,
                host,
                "bird",
                Path::new(&format!("{name}.log")),
                &arguments,
            )
        };
        let guide = block_of_guide("router id");
        let mut machine = |number: u8| {
            let own = format!("10.9.0.{number}");
            let machine = site.machine(lab, number, &format!("{own}/24"), |host, _| {
                let name = format!("bird{number}");
                bird(host, &name, guide.replace("10.9.0.1", &own))
            });
            machine.host.route("default", "10.9.0.254").unwrap();
            machine
        };
        let (first, second) = (machine(1), machine(2));
        let neighbours: String = (1..=2)
            .map(|number| {
                format!(
                    "protocol bgp edge{number} {{ local 10.9.0.254 as 65000; \
                     neighbor 10.9.0.{number} as 65001; \
                     ipv4 {{ import all; export none; }}; }}\n"
                )
            })
            .collect();
        let text = format!(
            "router id 10.9.0.254;\nprotocol device {{ }}\n\
             protocol kernel {{ merge paths; ipv4 {{ export all; }}; }}\n{neighbours}"
        );
        let mut routes = bird(&router, "router", text);
        let change = |machine: &Machine, what: &str| {
            let script = format!("addr {what} {VIRTUAL}/32 dev lo\n");
            machine.host.ip(&script).unwrap();
        };
        change(&first, "add");
        is_served_by(&client, &first);
        change(&second, "add");
        change(&first, "del");
        is_served_by(&client, &second);
        change(&first, "add");
        change(&second, "del");
        is_served_by(&client, &first);
        routes.signal(Signal::Terminate).unwrap();
        routes.wait_for(PATIENCE).unwrap();
        first.end();
        second.end();
    });
}
