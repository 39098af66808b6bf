//! The settings around the device: what is made, what is refused, what remains after a crash.

mod support;

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use fairlead_driver_tun::net::{
    Keeper, Network, NetworkPlan, Obstacle, Prefix, apply, check, owned_by, remove_device,
    remove_leftovers,
};
use fairlead_driver_tun::{TunDevice, TunError};
use fairlead_netns::{Host, Running, Signal};

use support::{forwarding_host, in_a_world};

fn plan() -> NetworkPlan {
    NetworkPlan {
        device: "fl0".into(),
        mtu: 1_400,
        listen: vec!["10.9.0.1".parse().unwrap(), "fd09::1".parse().unwrap()],
        local: Vec::new(),
        own: Vec::new(),
        sources: vec![Prefix {
            address: "100.64.0.0".parse().unwrap(),
            len: 24,
        }],
        transparent: vec![
            "10.2.0.1:8081".parse().unwrap(),
            "[fd02::1]:8081".parse().unwrap(),
        ],
        servers: Vec::new(),
        owner: "test".into(),
        may_be_local: false,
        resumed: false,
    }
}

/// The output of `ip` in a host.
fn ip(host: &Host, arguments: &str) -> String {
    let output = host
        .command("ip")
        .args(arguments.split(' '))
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// `fairlead down` removes what nobody has.
#[test]
fn a_device_that_is_set_down_has_its_process_still() {
    in_a_world(|world| {
        let host = forwarding_host(world);
        let (device, network) = start(&host, &plan());
        let is_in_use = || {
            let owned = host.enter(|| owned_by("test")).unwrap().unwrap();
            owned.iter().map(|one| one.in_use).collect::<Vec<_>>()
        };
        let remove = || {
            host.enter(|| remove_device("fl0", "test"))
                .unwrap()
                .unwrap()
        };
        assert_eq!(is_in_use(), [true]);
        host.ip("link set fl0 down\n").unwrap();
        assert_eq!(is_in_use(), [true]);
        assert_eq!(remove(), [""; 0]);
        device.set_persistent(true).unwrap();
        drop((device, network));
        assert_eq!(is_in_use(), [false]);
        assert!(!remove().is_empty());
        assert_eq!(is_in_use(), [false; 0]);
    });
}

/// Everything of the host's network that settings could change, but for the device's own.
fn settings(host: &Host) -> String {
    let mut all: Vec<String> = [
        "-4 rule",
        "-6 rule",
        "-4 route show table all",
        "-6 route show table all",
        "-br link",
    ]
    .map(|what| ip(host, what))
    .to_vec();
    let read = |path: &str| std::fs::read_to_string(format!("/proc/sys/net/{path}"));
    let files = [
        "ipv4/ip_forward",
        "ipv4/conf/all/rp_filter",
        "ipv4/conf/default/rp_filter",
        "ipv4/conf/lo/rp_filter",
        "ipv6/conf/all/forwarding",
        "ipv6/conf/default/addr_gen_mode",
    ];
    all.extend(
        host.enter(|| files.map(|path| read(path).unwrap()))
            .unwrap(),
    );
    all.join("\n")
}

fn obstacles(host: &Host, plan: &NetworkPlan) -> Vec<Obstacle> {
    host.enter(|| check(plan)).unwrap().unwrap()
}

fn start(host: &Host, plan: &NetworkPlan) -> (TunDevice, Network) {
    let start = || (TunDevice::open(&plan.device).unwrap(), apply(plan).unwrap());
    host.enter(start).unwrap()
}

/// A run that leaves its device, routes and rules to the next one.
fn leave(host: &Host, plan: &NetworkPlan) {
    let (device, network) = start(host, plan);
    device.set_persistent(true).unwrap();
    host.enter(|| network.leave()).unwrap();
}

/// The next run. As of [`close`], a child of another test may have the device for a moment still.
fn resume(host: &Host, plan: &NetworkPlan) -> (TunDevice, Network) {
    let until = Instant::now() + Duration::from_secs(60);
    let resume = || loop {
        match TunDevice::resume(&plan.device) {
            Err(TunError::NameTaken(_)) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(1));
            }
            told => return (told.unwrap(), apply(plan).unwrap()),
        }
    };
    host.enter(resume).unwrap()
}

/// Closes the device and waits until it is gone: a child that another test starts at this moment
/// holds a copy of the descriptor until it becomes its own program.
fn close(host: &Host, device: TunDevice) {
    let name = device.name().to_owned();
    drop(device);
    let until = Instant::now() + Duration::from_secs(60);
    while ip(host, "-br link").contains(&name) {
        assert!(Instant::now() < until, "{name} is still there");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn everything_that_is_made_is_tagged_and_removed_again() {
    in_a_world(|world| {
        let host = forwarding_host(world);
        let before = settings(&host);
        assert_eq!(obstacles(&host, &plan()), []);
        let (device, network) = start(&host, &plan());
        let link = ip(&host, "link show dev fl0");
        assert!(link.contains("mtu 1400") && link.contains("UP") && link.contains("qlen 8192"));
        for (route, place) in [
            ("10.9.0.1 ", "-4 route show proto 246"),
            ("100.64.0.0/24 ", "-4 route show proto 246"),
            ("fd09::1 ", "-6 route show proto 246"),
            ("default ", "-4 route show table 7600"),
            ("default ", "-6 route show table 7600"),
        ] {
            let routes = ip(&host, place);
            let line = routes.lines().find(|line| line.starts_with(route));
            assert!(
                line.is_some_and(|line| line.contains("dev fl0")),
                "{place}: {routes}"
            );
        }
        for (family, rule) in [
            (
                "-4",
                "7600:\tfrom 10.2.0.1 ipproto tcp sport 8081 lookup 7600 proto 246",
            ),
            (
                "-6",
                "7600:\tfrom fd02::1 ipproto tcp sport 8081 lookup 7600 proto 246",
            ),
        ] {
            let rules = ip(&host, &format!("{family} rule"));
            let has = |rule: &str| rules.lines().any(|line| line.trim_end() == rule);
            assert!(has(rule), "{rules}");
            // What the device sends passes it by.
            let bypass = "7599:\tfrom all iif fl0 goto 7601 proto 246";
            assert!(
                has(bypass) && has("7601:\tfrom all nop proto 246"),
                "{rules}"
            );
        }
        let address = ip(&host, "-4 addr show dev fl0");
        assert!(
            address.contains("inet 192.0.0.8/32 scope host"),
            "{address}"
        );
        let filter = host
            .enter(|| std::fs::read_to_string("/proc/sys/net/ipv4/conf/fl0/rp_filter"))
            .unwrap()
            .unwrap();
        assert_eq!(filter.trim(), "2");
        assert_eq!(network.made().len(), 10, "{:#?}", network.made());
        host.enter(|| network.remove()).unwrap().unwrap();
        assert!(!ip(&host, "-4 rule").contains("246"));
        close(&host, device);
        assert_eq!(settings(&host), before);
    });
}

#[test]
fn dropping_the_network_removes_the_rules_too() {
    in_a_world(|world| {
        let host = forwarding_host(world);
        let before = settings(&host);
        let (device, network) = start(&host, &plan());
        host.enter(|| drop(network)).unwrap();
        close(&host, device);
        assert_eq!(settings(&host), before);
    });
}

/// A start that fails after an earlier run: the device and its connections go on.
#[test]
fn dropping_the_network_of_a_resumed_device_leaves_what_was_there() {
    in_a_world(|world| {
        let host = forwarding_host(world);
        let before = settings(&host);
        leave(&host, &plan());
        let rules = || ip(&host, "-4 rule") + &ip(&host, "-6 rule");
        let left = rules();
        assert_eq!(left.matches("7600:").count(), 2, "{left}");
        let mut resumed = plan();
        resumed.resumed = true;
        resumed.transparent.push("10.2.0.2:8081".parse().unwrap());
        let (device, network) = resume(&host, &resumed);
        assert!(rules().contains("10.2.0.2"));
        host.enter(|| drop(network)).unwrap();
        assert_eq!(rules(), left);
        let network = host.enter(|| apply(&resumed)).unwrap().unwrap();
        host.enter(|| network.remove()).unwrap().unwrap();
        device.set_persistent(false).unwrap();
        close(&host, device);
        assert_eq!(settings(&host), before);
    });
}

/// An earlier run had made its addresses this machine's, which this one's mode rules out.
#[test]
fn addresses_that_an_earlier_run_held_are_given_up() {
    in_a_world(|world| {
        let host = forwarding_host(world);
        let mut held = plan();
        held.may_be_local = true;
        let (device, mut network) = start(&host, &held);
        let addresses = held.listen.iter().copied().collect();
        host.enter(|| network.hold(&addresses)).unwrap().unwrap();
        device.set_persistent(true).unwrap();
        host.enter(|| network.leave()).unwrap();
        drop(device);
        let is_held = || {
            let of = |family| ip(&host, &format!("{family} route show table local proto 246"));
            (of("-4").contains("10.9.0.1"), of("-6").contains("fd09::1"))
        };
        assert_eq!(is_held(), (true, true));
        let mut resumed = plan();
        resumed.resumed = true;
        let (device, network) = resume(&host, &resumed);
        assert_eq!(is_held(), (false, false));
        host.enter(|| network.remove()).unwrap().unwrap();
        device.set_persistent(false).unwrap();
        close(&host, device);
    });
}

/// Each reload that took the last transparent server away left a table behind, until none was free.
#[test]
fn a_table_that_no_server_needs_any_more_is_free_again() {
    in_a_world(|world| {
        let host = forwarding_host(world);
        leave(&host, &plan());
        let mut resumed = plan();
        resumed.resumed = true;
        let run = |servers: &[&str]| {
            let mut plan = resumed.clone();
            plan.transparent = servers.iter().map(|one| one.parse().unwrap()).collect();
            let (device, network) = resume(&host, &plan);
            device.set_persistent(true).unwrap();
            host.enter(|| network.leave()).unwrap();
            let of = |family| ip(&host, &format!("{family} route show table all proto 246"));
            let tables = |family| {
                let routes: String = of(family);
                let words: Vec<&str> = routes.split_whitespace().collect();
                let tables = words.windows(2).filter(|pair| pair[0] == "table");
                tables.map(|pair| pair[1].to_owned()).collect::<Vec<_>>()
            };
            (tables("-4"), tables("-6"))
        };
        let (v4, v6) = ("10.2.0.1:8081", "[fd02::1]:8081");
        let table = || vec!["7600".to_owned()];
        for _ in 0..2 {
            assert_eq!(run(&[v4, v6]), (table(), table()));
            assert_eq!(run(&[v4]), (table(), vec![]));
            assert!(
                ip(&host, "-4 rule").contains("goto") && !ip(&host, "-6 rule").contains("goto")
            );
            assert_eq!(run(&[]), (vec![], vec![]));
            assert!(!ip(&host, "-4 rule").contains("goto"));
        }
        let (device, network) = resume(&host, &resumed);
        host.enter(|| network.remove()).unwrap().unwrap();
        device.set_persistent(false).unwrap();
        close(&host, device);
    });
}

/// The first run served IPv4 alone, so that the device spoke no IPv6.
#[test]
fn a_resumed_device_learns_ipv6() {
    in_a_world(|world| {
        let host = forwarding_host(world);
        let mut only_v4 = plan();
        only_v4.listen.truncate(1);
        only_v4.transparent.truncate(1);
        leave(&host, &only_v4);
        let mut resumed = plan();
        resumed.resumed = true;
        let (device, network) = resume(&host, &resumed);
        assert!(ip(&host, "-6 route show proto 246").contains("fd09::1"));
        host.enter(|| network.remove()).unwrap().unwrap();
        device.set_persistent(false).unwrap();
        close(&host, device);
    });
}

#[test]
fn what_somebody_removes_is_made_again_and_told() {
    in_a_world(|world| {
        let host = forwarding_host(world);
        let before = settings(&host);
        let (device, network) = start(&host, &plan());
        let whole = settings(&host);
        let (heard, told) = mpsc::channel();
        let tell = move |outcome: Result<Vec<String>, _>| {
            let _ = heard.send(outcome.unwrap());
        };
        let keep = || Keeper::start(&network, Duration::from_millis(20), tell).unwrap();
        let keeper = host.enter(keep).unwrap();
        let next = || told.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(next(), [""; 0]);
        // A look may fall between two of these.
        for (undo, made) in [
            ("-4 rule del pref 7600", vec!["rule from 10.2.0.1"]),
            ("-6 route del fd09::1 dev fl0", vec!["route fd09::1"]),
            ("-4 route flush table 7600", vec!["route 0.0.0.0/0"]),
            (
                "-4 rule del pref 7599 iif fl0",
                vec!["IPv4 rule iif fl0 goto 7601"],
            ),
            ("-6 rule del pref 7601", vec!["IPv6 rule iif fl0 goto 7601"]),
            ("addr del 192.0.0.8/32 dev fl0", vec!["address 192.0.0.8"]),
            (
                "link set fl0 down",
                vec!["which was down", "route 10.9.0.1/32", "100.64.0.0/24"],
            ),
        ] {
            ip(&host, undo);
            let until = Instant::now() + Duration::from_secs(60);
            let mut said = String::new();
            while !made.iter().all(|one| said.contains(one)) {
                assert!(Instant::now() < until, "after {undo}: {said}");
                said += &next().join("\n");
            }
        }
        while !next().is_empty() {}
        drop(keeper);
        assert_eq!(settings(&host), whole);
        host.enter(|| network.remove()).unwrap().unwrap();
        close(&host, device);
        assert_eq!(settings(&host), before);
    });
}

#[test]
fn switched_off_forwarding_is_named_by_its_setting() {
    in_a_world(|world| {
        let host = forwarding_host(world);
        host.sysctl("net.ipv4.ip_forward", "0").unwrap();
        host.sysctl("net.ipv6.conf.all.forwarding", "0").unwrap();
        let four = Obstacle::ForwardingOff {
            sysctl: "net.ipv4.ip_forward",
        };
        let six = Obstacle::ForwardingOff {
            sysctl: "net.ipv6.conf.all.forwarding",
        };
        assert_eq!(obstacles(&host, &plan()), [four.clone(), six]);
        let mut only_v4 = plan();
        only_v4.listen.truncate(1);
        only_v4.transparent.truncate(1);
        assert_eq!(obstacles(&host, &only_v4), [four]);
        host.sysctl("net.ipv4.ip_forward", "1").unwrap();
        host.sysctl("net.ipv6.conf.all.disable_ipv6", "1").unwrap();
        assert_eq!(obstacles(&host, &only_v4), []);
        assert_eq!(obstacles(&host, &plan()), [Obstacle::NoIpv6]);
    });
}

#[test]
fn addresses_and_routes_of_others_are_obstacles() {
    in_a_world(|world| {
        let host = forwarding_host(world);
        host.ip(
            "link add fl0 type veth peer name fl0-peer\nlink set fl0 up\nlink set fl0-peer up\naddr add 10.9.0.1/24 dev fl0\n\
             route add 100.64.0.128/25 dev fl0\nroute add fd09::1/128 dev fl0\n\
             route add 100.64.0.0/16 dev fl0\nroute add default dev fl0\n",
        )
        .unwrap();
        let found = obstacles(&host, &plan());
        assert!(
            found.contains(&Obstacle::NameTaken("fl0".into())),
            "{found:?}"
        );
        let texts: Vec<String> = found.iter().map(Obstacle::to_string).collect();
        for words in [
            "10.9.0.1 is assigned to fl0",
            "`ip address delete 10.9.0.1 dev fl0`",
            "there is already a route for 100.64.0.0/24: `100.64.0.128/25 dev fl0`",
            "there is already a route for fd09::1/128: `fd09::1/128 dev fl0`",
        ] {
            assert!(
                texts.iter().any(|text| text.contains(words)),
                "no {words}: {texts:#?}"
            );
        }
        assert_eq!(found.len(), 4, "a wider route is no obstacle: {texts:#?}");
    });
}

#[test]
fn an_address_within_the_source_prefix_is_an_obstacle() {
    in_a_world(|world| {
        let host = forwarding_host(world);
        host.ip("addr add 100.64.0.77/32 dev lo\n").unwrap();
        let found = obstacles(&host, &plan());
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0]
                .to_string()
                .starts_with("100.64.0.77 of lo is within 100.64.0.0/24")
        );
    });
}

#[test]
fn a_rule_that_comes_first_is_found_and_everything_is_taken_back() {
    in_a_world(|world| {
        let host = forwarding_host(world);
        host.ip("route add blackhole default table 99\nrule add to 10.9.0.0/16 lookup 99\n")
            .unwrap();
        let before = settings(&host);
        let device = host.enter(|| TunDevice::open("fl0")).unwrap().unwrap();
        let refused = host.enter(|| apply(&plan())).unwrap().unwrap_err();
        close(&host, device);
        assert!(refused.to_string().contains("10.9.0.1"), "{refused}");
        assert_eq!(settings(&host), before);
    });
}

#[test]
fn a_rule_that_takes_servers_answers_elsewhere_is_found() {
    in_a_world(|world| {
        let host = forwarding_host(world);
        let server = world.host("server").unwrap();
        let switch_end = ["10.2.0.254/24", "fd02::fe/64"];
        world
            .link(
                (&host, &switch_end),
                (&server, &["10.2.0.1/24", "fd02::1/64"]),
            )
            .unwrap();
        let (device, network) = start(&host, &plan()); // nothing in the way
        host.enter(|| drop(network)).unwrap();
        close(&host, device);
        for (family, address) in [("-4", "10.2.0.1"), ("-6", "fd02::1")] {
            let rule = format!("rule add from {address} lookup main pref 100\n");
            let add = host
                .command("ip")
                .args([family])
                .args(rule.trim().split(' '))
                .status();
            assert!(add.unwrap().success());
            host.ip("route replace default dev server0\nroute replace ::/0 dev server0\n")
                .unwrap();
            let device = host.enter(|| TunDevice::open("fl0")).unwrap().unwrap();
            let refused = host
                .enter(|| apply(&plan()))
                .unwrap()
                .unwrap_err()
                .to_string();
            assert!(
                refused.contains(address) && refused.contains("server0"),
                "{refused}"
            );
            close(&host, device);
            let mut delete = host.command("ip");
            let status = delete.args([family, "rule", "del", "pref", "100"]).status();
            assert!(status.unwrap().success());
        }
    });
}

#[test]
fn two_instances_take_tables_of_their_own_and_not_each_others_servers() {
    in_a_world(|world| {
        let host = forwarding_host(world);
        let (_device, first) = start(&host, &plan());
        let mut second = NetworkPlan {
            device: "fl1".into(),
            ..plan()
        };
        second.listen = vec!["10.9.0.2".parse().unwrap()];
        second.sources.clear();
        second.transparent.truncate(1);
        let taken = Obstacle::ServerTaken("10.2.0.1:8081".parse().unwrap());
        assert_eq!(obstacles(&host, &second), [taken]);
        // Its addresses are nobody's to be taken away by `ip route`.
        let of_the_first = NetworkPlan {
            listen: plan().listen[..1].to_vec(),
            ..second.clone()
        };
        let found = obstacles(&host, &of_the_first);
        let served = Obstacle::Served {
            wanted: Prefix::host(of_the_first.listen[0]),
            device: plan().device,
            owner: Some(plan().owner),
            in_use: true,
        };
        assert!(found.contains(&served), "{found:?}");
        assert_eq!(found.len(), 2, "{found:?}");
        second.transparent = vec!["10.2.0.1:8082".parse().unwrap()];
        // Its answers would go to the first instance's device, whatever address they are for.
        second.servers = vec!["10.2.0.1:8081".parse().unwrap()];
        let taken = Obstacle::ServerTaken("10.2.0.1:8081".parse().unwrap());
        assert_eq!(obstacles(&host, &second), [taken]);
        second.servers = vec!["10.2.0.1:8083".parse().unwrap()];
        assert_eq!(obstacles(&host, &second), []);
        let (_other_device, other) = start(&host, &second);
        assert!(ip(&host, "-4 rule").contains("sport 8082 lookup 7601"));
        assert_eq!(
            host.enter(remove_leftovers).unwrap().unwrap(),
            Vec::<String>::new()
        );
        assert!(ip(&host, "-4 rule").contains("sport 8081 lookup 7600"));
        // They share the rule behind, which stays until the last of them goes.
        let bypasses = || {
            let rules = ip(&host, "-4 rule");
            (rules.matches("goto").count(), rules.matches("nop").count())
        };
        assert_eq!(bypasses(), (2, 1));
        host.enter(|| drop(first)).unwrap();
        assert_eq!(bypasses(), (1, 1));
        host.enter(|| drop(other)).unwrap();
        assert_eq!(bypasses(), (0, 0));
    });
}

/// Not a test of its own: what [`rules_of_a_killed_process_are_removed_at_the_next_start`] kills.
#[test]
#[ignore = "run by another test, as a process to kill"]
fn hold_a_network_until_killed() {
    let _device = TunDevice::open("fl0").unwrap();
    let _network = apply(&plan()).unwrap();
    println!("holding");
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn rules_of_a_killed_process_are_removed_at_the_next_start() {
    in_a_world(|world| {
        let host = forwarding_host(world);
        // Others' rules, as like ours as they can be.
        host.ip(
            "rule add from 10.2.0.1 ipproto tcp sport 8081 lookup 7610 pref 7600 proto 99\n\
             rule add from 10.2.0.1 ipproto tcp sport 8081 lookup 7610 pref 7601 proto 246\n",
        )
        .unwrap();
        let before = settings(&host);
        let mut command = host.command(&std::env::current_exe().unwrap().to_string_lossy());
        command.args([
            "--exact",
            "hold_a_network_until_killed",
            "--ignored",
            "--nocapture",
        ]);
        command.stdout(Stdio::piped());
        let mut holder: Running = host.start(&mut command).unwrap();
        let output = BufReader::new(holder.child().stdout.take().unwrap());
        assert!(
            output
                .lines()
                .map_while(Result::ok)
                .any(|line| line.contains("holding"))
        );
        let held = settings(&host);
        assert!(held.contains("proto 246") && held.contains("dev fl0"));

        let living = host.enter(remove_leftovers).unwrap().unwrap();
        assert_eq!(
            living,
            Vec::<String>::new(),
            "a living instance's rules are no leftovers"
        );

        holder.signal(Signal::Kill).unwrap();
        assert!(holder.wait_for(Duration::from_secs(60)).unwrap().is_some());
        assert!(
            ip(&host, "-4 rule").contains("sport 8081 lookup 7600"),
            "nothing was left over"
        );
        assert!(
            !ip(&host, "-br link").contains("fl0"),
            "the device outlived its process"
        );

        let removed = host.enter(remove_leftovers).unwrap().unwrap();
        assert_eq!(
            removed,
            [
                "rule from 10.2.0.1 tcp port 8081 to table 7600",
                "IPv4 rule iif fl0 goto 7601",
                "rule from fd02::1 tcp port 8081 to table 7600",
                "IPv6 rule iif fl0 goto 7601",
            ]
        );
        assert_eq!(settings(&host), before);
        let (_device, network) = start(&host, &plan());
        host.enter(|| drop(network)).unwrap();
    });
}
