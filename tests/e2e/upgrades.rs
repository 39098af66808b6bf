//! Connections that change to another protocol behind a request go to the kernel fast path.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use fairlead_netns::Signal;

use crate::handoff::{all_over, byte_at, order, socket};
use crate::harness::{
    Connection, Family, Lab, Origin, PATIENCE, Switch, kernel_mode, prefix_in,
    with_sockets_of_cookies,
};
use crate::reload::reload;

/// Bytes of one part of a stream.
const PART: u64 = 4_096;

fn configuration(lab: &Lab, adopts: bool) -> String {
    let line = format!("[instance]\nadopt_socket = \"{}\"\n", socket(lab).display());
    let prefix = prefix_in(&kernel_mode(), "");
    let prefix = match adopts {
        true => prefix.replacen("[instance]\n", &line, 1),
        false => prefix,
    };
    format!(
        r#"{prefix}
[[service]]
name = "web"
listen = ["10.1.0.3:80", "[fd01:3::3]:80"]
protocol = "http"
[[service.route]]
treatment = "per-request"
pool = "one"

[[pool]]
name = "one"
server = [{{ address = "10.2.0.1:8001" }}, {{ address = "[fd02::1]:8001" }}]
"#
    )
}

/// Changes the protocol, and says everything again.
fn echoes(mut stream: TcpStream) -> std::io::Result<()> {
    let mut buffer = vec![0; 65_536];
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut buffer[..1])? {
            0 => return Ok(()),
            _ => head.push(buffer[0]),
        }
    }
    stream.write_all(b"HTTP/1.1 101 Go\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n")?;
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            bytes => stream.write_all(&buffer[..bytes])?,
        }
    }
}

fn servers(lab: &Lab) -> [Origin; 2] {
    Family::BOTH.map(|family| Origin::start(lab, family.server_at(1, 8001), echoes))
}

/// A client that has changed the protocol.
struct Echo {
    connection: Connection,
    at: u64,
}

impl Echo {
    fn open(lab: &Lab, family: Family) -> Self {
        let mut connection = Connection::to(lab, family.virtual_at(80));
        let ask = "GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
        connection.send(ask).unwrap();
        assert_eq!(connection.response_head().unwrap().status, 101);
        let mut echo = Self { connection, at: 0 };
        echo.talk(1);
        echo
    }

    fn talk(&mut self, rounds: u64) {
        for _ in 0..rounds {
            let part: Vec<_> = (self.at..self.at + PART).map(byte_at).collect();
            self.connection.send(&part).unwrap();
            let mut got = vec![0; part.len()];
            let mut read = 0;
            while read < got.len() {
                match self.connection.read(&mut got[read..]).unwrap() {
                    0 => panic!("ended at {}", self.at),
                    bytes => read += bytes,
                }
            }
            assert!(got == part, "other bytes at {}", self.at);
            self.at += PART;
        }
    }
}

fn front(switch: &Switch, name: &str) -> u64 {
    switch.status()["front"][name].as_u64().unwrap_or(0)
}

fn wait_for(switch: &Switch, name: &str, wanted: u64) {
    switch.wait_for_status(name, |status| {
        status["front"][name].as_u64() == Some(wanted)
    });
}

/// The numbers of the connections that are handed off.
fn numbers(lab: &Lab) -> Vec<String> {
    let (done, listed) = order(lab, &["list", "--json"]);
    assert!(done, "{listed}");
    let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
    let rows = listed["handoffs"].as_array().expect("rows");
    rows.iter().map(|row| row["cid"].to_string()).collect()
}

fn wait_for_pairs(lab: &Lab, wanted: usize) -> Vec<String> {
    let until = Instant::now() + PATIENCE;
    loop {
        let found = numbers(lab);
        if found.len() == wanted {
            return found;
        }
        assert!(Instant::now() < until, "{found:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn upgrades_go_to_the_fast_path_and_outlive_the_switch() {
    with_sockets_of_cookies(|lab| {
        let _servers = servers(lab);
        let configuration = configuration(lab, true);
        let mut switch = Switch::start_with(lab, &configuration);
        let mut echoes = Family::BOTH.map(|family| Echo::open(lab, family));
        wait_for(&switch, "front_handed_off", 2);
        assert_eq!(numbers(lab).len(), 2);
        let copied = ["front_bytes_in", "front_bytes_out"].map(|name| front(&switch, name));
        let talk = |echoes: &mut [Echo; 2], rounds| {
            echoes.iter_mut().for_each(|echo| echo.talk(rounds));
        };
        talk(&mut echoes, 64);
        wait_for(&switch, "front_clients", 0);
        let now = ["front_bytes_in", "front_bytes_out"].map(|name| front(&switch, name));
        assert_eq!(copied, now, "the front copies nothing");
        reload(lab, &mut switch, &configuration, 2);
        talk(&mut echoes, 8);
        wait_for_pairs(lab, 2);
        switch.signal(Signal::Kill);
        assert_eq!(switch.wait_for_end(), None, "by a signal");
        talk(&mut echoes, 8);
        let switch = Switch::start_with(lab, &configuration);
        talk(&mut echoes, 8);
        // The new run takes them back, and copies.
        for number in wait_for_pairs(lab, 2) {
            let until = Instant::now() + PATIENCE;
            let mut given = order(lab, &["give", &number]);
            while !given.0 && given.1.contains("unavailable") && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(50));
                given = order(lab, &["give", &number]);
            }
            assert!(given.0, "{}", given.1);
        }
        wait_for(&switch, "front_handed_back", 2);
        talk(&mut echoes, 8);
        wait_for(&switch, "front_bytes_in", 2 * 8 * PART);
        drop(echoes);
        wait_for(&switch, "front_upgraded", 2);
        assert!(all_over(&switch), "{}", switch.status());
    });
}

/// Both ends send without a pause: the front stops reading for a moment.
#[test]
fn a_busy_upgrade_goes_to_the_fast_path() {
    with_sockets_of_cookies(|lab| {
        let _servers = servers(lab);
        let switch = Switch::start_with(lab, &configuration(lab, true));
        let mut echo = Echo::open(lab, Family::V4);
        let until = Instant::now() + PATIENCE;
        while front(&switch, "front_handed_off") == 0 {
            assert!(Instant::now() < until, "{}", switch.status());
            echo.talk(64);
        }
        echo.talk(64);
        drop(echo);
        assert!(all_over(&switch), "{}", switch.status());
    });
}

#[test]
fn without_an_adopt_socket_the_front_copies() {
    with_sockets_of_cookies(|lab| {
        let _servers = servers(lab);
        let switch = Switch::start_with(lab, &configuration(lab, false));
        let mut echo = Echo::open(lab, Family::V4);
        std::thread::sleep(Duration::from_millis(500));
        echo.talk(8);
        switch.wait_for_status("bytes", |status| {
            status["front"]["front_bytes_in"].as_u64() > Some(9 * PART)
        });
        assert_eq!(front(&switch, "front_handed_off"), 0);
        drop(echo);
        wait_for(&switch, "front_upgraded", 1);
    });
}
