//! Which fast path runs, and what it does when something is in its way.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use fairlead_bpf_loader::PassProgram;
use fairlead_netns::trial::skip;
use fairlead_testkit::stream::Digest;
use serde_json::Value;

use crate::harness::{
    Connection, Family, Lab, Origin, PATIENCE, Switch, binary, links_take_xdp, offloads,
    on_the_fast_path, prefix_in, show, web, web_service,
};

fn server(lab: &Lab) -> Origin {
    let serve = web("pages", false, std::sync::Arc::default());
    Origin::start(lab, Family::V4.server_at(1, 8080), serve)
}

fn config(mode: &str, interfaces: &[&str]) -> String {
    let services = web_service("transparent", "", "", |family| match family {
        Family::V4 => vec![family.server_at(1, 8080)],
        Family::V6 => Vec::new(),
    });
    let wanted = match interfaces {
        [] => String::new(),
        _ => format!("interfaces = {interfaces:?}"),
    };
    format!("{}{services}", prefix_in(mode, &wanted))
}

fn serves(lab: &Lab) {
    let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
    let response = connection.ask("GET", "a.example", "/bytes/50000").unwrap();
    assert_eq!((response.status, response.server()), (200, "pages"));
}

fn fast_path(switch: &Switch) -> String {
    switch.status()["fast_path"].as_str().unwrap().to_owned()
}

/// Waits until the status says so.
fn wait_for(switch: &Switch, wanted: impl Fn(&str) -> bool) {
    let until = Instant::now() + PATIENCE;
    while !wanted(&fast_path(switch)) {
        assert!(Instant::now() < until, "{}", fast_path(switch));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn auto_takes_the_best_way_names_it_and_says_why_not_a_better_one() {
    on_the_fast_path(|lab| {
        let _server = server(lab);
        let switch = Switch::start_with(lab, &config("auto", &[]));
        let state = fast_path(&switch);
        let (front, back) = (&lab.front.b, &lab.back.a);
        assert!(state.starts_with("tc on "), "{state}");
        assert!(state.contains(front) && state.contains(back), "{state}");
        assert!(state.contains("veth and carries super-packets"), "{state}");
        // Which interfaces, and why these, is in the log.
        switch.wait_for_log(&format!("interface {back}: on the route to 10.2.0.1"));
        switch.wait_for_log(&format!("interface {front}: on the route to 10.1.0.3"));
        serves(lab);
        assert!(switch.count("fast_packets") > 5);
    });
}

#[test]
fn another_xdp_program_is_named_and_not_replaced() {
    on_the_fast_path(|lab| {
        let _server = server(lab);
        let front = &lab.front.b;
        let stranger = lab.switch.enter(|| PassProgram::attach(front)).unwrap();
        let stranger = stranger.unwrap();
        for mode in ["xdp-generic", "xdp"] {
            let mut refused = Switch::launch(lab, &config(mode, &[]));
            assert_eq!(refused.wait_for_end(), Some(3));
            for said in ["another XDP program", "fairlead_pass", "by user 0"] {
                refused.wait_for_log(said);
            }
            let told = programs_by_doctor(lab, mode);
            let (state, what, advice) = &told[front];
            assert_eq!(state, "problem", "{what}");
            assert!(what.contains("generic XDP program") && what.contains("(fairlead_pass)"));
            assert!(advice.contains("bpftool prog show id"), "{advice}");
            assert_eq!(told[&lab.back.a].0, "ok", "{told:?}");
        }
        assert_eq!(programs_by_doctor(lab, "auto")[front].0, "warning");
        let output = lab
            .switch
            .command("ip")
            .args(["link", "show", front])
            .output();
        let shown = String::from_utf8(output.unwrap().stdout).unwrap();
        assert!(shown.contains("xdpgeneric"), "it is where it was: {shown}");
        // At tc it is in nobody's way.
        let switch = Switch::start_with(lab, &config("auto", &[]));
        serves(lab);
        assert!(fast_path(&switch).starts_with("tc on "));
        drop(stranger);
        assert_eq!(programs_by_doctor(lab, "xdp")[front].0, "ok");
    });
}

/// XDP in the driver runs at a bond's members, whose frames nobody has told the program of.
#[test]
fn a_bond_is_served_at_tc() {
    let name = "modes::a_bond_is_served_at_tc";
    on_the_fast_path(|lab| {
        let made = lab
            .switch
            .ip("link add bond9 type bond mode active-backup miimon 100\n");
        if made.is_err() {
            return skip(name, "this kernel has no bonds");
        }
        let _server = server(lab);
        let (front, back) = (&*lab.front.b, &*lab.back.a);
        for (host, device) in [
            (&lab.client, &*lab.front.a),
            (&lab.servers, &*lab.back.b),
            (&lab.switch, front),
            (&lab.switch, back),
        ] {
            offloads(host, device, "off", "on").unwrap();
        }
        let bundle = format!(
            "addr flush dev {front}\nlink set {front} down\nlink set {front} master bond9\n\
             link set bond9 up\naddr add 10.1.0.2/24 dev bond9\n"
        );
        lab.switch.ip(&bundle).unwrap();
        for mode in ["auto", "xdp-generic"] {
            let switch = Switch::start_with(lab, &config(mode, &["bond9", back]));
            let state = fast_path(&switch);
            if mode == "auto" {
                assert!(state.starts_with("tc on bond9"), "{state}");
                assert!(state.contains("bond9 is a bond"), "{state}");
            }
            serves(lab);
            assert!(switch.count("fast_packets") > 5, "{state}");
        }
        // Where XDP is insisted on, the log tells what that means, or the members refuse it.
        let mut switch = Switch::launch(lab, &config("xdp", &["bond9", back]));
        switch.wait_for_log("bond9");
        if switch.is_alive() {
            switch.wait_for_log("bond9 is a bond");
            serves(lab);
        }
    });
}

/// What `fairlead doctor` says of XDP programs: state, finding and advice by interface.
fn programs_by_doctor(lab: &Lab, mode: &str) -> BTreeMap<String, (String, String, String)> {
    let path = lab.file("doctor.toml", config(mode, &[]));
    let mut command = lab.switch.command(&binary().to_string_lossy());
    let output = command.args(["doctor", "--json", "--config"]).arg(path);
    let document: Value = serde_json::from_slice(&output.output().unwrap().stdout).unwrap();
    let text = |check: &Value, key: &str| check[key].as_str().unwrap_or("").to_owned();
    let checks = document["checks"].as_array().unwrap().iter();
    let programs = checks.filter(|check| check["name"] == "xdp-program");
    let told = programs.map(|check| {
        let about = text(check, "about").replace("interface ", "");
        let [state, what, advice] = ["state", "what", "advice"].map(|key| text(check, key));
        (about, (state, what, advice))
    });
    told.collect()
}

#[test]
fn a_driver_without_xdp_is_said_to_have_none() {
    on_the_fast_path(|lab| {
        let _server = server(lab);
        let interfaces = [&*lab.front.b, &*lab.back.a, "lo"];
        let mut refused = Switch::launch(lab, &config("xdp", &interfaces));
        assert_eq!(refused.wait_for_end(), Some(3));
        for said in [
            "lo: xdp refused",
            "os error 95",
            "its driver does not support native XDP",
        ] {
            refused.wait_for_log(said);
        }
        // What was attached before it is not left behind.
        let switch = Switch::start_with(lab, &config("xdp-generic", &interfaces[..2]));
        serves(lab);
        assert!(fast_path(&switch).starts_with("xdp-generic on "));
    });
}

/// XDP is not told which checksums are open, and cannot send super-packets or into a veth that is
/// not ready for it: such packets are the engine's, and none is lost.
#[test]
fn what_xdp_cannot_carry_goes_by_the_engine() {
    let name = "modes::what_xdp_cannot_carry_goes_by_the_engine";
    on_the_fast_path(|lab| {
        let _server = server(lab);
        let (far, near) = (
            [(&lab.client, &lab.front.a), (&lab.servers, &lab.back.b)],
            [(&lab.switch, &lab.front.b), (&lab.switch, &lab.back.a)],
        );
        for mode in ["xdp", "xdp-generic"] {
            // As the kernel makes them.
            for (host, device) in far.into_iter().chain(near) {
                offloads(host, device, "on", "off").unwrap();
            }
            let switch = Switch::start_with(lab, &config(mode, &[]));
            let closed = format!("transmitted by the engine on {}, {}", near[0].1, near[1].1);
            assert_eq!(
                fast_path(&switch).contains(&closed),
                mode == "xdp",
                "{}",
                fast_path(&switch)
            );
            // If XDP is configured there, the log recommends a better mode.
            let better =
                "carries super-packets, which are left to the engine; mode = \"tc\" forwards them";
            assert!(
                fast_path(&switch).contains(better),
                "{}",
                fast_path(&switch)
            );
            switch.wait_for_log("carries super-packets, which are left to the engine");
            serves_both_ways(lab);
            for (host, device) in far {
                offloads(host, device, "on", "on").unwrap();
            }
            if mode == "xdp" && !links_take_xdp() {
                skip(name, "before Linux 6.3 no veth is believed to take packets");
                serves_both_ways(lab);
                assert!(fast_path(&switch).contains(&closed));
                continue;
            }
            wait_for(&switch, |state| {
                !state.contains("transmitted by the engine on")
            });
            serves_both_ways(lab);
            // As on a wire: from here on the kernel does it.
            for (host, device) in far {
                offloads(host, device, "off", "on").unwrap();
            }
            for (host, device) in near {
                offloads(host, device, "off", "off").unwrap();
            }
            let before = switch.count("fast_packets");
            serves_both_ways(lab);
            switch.wait_for_count("live", 0);
            switch.wait_for_quiet();
            let sent = switch.count("fast_packets") - before;
            assert!(sent > 1_000, "{sent} packets");
        }
    });
}

/// A megabyte up and one down.
fn serves_both_ways(lab: &Lab) {
    let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
    let len = 1 << 20;
    let head = "PUT /up HTTP/1.1\r\nHost: a.example\r\n";
    let head = format!("{head}Content-Length: {len}\r\n\r\n");
    connection.send(head).unwrap();
    connection.send_stream(9, 0, len).unwrap();
    let put = connection.response(false).unwrap();
    assert_eq!(put.text(), show(&Digest::of_stream(9, len)));
    let got = connection.ask("GET", "a.example", "/bytes/1048576");
    assert_eq!(got.unwrap().digest, Digest::of_stream(len, len));
}

/// Reads a request with five bytes of content, when they have lain there for a while, and sends
/// these back.
fn late_reader(mut stream: TcpStream) -> std::io::Result<()> {
    std::thread::sleep(Duration::from_millis(20));
    let mut request = Vec::new();
    let mut buffer = [0; 4_096];
    let content = loop {
        let count = stream.read(&mut buffer)?;
        request.extend_from_slice(&buffer[..count]);
        let head = request.windows(4).position(|four| four == b"\r\n\r\n");
        match head {
            Some(end) if request.len() >= end + 9 => break request.split_off(end + 4),
            _ if count == 0 => return Ok(()),
            _ => {}
        }
    };
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")?;
    stream.write_all(&content)
}

/// A server's stack joins what it receives, also with a packet that the program made of the
/// server's own SYN-ACK.
#[test]
fn what_follows_the_head_arrives_as_it_was() {
    on_the_fast_path(|lab| {
        let _server = Origin::start(lab, Family::V4.server_at(1, 8080), late_reader);
        let (front, back) = (&lab.front, &lab.back);
        for (far, near) in [
            ((&lab.client, &front.a), (&lab.switch, &front.b)),
            ((&lab.servers, &back.b), (&lab.switch, &back.a)),
        ] {
            offloads(far.0, far.1, "off", "on").unwrap();
            offloads(near.0, near.1, "off", "off").unwrap();
        }
        for mode in ["tc", "xdp", "xdp-generic"] {
            let mode = format!("mode = '{mode}'");
            let switch =
                Switch::start_with(lab, &config("tc", &[]).replace("mode = \"tc\"", &mode));
            for _ in 0..10 {
                let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
                let head = "PUT / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\n\r\n";
                connection.send(head).unwrap();
                // Not before the two connections are joined: in a segment of its own.
                std::thread::sleep(Duration::from_millis(4));
                connection.send("bytes").unwrap();
                assert_eq!(
                    connection.response(false).unwrap().text(),
                    "bytes",
                    "{mode}"
                );
            }
            drop(switch);
        }
    });
}

#[test]
fn an_interface_that_goes_is_named_and_one_that_comes_back_is_used() {
    on_the_fast_path(|lab| {
        let _server = server(lab);
        let add = "link add extra0 type veth peer name extra1\nlink set extra0 up\n";
        lab.switch.ip(add).unwrap();
        let interfaces = [&*lab.front.b, &*lab.back.a, "extra0"];
        let switch = Switch::start_with(lab, &config("tc", &interfaces));
        assert!(fast_path(&switch).contains("extra0"));
        for _ in 0..3 {
            lab.switch.ip("link del extra0\n").unwrap();
            wait_for(&switch, |state| state.contains("lost: extra0"));
            switch.wait_for_log("interface extra0 is gone");
            let told = switch.status();
            assert_eq!(told["way"], "tc");
            let extra =
                (told["interfaces"].as_array().unwrap().iter()).find(|one| one["name"] == "extra0");
            assert_eq!(extra.unwrap()["served"], false, "{told}");
            serves(lab);
            lab.switch.ip(add).unwrap();
            wait_for(&switch, |state| {
                !state.contains("lost") && state.contains("extra0")
            });
            serves(lab);
        }
        let mut filters = lab.switch.command("sh");
        let output = filters.args(["-c", "ls /sys/fs/bpf/fairlead/e2e"]).output();
        let pins = String::from_utf8(output.unwrap().stdout).unwrap();
        // One for each that there is: those of the interfaces that went have gone with them. Where
        // tc knows no links (before Linux 6.6), they are notes of filters.
        let links = pins.matches("link-tc-").count() + pins.matches("filter-").count();
        assert_eq!(links, 3, "{pins}");
    });
}

/// Under the same name there may be another interface a moment later, which cannot be served.
#[test]
fn an_interface_that_comes_back_and_cannot_be_served_is_lost_and_the_log_says_why() {
    on_the_fast_path(|lab| {
        let _server = server(lab);
        let add = "link add extra0 type veth peer name extra1\nlink set extra0 up\n";
        lab.switch.ip(add).unwrap();
        let interfaces = [&*lab.front.b, &*lab.back.a, "extra0"];
        let switch = Switch::start_with(lab, &config("xdp", &interfaces));
        assert!(!fast_path(&switch).contains("lost"));
        let bridge = "link del extra0\nlink add extra0 type bridge\nlink set extra0 up\n";
        if lab.switch.ip(bridge).is_err() {
            let name = "modes::an_interface_that_comes_back_and_cannot_be_served";
            return skip(name, "this kernel has no bridges");
        }
        wait_for(&switch, |state| state.contains("lost: extra0"));
        switch.wait_for_log("interface extra0 is back, but cannot be served: extra0: xdp refused");
        lab.switch.ip(&format!("link del extra0\n{add}")).unwrap();
        wait_for(&switch, |state| !state.contains("lost"));
        serves(lab);
    });
}

#[test]
fn without_rights_it_names_them_and_runs_on_the_engine() {
    on_the_fast_path(|lab| {
        let _server = server(lab);
        let mut command = lab.switch.command("setpriv");
        command.arg("--bounding-set=-sys_admin,-bpf").arg(binary());
        let switch = Switch::run(lab, &config("auto", &[]), command, &[]).ready();
        let state = fast_path(&switch);
        assert!(state.starts_with("engine"), "{state}");
        assert!(state.contains("CAP_BPF"), "{state}");
        assert_eq!(switch.status()["way"], "engine");
        serves(lab);
        drop(switch);
        let mut command = lab.switch.command("setpriv");
        command.arg("--bounding-set=-sys_admin,-bpf").arg(binary());
        let mut refused = Switch::run(lab, &config("tc", &[]), command, &[]);
        assert_eq!(refused.wait_for_end(), Some(3));
        refused.wait_for_log("CAP_BPF");
    });
}
