//! Many at once.

use std::process::Stdio;

use fairlead_netns::Host;

use crate::harness::{Connection, Family, Lab, Nginx, Switch, in_a_lab, rounds, web_service};

/// Connections that wrk has at a time.
const AT_ONCE: u64 = 50;

/// Gives the client ports for tens of thousands of connections a minute to one address. Who closes
/// first keeps both ports for a minute; who that is depends on who runs first. When it is the
/// client, its usual 28,232 ports are soon gone, and wrk reports errors of connect.
pub(crate) fn spare_ports(client: &Host) {
    for (name, value) in [
        ("net.ipv4.ip_local_port_range", "1024 65535"),
        ("net.ipv4.tcp_tw_reuse", "1"),
    ] {
        client.sysctl(name, value).expect("the client's ports");
    }
}

/// Runs wrk and returns what it says. An answer may take long on a machine that has no time for
/// us, but it must come.
pub(crate) fn wrk(lab: &Lab, switch: &Switch, url: &str, header: Option<&str>) -> String {
    let (at_once, duration) = (AT_ONCE.to_string(), format!("{}s", rounds(2, 20)));
    let mut command = lab.client.command("wrk");
    command.args(["-t1", "-c", &at_once, "-d", &duration, "--timeout", "20s"]);
    command.args(header.map(|header| ["-H", header]).into_iter().flatten());
    let output = command
        .arg(url)
        .stdin(Stdio::null())
        .output()
        .expect("running wrk");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = text.contains("Socket errors") || text.contains("Non-2xx");
    assert!(
        output.status.success() && !errors,
        "wrk {url} {header:?}: {}\n{text}{}\nswitch: {}\nclient: {}\nservers: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr),
        switch.status(),
        tcp_counters(&lab.client),
        tcp_counters(&lab.servers),
    );
    text
}

/// What a host's TCP has counted, for whoever looks into a failure.
fn tcp_counters(host: &Host) -> String {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{name}"));
    let files = host.enter(|| ["snmp", "netstat", "sockstat"].map(read));
    let all: String = files
        .into_iter()
        .flatten()
        .map(Result::unwrap_or_default)
        .collect();
    let lines: Vec<&str> = all.lines().filter(|line| line.starts_with("Tcp")).collect();
    // A line of names, then one of numbers.
    let pairs = lines.chunks(2).filter(|pair| pair.len() == 2);
    let counts = pairs.flat_map(|pair| pair[0].split(' ').zip(pair[1].split(' ')));
    let told = counts.filter(|(_, count)| *count != "0");
    let told: Vec<String> = told
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    let sockets = all.lines().filter(|line| line.starts_with("TCP:"));
    format!("{} {}", told.join(" "), sockets.collect::<String>())
}

pub(crate) fn requests(text: &str) -> u64 {
    let line = text
        .lines()
        .find(|line| line.contains(" requests in "))
        .expect("wrk's count");
    line.split_whitespace()
        .next()
        .and_then(|word| word.parse().ok())
        .expect("a number")
}

#[test]
fn wrk_finds_no_error_with_kept_connections_or_one_a_request() {
    in_a_lab(|lab| {
        spare_ports(&lab.client);
        let _servers = Family::BOTH
            .map(|family| Nginx::plain(lab, &format!("s{family:?}"), family.server_at(1, 8080)));
        for source in ["snat", "transparent"] {
            let switch = Switch::start(
                lab,
                &web_service(source, "", "", |family| vec![family.server_at(1, 8080)]),
            );
            for family in Family::BOTH {
                let url = format!("http://{}/", family.virtual_at(80));
                let before = switch.count("spliced");
                let kept = wrk(lab, &switch, &url, None);
                let spliced = switch.count("spliced") - before;
                assert!((1..=AT_ONCE).contains(&spliced), "{spliced}: {kept}");
                assert!(requests(&kept) > AT_ONCE, "they are kept: {kept}");
                let before = switch.count("spliced");
                let each = wrk(lab, &switch, &url, Some("Connection: close"));
                let spliced = switch.count("spliced") - before;
                assert!(requests(&each) > AT_ONCE, "{each}");
                let status = switch.status();
                assert!(spliced >= requests(&each), "{spliced}: {each}{status}");
            }
            switch.wait_for_count("live", 0);
        }
    });
}

#[test]
fn five_thousand_connections_at_once_are_all_served() {
    in_a_lab(|lab| {
        const COUNT: usize = 5_000;
        // Where the engine needs seconds for that many heads, clients send them again and again,
        // and servers' answers are lost among them. It is not time that is tested here.
        const PATIENT: &str = "connect_timeout = \"1m\"";
        let _nginx = Nginx::plain(lab, "pages", Family::V4.server_at(1, 8080));
        for source in ["snat", "transparent"] {
            let switch = Switch::start(
                lab,
                &web_service(source, "", PATIENT, |family| match family {
                    Family::V4 => vec![family.server_at(1, 8080)],
                    Family::V6 => Vec::new(),
                }),
            );
            let streams = lab
                .client
                .enter(|| {
                    let one = |_| std::net::TcpStream::connect(Family::V4.virtual_at(80));
                    (0..COUNT).map(one).collect::<std::io::Result<Vec<_>>>()
                })
                .unwrap()
                .unwrap();
            let mut held: Vec<Connection> = streams
                .into_iter()
                .map(|stream| Connection::over(stream).unwrap())
                .collect();
            // All ask before any is answered, then all once more.
            for round in 1..=2 {
                for connection in &mut held {
                    connection
                        .send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n")
                        .unwrap();
                }
                for connection in &mut held {
                    let response = connection.response(false).unwrap_or_else(|error| {
                        let (at, status) = (connection.local(), switch.status());
                        panic!("{at}, round {round}: {error}: {status}")
                    });
                    assert_eq!(
                        (response.status, response.text()),
                        (200, "pages\n"),
                        "{}\nservers: {}",
                        switch.status(),
                        tcp_counters(&lab.servers)
                    );
                    assert_eq!(response.header("x-asked"), Some(round.to_string().as_str()));
                }
            }
            assert_eq!(switch.count("live"), COUNT as u64);
            assert_eq!(switch.count("spliced"), COUNT as u64);
            drop(held);
            switch.wait_for_count("live", 0);
        }
    });
}
