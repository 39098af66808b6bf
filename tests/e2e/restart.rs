//! Restarts under load: what is spliced is the kernel's, and goes on without the switch.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::Output;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fairlead_netns::Signal;
use fairlead_netns::trial::skip;
use fairlead_testkit::stream::{self, Digest};

use crate::harness::{
    Connection, Family, Lab, Origin, PATIENCE, Switch, binary, kernel_mode, links_take_xdp,
    offloads, on_the_fast_path, prefix_in, raw_service, web, web_service,
};

/// A configuration on the fast path.
pub(crate) fn in_kernel(services: &str) -> String {
    format!("{}{services}", prefix_in(&kernel_mode(), ""))
}

pub(crate) fn start(lab: &Lab, services: &str) -> Switch {
    Switch::start_with(lab, &in_kernel(services))
}

pub(crate) fn kill(mut switch: Switch) {
    switch.signal(Signal::Kill);
    assert_eq!(switch.wait_for_end(), None, "by a signal");
}

fn fairlead(lab: &Lab, arguments: &[&str]) -> Output {
    let mut command = lab.switch.command(&binary().to_string_lossy());
    command.args(arguments).output().expect("running fairlead")
}

fn said(output: &Output) -> String {
    let (out, errors) = (&output.stdout, &output.stderr);
    String::from_utf8_lossy(out).into_owned() + &String::from_utf8_lossy(errors)
}

/// Everything that a switch may leave: pins, programs at interfaces, devices, routes and rules.
fn left(lab: &Lab) -> String {
    let script = "ls -R /sys/fs/bpf; ip -d link | grep -E 'prog|^[0-9]'; \
        for d in $(ls /sys/class/net); do tc filter show dev $d ingress; done; \
        ip -4 route show table all; ip -6 route show table all; ip -4 rule; ip -6 rule";
    shell(lab, script)
}

/// The policy rules there are.
fn rules(lab: &Lab) -> String {
    shell(lab, "ip -4 rule; ip -6 rule")
}

/// What a script says on the switch's host.
fn shell(lab: &Lab, script: &str) -> String {
    let mut command = lab.switch.command("sh");
    let output = command.args(["-c", script]).output().expect("running sh");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A server of raw bytes that sends stream 7 while it digests what comes, and then tells what came.
fn duplex(bytes: u64) -> impl Fn(TcpStream) -> std::io::Result<()> + Send + Sync + 'static {
    move |stream| {
        let mut out = stream.try_clone()?;
        let sender = std::thread::spawn(move || trickle(&mut out, 7, bytes).map(|()| out));
        let mut digest = Digest::new();
        digest_all(stream, &mut digest)?;
        let mut out = sender.join().expect("the sender")?;
        out.write_all(&digest.value().to_be_bytes())
    }
}

/// Sends at a pace that a restart falls into: some 30 MB/s.
fn trickle(out: &mut TcpStream, seed: u64, bytes: u64) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    let mut sent = 0;
    while sent < bytes {
        stream::fill(seed, sent, &mut buffer);
        out.write_all(&buffer)?;
        sent += buffer.len() as u64;
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

fn digest_all(mut stream: impl Read, digest: &mut Digest) -> std::io::Result<()> {
    let mut buffer = vec![0; 256 << 10];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            count => digest.update(&buffer[..count]),
        }
    }
}

/// One bulk transfer both ways; both streams compared.
fn transfer(mut stream: TcpStream, seed: u64, bytes: u64) {
    let mut out = stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        trickle(&mut out, seed, bytes).unwrap();
        out.shutdown(Shutdown::Write).unwrap();
    });
    let mut digest = Digest::new();
    let mut taken = (&mut stream).take(bytes);
    digest_all(&mut taken, &mut digest).unwrap();
    assert_eq!(digest, Digest::of_stream(7, bytes), "from the server");
    let mut told = [0; 8];
    stream.read_exact(&mut told).unwrap();
    assert_eq!(
        u64::from_be_bytes(told),
        Digest::of_stream(seed, bytes).value(),
        "from the client"
    );
    sender.join().unwrap();
}

/// Connections that ask again and again, and every answer must be the next one of the same
/// connection.
pub(crate) struct KeepAlive {
    end: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl KeepAlive {
    pub(crate) fn start(lab: &Lab, count: usize) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let asked = Arc::new(AtomicU64::new(0));
        let threads = (0..4).map(|thread| {
            let open = |number: usize| {
                let family = Family::BOTH[number % 2];
                let mut connection = Connection::to(lab, family.virtual_at(80));
                let response = connection.ask("GET", "a.example", "/").unwrap();
                assert_eq!(response.status, 200);
                connection
            };
            let mut connections: Vec<_> = (0..count / 4).map(|n| open(n + thread)).collect();
            let (end, asked) = (Arc::clone(&end), Arc::clone(&asked));
            std::thread::spawn(move || {
                for round in 2u64.. {
                    if end.load(Ordering::SeqCst) {
                        return;
                    }
                    for connection in &mut connections {
                        let path = format!("/bytes/{}", 1_000 + round % 7 * 900);
                        let response = connection.ask("GET", "a.example", &path).unwrap();
                        assert_eq!(response.header("x-asked"), Some(&*round.to_string()));
                        let len = response.digest.len_bytes();
                        assert_eq!(response.digest, Digest::of_stream(len, len));
                        asked.fetch_add(1, Ordering::SeqCst);
                    }
                }
            })
        });
        let threads = threads.collect();
        Self {
            end,
            asked,
            threads,
        }
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    /// Waits until this many more requests were answered.
    pub(crate) fn wait_for_more(&self, count: u64) {
        let (before, until) = (self.asked(), Instant::now() + PATIENCE);
        while self.asked() < before + count {
            assert!(Instant::now() < until, "requests stand still");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn finish(self) {
        self.end.store(true, Ordering::SeqCst);
        for thread in self.threads {
            thread.join().expect("every request was answered");
        }
    }
}

pub(crate) fn web_on(lab: &Lab, numbers: &[u8]) -> Vec<Origin> {
    let of = |family: Family| {
        numbers.iter().map(move |&number| {
            let serve = web("pages", false, Arc::<Mutex<Vec<_>>>::default());
            Origin::start(lab, family.server_at(number, 8080), serve)
        })
    };
    Family::BOTH.into_iter().flat_map(of).collect()
}

fn pages(source: &str) -> String {
    web_service(source, "", "", |family| vec![family.server_at(1, 8080)])
}

/// Kills the switch twice under load and starts it again, the second time from another file, as an
/// upgrade does.
fn survives_being_killed(lab: &Lab, source: &str) {
    const BYTES: u64 = 96 << 20;
    let _web = web_on(lab, &[1]);
    let _raw = Family::BOTH.map(|family| Origin::start(lab, family.server_at(1, 7), duplex(BYTES)));
    let raw = raw_service(source, |family| family.server_at(1, 7));
    let services = format!("{}{raw}", pages(source));
    let switch = start(lab, &services);
    let bulk: Vec<_> = (0..4)
        .map(|number| {
            let to = Family::BOTH[number % 2].virtual_at(7);
            let stream = Connection::to(lab, to).stream;
            std::thread::spawn(move || transfer(stream, number as u64 + 20, BYTES))
        })
        .collect();
    let keep_alive = KeepAlive::start(lab, 160);
    keep_alive.wait_for_more(400);
    kill(switch);
    // The kernel goes on by itself.
    keep_alive.wait_for_more(800);
    let again = start(lab, &services);
    assert!(again.count("adopted") >= 160, "{}", again.status());
    keep_alive.wait_for_more(400);
    kill(again);
    keep_alive.wait_for_more(400);
    // A handshake while nobody is there is the kernel's; the request waits for somebody.
    let mut early = Connection::to(lab, Family::V4.virtual_at(80));
    early
        .send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n")
        .unwrap();
    let copy = lab.folder().join("fairlead-of-another-build");
    // By a process: a file that this one has open for writing, others could not start yet.
    let mut copying = std::process::Command::new("cp");
    copying.args([binary(), &copy]);
    assert!(copying.status().unwrap().success());
    let upgraded = Switch::launch_as(lab, &in_kernel(&services), &copy, &[]).ready();
    assert_eq!(early.response(false).unwrap().status, 200);
    keep_alive.wait_for_more(400);
    for thread in bulk {
        thread.join().expect("every byte arrived");
    }
    assert!(upgraded.status()["fast_packets"].as_u64() > Some(100));
    keep_alive.finish();
    drop(early);
    upgraded.wait_for_count("live", 0);
    for pool in upgraded.status()["pools"].as_array().unwrap() {
        for server in pool["servers"].as_array().unwrap() {
            assert_eq!(server["active"], 0, "{pool}");
        }
    }
    assert_eq!(upgraded.status()["ended"]["reset_by_client"], 0);
    assert_eq!(upgraded.status()["ended"]["reset_by_server"], 0);
}

#[test]
fn transparent_connections_survive_two_kills_and_an_upgrade() {
    on_the_fast_path(|lab| survives_being_killed(lab, "transparent"));
}

#[test]
fn connections_from_source_addresses_survive_two_kills_and_an_upgrade() {
    on_the_fast_path(|lab| survives_being_killed(lab, "snat"));
}

#[test]
fn a_stop_that_keeps_connections_is_like_a_crash_and_one_that_drains_leaves_nothing() {
    on_the_fast_path(|lab| {
        let _web = web_on(lab, &[1]);
        let before = left(lab);
        let services = pages("transparent");
        let options = ["--keep"];
        let mut switch = Switch::launch_as(lab, &in_kernel(&services), binary(), &options).ready();
        let keep_alive = KeepAlive::start(lab, 40);
        switch.signal(Signal::Terminate);
        assert_eq!(switch.wait_for_end(), Some(0));
        drop(switch);
        keep_alive.wait_for_more(200);
        let configuration = lab.folder().join("fairlead.toml");
        let doctor = fairlead(lab, &["doctor", "-c", &configuration.to_string_lossy()]);
        let told = said(&doctor);
        assert!(told.contains("was left by an earlier run"), "{told}");
        assert!(!told.contains("ip link delete"), "{told}");
        assert_eq!(doctor.status.code(), Some(0), "{told}");
        let mut switch = start(lab, &services);
        assert_eq!(switch.count("adopted"), 40, "{}", switch.status());
        keep_alive.wait_for_more(200);
        keep_alive.finish();
        switch.wait_for_count("live", 0);
        switch.signal(Signal::Terminate);
        assert_eq!(switch.wait_for_end(), Some(0));
        drop(switch);
        assert_eq!(left(lab), before);
    });
}

/// The other order of things: a service less, a server in front of the old one, a pool before the
/// old one.
fn reordered(lab: &Lab) -> String {
    let _ = lab;
    let other = web_service("transparent", "", "", |family| {
        vec![family.server_at(3, 8080), family.server_at(2, 8080)]
    });
    other
        .replace("3:80\"", "3:81\"")
        .replace("]:80\"", "]:81\"")
}

#[test]
fn connections_of_what_is_no_longer_configured_go_on_until_they_end() {
    on_the_fast_path(|lab| {
        let _web = web_on(lab, &[1, 2, 3]);
        let first = web_service("transparent", "", "", |family| {
            vec![family.server_at(1, 8080), family.server_at(2, 8080)]
        });
        let switch = start(lab, &first);
        let mut old: Vec<_> = Family::BOTH
            .into_iter()
            .chain(Family::BOTH)
            .map(|family| {
                let mut connection = Connection::to(lab, family.virtual_at(80));
                let response = connection.ask("GET", "a.example", "/").unwrap();
                assert_eq!(response.status, 200);
                connection
            })
            .collect();
        kill(switch);
        let switch = start(lab, &reordered(lab));
        assert_eq!(switch.count("adopted"), 4);
        switch.wait_for_log("\"of_retired_services\":4");
        // The old service takes nobody any more; the new one does.
        assert!(Connection::open(lab, Family::V4.virtual_at(80)).is_err());
        let mut new = Connection::to(lab, Family::V4.virtual_at(81));
        assert_eq!(new.ask("GET", "a.example", "/").unwrap().status, 200);
        for connection in &mut old {
            for asked in ["2", "3"] {
                let response = connection.ask("GET", "a.example", "/bytes/90000").unwrap();
                assert_eq!(response.header("x-asked"), Some(asked));
                assert_eq!(response.digest, Digest::of_stream(90_000, 90_000));
            }
        }
        // Two of them lead to the server that both configurations have.
        let active = |status: &serde_json::Value| -> u64 {
            let pools = status["pools"].as_array().unwrap().iter();
            let servers = pools.flat_map(|pool| pool["servers"].as_array().unwrap());
            servers
                .map(|server| server["active"].as_u64().unwrap())
                .sum()
        };
        assert_eq!(active(&switch.status()), 2 + 1, "{}", switch.status());
        drop((old, new));
        switch.wait_for_count("live", 0);
        assert_eq!(active(&switch.status()), 0);
    });
}

#[test]
fn another_size_is_refused_and_down_leaves_nothing_behind() {
    on_the_fast_path(|lab| {
        let _web = web_on(lab, &[1]);
        let before = left(lab);
        let services = pages("transparent");
        let switch = start(lab, &services);
        let mut held = Connection::to(lab, Family::V4.virtual_at(80));
        assert_eq!(held.ask("GET", "a.example", "/").unwrap().status, 200);
        let path = lab.folder().join("fairlead.toml");
        let path = path.to_str().unwrap();
        let running = fairlead(lab, &["down", "--config", path]);
        assert_eq!(running.status.code(), Some(3), "{}", said(&running));
        assert!(
            said(&running).contains("stop it first"),
            "{}",
            said(&running)
        );
        kill(switch);
        let other = format!("{}\n[limits]\nconnections = 4096\n", in_kernel(&services));
        let mut refused = Switch::launch(lab, &other);
        assert_eq!(refused.wait_for_end(), Some(3));
        refused.wait_for_log("fairlead down");
        // It was refused, not disturbed.
        assert_eq!(held.ask("GET", "a.example", "/").unwrap().status, 200);
        assert_ne!(left(lab), before);
        // By its name alone, from another network, nothing goes.
        let mut elsewhere = lab.switch.command("unshare");
        elsewhere.arg("--net").arg(binary());
        elsewhere.args(["down", "--instance", "e2e"]);
        let elsewhere = elsewhere.output().expect("running unshare");
        assert_eq!(elsewhere.status.code(), Some(3), "{}", said(&elsewhere));
        assert!(said(&elsewhere).contains("another network namespace"));
        assert_eq!(held.ask("GET", "a.example", "/").unwrap().status, 200);
        let nobody = fairlead(lab, &["down", "--instance", "somebody-else"]);
        assert!(nobody.status.success() && said(&nobody).contains("nothing to remove"));
        let full = std::fs::File::options().write(true).open("/dev/full");
        let mut unheard = lab.switch.command(&binary().to_string_lossy());
        unheard.args(["down", "--instance", "somebody-else"]);
        let unheard = unheard.stdout(full.unwrap()).output().unwrap();
        assert_eq!(unheard.status.code(), Some(1), "{}", said(&unheard));
        assert_eq!(held.ask("GET", "a.example", "/").unwrap().status, 200);
        let down = fairlead(lab, &["down", "--instance", "e2e"]);
        assert!(down.status.success(), "{}", said(&down));
        assert_eq!(left(lab), before, "{}", said(&down));
        let switch = Switch::start_with(lab, &other);
        assert_eq!(switch.count("adopted"), 0);
    });
}

/// The program of an earlier run goes on by its own secret, so that a run beside it would answer
/// nobody: neither without the rights to take it over, nor where it cannot be found.
#[test]
fn an_earlier_run_that_cannot_be_taken_over_is_not_passed_by() {
    on_the_fast_path(|lab| {
        let _web = web_on(lab, &[1]);
        let services = pages("transparent");
        let configuration = in_kernel(&services).replace(&kernel_mode(), "auto");
        let switch = Switch::start_with(lab, &configuration);
        let mut held = Connection::to(lab, Family::V4.virtual_at(80));
        assert_eq!(held.ask("GET", "a.example", "/").unwrap().status, 200);
        assert_ne!(switch.status()["mode"], "engine");
        kill(switch);
        let mut unable = lab.switch.command("setpriv");
        let without = "-bpf,-perfmon,-sys_admin";
        let options = [
            format!("--inh-caps={without}"),
            format!("--bounding-set={without}"),
        ];
        unable.args(options).arg(binary());
        let mut elsewhere = lab.switch.command("unshare");
        let script = "mount -t bpf bpf /sys/fs/bpf && exec \"$0\" \"$@\"";
        elsewhere
            .args(["--mount", "sh", "-c", script])
            .arg(binary());
        // Who lists programs, but is not told their names.
        let mut nameless = lab.switch.command("unshare");
        let script = "mount -t bpf bpf /sys/fs/bpf && exec setpriv \
                      --bounding-set=-all,+net_admin,+net_raw,+bpf,+perfmon \"$0\" \"$@\"";
        nameless.args(["--mount", "sh", "-c", script]).arg(binary());
        for (command, why) in [
            (unable, "start it the same way as the earlier run"),
            (elsewhere, "a BPF file system other than"),
            (nameless, "without CAP_SYS_ADMIN it is unknown"),
        ] {
            let mut refused = Switch::run(lab, &configuration, command, &[]);
            assert_eq!(refused.wait_for_end(), Some(3), "{}", refused.log());
            refused.wait_for_log(why);
            assert_eq!(held.ask("GET", "a.example", "/").unwrap().status, 200);
        }
        let switch = Switch::start_with(lab, &configuration);
        assert_eq!(switch.count("adopted"), 1, "{}", switch.status());
        assert_eq!(held.ask("GET", "a.example", "/").unwrap().status, 200);
    });
}

#[test]
fn a_first_start_that_fails_leaves_nothing() {
    on_the_fast_path(|lab| {
        let before = left(lab);
        let somebody = lab.switch.enter(|| TcpListener::bind("127.0.0.1:9090"));
        let _somebody = somebody.unwrap().unwrap();
        let mut failed = Switch::launch(lab, &in_kernel(&pages("transparent")));
        assert_eq!(failed.wait_for_end(), Some(3));
        failed.wait_for_log("cannot serve the admin pages");
        assert_eq!(left(lab), before);
    });
}

/// Routes lead to the switch's own device then, and say nothing about interfaces.
#[test]
fn doctor_knows_the_interfaces_of_a_run() {
    on_the_fast_path(|lab| {
        let _web = web_on(lab, &[1]);
        let aside = "ip link add aside0 type veth peer name aside1; ip link set aside0 up";
        shell(lab, aside);
        // No route tells where the other family's virtual address is.
        let configuration = in_kernel(&web_service("transparent", "", "", |family| match family {
            Family::V4 => vec![family.server_at(1, 8080)],
            Family::V6 => Vec::new(),
        }));
        let path = lab.file("fairlead.toml", &configuration);
        let judged = || {
            let path = path.to_str().unwrap();
            let output = fairlead(lab, &["doctor", "--json", "--config", path]);
            let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            let about = document["checks"].as_array().unwrap().iter();
            let about = about.map(|check| check["about"].as_str().unwrap().to_owned());
            let about: Vec<_> = about.filter(|one| one.starts_with("interface")).collect();
            (
                output.status.code(),
                document["expected_mode"].clone(),
                about,
            )
        };
        let before = judged();
        let aside = before.2.iter().any(|one| one.contains("aside"));
        assert!(!before.2.is_empty() && !aside, "{before:?}");
        let _switch = Switch::start_with(lab, &configuration);
        assert_eq!(judged(), before);
    });
}

/// A start that fails, here because somebody has the address of the admin pages, leaves what the
/// run before it has left: the rules among it, by which answers to clients' own addresses come to
/// the switch.
#[test]
fn a_start_that_fails_takes_nothing_from_connections_that_go_on() {
    on_the_fast_path(|lab| {
        let _web = web_on(lab, &[1]);
        let services = pages("transparent");
        let switch = start(lab, &services);
        let keep_alive = KeepAlive::start(lab, 8);
        keep_alive.wait_for_more(16);
        kill(switch);
        let before = rules(lab);
        assert!(before.contains("10.2.0.1"), "{before}");
        let somebody = lab.switch.enter(|| TcpListener::bind("127.0.0.1:9090"));
        let mut failed = Switch::launch(lab, &in_kernel(&services));
        assert_eq!(failed.wait_for_end(), Some(3));
        failed.wait_for_log("cannot serve the admin pages");
        assert_eq!(rules(lab), before);
        keep_alive.wait_for_more(80);
        drop(somebody);
        let switch = start(lab, &services);
        assert_eq!(switch.count("adopted"), 8, "{}", switch.status());
        keep_alive.finish();
        switch.wait_for_count("live", 0);
    });
}

/// One that fails when the program is at some interfaces already, here because one has no XDP: the
/// new program goes on in the place of the old one.
#[test]
fn a_start_that_fails_between_two_interfaces_leaves_a_program_that_forwards() {
    let name = "restart::a_start_that_fails_between_two_interfaces_leaves_a_program_that_forwards";
    if !links_take_xdp() {
        return skip(name, "before Linux 6.3 no veth is believed to take packets");
    }
    on_the_fast_path(|lab| {
        let _web = web_on(lab, &[1]);
        let (front, back) = (&*lab.front.b, &*lab.back.a);
        if !fairlead_netns::cards::are_given() {
            for (host, device) in [(&lab.client, &*lab.front.a), (&lab.servers, &*lab.back.b)] {
                offloads(host, device, "off", "on").unwrap();
            }
            for device in [front, back] {
                offloads(&lab.switch, device, "off", "off").unwrap();
            }
        }
        let on = |interfaces: &[&str]| {
            let line = format!("interfaces = {interfaces:?}\n");
            format!("{}{}", prefix_in("xdp", &line), pages("snat"))
        };
        let switch = Switch::start_with(lab, &on(&[front, back]));
        let keep_alive = KeepAlive::start(lab, 8);
        keep_alive.wait_for_more(16);
        kill(switch);
        keep_alive.wait_for_more(80);
        let mut failed = Switch::launch(lab, &on(&[front, back, "lo"]));
        assert_eq!(failed.wait_for_end(), Some(3));
        failed.wait_for_log("lo: xdp refused");
        keep_alive.wait_for_more(80);
        let switch = Switch::start_with(lab, &on(&[front, back]));
        assert_eq!(switch.count("adopted"), 8, "{}", switch.status());
        keep_alive.finish();
        switch.wait_for_count("live", 0);
    });
}

#[test]
fn the_engine_alone_goes_on_with_what_the_kernel_had() {
    on_the_fast_path(|lab| {
        let _web = web_on(lab, &[1]);
        let services = pages("snat");
        let switch = start(lab, &services);
        let keep_alive = KeepAlive::start(lab, 40);
        kill(switch);
        keep_alive.wait_for_more(80);
        let engine = in_kernel(&services);
        let mode = engine
            .lines()
            .find(|line| line.starts_with("mode"))
            .unwrap();
        // Not by the name that the harness replaces.
        let engine = engine.replace(mode, "mode = 'engine'");
        let switch = Switch::start_with(lab, &engine);
        assert_eq!(switch.count("adopted"), 40);
        keep_alive.wait_for_more(200);
        assert!(!Path::new("/sys/fs/bpf/fairlead/e2e").exists());
        keep_alive.finish();
        switch.wait_for_count("live", 0);
    });
}
